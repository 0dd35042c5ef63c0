"""How the pools have fared of late."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.errors import UsageError
from agentroute.state.health import BUSY_S, Health, Signs
from agentroute.state.load import Load


def signs(health: Health, now: float = 0.0, pool: int = 0) -> Signs:
    return health.signs(pool, now, age_s=None, closed_in_s=None)


def reported(*loads: Load) -> Signs:
    """After these reports, one a second."""
    health = Health()
    for second, load in enumerate(loads):
        health.reported(0, load, float(second))
    return signs(health, float(len(loads)))


FULL, IDLE = Load(waiting=3, kv_used=0.95), Load(waiting=0, kv_used=0.1)


def test_of_a_pool_that_nobody_said_anything_of_nothing_is_known() -> None:
    assert signs(Health((0,))) == Signs()


# ---- full


@pytest.mark.parametrize(
    ("loads", "full_s"),
    [
        ((FULL,), 0.0),
        ((FULL, FULL, FULL), 2.0),
        ((IDLE, FULL, FULL), 1.0),
        ((FULL, FULL, IDLE), 0.0),
        ((FULL, IDLE, FULL), 0.0),
        ((FULL, Load(), FULL), 2.0),
        ((Load(waiting=3), Load(waiting=3)), 0.0),
        ((Load(kv_used=1.0), Load(kv_used=1.0)), 0.0),
        ((FULL, Load(waiting=0), FULL), 0.0),
        ((FULL, Load(kv_used=0.94), FULL), 0.0),
    ],
)
def test_full_counts_from_the_first_to_the_last_report_in_a_row(loads: tuple[Load, ...], full_s: float) -> None:
    assert reported(*loads).full_s == full_s


def test_a_figure_that_is_missing_leaves_the_last_one() -> None:
    after = reported(FULL, Load(kv_used=0.5), Load())
    assert (after.waiting, after.kv_used) == (3, 0.5)


def test_a_report_that_is_older_than_the_last_is_ignored() -> None:
    health = Health()
    health.reported(0, FULL, 10.0)
    health.reported(0, Load(waiting=0, kv_used=0.0, at=5.0), 11.0)
    assert signs(health, 11.0).kv_used == 0.95


# ---- overruns


def test_overruns_are_those_of_the_last_ten_minutes_and_of_the_pool() -> None:
    health = Health()
    for now in (0.0, 500.0, 700.0):
        health.overran(0, now)
    assert [signs(health, now).overruns for now in (700.0, 1_101.0, 1_301.0)] == [2, 1, 0]
    assert signs(health, 700.0, pool=1).overruns == 0


# ---- in flight


def test_the_mean_in_flight_is_over_the_time_that_there_were_any() -> None:
    health = Health((0,))
    health.passed(0, 0.0, 0.0)
    for now, in_flight in ((10.0, 6.0), (20.0, 0.0), (50.0, 2.0)):
        health.passed(0, in_flight, now)
    assert signs(health, 50.0).in_flight == pytest.approx((6.0 * 10 + 2.0 * 30) / 40, rel=0.05)


def test_too_little_was_seen_for_a_mean() -> None:
    health = Health((0,))
    health.passed(0, 0.0, 0.0)
    health.passed(0, 1.0, BUSY_S - 1.0)
    assert signs(health, BUSY_S).in_flight is None


def test_what_was_before_the_first_call_is_unknown() -> None:
    health = Health((0,))
    health.passed(0, 5.0, 1_000.0)
    assert signs(health, 1_000.0).in_flight is None


@given(st.lists(st.tuples(st.floats(-1e4, 1e4), st.integers(0, 100)), min_size=1, max_size=30))
def test_whatever_the_clock_does_a_mean_is_between_the_least_and_the_most(script: list[tuple[float, int]]) -> None:
    health = Health((0,))
    for now, in_flight in script:
        health.passed(0, float(in_flight), now)
    mean = signs(health, script[-1][0]).in_flight
    counts = [in_flight for _, in_flight in script if in_flight]
    assert mean is None or (math.isfinite(mean) and min(counts) * 0.999 <= mean <= max(counts) * 1.001)


# ---- what is wrong


def test_the_last_report_tells_what_is_wrong() -> None:
    dead = Load(trouble="dead", said="the engine died")
    assert (reported(dead).trouble, reported(dead).said) == ("dead", "the engine died")
    assert reported(dead, IDLE).trouble is None
    assert reported(FULL, Load(trouble="hidden", said="no")).kv_used == 0.95


def test_a_trouble_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="one of unreachable, dead, hidden, mixed, got 'ill'"):
        Load(trouble="ill")  # type: ignore[arg-type]
