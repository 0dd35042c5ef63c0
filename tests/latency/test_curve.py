"""One curve: it passes through its points, and never pretends to know what lies outside them."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from fleets import grid, point, points
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.catalogue import shipped
from agentroute.latency.curve import Curve
from agentroute.latency.layout import Hulls
from agentroute.latency.points import Measured, Point
from agentroute.latency.table import CurveTable


def at(measured: tuple[Point, ...], isl: float, osl: float, n: float) -> tuple[float, float]:
    ttft, tpot = CurveTable([Curve.fit(measured)]).at(math.log(isl), math.log(osl), np.array([math.log(n)]))
    return float(ttft[0]), float(tpot[0])


@pytest.mark.parametrize("name", shipped().profile_names)
def test_a_shipped_curve_passes_through_every_measured_point(name: str) -> None:
    measured = shipped().profile(name).points
    table = CurveTable([Curve.fit(measured)])
    for p in measured:
        ttft, tpot = table.at(math.log(p.isl), math.log(p.osl), np.array([math.log(p.concurrency)]))
        assert ttft[0] == pytest.approx(p.mean_ttft_ms(), rel=1e-9)
        assert tpot[0] == pytest.approx(p.mean_tpot_ms(), rel=1e-9)


@given(points())
@settings(max_examples=60, deadline=None)
def test_a_curve_passes_through_its_points(measured: tuple[Point, ...]) -> None:
    for p in measured:
        assert at(measured, *p.load) == pytest.approx((p.mean_ttft_ms(), p.mean_tpot_ms()), rel=1e-9)


@given(st.lists(st.floats(1.0, 1_000.0), min_size=2, max_size=2), st.floats(1.0, 64.0))
@settings(max_examples=60, deadline=None)
def test_between_two_loads_a_time_lies_between_theirs(times: list[float], n: float) -> None:
    ttft, tpot = at((point(100, 10, 1, times[0], times[1]), point(100, 10, 64, times[1], times[0])), 100, 10, n)
    low, high = min(times) * (1 - 1e-9), max(times) * (1 + 1e-9)
    assert low <= ttft <= high
    assert low <= tpot <= high


@pytest.mark.parametrize("factor", [2, 10, 64, 1_000, 100_000])
def test_ttft_grows_with_the_prompt_even_from_a_single_point(factor: int) -> None:
    """Never faster than attention does, with the square."""
    single = (point(128, 64, 4, 20, 5),)
    assert 20 < at(single, 128 * factor, 64, 4)[0] < 20 * factor**2


def test_ttft_shrinks_with_the_prompt_below_a_single_point() -> None:
    assert at((point(1_024, 64, 4, 20, 5),), 128, 64, 4)[0] < 20


def test_more_in_flight_than_was_measured_takes_longer() -> None:
    inside, outside = at(grid(), 1_024, 512, 64), at(grid(), 1_024, 512, 640)
    assert outside[0] > inside[0]
    assert outside[1] > inside[1]


def measured_ttft_falls(name: str) -> bool:
    """Whether the source itself has a longer prompt with a shorter TTFT, at one output length and concurrency."""
    by_load = sorted((p.osl, p.concurrency, p.isl, p.mean_ttft_ms() or 0.0) for p in shipped().profile(name).points)
    return any(a[:2] == b[:2] and a[3] > b[3] for a, b in pairwise(by_load))


@pytest.mark.parametrize("name", [name for name in shipped().profile_names if not measured_ttft_falls(name)])
def test_ttft_never_falls_as_the_prompt_grows_unless_it_was_measured_to(name: str) -> None:
    table = CurveTable([Curve.fit(shipped().profile(name).points)])
    for osl in (1, 128, 2_000):
        for n in (1, 16, 300):
            prompts = np.geomspace(1, 1e6, 60)
            ttft = [table.at(math.log(isl), math.log(osl), np.array([math.log(n)]))[0][0] for isl in prompts]
            assert np.all(np.diff(np.log(ttft)) > -1e-9), f"osl {osl}, {n} in flight"


def test_without_a_usable_point_there_is_no_curve() -> None:
    assert Curve.fit([]) is None
    assert Curve.fit([Point(isl=1, osl=2, concurrency=1, ttft_ms=Measured(mean=1.0))]) is None
    assert Curve.fit([Point(isl=1, osl=2, concurrency=1, ttft_ms=Measured(p50=1.0), tpot_ms=Measured(p50=1.0))]) is None


def bands(measured: Iterable[Point], isl: float, osl: float, n: float) -> tuple[float, float]:
    curve = Curve.fit(measured)
    assert curve is not None
    return curve.bands((math.log(isl), math.log(osl), math.log(n)))


def test_the_band_is_narrow_where_points_agree_and_wide_where_they_do_not() -> None:
    loads = (1, 2, 4, 8, 16)
    smooth = bands([point(128, 64, n, 20 + n, 5) for n in loads], 128, 64, 6)
    jagged = bands([point(128, 64, n, t, 5) for n, t in zip(loads, (20, 80, 20, 80, 20), strict=True)], 128, 64, 6)
    assert smooth[0] < 0.3 < jagged[0]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_band_widens_with_every_doubling_outside(axis: int) -> None:
    load, before = [8_192.0, 512.0, 64.0], (0.0, 0.0)
    for _ in range(8):
        now = bands(grid(), *load)
        assert now > before
        assert now[1] > before[1]
        before = now
        load[axis] *= 2


def test_where_a_deployment_scatters_a_doubling_outside_makes_tpot_more_unsure() -> None:
    def added(tpot: tuple[float, ...]) -> float:
        points = [point(128, 64, n, 20 + n, t) for n, t in zip((1, 2, 4, 8, 16), tpot, strict=True)]
        far, edge = (math.log1p(bands(points, 128, 64, n)[1]) for n in (64, 16))
        return far - edge

    assert added((5, 20, 5, 20, 5)) > 2 * added((5, 5.1, 5.2, 5.4, 5.8))


def test_three_doublings_outside_nothing_is_surer_than_thirty_per_cent() -> None:
    assert min(bands(grid(), 8 * 8_192, 512, 64)) > 0.30


@pytest.mark.parametrize(
    ("load", "doublings"),
    [((128, 64, 1), 0), ((1_000, 100, 10), 0), ((64, 64, 1), 1), ((32_768, 64, 1), 2), ((64, 2_048, 128), 4)],
)
def test_distance_is_counted_in_doublings_over_the_axes(load: tuple[int, int, int], doublings: float) -> None:
    curve = Curve.fit(grid())
    assert curve is not None
    isl, osl, n = load
    assert Hulls([curve.hull]).outside(np.log([[isl], [osl], [n]])).sum() == pytest.approx(doublings)


def test_a_curve_of_irregular_points_takes_little_memory() -> None:
    """A hundred requests of a trace, none with the length of another."""
    irregular = [point(100 + 37 * k, 50 + 11 * k, 1 << k % 8, 10 + k, 5) for k in range(100)]
    tracemalloc.start()
    try:
        Curve.fit(irregular)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * 2**20
