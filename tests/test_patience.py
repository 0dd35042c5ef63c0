"""How long a call is waited for, and when a second server is asked: by what was predicted, else by fixed times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleets import profile
from hypothesis import given
from hypothesis import strategies as st

from agentroute.decision import Decision
from agentroute.fleet import Deployment, Fleet
from agentroute.hedge import AT_LEAST_S, LATE, hedge_after_s
from agentroute.patience import GAP_TIMES, Patience, Timeout, patience, surely_s
from agentroute.router import Router
from agentroute.task import Slo, Task

TASK = Task(context_tokens=1_000, max_output_tokens=100)
FIXED = Timeout(read_s=500.0, total_s=900.0)


def decided(task: Task = TASK, *, measured: bool = True) -> Decision:
    known = profile(kv_blocks=100_000) if measured else profile(points=())
    return Router(Fleet([Deployment("d", known)])).decide(task)


MEASURED, UNMEASURED = decided(), decided(measured=False)


def test_without_a_prediction_the_fixed_waits_hold() -> None:
    known_nothing = decided(measured=False)
    assert patience(known_nothing, FIXED, streaming=True) == Patience(500.0, 500.0, 900.0)
    assert patience(known_nothing, FIXED, streaming=False) == Patience(500.0, 500.0, 900.0)


def test_waits_are_so_many_times_the_high_end_of_the_prediction() -> None:
    decision = decided()
    ttft, tpot = decision.ttft_ms, decision.tpot_ms
    assert ttft is not None and tpot is not None
    waits = patience(decision, replace(FIXED, at_least_s=1e-6), streaming=True)
    assert waits.first_s == pytest.approx(4.0 * ttft.high / 1_000)
    assert waits.gap_s == pytest.approx(GAP_TIMES * tpot.high / 1_000)
    assert waits.total_s == pytest.approx(4.0 * (ttft.high + 99 * tpot.high) / 1_000)


def test_a_whole_answer_is_waited_for_as_long_as_its_generation_may_take() -> None:
    waits = patience(decided(), replace(FIXED, at_least_s=1e-6), streaming=False)
    assert waits.first_s == waits.total_s


def test_no_prediction_shortens_a_wait_below_its_floor_or_lengthens_it_beyond_the_fixed_one() -> None:
    assert patience(decided(), replace(FIXED, at_least_s=30.0), streaming=True).first_s == 30.0
    assert patience(decided(), replace(FIXED, times=1e6, read_s=20.0), streaming=True).first_s == 20.0


def test_predictions_can_be_left_out() -> None:
    assert patience(decided(), replace(FIXED, times=0.0), streaming=True) == Patience(500.0, 500.0, 900.0)


def test_an_answer_without_a_limit_has_no_total_but_the_fixed_one() -> None:
    assert patience(decided(Task(context_tokens=1_000)), FIXED, streaming=True).total_s == 900.0


@given(
    st.floats(1e-3, 100.0), st.floats(1e-3, 1_000.0), st.floats(1e-3, 1_000.0), st.floats(0.0, 10.0),
    st.floats(-1.0, 1_000.0), st.booleans(), st.booleans(),
)  # fmt: skip
def test_no_wait_is_shorter_than_what_is_waited_in_any_case(
    at_least_s: float, read_s: float, total_s: float, times: float, left_s: float, streaming: bool, measured: bool
) -> None:
    timeout = Timeout(at_least_s=at_least_s, read_s=read_s, total_s=total_s, times=times)
    decision = MEASURED if measured else UNMEASURED
    waits = patience(decision, timeout, streaming=streaming, left_s=left_s)
    assert surely_s(timeout, left_s) <= min(waits.first_s, waits.gap_s, waits.total_s)
    assert waits.total_s <= max(0.0, left_s)


# --- hedges

LONG = Task(context_tokens=8_000, max_output_tokens=100)


def test_nothing_is_hedged_without_a_prediction() -> None:
    assert hedge_after_s(decided(measured=False), streaming=True) is None


def test_a_first_token_is_late_after_so_many_times_the_prediction() -> None:
    decision = decided(LONG)
    ttft, e2e = decision.ttft_ms, decision.e2e_ms
    assert ttft is not None and e2e is not None and LATE * ttft.high > 1_000 * AT_LEAST_S
    assert hedge_after_s(decision, streaming=True) == pytest.approx(LATE * ttft.high / 1_000)
    assert hedge_after_s(decision, streaming=False) == pytest.approx(LATE * e2e.high / 1_000)


@pytest.mark.parametrize(("limit_ms", "is_thin"), [(480.0, True), (10_000.0, False)])
def test_with_thin_headroom_a_second_server_is_asked_once_the_prediction_has_passed(
    limit_ms: float, is_thin: bool
) -> None:
    decision = decided(replace(LONG, ttft_ms=Slo(limit_ms, hard=False)))
    ttft = decision.ttft_ms
    assert ttft is not None and ttft.mean > 1_000 * AT_LEAST_S
    expected = ttft.mean if is_thin else LATE * ttft.high
    assert hedge_after_s(decision, streaming=True) == pytest.approx(expected / 1_000)


def test_no_hedge_comes_sooner_than_a_quarter_of_a_second() -> None:
    assert hedge_after_s(decided(replace(TASK, context_tokens=20)), streaming=True) == AT_LEAST_S
