"""What a deployment holds: the claims that the product rests on, and every engine, split and model at once."""

from __future__ import annotations

import pytest

from agentroute.capacity.holding import Holding, Serving, hold
from agentroute.capacity.kv import Unknown
from agentroute.capacity.memory import ENGINES, Engine
from agentroute.catalogue import shipped
from agentroute.errors import UnknownNameError
from agentroute.shape.sharding import Sharding

H200 = shipped().accelerator("h200_sxm")
FP8 = Serving(weights="fp8")


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


def test_batches_in_flight_share_one_pool() -> None:
    """A pipeline holds no more requests than its pool does: filled, each stage's batch is a pp-th of them."""
    given = Serving(weights="fp8", kv_gib=10.0)
    pool = held("llama-3.1-70b", Sharding(pp=8), given).sequences(32_000).mean
    batches = [pool // pp for pp in (2, 4, 8)]
    assert batches == sorted(batches, reverse=True)
    assert pool // 8 * 8 * held("llama-3.1-70b", Sharding(pp=8), given).units(32_000) <= pool * (
        held("llama-3.1-70b", Sharding(pp=8), given).units(32_000)
    )


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


@pytest.mark.parametrize("engine", ENGINES)
def test_every_shipped_model_accelerator_and_split_has_an_answer(engine: Engine) -> None:
    splits = [Sharding(), Sharding(tp=8), Sharding(pp=4), Sharding(tp=2, pp=2), Sharding(attention_dp=4, ep=4)]
    for model in shipped().model_names:
        for accelerator in ("l4", "gb200"):
            for split in splits:
                if engine == "llamacpp" and split.accelerators > split.pp:
                    continue
                shape, card = shipped().model(model), shipped().accelerator(accelerator)
                found = hold(shape, card, split, Serving(engine, "fp8"))
                if isinstance(found, Unknown):
                    assert found.reason, (model, split)
                    continue
                fits = [found.sequences(tokens) for tokens in (1_000, 32_000, 128_000)]
                assert fits[0].mean >= fits[1].mean >= fits[2].mean, (model, accelerator, split)
                assert all(0 <= fit.low <= fit.mean <= fit.high for fit in fits), (model, accelerator, split)


def test_a_wrong_quantisation_is_named() -> None:
    with pytest.raises(UnknownNameError, match="there is no quantisation 'fp9'; did you mean 'fp8'"):
        hold(shipped().model("llama-3.1-8b"), H200, Sharding(), Serving(weights="fp9"))
