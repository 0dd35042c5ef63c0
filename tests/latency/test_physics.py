"""Times as sums of few terms: what they are made of, and the fit that keeps every coefficient from being negative."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.latency.physics import FAR, FAR_TPOT, FAR_TTFT, TYPICAL, Shape, nnls, tpot_terms, ttft_terms

Array = np.ndarray


def best_of_all(matrix: Array, target: Array) -> float:
    """The least distance over every choice of columns, by plain least squares where that is not negative."""
    least = float(np.linalg.norm(target))
    for count in range(1, matrix.shape[1] + 1):
        for chosen in itertools.combinations(range(matrix.shape[1]), count):
            x = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
            if (x >= 0).all():
                least = min(least, float(np.linalg.norm(matrix[:, chosen] @ x - target)))
    return least


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 10_000))
@settings(max_examples=150, deadline=None)
def test_nothing_that_is_not_negative_is_nearer(rows: int, columns: int, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    matrix, target = drawn.normal(size=(rows, columns)), drawn.normal(size=rows)
    x = nnls(matrix, target)
    assert (x >= 0).all()
    assert np.linalg.norm(matrix @ x - target) <= best_of_all(matrix, target) + 1e-6


@given(st.integers(1, 20), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_collinear_columns_are_no_trouble(rows: int, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    one = drawn.uniform(0.1, 1.0, size=(rows, 1))
    x = nnls(np.concatenate([one, 2 * one, 1e6 * one], axis=1), 3 * one[:, 0])
    assert np.isfinite(x).all()
    assert (np.concatenate([one, 2 * one, 1e6 * one], axis=1) @ x) == pytest.approx(3 * one[:, 0], rel=1e-4)


def test_a_sum_of_terms_is_found_again() -> None:
    truth = np.array([8.0, 0.05, 0.01, 0.0, 20.0, 2.0])
    loads = np.array(
        [(isl, osl, n) for isl in (512.0, 4_096.0) for osl in (64.0, 512.0) for n in (1.0, 8.0, 32.0, 128.0)]
    )
    times = tpot_terms(*loads.T) @ truth
    found = nnls(tpot_terms(*loads.T) / times[:, None], np.ones(len(times)))
    assert found == pytest.approx(truth, abs=1e-5)


def test_resident_tokens_stand_for_concurrency_times_context() -> None:
    assert tpot_terms(1_000.0, 200.0, 8.0, resident=8 * 1_100.0) == pytest.approx(tpot_terms(1_000.0, 200.0, 8.0))


def test_a_cached_prefix_is_not_read_but_attended_to() -> None:
    cold, warm, short = ttft_terms(4_000.0, 4.0), ttft_terms(4_000.0, 4.0, 3_000.0), ttft_terms(1_000.0, 4.0)
    assert (warm <= cold).all()
    assert warm[1] == pytest.approx(short[1]), "as many tokens are read as of the rest alone"
    assert warm[4] > short[4], "but each looks back on the prefix"
    assert tpot_terms(4_000.0, 100.0, 4.0, 3_000.0)[4] == pytest.approx(tpot_terms(1_000.0, 100.0, 4.0)[4])


@pytest.mark.parametrize("axis", [0, 2])
def test_no_term_falls_as_the_prompt_or_the_load_grows(axis: int) -> None:
    load = FAR.copy()
    load[:, axis] *= 1.7
    assert (tpot_terms(*load.T) >= FAR_TPOT).all()
    assert (ttft_terms(load[:, 0], load[:, 2]) >= FAR_TTFT).all()


def test_the_typical_shape_is_one_at_the_middle_and_goes_through_itself() -> None:
    assert float(ttft_terms(1_024.0, 16.0) @ TYPICAL.ttft) == pytest.approx(1.0, rel=0.01)
    assert float(tpot_terms(1_024.0, 1_024.0, 16.0) @ TYPICAL.tpot) == pytest.approx(1.0, rel=0.01)
    again = Shape.through(FAR_TTFT @ TYPICAL.ttft, FAR_TPOT @ TYPICAL.tpot)
    assert FAR_TPOT @ again.tpot == pytest.approx(FAR_TPOT @ TYPICAL.tpot, rel=1e-3)


def test_a_lone_request_decodes_no_slower_for_its_own_prompt() -> None:
    short, long = (tpot_terms(100_000.0, osl, 1.0) for osl in (10.0, 1_000.0))
    assert list(short[4:]) == list(long[4:]) == [0.0, 0.0]
