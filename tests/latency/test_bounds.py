"""What accelerators cannot beat: by hand, and under every prediction."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from fleets import point
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.catalogue import shipped
from agentroute.latency.bounds import USABLE, Bounds, Rooms
from agentroute.latency.closed_loop import ClosedLoop
from agentroute.latency.curve import Curve
from agentroute.latency.table import CurveTable
from agentroute.serving import loop_of
from agentroute.shape.sharding import Disaggregated, Sharding, Workers

TP8 = Sharding(tp=8)
EVERYWHERE = list(product((16.0, 1_024.0, 16_384.0, 131_072.0, 1e6), (1.0, 64.0, 4_096.0), (1.0, 8.0, 256.0, 1_024.0)))


def loop(
    model: str = "llama-3.1-8b", weights: str = "bf16", split: Sharding | Disaggregated = TP8, kv: str | None = "bf16"
) -> ClosedLoop:
    found = loop_of(shipped().model(model), shipped().accelerator("h200_sxm"), split, weights, kv)  # type: ignore[arg-type]
    assert isinstance(found, ClosedLoop)
    return found


def at(curve: Curve | None, load: tuple[float, float, float]) -> tuple[float, float]:
    isl, osl, n = (math.log(x) for x in load)
    ttft, tpot = CurveTable([curve]).at(isl, osl, np.array([n]))[:, 0]
    return float(ttft), float(tpot)


def least(bounds: Bounds, load: tuple[float, float, float], ttft_ms: float) -> tuple[float, float]:
    isl, osl, n = (np.array([x]) for x in load)
    return float(bounds.ttft_ms(isl)[0]), float(bounds.tpot_ms(isl, osl, n, np.array([ttft_ms]))[0])


def test_of_a_dense_model_they_are_what_the_data_sheet_and_the_parameters_say() -> None:
    """Llama 3.1 8B: 7.5 billion parameters that are multiplied for each token, 32 layers of 8 KV heads of 128."""
    h200, bounds = shipped().accelerator("h200_sxm"), loop(split=Sharding(tp=1)).bounds
    parameters, head = 6.98e9, 128_256 * 4_096
    flops = 2 * parameters * 8_192 + 2 * 2 * 32 * 32 * 128 * 8_192**2 / 2
    # Attention may be multiplied in 8 bits, twice as fast.
    fast = 2 * parameters * 8_192 + (flops - 2 * parameters * 8_192) / 2
    assert bounds.ttft_ms(np.array([8_192.0]))[0] == pytest.approx(fast / h200.dense_tflops["bf16"] / 1e9, rel=0.01)
    weights, kv = 2 * (parameters + head), 2 * 32 * 8 * 128 * 2 * 1_100
    ms = (weights + kv) / h200.memory_gb_per_s / 1e6
    assert least(bounds, (1_000, 200, 1), 50.0)[1] == pytest.approx(ms, rel=0.01)
    room = (USABLE * h200.memory_gib * 2**30 - weights) / kv
    assert Rooms([bounds]).at(1_000, 200)[0] == pytest.approx(room, rel=0.01)


def test_only_those_that_decode_have_their_kv_read() -> None:
    """64 in flight that wait as long as they decode are 32 that decode at once: Little's law."""
    bounds, load = loop(split=Sharding(tp=1)).bounds, (8_000.0, 401.0, 64.0)
    soon, late = (least(bounds, load, ttft)[1] for ttft in (1e-6, 1e12))
    alone = least(bounds, (8_000, 401, 1), 1e-6)[1]
    assert soon > 3 * alone
    assert late == pytest.approx(alone)
    weights = alone - (each := (soon - alone) / 63)
    half = weights + 32 * each
    assert least(bounds, load, 400 * half)[1] == pytest.approx(half, rel=1e-6)


def test_what_is_only_assumed_of_the_cache_is_not_relied_on() -> None:
    known, unknown = loop(kv="bf16").bounds, loop(kv=None).bounds
    load = (100_000.0, 100.0, 1.0)
    assert least(unknown, load, 1.0)[1] < least(known, load, 1.0)[1]
    assert least(unknown, load, 1.0)[0] == least(known, load, 1.0)[0]


def test_twice_the_decode_workers_hold_twice_as_many_and_read_half_as_much() -> None:
    def workers(count: int) -> Bounds:
        group = Workers(workers=count, sharding=Sharding(tp=1))
        return loop(split=Disaggregated(prefill=Workers(sharding=TP8), decode=group)).bounds

    twice, once = Rooms([workers(2), workers(1)]).at(8_000, 100)
    assert twice == pytest.approx(2 * once)
    two, one = least(workers(2), (8_000, 100, 64), 1e-6)[1], least(workers(1), (8_000, 100, 32), 1e-6)[1]
    assert two == pytest.approx(one)


@pytest.mark.parametrize(
    ("model", "weights"), [("llama-3.1-8b", "bf16"), ("deepseek-v3", "fp8"), ("gpt-oss-120b", "mxfp4")]
)
def test_what_is_derived_is_never_below_them(model: str, weights: str) -> None:
    of = loop(model, weights)
    curve = of.curve()
    for load in EVERYWHERE:
        ttft, tpot = at(curve, load)
        bounds = least(of.bounds, load, ttft)
        assert ttft >= bounds[0] * (1 - 1e-9)
        assert tpot >= bounds[1] * (1 - 1e-9)


@given(st.integers(4, 14), st.integers(1, 12), st.integers(0, 8), st.floats(1.0, 500.0), st.floats(1.0, 50.0))
@settings(max_examples=25, deadline=None)
def test_a_single_point_is_never_carried_on_below_them(
    isl: int, osl: int, n: int, slower_ttft: float, slower_tpot: float
) -> None:
    """Also where all of its time is overhead, which a longer prompt would not lengthen."""
    of = loop("gpt-oss-120b", "mxfp4")
    measured = 1 << isl, 1 << osl, 1 << n
    ttft_ms = slower_ttft * least(of.bounds, measured, 1.0)[0]
    tpot_ms = slower_tpot * least(of.bounds, measured, ttft_ms)[1]
    curve = Curve.fit([point(*measured, ttft_ms, tpot_ms)], of.shape())
    assert at(curve, measured) == pytest.approx((ttft_ms, tpot_ms), rel=1e-9)
    for load in (*EVERYWHERE, (3_000.0, 700.0, 5.0), (90_000.0, 20.0, 700.0)):
        ttft, tpot = at(curve, load)
        assert ttft >= least(of.bounds, load, 1.0)[0] * (1 - 1e-6)
        assert tpot >= least(of.bounds, (*load[:2], 1.0), 1.0)[1] * (1 - 1e-2), "weights, and one's own KV"


@pytest.mark.parametrize("n", [1, 32])
def test_many_long_requests_are_not_promised_faster_than_their_kv_is_read(n: int) -> None:
    of = loop(kv="bf16")
    measured = 1_024.0, 1_024.0, float(n)
    shape = replace(of.shape(), tpot=np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    tpot_ms = 3 * least(of.bounds, measured, 100.0)[1]
    curve, free = (Curve.fit([point(1_024, 1_024, n, 100, tpot_ms)], s) for s in (shape, replace(shape, bounds=None)))
    below = 0
    for load in EVERYWHERE:
        ttft, tpot = at(curve, load)
        bound = least(of.bounds, load, ttft)[1]
        assert tpot >= bound * 0.95, "TTFT, on which it leans, is bent a little afterwards"
        below += at(free, load)[1] < bound
    assert below >= 3


def test_overhead_is_not_carried_on_as_if_it_were_all() -> None:
    """At 128 tokens nearly all of TTFT is overhead; a shape that calls it that promises too much of a million."""
    of = loop()
    points = [point(isl, 128, n, 40, 6) for isl in (64, 128) for n in (1, 2, 4, 8)]
    flat = replace(of.shape(), ttft=np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    load = (1e6, 128.0, 1.0)
    assert at(Curve.fit(points, replace(flat, bounds=None)), load)[0] == pytest.approx(40, rel=0.01)
    assert at(Curve.fit(points, flat), load)[0] >= least(of.bounds, load, 1.0)[0]


def test_a_point_below_them_is_passed_through_and_lowers_them() -> None:
    of = loop()
    possible = least(of.bounds, (8_192, 128, 1), 1.0)[0]
    points = [point(8_192, 128, 1, possible / 4, 6)]
    curve = Curve.fit(points, of.shape())
    assert at(curve, (8_192, 128, 1)) == pytest.approx((possible / 4, 6), rel=1e-9)
    assert at(curve, (131_072, 128, 1))[0] >= least(of.bounds, (131_072, 128, 1), 1.0)[0] / 4 * (1 - 1e-6)
    rows = np.array([[8_192.0, 128.0, 1.0]] * 2)
    faster = of.bounds.faster(rows, np.array([possible / 4, possible * 2]), np.array([6.0, 6.0]))
    assert faster[0] == pytest.approx([math.log(4), 0.0])
    assert faster[1] == pytest.approx([0.0, 0.0])
