"""What a deployment offers to requests of one size."""

from __future__ import annotations

import pytest
from fleets import SOURCE, profile

from agentroute.capacity.holding import Holding
from agentroute.capacity.kv import Unknown
from agentroute.catalogue import shipped
from agentroute.fleet import Deployment
from agentroute.latency.rates import times
from agentroute.latency.roofline import Roofline
from agentroute.outlook import outlook, stand
from agentroute.profile import Engine, EngineName, KvPool, KvType, Limits, Precision, Profile, WeightsType
from agentroute.shape.sharding import Sharding


def unmeasured(
    model: str = "llama-3.1-70b",
    *,
    weights: WeightsType | None = "fp8",
    kv: KvType | None = "fp8",
    engine: EngineName = "vllm",
    limits: Limits | None = None,
    sharding: Sharding | None = None,
) -> Deployment:
    made = Profile(
        format=1,
        name="mine",
        model=model,
        accelerator="h200_sxm",
        engine=Engine(name=engine),
        precision=Precision(weights=weights, kv=kv),
        sharding=sharding or Sharding(tp=4),
        limits=limits,
    )
    return shipped().deployment(made)


def test_a_reported_pool_comes_before_a_derived_one() -> None:
    limits = Limits(
        max_num_seqs=100, kv_pool=KvPool(tokens=160_016, block_tokens=16), provenance=SOURCE.model_copy(
            update={"origin": "reported"}
        )
    )  # fmt: skip
    known = outlook(unmeasured(limits=limits), 15_000, 1_000)
    assert known.n_max is not None
    assert (known.n_max.low, known.n_max.mean, known.n_max.high, known.n_max.source) == (10, 10, 10, "reported")
    derived = outlook(unmeasured(), 15_000, 1_000).n_max
    assert derived is not None
    assert derived.low < derived.high
    assert derived.source == "derived"


def test_without_a_kv_type_the_engines_default_is_assumed() -> None:
    default, told = (outlook(unmeasured(kv=kv), 15_000, 1_000).n_max for kv in (None, "bf16"))
    assert default is not None
    assert told is not None
    assert default.mean == told.mean
    assert (default.source, told.source) == ("assumed", "derived")


def test_without_measurements_times_are_the_rooflines_and_say_so() -> None:
    offer = outlook(unmeasured(), 8_000, 1_000)
    for estimate in (offer.ttft_alone_ms, offer.ttft_full_ms, offer.cost_usd):
        assert estimate is not None
        assert estimate.extrapolated
    assert offer.ttft_alone_ms.source == offer.ttft_full_ms.source == "derived"  # type: ignore[union-attr]
    assert offer.cost_usd.source == "assumed", "as the price is"  # type: ignore[union-attr]
    assert offer.workload.n == int(offer.n_max.mean)  # type: ignore[union-attr]


def test_measured_times_come_before_the_rooflines() -> None:
    deployment = shipped().deployment(shipped().profile("llama-3.1-70b/vllm-h100-tp4"))
    offer = outlook(deployment, 8_000, 1_000)
    assert offer.ttft_alone_ms is not None
    assert offer.ttft_full_ms is not None
    assert offer.ttft_alone_ms.source == offer.ttft_full_ms.source == "measured"
    assert offer.ttft_alone_ms.mean < offer.ttft_full_ms.mean


def test_of_a_deployment_that_nothing_is_known_about_nothing_is_claimed() -> None:
    offer = outlook(Deployment("d", profile(points=())), 8_000, 1_000)
    assert offer.n_max is offer.ttft_alone_ms is offer.ttft_full_ms is offer.cost_usd is None
    assert "does not say its model" in offer.ceilings.unknown["kv_capacity"]


def test_a_context_beyond_the_window_has_no_price_and_no_time() -> None:
    offer = outlook(unmeasured(), 131_072, 1_000)
    assert offer.n_max is not None
    assert offer.n_max.mean == 0
    assert offer.ttft_alone_ms is offer.cost_usd is None
    assert offer.ceilings.binding is not None
    assert offer.ceilings.binding.kind == "window"


def test_disaggregated_capacity_is_that_of_all_decode_workers() -> None:
    deployment = shipped().deployment(shipped().profile("deepseek-v3/sglang-h200-disagg"))
    where = stand(deployment)
    assert isinstance(where.holding, Holding)
    assert where.holding.replicas == deployment.profile.kv_memories
    assert isinstance(where.roofline, Unknown)


@pytest.mark.parametrize(
    ("word", "model", "per_cent"),
    [("bf16", "llama-3.1-70b", 100), ("fp8", "llama-3.1-70b", 50), ("nvfp4", "llama-3.1-70b", 31),
     ("awq", "llama-3.1-70b", 29), ("gptq", "llama-3.1-70b", 29), ("int8", "llama-3.1-70b", 50)],
)  # fmt: skip
def test_a_profiles_word_for_its_weights_is_understood(word: WeightsType, model: str, per_cent: int) -> None:
    whole, kept = (stand(unmeasured(model, weights=weights)).holding for weights in ("bf16", word))
    assert isinstance(whole, Holding)
    assert isinstance(kept, Holding)
    assert kept.weights_gib == pytest.approx((whole.weights_gib or 0) * per_cent / 100, rel=0.07)


@pytest.mark.parametrize(
    ("deployment", "reason"),
    [
        (unmeasured(weights="gguf"), "how its weights are kept"),
        (unmeasured(weights=None), "how its weights are kept"),
        (unmeasured(kv="nvfp4"), "KV type 'nvfp4'"),
        (unmeasured(engine="other"), "engine 'other'"),
    ],
)
def test_what_no_rule_covers_is_named(deployment: Deployment, reason: str) -> None:
    found = stand(deployment)
    assert isinstance(found.holding, Unknown)
    assert reason in found.holding.reason


def test_every_shipped_profile_has_an_outlook_or_says_what_it_lacks() -> None:
    for name in shipped().profile_names:
        deployment = shipped().deployment(shipped().profile(name))
        for context in (8_000, 32_000, 128_000):
            offer = outlook(deployment, context, 1_000)
            if deployment.profile.precision.weights is None:
                assert offer.n_max is None, name
                assert offer.ceilings.unknown["kv_capacity"] == "the profile does not say how its weights are kept"
                continue
            if deployment.profile.engine.name == "trtllm" and deployment.profile.model == "gpt-oss-120b":
                assert offer.n_max is None, name
                assert "of several sizes are not known here" in offer.ceilings.unknown["kv_capacity"]
                continue
            assert offer.n_max is not None, name
            assert offer.ceilings.binding is not None, name
            assert (offer.ttft_full_ms is not None) == (offer.n_max.mean >= 1), name


def test_what_a_request_costs_is_its_share_of_all_accelerators() -> None:
    deployment = unmeasured()
    offer = outlook(deployment, 8_000, 1_000)
    roofline = stand(deployment).roofline
    assert isinstance(roofline, Roofline)
    tpot_s = sum(part.total_s for part in times(roofline, offer.workload, "TPOT")(offer.workload.n))
    hourly = deployment.usd_per_accelerator_hour or 0.0
    assert offer.cost_usd is not None
    # Its own prompt comes on top, and the curve stands on the roofline's values at some loads only.
    assert offer.cost_usd.mean == pytest.approx(4 * hourly / 3_600 * tpot_s * 1_000 / offer.workload.n, rel=0.15)


@pytest.mark.parametrize(("version", "fit"), [("0.11.0", 33.42), ("0.21.0", 3.44), (None, 3.44)])
def test_tokens_that_vllm_prints_of_a_mixed_model_do_not_add(version: str | None, fit: float) -> None:
    """gpt-oss-120b printed 451,040 tokens and 33.42 requests of 131,072: blocks of one of its groups."""
    limits = Limits(max_model_len=131_072, max_num_batched_tokens=2_048,
                    kv_pool=KvPool(tokens=451_040, block_tokens=16), provenance=SOURCE)  # fmt: skip
    deployment = unmeasured("gemma-4-26b-a4b", limits=limits, sharding=Sharding())
    made = deployment.profile.model_copy(update={"engine": Engine(name="vllm", version=version)})
    found = outlook(shipped().deployment(made), 130_072, 1_000).n_max
    assert found is not None
    assert found.low == int(fit)
