"""The throttle: a server that is full is sent what it takes, and one more now and then."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.state.throttle import FIRST_S, FORGET_S, MOST_PAUSE_S, MOST_S, TAKEN_S, Sent, Throttle


def may_go(throttle: Throttle, in_flight: int, now: float, pool: int = 0) -> bool:
    counts = np.zeros(2)
    counts[pool] = in_flight
    allowed = throttle.allowed(None, counts, now)
    return allowed is None or bool(allowed[pool])


def turn_away(throttle: Throttle, in_flight: int, now: float, wish_s: float | None = None) -> None:
    """One is sent where so many others are, and turned away at once."""
    throttle.turned_away(0, throttle.sent(0, in_flight, now), in_flight, now, wish_s)


def full(at: int = 4) -> Throttle:
    """One whose pool 0 turned somebody away with ``at`` others in flight."""
    throttle = Throttle()
    turn_away(throttle, at, 0.0)
    return throttle


def test_who_never_turned_anybody_away_has_no_limit() -> None:
    throttle = Throttle()
    assert not throttle
    assert throttle.allowed(None, np.full(2, 1e6), 0.0) is None
    assert throttle.sent(0, 10**6, 0.0).trial is None


@pytest.mark.parametrize(
    ("in_flight", "after_s", "goes"),
    [
        (3, 0.0, True),
        (4, 0.0, False),
        (4, FIRST_S - 0.01, False),
        (4, FIRST_S, True),
        (5, FIRST_S, False),
        (99, FORGET_S + FIRST_S - 0.01, False),
        (99, FORGET_S + FIRST_S, True),
    ],
)
def test_so_many_as_it_had_are_sent_again_and_one_more_after_a_while(
    in_flight: int, after_s: float, goes: bool
) -> None:
    throttle = full(at=4)
    assert may_go(throttle, in_flight, after_s) is goes
    assert may_go(throttle, 99, after_s, pool=1)


@pytest.mark.parametrize(
    ("at", "wish_s", "in_flight", "after_s", "goes"),
    [
        (4, 3.0, 0, 2.99, False),
        (4, 3.0, 3, 3.0, True),
        (4, 3.0, 4, 3.0, False),
        (4, 3.0, 4, 3.0 + FIRST_S, True),
        (0, 3.0, 0, 2.99, False),
        (0, 3.0, 0, 3.0, True),
        (0, None, 0, FIRST_S - 0.01, False),
        (0, None, 0, FIRST_S, True),
        (4, 86_400.0, 0, MOST_PAUSE_S - 0.01, False),
        (4, 86_400.0, 0, MOST_PAUSE_S, True),
    ],
)
def test_what_the_server_asks_for_is_kept(
    at: int, wish_s: float | None, in_flight: int, after_s: float, goes: bool
) -> None:
    throttle = Throttle()
    turn_away(throttle, at, 0.0, wish_s)
    assert may_go(throttle, in_flight, after_s) is goes


# ---- what it takes, out of a burst of twelve to a server that takes four


def burst() -> tuple[Throttle, list[Sent]]:
    throttle = Throttle()
    return throttle, [throttle.sent(0, before, 0.0) for before in range(12)]


def assert_limit(throttle: Throttle, limit: int, now: float) -> None:
    assert may_go(throttle, limit - 1, now) and not may_go(throttle, limit, now)


@pytest.mark.parametrize("ended", [0, 3, 4], ids=lambda ended: f"{ended} answered by then")
def test_those_that_came_too_late_tell_how_many_were_taken(ended: int) -> None:
    throttle, sent = burst()
    for k, one in enumerate(sent[4:]):
        throttle.turned_away(0, one, 11 - k - ended, 0.0)
    assert_limit(throttle, 4, 0.0)


def test_whichever_order_they_arrive_in() -> None:
    """The first was turned away, and the last taken: what is in flight still was not turned away."""
    throttle, sent = burst()
    for k, one in enumerate(sent[:8]):
        throttle.turned_away(0, one, 11 - k, 0.0)
    assert_limit(throttle, 4, 0.0)


def test_who_takes_fewer_by_now_is_sent_fewer() -> None:
    throttle = full(at=4)
    for in_flight in (3, 2):
        turn_away(throttle, in_flight, 1.0)
    assert_limit(throttle, 2, 1.0)


# ---- one more


def test_one_more_at_a_time() -> None:
    throttle = full()
    assert throttle.sent(0, 3, FIRST_S).trial is None, "it has taken as many before"
    assert throttle.sent(0, 4, FIRST_S).trial is not None
    assert throttle.sent(0, 5, FIRST_S).trial is None
    assert not may_go(throttle, 5, FIRST_S)
    assert may_go(throttle, 4, FIRST_S), "one of the four has ended, whatever becomes of the fifth"


def test_who_is_turned_away_again_is_tried_half_as_often_down_to_a_bound_and_loses_nothing() -> None:
    throttle, now, waits = full(), 0.0, []
    for _ in range(8):
        waits.append(next(k / 100 for k in range(2_000) if may_go(throttle, 4, now + k / 100)))
        now += waits[-1]
        turn_away(throttle, 4, now)
        assert may_go(throttle, 3, now)
    assert waits == pytest.approx([min(FIRST_S * 2**k, MOST_S) for k in range(8)], abs=0.011)


def test_who_takes_them_is_sent_one_then_two_then_four_more() -> None:
    throttle, limit = full(), 4
    for more in (1, 2, 4, 8):
        throttle.answered(0, throttle.sent(0, limit, FIRST_S), FIRST_S)
        limit += more
        assert may_go(throttle, limit - 1, FIRST_S)
    turn_away(throttle, 7, FIRST_S)
    assert_limit(throttle, 7, FIRST_S)
    throttle.answered(0, throttle.sent(0, 7, 2 * FIRST_S), 2 * FIRST_S)
    assert throttle.sent(0, 8, 2 * FIRST_S).trial is not None, "and by one again"


def test_a_try_that_is_not_turned_away_for_a_while_was_taken() -> None:
    throttle = full(at=0)
    assert throttle.sent(0, 0, FIRST_S).trial is not None
    assert not may_go(throttle, 1, FIRST_S + TAKEN_S - 0.01)
    assert may_go(throttle, 1, FIRST_S + TAKEN_S)


def test_a_try_that_told_nothing_lets_the_next_go() -> None:
    throttle = full()
    other, trial = throttle.sent(0, 3, FIRST_S), throttle.sent(0, 4, FIRST_S)
    throttle.ended(0, other)
    assert throttle.sent(0, 4, FIRST_S).trial is None
    throttle.ended(0, trial)
    assert throttle.sent(0, 4, FIRST_S).trial is not None


def test_what_a_try_says_counts_once_and_only_while_it_is_on_its_way() -> None:
    throttle = full()
    first = throttle.sent(0, 4, FIRST_S)
    throttle.answered(0, first, FIRST_S)
    assert throttle.sent(0, 5, FIRST_S).trial is not None
    throttle.answered(0, first, FIRST_S)
    throttle.ended(0, first)
    assert throttle.sent(0, 5, FIRST_S).trial is None, "the second is on its way still"


def test_who_is_down_stays_down() -> None:
    throttle, down = full(), np.array([False, False])
    for in_flight in (0.0, 4.0):
        allowed = throttle.allowed(down, np.full(2, in_flight), 0.0)
        assert allowed is not None and not allowed.any()
    up = np.array([True, True])
    allowed = throttle.allowed(up, np.full(2, 4.0), 0.0)
    assert allowed is not None and allowed.tolist() == [False, True] and up.all()


def test_a_clock_set_back_keeps_nobody_waiting_for_longer() -> None:
    throttle = Throttle()
    turn_away(throttle, 0, 10_000.0)
    assert not may_go(throttle, 0, 100.0)
    assert may_go(throttle, 0, 100.0 + FIRST_S)


# ---- a server that takes so many at once


LOOK_S = 0.1
"""How often who waits looks again."""


@dataclass
class Closed:
    """``clients`` that ask again as soon as they may, of a server that takes ``takes`` at once for ``service_s`` each,
    turns the rest away after ``says_no_s``, and asks to be left alone for ``wish_s``."""

    takes: int
    clients: int
    service_s: float
    says_no_s: float
    wish_s: float | None
    throttle: Throttle = field(default_factory=Throttle)
    now: float = 0.0
    in_flight: int = 0
    running: int = 0
    worked_s: float = 0.0
    refused: list[float] = field(default_factory=list)
    events: list[tuple[float, int, bool, Sent]] = field(default_factory=list)
    sent: int = 0

    def run(self, until_s: float) -> Closed:
        while self.now < until_s:
            while self.in_flight < self.clients and may_go(self.throttle, self.in_flight, self.now):
                self.send()
            before, self.now = self.now, min(self.now + LOOK_S, self.events[0][0] if self.events else math.inf)
            self.worked_s += self.running * (self.now - before)
            while self.events and self.events[0][0] <= self.now:
                self.end(*heapq.heappop(self.events)[2:])
        return self

    def send(self) -> None:
        taken = self.running < self.takes
        sent = self.throttle.sent(0, self.in_flight, self.now)
        self.in_flight += 1
        self.running += taken
        self.sent += 1
        after_s = self.service_s if taken else self.says_no_s
        heapq.heappush(self.events, (self.now + after_s, self.sent, taken, sent))

    def end(self, taken: bool, sent: Sent) -> None:
        self.in_flight -= 1
        if taken:
            self.running -= 1
            self.throttle.answered(0, sent, self.now)
        else:
            self.throttle.turned_away(0, sent, self.in_flight, self.now, self.wish_s)
            self.refused.append(self.now)

    def busy(self, for_s: float) -> float:
        """What it does from now on, as a share of what it could."""
        since_s, before_s = self.now, self.worked_s
        self.run(since_s + for_s)
        return (self.worked_s - before_s) / (self.takes * (self.now - since_s))


servers = st.builds(
    Closed,
    takes=st.integers(1, 20),
    clients=st.integers(21, 40),
    service_s=st.floats(0.4, 6.0),
    says_no_s=st.floats(0.0, 0.3),
    wish_s=st.none() | st.floats(0.0, 2.0),
)


@given(servers)
@settings(max_examples=30)
def test_a_server_that_takes_k_at_once_is_kept_at_k_and_hardly_ever_asked_for_more(server: Closed) -> None:
    """Beyond what it asks for: while it is left alone those that end are not replaced."""
    server.run(10.0)
    shares = [server.busy(10.0) for _ in range(5)]
    pauses = (server.wish_s or 0.0) * 2.0 / 10.0
    assert min(shares) >= 0.9 - pauses
    assert max(shares) - min(shares) <= 0.1 + pauses, "it does not swing"
    assert sum(at > 10.0 for at in server.refused) <= 60.0 / MOST_S


@pytest.mark.parametrize("wish_s", [None, 1.0])
@pytest.mark.parametrize("takes", [1, 4, 40])
def test_of_a_server_that_takes_more_again_the_rest_is_found_within_a_minute(takes: int, wish_s: float | None) -> None:
    server = Closed(takes=takes, clients=60, service_s=2.0, says_no_s=0.1, wish_s=wish_s).run(30.0)
    server.takes *= 4
    server.run(60.0)
    assert server.busy(12.0) * server.takes >= 0.9 * min(server.takes, server.clients)
