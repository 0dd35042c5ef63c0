"""Many curves as one table: each answers as if it were alone, and says how far it is from what was measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fleets import grid, point, points
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.latency.bands import Bands
from agentroute.latency.curve import Curve
from agentroute.latency.points import Point
from agentroute.latency.table import CurveTable

Load = tuple[float, float, float]
loads = st.tuples(st.floats(1.0, 1e6), st.floats(1.0, 1e5), st.floats(1.0, 1e4))


def answers(curves: list[Curve | None], load: Load) -> list[tuple[float, float]]:
    isl, osl, n = (math.log(x) for x in load)
    ttft, tpot = CurveTable(curves).at(isl, osl, np.full(len(curves), n))
    return list(zip(ttft.tolist(), tpot.tolist(), strict=True))


def support(measured: tuple[Point, ...], isl: float, osl: float, n: float) -> float:
    return float(Bands([Curve.fit(measured)]).support(math.log(isl), math.log(osl), np.log([n]))[0])


@given(st.lists(points(most=6), min_size=1, max_size=4), loads, st.data())
@settings(max_examples=60, deadline=None)
def test_an_answer_does_not_depend_on_the_other_deployments(
    fleet: list[tuple[Point, ...]], load: Load, data: st.DataObject
) -> None:
    curves: list[Curve | None] = [*(Curve.fit(p) for p in fleet), None]
    alone = [answers([curve], load)[0] for curve in curves]
    chosen = data.draw(st.lists(st.sampled_from(range(len(curves))), min_size=1, unique=True))
    together = answers([curves[i] for i in chosen], load)
    for i, answer in zip(chosen, together, strict=True):
        assert answer == pytest.approx(alone[i], rel=1e-7, nan_ok=True)


@given(points(), loads)
@settings(max_examples=60, deadline=None)
def test_every_answer_is_a_positive_finite_time(measured: tuple[Point, ...], load: Load) -> None:
    assert all(0 < value < math.inf for value in answers([Curve.fit(measured)], load)[0])


def test_each_deployment_is_asked_at_its_own_load() -> None:
    table = CurveTable([Curve.fit(grid()), None, Curve.fit(grid())])
    ttft, _ = table.at(math.log(128), math.log(64), np.log([1.0, 5.0, 64.0]))
    assert ttft[0] == pytest.approx((10 + 128 / 20) * (1 + 1 / 16))
    assert math.isnan(ttft[1])
    assert ttft[2] == pytest.approx((10 + 128 / 20) * (1 + 64 / 16))


@pytest.mark.parametrize("fleet", [[None], [None, None]])
def test_a_fleet_without_a_curve_answers_unknown(fleet: list[Curve | None]) -> None:
    assert all(math.isnan(ttft) and math.isnan(tpot) for ttft, tpot in answers(fleet, (100, 100, 4)))
    assert not Bands(fleet).support(1.0, 1.0, np.ones(len(fleet))).any()


@pytest.mark.parametrize("load", [(128, 64, 1), (1_000, 100, 10), (8_192, 512, 64), (128, 512, 64)])
def test_inside_the_measured_loads_an_answer_rests_on_them(load: tuple[int, int, int]) -> None:
    assert support(grid(), *load) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "load",
    [
        pytest.param((200_000, 64, 4), id="prompt too long"),
        pytest.param((4, 64, 4), id="prompt too short"),
        pytest.param((1_024, 20_000, 4), id="answer too long"),
        pytest.param((1_024, 1, 4), id="answer too short"),
        pytest.param((1_024, 64, 1_000), id="too many"),
        pytest.param((2 * 8_192, 2 * 512, 2 * 64), id="a little of each"),
    ],
)
def test_outside_the_measured_loads_it_does_not(load: tuple[int, int, int]) -> None:
    assert support(grid(), *load) < 0.95


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_tenth_outside_the_measured_loads_is_outside(axis: int) -> None:
    load = [8_192.0, 512.0, 64.0]
    load[axis] *= 1.1
    assert support(grid(), *load) < 0.95


@pytest.mark.parametrize("factor", [65, 1_000, 4_096, 10_000, 60_000])
def test_far_outside_on_two_axes_is_outside(factor: int) -> None:
    assert support((point(16, 16, 1, 10, 5),), 16 * factor, 16 * factor, 1) < 0.95


def test_a_load_between_two_measured_concurrencies_is_inside() -> None:
    assert support((point(128, 64, 1, 10, 5), point(128, 64, 64, 20, 5)), 128, 64, 8) == pytest.approx(1.0)


def test_a_hole_in_the_grid_is_not_measured() -> None:
    corners = (point(128, 64, 1, 10, 5), point(1_024, 512, 1, 20, 5))
    assert support(corners, 128, 512, 1) == pytest.approx(0.0)


@given(st.lists(points(most=6), min_size=1, max_size=3), st.lists(loads, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_many_tasks_are_answered_as_each_alone(fleet: list[tuple[Point, ...]], asked: list[Load]) -> None:
    curves: list[Curve | None] = [*(Curve.fit(p) for p in fleet), None]
    table = CurveTable(curves)
    isl, osl, n = np.log(np.array(asked)).T
    each = table.at_each(isl, osl, np.repeat(n[:, None], len(curves), axis=1))
    assert each.shape == (2, len(asked), len(curves))
    for t in range(len(asked)):
        alone = table.at(float(isl[t]), float(osl[t]), np.full(len(curves), n[t]))
        assert each[:, t] == pytest.approx(alone, rel=1e-9, nan_ok=True)


def changed(cached: float = 0.0, resident: float | None = None) -> tuple[float, float]:
    """By what a cached prefix and other tokens in the cache multiply TTFT and TPOT at 4,096 tokens, 16 in flight."""
    table, load = CurveTable([Curve.fit(grid())]), (math.log(4_096), math.log(256), np.log([16.0]))
    ttft, tpot = table.at(*load, cached_tokens=cached, resident_tokens=resident)[:, 0] / table.at(*load)[:, 0]
    return float(ttft), float(tpot)


def test_a_cached_prefix_shortens_the_wait_for_the_first_token() -> None:
    shares = [changed(cached)[0] for cached in (1_000, 2_000, 4_000, 4_096)]
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[-1] < 0.5


def test_resident_tokens_slow_every_answer_and_the_mean_of_them_changes_nothing() -> None:
    usual = 16 * (4_096 + 128)
    assert changed(resident=usual) == pytest.approx((1.0, 1.0))
    assert changed(resident=4 * usual)[1] >= changed(resident=usual)[1] >= changed(resident=usual / 4)[1] > 0


@given(points(), loads, st.floats(0.01, 100.0))
@settings(max_examples=40, deadline=None)
def test_a_server_twice_as_slow_is_twice_as_slow_everywhere(measured: tuple[Point, ...], load: Load, by: float) -> None:
    slower = tuple(
        point(p.isl, p.osl, p.concurrency, (p.mean_ttft_ms() or 0) * by, (p.mean_tpot_ms() or 0) * by) for p in measured
    )
    (ttft, tpot), (slow_ttft, slow_tpot) = (answers([Curve.fit(p)], load)[0] for p in (measured, slower))
    assert (slow_ttft, slow_tpot) == pytest.approx((by * ttft, by * tpot), rel=1e-4)


@given(points(), loads)
@settings(max_examples=40, deadline=None)
def test_a_band_is_a_positive_finite_share(measured: tuple[Point, ...], load: Load) -> None:
    curve = Curve.fit(measured)
    assert curve is not None
    isl, osl, n = (math.log(x) for x in load)
    assert all(0 < band < math.inf for band in curve.bands((isl, osl, n)))


@pytest.mark.parametrize("most", [256, 1_024])
def test_a_wide_gap_does_not_hide_what_the_prompts_of_a_few_others_cost(most: int) -> None:
    """Measured at 1 and at very many in flight only: between 1 and 8 the answer follows the curve's own physics."""
    curve = Curve.fit((point(1_000, 500, 1, 30, 7), point(1_000, 500, most, 900, 40)))
    assert curve is not None
    table, isl, osl, n = CurveTable([curve]), 127_000, 2, np.array([2.0, 3.0, 4.0, 8.0])
    found = np.array([table.at(math.log(isl), math.log(osl), np.log([each]))[1, 0] for each in n])
    loads = np.log([[isl, osl, each] for each in n])
    physics = np.exp(curve.tpot.ln_physics(loads))
    assert found / found[-1] == pytest.approx(physics / physics[-1], rel=0.3)


def test_a_cached_prefix_changes_nothing_where_only_the_prompts_of_others_were_seen_to_count() -> None:
    points = (
        point(688, 231, 256, 40.24, 5.31),
        point(213, 379, 256, 1_027, 932.8),
        point(63_415, 206, 2, 490, 1_197.3),
    )
    load = math.log(8_000), math.log(100), np.array([0.0])
    times = CurveTable([Curve.fit(points)]).at(*load, cached_tokens=4_000, resident_tokens=8_000)
    assert np.isfinite(times).all()


def test_many_loads_of_each_deployment_are_answered_as_one_by_one() -> None:
    table = CurveTable([Curve.fit(grid()), None, Curve.fit(grid(2.0))])
    isl, osl = math.log(900), math.log(200)
    n = np.array([[[1.0, 5.0, 64.0], [3.0, 2.0, 100.0]], [[2.0, 6.0, 65.0], [4.0, 3.0, 80.0]]])
    cached = np.array([300.0, 0.0, 0.0])
    for tokens in (0.0, 300.0):
        many = table.at(isl, osl, np.log(n), cached_tokens=tokens)
        assert many.shape == (2, 2, 3)
        for i in range(2):
            np.testing.assert_array_equal(many[:, i], table.at(isl, osl, np.log(n[:, i]), cached_tokens=tokens))
    share = table.cached_share(900.0, cached)
    assert share[0] < 1.0
    assert share[2] == 1.0
