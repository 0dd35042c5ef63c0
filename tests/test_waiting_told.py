"""The router's own queue: everybody is told, once, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from desk import SMALL, UNITS, Desk
from fleets import Clock, profile, task
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.fleet import Deployment, Fleet
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import Priority, Slo, Task
from agentroute.waiting import Ticket


def test_a_callback_may_call_the_router() -> None:
    """Whatever it asks of it: callbacks are called outside every lock."""
    desk = Desk(profile(kv_blocks=2 * UNITS[SMALL])).fill()
    seen: list[object] = []

    def call(ticket: Ticket) -> None:
        r = desk.router
        seen.append(r.decide(SMALL).deployment)
        seen.append(r.expected_wait_s(ticket))
        r.observe("p", Load())
        r.pump()
        ticket.result().release()
        with r.acquire(SMALL):
            seen.append(len(desk.placed))
        desk.queue("another").cancel()

    def work() -> None:
        desk.router.queue(SMALL, on_done=call)
        desk.free()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive(), "it waits for a lock that it holds"
    assert seen == ["p", 0.0, 0]


def test_one_that_raises_keeps_nobody_else_from_being_told() -> None:
    desk = Desk(profile(kv_blocks=2 * UNITS[SMALL])).fill()
    told: list[str] = []

    def raises(name: str) -> Callable[[Ticket], None]:
        def call(_: Ticket) -> None:
            told.append(name)
            raise ZeroDivisionError(name)

        return call

    tickets = [desk.router.queue(SMALL, on_done=raises(name)) for name in ("a", "b")]
    for lease in desk.busy:
        lease.release(after_s=1.0)
    desk.clock.now += 1.0
    with pytest.raises(ZeroDivisionError):
        desk.router.pump()
    assert told == ["a", "b"]
    assert all(ticket.lease is not None for ticket in tickets)


@given(st.lists(st.tuples(st.sampled_from("qqqfctb"), st.integers(0, 30)), max_size=40))
@settings(max_examples=25, deadline=None)
def test_everybody_is_told_exactly_once_whatever_happens(script: list[tuple[str, int]]) -> None:
    """Queue, finish, cancel, let time pass, set the clock back; at the end everybody leaves, and nothing is held."""
    clock = Clock()
    r = Router(Fleet([Deployment("a", PROFILE), Deployment("b", PROFILE)]), clock=clock)
    told: list[Ticket] = []
    tickets: list[Ticket] = []
    for what, value in script:
        match what:
            case "q":
                priority: Priority = ("interactive", "agent", "batch")[value % 3]
                deadline = None if value % 2 else Slo(5.0 + value, hard=value % 4 == 0)
                asked = Task(
                    context_tokens=100 * (1 + value), max_output_tokens=100, priority=priority, deadline_s=deadline
                )
                tickets.append(r.queue(asked, on_done=told.append))
            case "f" | "c" if tickets:
                ticket = tickets[value % len(tickets)]
                if what == "c":
                    ticket.cancel()
                elif ticket.lease is not None:
                    ticket.lease.release(after_s=value / 10.0)
            case "t":
                clock.now += value
            case "b":
                clock.now -= value
        r.pump()
        assert len(told) == len(set(map(id, told))) == sum(ticket.done for ticket in tickets)
    for ticket in tickets:
        ticket.cancel()
    clock.now += 100.0
    assert len(told) == len(tickets) == len(set(map(id, told)))
    headroom = [candidate.headroom for candidate in r.decide(task(context=1, output=1)).candidates]
    assert [room and room.free for room in headroom] == [PROFILE.pool.blocks] * 2  # type: ignore[union-attr]


PROFILE = profile(kv_blocks=200)
