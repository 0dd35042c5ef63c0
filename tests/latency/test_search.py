"""The fast searches find what looking at every concurrency would."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.latency.search import MOST, WORTH, Curve, last_kept, last_worth

LINES = st.lists(st.tuples(st.floats(1e-4, 1.0), st.floats(0.0, 1e-2)), min_size=1, max_size=4)
DOUBLINGS = [1 << k for k in range(17)]


def convex(lines: list[tuple[float, float]]) -> Curve:
    return lambda n: max(first + each * (n - 1) for first, each in lines)


def filling(share: float, size: float, each: float) -> Curve:
    """As experts that are hit one after the other: steep, then flat; and a line."""
    return lambda n: 1e-3 + size * (1 - (1 - share) ** n) + each * n


@given(LINES, st.sampled_from(DOUBLINGS[:10]))
def test_of_a_convex_curve_the_last_doubling_that_is_worth_it_is_found_from_anywhere(
    lines: list[tuple[float, float]], start: int
) -> None:
    curve = convex(lines)
    worth = [n for n in DOUBLINGS if n == 1 or 2 * curve(n // 2) >= WORTH * curve(n)]
    expected = worth[-1] if worth[-1] < MOST else math.inf
    assert last_worth(curve, 1, start) == expected
    assert last_worth(curve, start, 1) == max(start, expected)


@given(st.floats(0.001, 0.5), st.floats(0.001, 1.0), st.floats(1e-7, 1e-3))
def test_a_doubling_that_is_not_worth_it_early_does_not_end_the_search(share: float, size: float, each: float) -> None:
    curve = filling(share, size, each)
    filled = 1 << math.ceil(math.log2(math.log(2.0**-54) / math.log1p(-share)))
    worth = [n for n in DOUBLINGS if n == 1 or 2 * curve(n // 2) >= WORTH * curve(n)]
    assert last_worth(curve, 1, min(MOST, filled)) == (worth[-1] if worth[-1] < MOST else math.inf)


@given(
    LINES.map(convex)
    | st.builds(filling, st.floats(0.001, 0.5), st.floats(0.001, 1.0), st.floats(1e-7, 1e-3))
    | st.integers(1, MOST).map(lambda step: lambda n: 1.0 if n < step else 2.0),
    st.floats(0.0, 1.0),
)
def test_the_last_that_keeps_an_slo_keeps_it_and_one_more_does_not(curve: Curve, place: float) -> None:
    slo_s = curve(1) + place * (1.01 * curve(MOST) - curve(1))
    found = last_kept(curve, slo_s, 1)
    if found == math.inf:
        assert curve(MOST) <= slo_s
        return
    n = int(found)
    assert n == found
    assert curve(n) <= slo_s < curve(n + 1)
    assert last_kept(curve, slo_s, max(1, n // 3)) == found


@pytest.mark.parametrize("knee", [1, 7, 300, 9_000])
def test_a_line_takes_four_looks_and_a_knee_a_few_more(knee: int) -> None:
    looked: list[int] = []

    def curve(n: int) -> float:
        looked.append(n)
        return 1.0 + 0.01 * max(n, knee)

    assert last_kept(curve, 1.0 + 0.01 * 20_000.5, 1) == 20_000
    assert len(looked) <= (4 if knee == 1 else 12)
