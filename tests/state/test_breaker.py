"""The breaker: a server that fails is left alone, then tried by one call at a time."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentroute.errors import FailureKind
from agentroute.state.breaker import FAILURES, FAULTS, MAX_OPEN_S, OPEN_S, PROBE_S, WINDOW_S, Breaker
from agentroute.state.steady import JUMP_S


def opened(pools: int = 2, now: float = 0.0) -> Breaker:
    """A breaker that has just opened for pool 0."""
    breaker = Breaker(pools)
    for _ in range(FAILURES):
        breaker.failed(0, now)
    return breaker


def may_go(breaker: Breaker, now: float, pool: int = 0) -> bool:
    closed = breaker.closed(now)
    return closed is None or bool(closed[pool])


def test_it_hears_of_servers_that_fail_and_never_of_clients_or_of_a_server_that_is_full() -> None:
    others = {"bad_request", "auth", "not_found", "context_overflow", "cancelled", "deadline", "overloaded"}
    assert {kind.value for kind in FAULTS} | others == {kind.value for kind in FailureKind}
    assert not {kind.value for kind in FAULTS} & others


# ---- closed


def test_nothing_failed_and_all_are_closed() -> None:
    assert Breaker(3).closed(0.0) is None


@pytest.mark.parametrize(
    ("script", "open_at_the_end"),
    [
        ("F F", False),
        ("F F F", True),
        ("F F S F F", False),
        ("F F S F F F", True),
        ("F S F S F S F S F S F", False),  # one fault in two: it serves
    ],
)
def test_faults_in_a_row_open_it(script: str, open_at_the_end: bool) -> None:
    breaker = Breaker(2)
    for second, what in enumerate(script.split()):
        breaker.failed(0, second * 0.1) if what == "F" else breaker.succeeded(0)
    assert may_go(breaker, 1.5) is not open_at_the_end
    assert may_go(breaker, 1.5, pool=1)


@pytest.mark.parametrize(("apart_s", "opens"), [(WINDOW_S / (FAILURES - 1), True), (WINDOW_S, False)])
def test_faults_far_apart_are_no_series(apart_s: float, opens: bool) -> None:
    breaker = Breaker(1)
    for k in range(FAILURES):
        breaker.failed(0, k * apart_s)
    assert may_go(breaker, (FAILURES - 1) * apart_s) is not opens


# ---- open


def test_it_stays_open_for_a_while_and_says_how_long() -> None:
    breaker = opened(now=10.0)
    assert breaker.wait_s(0, 10.5) == pytest.approx(OPEN_S - 0.5)
    assert breaker.wait_s(1, 10.5) == 0
    assert not may_go(breaker, 10.0 + OPEN_S - 0.01)
    assert may_go(breaker, 10.0 + OPEN_S)
    assert breaker.wait_s(0, 10.0 + OPEN_S) == 0


def test_it_tells_when_it_opens_and_when_it_opens_again() -> None:
    breaker = Breaker(1)
    assert [breaker.failed(0, 0.0) for _ in range(FAILURES + 1)] == [False] * (FAILURES - 1) + [True, False]
    breaker.probe_started(0, OPEN_S)
    assert breaker.failed(0, OPEN_S)


def test_calls_that_were_under_way_when_it_opened_do_not_open_it_longer() -> None:
    breaker = opened()
    for k in range(40):
        breaker.failed(0, k * 0.01)
    assert may_go(breaker, OPEN_S)


def test_one_of_them_that_succeeds_closes_it() -> None:
    breaker = opened()
    breaker.succeeded(0)
    assert breaker.closed(0.1) is None


# ---- half-open


def test_exactly_one_probe_goes_through() -> None:
    breaker = opened()
    assert not breaker.probe_started(0, OPEN_S / 2)
    assert [breaker.probe_started(0, OPEN_S) for _ in range(5)] == [True] + [False] * 4
    assert not may_go(breaker, OPEN_S)


def test_a_call_to_a_closed_one_is_no_probe() -> None:
    breaker = Breaker(1)
    assert not breaker.probe_started(0, 0.0)
    assert breaker.closed(0.0) is None


def test_its_success_closes_and_the_next_series_starts_from_nothing() -> None:
    breaker = opened()
    breaker.probe_started(0, OPEN_S)
    breaker.succeeded(0)
    assert breaker.closed(OPEN_S) is None
    for _ in range(FAILURES - 1):
        breaker.failed(0, OPEN_S)
    assert breaker.closed(OPEN_S) is None


def test_its_fault_opens_twice_as_long_up_to_a_bound() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(8):
        waits.append(breaker.wait_s(0, now))
        now += waits[-1]
        assert breaker.probe_started(0, now)
        breaker.failed(0, now)
    assert waits == pytest.approx([min(OPEN_S * 2**k, MAX_OPEN_S) for k in range(8)])


def test_a_cancelled_probe_lets_the_next_one_through_at_once() -> None:
    breaker = opened()
    breaker.probe_started(0, OPEN_S)
    breaker.probe_ended(0)
    assert may_go(breaker, OPEN_S)
    assert breaker.probe_started(0, OPEN_S)


def test_a_probe_that_nobody_ended_is_forgotten() -> None:
    breaker = opened()
    breaker.probe_started(0, OPEN_S)
    assert not may_go(breaker, OPEN_S + PROBE_S - 0.1)
    assert may_go(breaker, OPEN_S + PROBE_S)
    assert breaker.probe_started(0, OPEN_S + PROBE_S)


# ---- always


def test_a_clock_set_back_does_not_keep_it_open_for_longer() -> None:
    breaker = opened(now=10_000.0)
    assert not may_go(breaker, 100.0)
    assert may_go(breaker, 100.0 + OPEN_S)


steps = st.lists(
    st.tuples(
        st.sampled_from(["failed", "succeeded", "probe", "ended", "wait"]), st.integers(0, 1), st.floats(-50, 50)
    ),
    max_size=60,
)


@given(steps)
@example([*[("failed", 0, 0.0)] * 3, ("wait", 0, 8.000000000000215), ("probe", 0, 0.0)])
def test_whatever_happens_no_pool_is_shut_for_ever_and_no_second_probe_goes_through(
    script: list[tuple[str, int, float]],
) -> None:
    breaker, now, passed_s = Breaker(2), 0.0, 0.0
    probing: list[float | None] = [None, None]
    for what, pool, step_s in script:
        if what == "failed":
            breaker.failed(pool, now)
        elif what == "succeeded":
            breaker.succeeded(pool)
        elif what == "ended":
            breaker.probe_ended(pool)
        elif what == "wait":
            now += step_s
            passed_s += max(0.0, step_s)
        elif breaker.probe_started(pool, now):
            before = probing[pool]
            assert before is None or passed_s - before >= PROBE_S
            assert not may_go(breaker, now, pool)
            probing[pool] = passed_s
        if what in ("failed", "succeeded", "ended"):
            probing[pool] = None
        for each in (0, 1):
            assert may_go(breaker, now, each) == (breaker.wait_s(each, now) == 0)
            assert breaker.wait_s(each, now) <= max(MAX_OPEN_S, PROBE_S)
    now += max(MAX_OPEN_S, PROBE_S) + JUMP_S
    assert may_go(breaker, now, 0) and may_go(breaker, now, 1)


def test_what_a_decision_reads_is_prepared() -> None:
    breaker = opened()
    first = breaker.closed(0.1)
    assert first is not None and first.tolist() == [False, True]
    assert breaker.closed(OPEN_S - 0.1) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = True


# ---- what reports say


def test_a_report_opens_it_at_once_and_the_next_one_lets_a_call_try() -> None:
    breaker = Breaker(2)
    breaker.reported_down(0, 0.0)
    assert not may_go(breaker, MAX_OPEN_S - 0.1)
    assert may_go(breaker, 0.0, pool=1)
    breaker.reported_up(0, 5.0)
    assert may_go(breaker, 5.0)
    assert breaker.probe_started(0, 5.0)
    assert not may_go(breaker, 5.1)
    breaker.succeeded(0)
    assert breaker.closed(5.2) is None


def test_every_further_report_counts_anew_and_one_who_stops_keeps_nobody_away_for_ever() -> None:
    breaker = Breaker(1)
    for second in range(100):
        breaker.reported_down(0, float(second))
    assert not may_go(breaker, 99.0 + MAX_OPEN_S - 0.1)
    assert may_go(breaker, 99.0 + MAX_OPEN_S)


def test_a_call_that_is_answered_knows_better_than_a_report() -> None:
    breaker = Breaker(1)
    breaker.reported_down(0, 0.0)
    breaker.succeeded(0)
    assert breaker.closed(0.1) is None


def test_a_good_report_does_not_close_what_calls_have_opened_nor_end_their_probe() -> None:
    breaker = opened()
    breaker.reported_up(0, 0.1)
    assert not may_go(breaker, OPEN_S - 0.1)
    breaker.reported_down(1, 0.0)
    breaker.reported_up(1, 1.0)
    assert breaker.probe_started(1, 1.0)
    breaker.reported_up(1, 2.0)
    assert not may_go(breaker, 2.0, pool=1)


def test_a_good_report_of_a_server_that_nobody_doubted_changes_nothing() -> None:
    breaker = Breaker(1)
    breaker.reported_up(0, 0.0)
    assert breaker.closed(0.0) is None
