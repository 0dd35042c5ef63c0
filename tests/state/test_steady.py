"""Steady time: it never goes back, and it passes as the clock's does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.state.steady import JUMP_S, Steady


@given(st.lists(st.floats(-1e6, 1e6)))
def test_it_never_goes_back(clock: list[float]) -> None:
    steady = Steady()
    times = [steady(now) for now in clock]
    assert times == sorted(times)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_clock_that_does_not_go_back_is_left_alone(clock: list[float]) -> None:
    steady = Steady()
    assert [steady(now) for now in sorted(clock)] == sorted(clock)


@pytest.mark.parametrize("jump_s", [JUMP_S, 3_600.0, 1e6])
def test_after_a_jump_back_time_passes_on_from_where_it_was(jump_s: float) -> None:
    steady = Steady()
    steady(1_000.0)
    assert steady(1_000.0 - jump_s) == 1_000.0
    assert steady(1_000.0 - jump_s + 7.0) == pytest.approx(1_007.0)


def test_threads_that_read_the_clock_out_of_order_do_not_make_it_run_fast() -> None:
    steady = Steady()
    for second in range(1, 1_000):
        steady(float(second))
        steady(second - 0.5)
    assert steady(1_000.0) == 1_000.0
