"""Corrections: what was seen moves the next prediction at once, within bounds, and without swinging."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.assessment import of_load
from agentroute.inputs import LOADS
from agentroute.state.corrections import (
    DRIFT_SEEN,
    FADE_S,
    METRICS,
    REFRESH_S,
    Corrections,
    Latency,
    context_region,
)

DEPLOYMENTS = 3


def see(
    corrections: Corrections,
    ratio: float,
    *,
    times: int = 1,
    deployment: int = 0,
    metric: Latency = "tpot_ms",
    isl: int = 1_000,
    n: float = 1,
    now: float = 0.0,
) -> None:
    for _ in range(times):
        corrections.seen(deployment, metric, isl, n, 20.0, 20.0 * ratio, now)


def factor(
    corrections: Corrections,
    *,
    deployment: int = 0,
    metric: Latency = "tpot_ms",
    isl: int = 1_000,
    n: float = 1,
    now: float = 0.0,
) -> float:
    factors = corrections.factors(isl, now)
    if factors is None:
        return 1.0
    return float(of_load(factors, np.full(DEPLOYMENTS, float(n)))[METRICS.index(metric), deployment])


def scattered(ratio: float, spread: float, *, seed: int, times: int) -> list[float]:
    """Log-normal ratios around ``ratio``; a ``spread`` of 0.25 is an 80 % band of +-32 %."""
    dice = random.Random(seed)
    return [ratio * math.exp(dice.gauss(0.0, spread)) for _ in range(times)]


# ---- at once


def test_nothing_learnt_is_no_array_at_all() -> None:
    assert Corrections(DEPLOYMENTS).factors(1_000, 0.0) is None


@pytest.mark.parametrize("ratio", [2.0, 0.5])
def test_five_calls_that_took_twice_or_half_as_long_correct_the_sixth_by_half_again(ratio: float) -> None:
    corrections = Corrections(DEPLOYMENTS)
    see(corrections, ratio, times=5)
    assert 1.5 <= max(factor(corrections), 1 / factor(corrections)) <= 2.0
    assert (factor(corrections) > 1) == (ratio > 1)


@pytest.mark.parametrize("seed", range(10))
def test_it_does_so_for_scattered_calls_too(seed: int) -> None:
    corrections = Corrections(DEPLOYMENTS)
    for ratio in scattered(2.0, 0.25, seed=seed, times=5):
        see(corrections, ratio)
    assert 1.4 <= factor(corrections) <= 2.5


def test_one_call_alone_moves_it_by_less_than_its_own_ratio() -> None:
    corrections = Corrections(DEPLOYMENTS)
    see(corrections, 2.0)
    assert 1.2 <= factor(corrections) <= 1.5


def test_a_server_that_changes_after_a_long_time_is_followed_within_five_calls() -> None:
    corrections = Corrections(DEPLOYMENTS)
    for ratio in scattered(1.0, 0.1, seed=1, times=200):
        see(corrections, ratio)
    assert factor(corrections) == pytest.approx(1.0, abs=0.1)
    for ratio in scattered(2.0, 0.1, seed=2, times=5):
        see(corrections, ratio)
    assert factor(corrections) >= 1.5


# ---- without swinging


def test_one_outlier_hardly_counts() -> None:
    corrections = Corrections(DEPLOYMENTS)
    for ratio in scattered(1.0, 0.25, seed=3, times=100):
        see(corrections, ratio)
    before = factor(corrections)
    see(corrections, 50.0)
    assert factor(corrections) / before < 1.05


@pytest.mark.parametrize("spread", [0.1, 0.25, 0.5])
def test_steady_scatter_keeps_it_within_a_fraction_of_the_scatter(spread: float) -> None:
    corrections = Corrections(DEPLOYMENTS)
    logs = []
    for ratio in scattered(1.6, spread, seed=4, times=3_000):
        see(corrections, ratio)
        logs.append(math.log(factor(corrections)))
    settled = np.array(logs[100:])
    assert settled.std() < spread / 3
    assert settled.mean() == pytest.approx(math.log(1.6), abs=0.12)


@given(st.floats(0.4, 2.5), st.integers(1, 60))
@settings(max_examples=50)
def test_a_constant_ratio_is_approached_from_one_side_and_never_passed(ratio: float, times: int) -> None:
    corrections = Corrections(DEPLOYMENTS)
    last = 0.0
    for _ in range(times):
        see(corrections, ratio)
        now = math.log(factor(corrections)) / math.log(ratio) if ratio != 1 else 0.0
        assert last - 1e-9 <= now <= 1 + 1e-9
        last = now


# ---- where


def test_regions_with_little_evidence_lean_on_the_deployments_overall_ratio() -> None:
    corrections = Corrections(DEPLOYMENTS)
    see(corrections, 2.0, times=30, isl=1_000, n=1)
    assert factor(corrections, isl=60_000, n=40) == pytest.approx(2.0, rel=0.1)
    see(corrections, 1.0, times=30, isl=60_000, n=40)
    assert factor(corrections, isl=60_000, n=40) == pytest.approx(1.0, abs=0.15)
    assert factor(corrections, isl=1_000, n=1) > 1.7


def test_metrics_and_deployments_are_apart() -> None:
    corrections = Corrections(DEPLOYMENTS)
    see(corrections, 2.0, times=30, deployment=1, metric="ttft_ms")
    assert factor(corrections, deployment=1, metric="ttft_ms") > 1.8
    assert factor(corrections, deployment=1, metric="tpot_ms") == 1.0
    assert factor(corrections, deployment=2, metric="ttft_ms") == 1.0


@pytest.mark.parametrize(
    ("isl", "region"), [(1, 0), (2_047, 0), (2_048, 1), (8_191, 1), (8_192, 2), (32_768, 3), (1_000_000, 3)]
)
def test_context_regions(isl: int, region: int) -> None:
    assert context_region(isl) == region


def test_load_regions_are_gathered_by_the_n_of_each_deployment() -> None:
    corrections = Corrections(DEPLOYMENTS)
    for deployment in range(DEPLOYMENTS):
        for k, in_flight in enumerate((1, 8, 80)):
            see(corrections, 0.6 + deployment / 2 + k / 10, deployment=deployment, n=in_flight)
    factors = corrections.factors(1_000, 0.0)
    assert factors is not None
    gathered = of_load(factors, np.array([LOADS[0] - 0.5, LOADS[0], LOADS[1]]))
    assert len(set(factors[1].ravel().tolist())) == 3 * DEPLOYMENTS
    assert gathered.tolist() == [[factors[metric, d, d] for d in range(DEPLOYMENTS)] for metric in (0, 1)]


@pytest.mark.parametrize(
    ("predicted_ms", "seen_ms"), [(math.nan, 5.0), (math.inf, 5.0), (0.0, 5.0), (5.0, 0.0), (5.0, math.nan)]
)
def test_nothing_is_learnt_where_there_was_no_prediction_or_no_time(predicted_ms: float, seen_ms: float) -> None:
    corrections = Corrections(DEPLOYMENTS)
    corrections.seen(0, "ttft_ms", 1_000, 1, predicted_ms, seen_ms, 0.0)
    assert corrections.factors(1_000, 0.0) is None


# ---- bounds


observations = st.lists(
    st.tuples(
        st.integers(0, DEPLOYMENTS - 1),
        st.sampled_from(METRICS),
        st.integers(1, 100_000),
        st.floats(0, 500),
        st.floats(1e-6, 1e9),
        st.floats(1e-6, 1e9),
        st.floats(-1e5, 1e5),
    ),
    max_size=40,
)


@given(observations)
@settings(max_examples=100)
def test_no_factor_is_ever_beyond_three(script: list[tuple[int, Latency, int, float, float, float, float]]) -> None:
    corrections = Corrections(DEPLOYMENTS)
    for one in script:
        corrections.seen(*one)
        table = corrections.table(one[-1])
        assert table is not None
        assert table.shape == (4, 2, DEPLOYMENTS, 3)
        assert np.all((table >= 1 / 3 - 1e-9) & (table <= 3 + 1e-9))


# ---- time


def test_what_was_learnt_fades_so_that_a_slow_server_is_tried_again() -> None:
    corrections = Corrections(DEPLOYMENTS)
    see(corrections, 3.0, times=50)
    factors = [factor(corrections, now=age_s) for age_s in (0.0, FADE_S, 3 * FADE_S, 12 * FADE_S)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 2.5
    assert factors[1] > 2.0
    assert factors[2] < 1.8
    assert corrections.factors(1_000, 12 * FADE_S) is None


def test_a_clock_set_back_does_not_keep_it_from_fading() -> None:
    corrections = Corrections(DEPLOYMENTS)
    see(corrections, 3.0, times=50, now=1e6)
    corrections.factors(1_000, 0.0)
    assert corrections.factors(1_000, 12 * FADE_S) is None


def test_what_a_decision_reads_is_prepared() -> None:
    corrections = Corrections(DEPLOYMENTS)
    see(corrections, 3.0, times=5)
    table = corrections.table(0.0)
    assert corrections.table(REFRESH_S - 0.1) is table
    assert corrections.table(REFRESH_S) is not table


# ---- drift


def test_a_curve_that_is_off_is_named_with_its_region() -> None:
    corrections = Corrections(DEPLOYMENTS)
    for ratio in scattered(1.8, 0.2, seed=5, times=40):
        see(corrections, ratio, deployment=2, isl=10_000, n=20)
    for ratio in scattered(1.0, 0.2, seed=6, times=40):
        see(corrections, ratio, deployment=1)
    drifts = corrections.drifting(0.0)
    assert [(d.deployment, d.metric, d.region) for d in drifts] == [
        (2, "tpot_ms", "8,192 to 32,768 prompt tokens, 16 or more in flight"),
        (2, "tpot_ms", "all requests"),
    ]
    assert all(d.ratio == pytest.approx(1.8, rel=0.15) and d.observations == 40 for d in drifts)


@pytest.mark.parametrize(
    ("ratio", "spread", "times", "age_s", "alarm"),
    [
        (2.0, 0.0, DRIFT_SEEN, 0.0, True),
        (0.5, 0.0, DRIFT_SEEN, 0.0, True),
        (2.0, 0.0, DRIFT_SEEN - 1, 0.0, False),  # too few
        (2.0, 0.0, DRIFT_SEEN, FADE_S, False),  # too long ago
        (1.25, 0.0, 200, 0.0, False),  # within the band
        (0.8, 0.0, 200, 0.0, False),
        (1.4, 0.05, 200, 0.0, True),
        (1.4, 0.6, 200, 0.0, False),  # off, but not for certain
    ],
)
def test_an_alarm_needs_size_number_and_certainty(
    ratio: float, spread: float, times: int, age_s: float, alarm: bool
) -> None:
    corrections = Corrections(DEPLOYMENTS)
    for one in scattered(ratio, spread, seed=7, times=times):
        see(corrections, one)
    assert bool(corrections.drifting(age_s)) is alarm
