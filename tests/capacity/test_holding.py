"""What a deployment holds: the claims that the product rests on, and every engine, split and model at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from agentroute.capacity.holding import Holding, Serving, hold
from agentroute.capacity.kv import Unknown
from agentroute.capacity.memory import ENGINES, Engine
from agentroute.capacity.weights import Parts
from agentroute.catalogue import shipped
from agentroute.ceilings import Stand, ceilings
from agentroute.errors import UnknownNameError, UsageError
from agentroute.latency.rates import Workload
from agentroute.shape.model import Gqa
from agentroute.shape.sharding import Sharding

H200 = shipped().accelerator("h200_sxm")
FP8 = Serving(weights="fp8")


def stand(model: str, sharding: Sharding) -> Stand:
    shape = shipped().model(model)
    return Stand(shape, H200, sharding, hold(shape, H200, sharding, FP8), Unknown("not asked"))


def held(model: str, sharding: Sharding, serving: Serving = FP8) -> Holding:
    found = hold(shipped().model(model), H200, sharding, serving)
    assert not isinstance(found, Unknown), found.reason
    return found


@pytest.mark.parametrize("model", ["qwen3-235b-a22b", "deepseek-v3"])
@pytest.mark.parametrize(
    "split",
    [Sharding(tp=8), Sharding(pp=8), Sharding(tp=8, ep=8), Sharding(attention_dp=8, ep=8)],
    ids=str,
)
def test_every_split_relieves_weights(model: str, split: Sharding) -> None:
    weights = held(model, split).weights_gib
    whole = held(model, Sharding()).weights_gib
    assert weights is not None
    assert whole is not None
    # Attention replicas keep their own attention; the end stages of a pipeline keep the embeddings besides.
    assert whole / 8 <= weights < whole / 5


def test_a_layer_split_does_not_relieve_the_kv_cache_as_a_whole() -> None:
    """All stages together keep what one accelerator would; a tensor split does so until its ranks outnumber heads."""
    one = Serving(weights="fp8", kv_gib=40.0)
    alone, stages, ranks = (held("llama-3.1-70b", s, one) for s in (Sharding(), Sharding(pp=8), Sharding(tp=8)))
    assert stages.sequences(32_000).mean == pytest.approx(8 * alone.sequences(32_000).mean, rel=0.1)
    assert ranks.sequences(32_000).mean == pytest.approx(stages.sequences(32_000).mean, rel=0.02)
    # 16 ranks over 8 heads: each head twice, and not one more request.
    assert held("llama-3.1-70b", Sharding(tp=16), one).sequences(32_000).mean == ranks.sequences(32_000).mean


def test_latent_attention_is_not_divided_by_tp() -> None:
    given = Serving(weights="fp8", kv_gib=40.0)
    per_tp = [held("deepseek-v3", Sharding(tp=tp), given).sequences(32_000).mean for tp in (1, 2, 4, 8)]
    assert per_tp == [per_tp[0]] * 4
    # Attention replicas do: each rank keeps its own requests.
    assert held("deepseek-v3", Sharding(attention_dp=8, ep=8), given).sequences(32_000).mean == 8 * per_tp[0]


def test_an_expert_split_changes_no_kv() -> None:
    given = Serving(weights="fp8", kv_gib=40.0)
    assert held("qwen3-235b-a22b", Sharding(tp=8), given) == held("qwen3-235b-a22b", Sharding(tp=8, ep=8), given)


@pytest.mark.parametrize("model", ["gpt-oss-120b", "gemma-3-27b"])
def test_batches_in_flight_eat_the_pool(model: str) -> None:
    """Every stage of a pipeline has a batch in flight, and windowed layers keep its tokens beside their window."""

    def fit(pp: int, version: tuple[int, int] | None) -> float:
        serving = Serving(weights="bf16", kv_gib=40.0, engine_version=version)
        return held(model, Sharding(pp=pp), serving).sequences(64_000).mean

    # As long as one batch was counted, eight stages held several times as much as one.
    assert fit(8, (0, 19)) > 4 * fit(1, (0, 19))
    assert fit(8, None) < 0.6 * fit(8, (0, 19))
    assert fit(1, None) < fit(1, (0, 19))


def test_filling_a_pipeline_takes_a_batch_for_every_stage() -> None:
    """With room for 15 requests, eight stages have one each in flight and seven of them a second."""
    pool = held("llama-3.1-70b", Sharding(pp=8), Serving(weights="fp8", kv_gib=20.0)).sequences(32_000).mean
    load = Workload(32_000, 1, int(pool))
    found = ceilings(stand("llama-3.1-70b", Sharding(pp=8)), load)
    assert not [one for one in found.cautions if one.kind == "pipeline_idles"]
    idle = ceilings(stand("llama-3.1-70b", Sharding(pp=8)), replace(load, n=3)).cautions
    assert [str(one) for one in idle] == ["3 in flight: 5 of 8 stages idle"]


def test_larger_steps_leave_less_and_small_accelerators_take_smaller_ones() -> None:
    model = shipped().model("gemma-3-27b")
    for card, default in (("l40s", 2_048), ("h100_sxm", 8_192)):
        found = [
            hold(model, shipped().accelerator(card), Sharding(tp=4), Serving(batched_tokens=tokens))
            for tokens in (None, default, 32_768)
        ]
        fits = [one.sequences(32_000).mean for one in found if isinstance(one, Holding)]
        assert fits[0] == fits[1] > fits[2]


def test_sglang_spreads_dense_parts_over_attention_replicas() -> None:
    split = Sharding(attention_dp=8, ep=8)
    weights = [held("deepseek-v3", split, Serving(engine, weights="fp8")).weights_gib for engine in ("vllm", "sglang")]
    # Shared experts and the first three layers' MLPs: about 3.8 G elements, on every rank or an eighth on each.
    assert (weights[0] or 0) - (weights[1] or 0) == pytest.approx(3.8e9 * 7 / 8 / 2**30, rel=0.1)


def test_what_converting_fp8_experts_leaves_on_mi300_counts() -> None:
    split, model = Sharding(tp=4), shipped().model("llama-4-maverick")
    found = [hold(model, shipped().accelerator(card), split, FP8) for card in ("mi300x", "mi355x")]
    there, elsewhere = (one.weights_gib or 0.0 for one in found if isinstance(one, Holding))
    assert there - elsewhere == pytest.approx(2.5, rel=0.01)


def test_sglang_prints_kv_without_states() -> None:
    """27 of the 64 layers' KV as Qwen3.5 27B keeps it: 65,536 B a token."""
    given = held("qwen3.5-27b", Sharding(), Serving("sglang", weights="fp8", kv_gib=20.0))
    assert given.pools[1].longest_tokens() == 20 * 2**30 // 65_536


@pytest.mark.parametrize("model", ["gemma-3-27b", "gemma-2-27b", "mistral-7b"])
def test_sglang_gives_windowed_layers_that_it_does_not_know_as_hybrid_their_full_length(model: str) -> None:
    given = held(model, Sharding(), Serving("sglang", weights="fp8", kv_gib=20.0))
    rows = sum(
        group.count * group.attention.kv_heads * 2 * group.attention.head_dim * 2
        for group in shipped().model(model).layers
        if isinstance(group.attention, Gqa)
    )
    assert given.pools[1].longest_tokens() == 20 * 2**30 // rows


@pytest.mark.parametrize(
    ("model", "split", "serving", "reason"),
    [
        ("llama-3.1-70b", Sharding(tp=3), FP8, "tp 3 does not divide 64 attention heads"),
        ("qwen2.5-14b", Sharding(tp=5), FP8, "tp 5 neither divides 8 KV heads nor is a multiple of them"),
        ("llama-3.1-70b", Sharding(pp=200), FP8, "pp 200 has more stages than the model's 80 layers"),
        ("llama-3.1-70b", Sharding(), Serving(kv_type="q4_0"), "vllm has no KV cache of type q4_0"),
    ],
)
def test_what_the_engine_would_refuse_has_no_number(model: str, split: Sharding, serving: Serving, reason: str) -> None:
    found = hold(shipped().model(model), H200, split, serving)
    assert isinstance(found, Unknown)
    assert found.reason == reason


@pytest.mark.parametrize("kv_gib", [-1.0, 0.0, 141.0, float("inf"), float("nan")])
def test_kv_memory_that_an_accelerator_does_not_have_is_refused(kv_gib: float) -> None:
    with pytest.raises(UsageError, match="KV memory must be above 0 and at most the 140"):
        hold(shipped().model("llama-3.1-8b"), H200, Sharding(), Serving(kv_gib=kv_gib))


def test_a_measured_memory_has_no_band_and_says_so() -> None:
    known, derived = held("llama-3.1-8b", Sharding(), Serving(kv_gib=50.0)), held("llama-3.1-8b", Sharding())
    assert known.sequences(8_000).low == known.sequences(8_000).high
    assert known.sequences(8_000).source == "reported"
    assert derived.sequences(8_000).low < derived.sequences(8_000).high
    assert derived.sequences(8_000).source == "derived"


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_do_not_fit_leave_no_room(engine: Engine) -> None:
    found = hold(shipped().model("llama-3.1-70b"), shipped().accelerator("l4"), Sharding(), Serving(engine))
    assert isinstance(found, Holding)
    assert found.weights_gib is not None
    assert found.usable_gib is not None
    assert found.weights_gib > found.usable_gib
    assert found.sequences(1_000).high == 0
    assert found.longest_tokens().high == 0


@pytest.mark.parametrize(("engine", "least"), [("vllm", 620), ("sglang", 560), ("trtllm", 400), ("llamacpp", 230)])
def test_every_shipped_model_accelerator_and_split_has_an_answer(engine: Engine, least: int) -> None:
    numbers = 0
    splits = [Sharding(), Sharding(tp=8), Sharding(pp=4), Sharding(tp=2, pp=2), Sharding(attention_dp=4, ep=4)]
    for model in shipped().model_names:
        for accelerator in ("l4", "gb200"):
            for split in splits:
                if engine == "llamacpp" and split.accelerators > split.pp:
                    continue
                shape, card = shipped().model(model), shipped().accelerator(accelerator)
                found = hold(shape, card, split, Serving(engine, weights="fp8"))
                if isinstance(found, Unknown):
                    assert found.reason, (model, split)
                    continue
                numbers += 1
                fits = [found.sequences(tokens) for tokens in (1_000, 32_000, 128_000)]
                assert fits[0].mean >= fits[1].mean >= fits[2].mean, (model, accelerator, split)
                assert all(0 <= fit.low <= fit.mean <= fit.high for fit in fits), (model, accelerator, split)
    assert numbers >= least


def test_a_wrong_quantisation_is_named() -> None:
    with pytest.raises(UnknownNameError, match="there is no quantisation 'fp9'; did you mean 'fp8'"):
        hold(shipped().model("llama-3.1-8b"), H200, Sharding(), Serving(weights="fp9"))


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3.2", "gemma-3n-e4b", "qwen3-next-80b-a3b"])
def test_a_model_that_was_taken_apart_once_answers_for_every_way_of_serving_it(model: str) -> None:
    shape = shipped().model(model)
    parts = Parts.of(shape)
    for engine, weights, tp, pp in product(ENGINES, ("fp8", "bf16", "int4"), (1, 2, 8), (1, 3)):
        serving = Serving(engine, weights=weights, kv_type="bf16" if tp == 1 else "fp8", draft=pp > 1)
        sharding = Sharding(tp=tp, pp=pp)
        assert hold(shape, H200, sharding, serving, parts=parts) == hold(shape, H200, sharding, serving)
