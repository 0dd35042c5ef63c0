"""What points say beyond their physics, between them and far away."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.latency.metric import TPOT, TTFT
from agentroute.latency.residual import NOISE, Doubts, Kernel, Residual, inverse

KERNELS = [pytest.param(kind.kernel, id=name) for name, kind in (("ttft", TTFT), ("tpot", TPOT))]


def residual(kernel: Kernel, loads: np.ndarray, values: np.ndarray) -> Residual:
    return Residual.through(kernel, loads, values, inverse(kernel, loads))


def doubt(of: Residual, load: np.ndarray) -> float:
    return float(Doubts([(of,)], (of.kernel,)).at(load[:, None])[0, 0])


def drawn(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Loads on a coarse grid, none twice, and values of about one."""
    random = np.random.default_rng(seed)
    places = random.choice(5 * 4 * 8, size=count, replace=False)
    return np.stack([places % 5, places // 5 % 4, places // 20], axis=1) * 0.7, random.normal(size=count)


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.integers(0, 9_999), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_it_passes_through_its_values(kernel: Kernel, seed: int, count: int) -> None:
    loads, values = drawn(seed, count)
    assert residual(kernel, loads, values).at(loads) == pytest.approx(values, abs=1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.integers(0, 9_999), st.integers(2, 30))
@settings(max_examples=30, deadline=None)
def test_a_surprise_is_what_leaving_the_point_out_and_asking_for_it_gives(
    kernel: Kernel, seed: int, count: int
) -> None:
    loads, values = drawn(seed, count)
    left = residual(kernel, loads[1:], values[1:])
    missed = values[0] - left.at(loads[:1])[0]
    assert residual(kernel, loads, values).surprises[0] == pytest.approx(missed / doubt(left, loads[0]), rel=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_far_from_every_point_it_is_nothing_and_doubt_is_one(kernel: Kernel) -> None:
    of, far = residual(kernel, np.zeros((1, 3)), np.ones(1)), np.full((1, 3), 60.0)
    assert of.at(far)[0] == pytest.approx(0.0, abs=1e-6)
    assert doubt(of, far[0]) == pytest.approx(1.0)
    assert doubt(of, np.array([0.0, 0.0, 0.5])) < doubt(of, np.array([0.0, 0.0, 2.0])) < 1.0


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.integers(0, 9_999), st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_doubt_is_between_the_noise_and_one_and_never_grows_with_a_point_more(
    kernel: Kernel, seed: int, count: int
) -> None:
    loads, values = drawn(seed, count + 1)
    load = np.array([1.1, 0.9, 2.3])
    more, fewer = (doubt(residual(kernel, loads[i:], values[i:]), load) for i in (0, 1))
    assert 0.0 < more <= fewer + 1e-9
    assert fewer <= 1.0 + 1e-9


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 9_999))
@settings(max_examples=30, deadline=None)
def test_the_doubts_of_many_are_those_of_the_textbook(counts: list[int], seed: int) -> None:
    """Of a Gaussian process: k(x, x) - k(x, X) K^-1 k(X, x), here with a solver; never less than the noise."""
    of = [tuple(residual(kind.kernel, *drawn(seed + i, n)) for kind in (TTFT, TPOT)) for i, n in enumerate(counts)]
    places = np.random.default_rng(seed).uniform(0.0, 6.0, (3, len(of) + 1))
    doubts = Doubts([*of, None], (TTFT.kernel, TPOT.kernel)).at(places)
    assert doubts[:, -1].tolist() == [1.0, 1.0]
    for d, both in enumerate(of):
        for row, one in enumerate(both):
            here = one.kernel(places[:, d][None, :], one.loads)[0]
            alike = one.kernel(one.loads, one.loads) + NOISE * np.eye(len(one.loads))
            left = one.kernel.total - here @ np.linalg.solve(alike, here)
            assert doubts[row, d] == pytest.approx(np.sqrt(max(left, NOISE) / one.kernel.total), rel=1e-6)
