"""Which ceiling binds, by how much, and which comes next."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.capacity.holding import Holding, Serving, hold
from agentroute.capacity.kv import Unknown
from agentroute.capacity.pool import Pool
from agentroute.catalogue import shipped
from agentroute.ceilings import Ceilings, Stand, binding, ceilings
from agentroute.latency.rates import Workload
from agentroute.latency.roofline import Roofline
from agentroute.shape.sharding import Sharding

WHOLE_DOMAIN = Sharding(attention_dp=16, ep=16)


def stand(
    model: str,
    accelerator: str,
    sharding: Sharding,
    serving: Serving | None = None,
    *,
    slots: int | None = None,
    window_tokens: int | None = None,
) -> Stand:
    serving = serving or Serving(weights="fp8")
    shape, card = shipped().model(model), shipped().accelerator(accelerator)
    speed = Roofline.of(shape, card, sharding, quantisation=serving.quantisation(shape), kv_type=serving.kv_type)
    return Stand(shape, card, sharding, hold(shape, card, sharding, serving), speed, slots, window_tokens)


def kinds(found: Ceilings) -> list[str]:
    return [ceiling.kind for ceiling in found.all]


def cautions(found: Ceilings) -> set[str]:
    return {caution.kind for caution in found.cautions}


def test_experts_over_two_boxes_are_bound_by_the_interconnect_and_over_one_rack_are_not() -> None:
    load = Workload(2_000, 1_000, 256, tpot_ms=50.0)
    boxes = ceilings(stand("deepseek-v3", "h200_sxm", WHOLE_DOMAIN), load)
    rack = ceilings(stand("deepseek-v3", "gb200", WHOLE_DOMAIN), load)
    assert boxes.binding is not None
    assert rack.binding is not None
    assert boxes.binding.kind == "all_to_all"
    assert "experts_cross" in cautions(boxes)
    assert rack.binding.kind != "all_to_all"
    assert cautions(rack) == set()
    # It is the links across, not the number of experts: the same load inside one domain goes three times as far.
    inside = rack.of("all_to_all")
    assert inside is not None
    assert inside.n_c.mean > 3 * boxes.binding.n_c.mean


def test_a_long_context_is_bound_by_kv_capacity_and_says_how_many_fit() -> None:
    found = ceilings(
        stand("llama-3.1-70b", "h200_sxm", Sharding(tp=2), Serving(weights="fp8")), Workload(100_000, 1, 4)
    )
    held = found.of("kv_capacity")
    assert held is not None
    assert held.n_c.low <= held.n_c.mean <= held.n_c.high
    assert held.margin == held.n_c.mean / 4 - 1
    assert held.demand / held.limit == pytest.approx(4 / held.n_c.mean, rel=0.3)
    assert found.n_max == held.n_c


def test_weights_that_do_not_fit_bind_before_all_else() -> None:
    found = ceilings(stand("deepseek-v3", "h200_sxm", Sharding(tp=4)), Workload(8_000, 100, 1))
    assert kinds(found)[:2] == ["weights", "kv_capacity"]
    assert found.binding is not None
    assert found.binding.n_c.mean == 0
    assert found.binding.margin == -1


def test_a_request_beyond_the_window_fits_at_no_concurrency() -> None:
    where = stand("llama-3.1-8b", "h200_sxm", Sharding(), window_tokens=8_192)
    assert kinds(ceilings(where, Workload(8_192, 1, 1)))[0] == "window"
    kept = ceilings(where, Workload(8_191, 1, 1)).of("window")
    assert kept is not None
    assert kept.n_c.mean == math.inf


def test_slots_are_those_of_every_attention_replica() -> None:
    found = ceilings(stand("deepseek-v3", "h200_sxm", WHOLE_DOMAIN, slots=8), Workload(1_000, 100, 1))
    assert found.of("slots") is not None
    assert found.of("slots").n_c.mean == 8 * 16  # type: ignore[union-attr]
    assert found.binding == found.of("slots")


def test_the_tight_domain_holds_the_weights_of_all_its_accelerators() -> None:
    found = ceilings(stand("deepseek-v3", "h200_sxm", Sharding(tp=16)), Workload(1_000, 100, 1)).of("domain_memory")
    assert found is not None
    assert found.unit == "GiB"
    # Half of about 626 GiB in each of two boxes of 8 x 126 GiB.
    assert found.demand == pytest.approx(340, rel=0.1)
    assert found.limit == pytest.approx(8 * 0.9 * 140.4, rel=0.01)


@pytest.mark.parametrize(
    ("model", "split", "n", "caution", "words"),
    [
        ("llama-3.1-70b", Sharding(pp=4), 1, "pipeline_idles", "1 in flight: 3 of 4 stages idle"),
        ("llama-3.1-70b", Sharding(pp=4), 4, None, ""),
        ("qwen3-235b-a22b", Sharding(tp=8), 1, "kv_copied", "tp 8 keeps each of 4 KV heads 2 times"),
        ("qwen3-235b-a22b", Sharding(tp=4), 1, None, ""),
        (
            "deepseek-v3",
            Sharding(tp=8),
            1,
            "kv_copied",
            "tp 8 keeps the latent KV, which tensor splits do not divide, 8 times",
        ),
        ("deepseek-v3", Sharding(tp=8, dcp=8), 1, None, ""),
        ("llama-3.1-70b", Sharding(tp=16), 1, "tensors_cross", "tp 16 spans 2 tight domains of 8"),
        ("deepseek-v3", Sharding(attention_dp=32, ep=32), 32, "experts_cross", "leaves tight domains of 8: 75% of its"),
        ("deepseek-v3", Sharding(tp=16, ep=8), 1, "experts_cross", "ep 8 leaves tight domains of 8: 50% of its"),
        ("deepseek-v3", Sharding(pp=4, attention_dp=2, ep=2), 4, "pipeline_idles", "2 in flight: 2 of 4 stages idle"),
    ],
)
def test_a_split_is_warned_of(model: str, split: Sharding, n: int, caution: str | None, words: str) -> None:
    found = ceilings(stand(model, "h200_sxm", split), Workload(1_000, 100, n))
    said = {one.kind: str(one) for one in found.cautions}
    assert caution is not None or not said
    assert caution is None or words in said[caution]  # type: ignore[index]


def test_a_request_within_the_window_but_over_the_pool_is_warned_of() -> None:
    where = stand("llama-3.1-70b", "h100_sxm", Sharding(tp=2), Serving(kv_gib=2.0), window_tokens=131_072)
    found = ceilings(where, Workload(100_000, 1_000, 1))
    assert "101,000 tokens are within the window, but the KV pool holds 13,088 of one request" in map(
        str, found.cautions
    )
    assert found.binding is not None
    assert found.binding.kind == "kv_capacity"


def test_of_several_slos_the_one_that_breaks_first_binds() -> None:
    where, loose = stand("llama-3.1-70b", "h200_sxm", Sharding(tp=8)), Workload(8_000, 1_000, 1, e2e_ms=1e6)
    for load in (replace(loose, ttft_ms=4_000.0, tpot_ms=400.0), replace(loose, ttft_ms=40_000.0, tpot_ms=15.0)):
        found, alone = ceilings(where, load).binding, binding(where, load)
        assert found is not None
        assert alone == found
        assert found.unit == ("ms TTFT" if load.ttft_ms == 4_000.0 else "ms TPOT")
        assert found.breaks


def test_what_is_unknown_is_named_and_not_counted() -> None:
    nothing = Stand(None, None, Sharding(), Unknown("no model"), Unknown("no model"))
    found = ceilings(nothing, Workload(1_000, 100, 1))
    assert found.all == ()
    assert (found.binding, found.next, found.n_max) == (None, None, None)
    assert binding(nothing, Workload(1_000, 100, 1)) is None
    assert found.unknown["kv_capacity"] == "no model"
    assert {"weights", "domain_memory", "kv_capacity", "slots", "window", "compute"} == {*found.unknown}


def test_a_reported_pool_is_enough_for_kv_capacity() -> None:
    holding = Holding.of_pool(Pool(1_000, 16), "reported", replicas=2)
    found = ceilings(Stand(None, None, Sharding(), holding, Unknown("no model")), Workload(1_500, 100, 10))
    assert found.n_max is not None
    assert (found.n_max.mean, found.n_max.source) == (20, "reported")
    assert str(found.binding) == "KV capacity: 1,000 of 2,000 KV blocks of 16 tokens"


@settings(max_examples=30)
@given(
    st.sampled_from(["llama-3.1-70b", "deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b"]),
    st.sampled_from(["h100_sxm", "h200_sxm", "gb200", "mi300x", "l40s"]),
    st.sampled_from([Sharding(tp=8), Sharding(pp=4), Sharding(tp=4, pp=2), Sharding(attention_dp=8, ep=8), Sharding()]),
    st.integers(1, 200_000),
    st.integers(1, 8_000),
    st.integers(1, 5_000),
    st.sampled_from([None, 5.0, 50.0, 500.0]),
)
def test_the_binding_ceiling_is_the_least_and_its_margin_is_that_of_the_load(
    model: str, accelerator: str, split: Sharding, isl: int, osl: int, n: int, tpot_ms: float | None
) -> None:
    where, load = (
        stand(model, accelerator, split, slots=64, window_tokens=131_072),
        Workload(isl, osl, n, None, tpot_ms),
    )
    found = ceilings(where, load)
    assert binding(where, load) == found.binding
    limits = [ceiling.n_c.mean for ceiling in found.all]
    assert limits == sorted(limits)
    assert found.binding is found.all[0]
    assert found.next is found.all[1]
    for ceiling in found.all:
        assert ceiling.margin == ceiling.n_c.mean / n - 1
        assert ceiling.n_c.low <= ceiling.n_c.mean <= ceiling.n_c.high
        if ceiling.kind == "kv_capacity" and ceiling.n_c.mean > 0:
            assert (ceiling.demand <= ceiling.limit) or n > ceiling.n_c.mean


def test_what_runs_out_first_is_what_is_told() -> None:
    """A hybrid under SGLang runs out of state slots long before its pages."""
    shape = shipped().model("qwen3.5-27b")
    serving, card = Serving("sglang", weights="fp8"), shipped().accelerator("h200_sxm")
    where = Stand(shape, card, Sharding(), hold(shape, card, Sharding(), serving), Unknown("not asked"))
    found = ceilings(where, Workload(100, 10, 1_000)).of("kv_capacity")
    assert found is not None
    assert found.unit == "state slots"
    assert found.demand > found.limit
    assert found.margin == pytest.approx(found.limit / found.demand - 1, abs=0.01)


def test_dividing_experts_less_widely_than_a_stage_can_cross_too() -> None:
    found = ceilings(stand("deepseek-v3", "h200_sxm", Sharding(tp=8, ep=8)), Workload(1_000, 100, 8))
    assert "experts_cross" not in cautions(found)
