"""How sure a mean is."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.bench.noise import Noise, between_runs, drift, percentile, pooled

TIMES = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=30)


def test_one_round_says_nothing_of_others() -> None:
    assert Noise.of([3.0]) == Noise(3.0, math.inf, 1)
    assert pooled([[3.0], [5.0]]) is None


def test_the_error_is_that_of_the_mean() -> None:
    seen = Noise.of([8.0, 10.0, 12.0])
    assert (seen.mean, seen.rounds) == (10.0, 3)
    assert seen.error == pytest.approx(2.0 / math.sqrt(3))
    assert seen.relative == pytest.approx(0.2 / math.sqrt(3))


def test_loads_of_any_height_are_pooled_by_their_relative_spread() -> None:
    assert pooled([[9.0, 11.0], [900.0, 1_100.0], [5.0]]) == pytest.approx(math.sqrt(2) / 10)


def test_the_band_between_runs_holds_four_of_five() -> None:
    draw = random.Random(1)
    inside = []
    for _ in range(2_000):
        first, second = ([draw.gauss(100.0, 10.0) for _ in range(4)] for _ in range(2))
        inside.append(abs(fmean(second) / fmean(first) - 1.0) <= between_runs(0.1, 4))
    assert fmean(inside) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    ("rounds", "found"),
    [
        ([10.0, 10.1, 9.9, 15.0, 15.1, 14.9], 0.5),
        ([10.0, 10.1, 9.9, 5.0, 5.1, 4.9], -0.5),
        ([10.0, 15.0, 12.0, 11.0, 16.0, 12.5], None),  # noise, not drift
        ([10.0, 10.1, 20.0, 20.1], None),  # too few to tell
    ],
)
def test_drift_is_told_from_noise(rounds: list[float], found: float | None) -> None:
    assert drift(rounds) == (None if found is None else pytest.approx(found))


@given(TIMES)
def test_percentiles_rise_and_are_times_that_were_seen(times: list[float]) -> None:
    found = [percentile(times, share) for share in (0.01, 0.5, 0.9, 0.99, 1.0)]
    assert found == sorted(found)
    assert set(found) <= set(times)
    assert found[-1] == max(times)
