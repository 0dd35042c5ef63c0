"""The router's own queue: who is next, who is refused, and what is said meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from desk import SMALL, UNITS, Desk, one
from fleets import Clock, assert_nothing_is_held, fleet, profile, task
from numpy.typing import NDArray

from agentroute.assessment import Assessment
from agentroute.errors import NoFeasibleDeployment, PoolFull, UnknownNameError, UsageError
from agentroute.route import Route
from agentroute.router import Router
from agentroute.task import Priority, Slo, Task
from agentroute.waiting import AGE_S, MOST_TRIED, Ticket

# ---- who is next


def test_who_finds_room_does_not_wait() -> None:
    desk = Desk(profile(kv_blocks=70))
    ticket = desk.queue("first")
    assert (ticket.done, ticket.ahead, desk.placed) == (True, 0, ["first"])
    assert ticket.result().blocks == UNITS[SMALL]
    assert desk.router.expected_wait_s(ticket) == 0.0


def test_who_finds_none_waits_for_the_first_that_is_done() -> None:
    desk = one()
    ticket = desk.queue("first")
    assert not ticket.done
    with pytest.raises(UsageError, match="waits still"):
        ticket.result()
    desk.free()
    assert ticket.result().blocks == UNITS[SMALL]


def with_priority(priority: Priority, asked: Task = SMALL) -> Task:
    return replace(asked, priority=priority)


def test_a_person_comes_before_an_agent_before_what_nobody_waits_for() -> None:
    desk = one()
    for name in ("batch", "agent", "interactive"):
        desk.queue(name, with_priority(name))
    assert [desk.tickets[name].ahead for name in ("batch", "agent", "interactive")] == [2, 1, 0]
    assert desk.serve(3) == ["interactive", "agent", "batch"]


def test_of_equal_priority_the_earliest_due_comes_first_and_who_has_no_limit_last() -> None:
    desk = one()
    for name, deadline_s in (("none", None), ("late", 50.0), ("soon", 20.0)):
        desk.queue(name, replace(SMALL, deadline_s=deadline_s))
    desk.queue("ttft", replace(SMALL, ttft_ms=10_000.0))
    assert desk.serve(4) == ["ttft", "soon", "late", "none"]


def test_who_came_earlier_is_due_earlier() -> None:
    desk = one()
    asked = replace(SMALL, deadline_s=20.0)
    desk.queue("first", asked)
    desk.queue("second", replace(SMALL, deadline_s=15.0), after_s=4.0)
    desk.queue("third", replace(SMALL, deadline_s=15.0), after_s=4.0)
    assert desk.serve(3) == ["second", "first", "third"]


def test_the_limits_of_a_route_count_as_ones_own() -> None:
    routes = (Route(name="quick", ttft_ms=5_000), Route(name="slow", deadline_s=3_000))
    desk = Desk(profile(kv_blocks=70), routes=routes).fill()
    desk.queue("neither")
    desk.queue("slow", replace(SMALL, route="slow"))
    desk.queue("quick", replace(SMALL, route="quick"))
    desk.queue("own", replace(SMALL, route="slow", deadline_s=2.0))
    assert desk.serve(4) == ["own", "quick", "slow", "neither"]


def test_waiting_raises_the_priority_so_that_nobody_waits_for_ever() -> None:
    desk = one()
    desk.queue("batch", with_priority("batch"))
    desk.queue("fresh", with_priority("interactive"), after_s=2 * AGE_S - 1.0)
    assert desk.tickets["batch"].ahead == 1
    desk.clock.now += 1.0
    assert desk.tickets["batch"].ahead == 0, "of two priorities higher by now, and the first that came"
    desk.queue("fresher", with_priority("interactive"))
    assert desk.serve(3) == ["batch", "fresh", "fresher"]


# ---- who cannot keep its SLOs any more, and who never could


def test_who_could_never_be_placed_is_refused_at_once() -> None:
    desk = one(window=3_000)
    assert isinstance(desk.queue("too long", task(context=5_000)).refused, NoFeasibleDeployment)
    assert desk.placed == ["too long"]
    with pytest.raises(NoFeasibleDeployment, match="do not fit its window") as raised:
        desk.tickets["too long"].result()
    assert not isinstance(raised.value, PoolFull)


@pytest.mark.parametrize("many", [0, MOST_TRIED - 1, MOST_TRIED, 3 * MOST_TRIED])
def test_however_many_wait(many: int) -> None:
    desk = one()
    for i in range(many):
        desk.queue(f"waits {i}")
    assert desk.queue("too long", task(context=5_000)).refused is not None
    assert not desk.queue("fits").done
    assert desk.placed == ["too long"]


def test_a_refusal_that_is_kept_keeps_no_lease_of_its_callers() -> None:
    r = Router(fleet(profile(kv_blocks=70)))

    def asks() -> Ticket:
        lease = r.acquire(SMALL)
        return r.queue(replace(SMALL, context_tokens=5_000 + 0 * lease.blocks))

    kept = asks()
    assert kept.refused is not None
    r.acquire(SMALL).release()


def test_who_would_come_first_expects_to_wait_no_longer_than_it_does() -> None:
    desk = one()
    for i in range(20):
        desk.queue(f"batch {i}", with_priority("batch", task(900 + i)))
    urgent = with_priority("interactive")
    before = desk.router.expected_wait_s(urgent)
    assert before == desk.router.expected_wait_s(desk.queue("urgent", urgent))
    assert before is not None
    later = desk.router.expected_wait_s(with_priority("batch"))
    assert later is not None
    assert later > 10 * before


def test_an_objective_that_fails_on_a_task_fails_that_task_alone() -> None:
    """Whoever lets go of a lease has nothing to do with it, and nobody waits behind it for ever."""

    def fails(a: Assessment) -> NDArray[np.float64]:
        if a.ask.context_tokens == 900.0:
            raise ZeroDivisionError("mine")
        return a.e2e_ms

    r = Router(fleet(profile(kv_blocks=70)), objectives={"own": fails}, objective="own", clock=Clock())
    running = r.acquire(SMALL)
    waits, failed, behind = r.queue(SMALL), r.queue(task(900)), r.queue(SMALL)
    with pytest.raises(ZeroDivisionError, match="mine"):
        failed.result()
    running.release()
    waits.result().release()
    behind.result().release()
    assert_nothing_is_held(r)


def test_a_task_that_names_what_is_not_there_is_refused_with_that() -> None:
    with pytest.raises(UnknownNameError, match="there is no route 'nowhere'"):
        one().queue("lost", replace(SMALL, route="nowhere")).result()


def test_who_waits_until_its_hard_deadline_has_passed_is_refused_and_not_most_urgent() -> None:
    desk = one()
    desk.queue("expired", replace(SMALL, deadline_s=10.0))
    desk.queue("waits", replace(SMALL, deadline_s=100.0))
    desk.clock.now += 10.0
    assert desk.serve(1) == ["expired", "waits"]
    assert desk.tickets["expired"].refused is not None
    assert "10.0 s of it gone in waiting" in str(desk.tickets["expired"].refused)
    assert desk.tickets["waits"].lease is not None


def test_who_has_missed_a_soft_limit_comes_after_those_that_can_still_keep_theirs() -> None:
    desk = one()
    desk.queue("late", replace(SMALL, deadline_s=Slo(10.0, hard=False)))
    desk.queue("in time", replace(SMALL, deadline_s=Slo(100.0, hard=False)))
    desk.clock.now += 10.0
    desk.router.pump()
    assert desk.tickets["late"].delay.hopeless
    assert desk.serve(2) == ["in time", "late"]


def test_what_one_has_missed_its_equal_that_came_later_may_still_keep() -> None:
    desk = one()
    asked = replace(SMALL, deadline_s=Slo(10.0, hard=False))
    desk.queue("late", asked)
    desk.queue("in time", asked, after_s=9.0)
    desk.clock.now += 1.0
    desk.router.pump()
    assert [desk.tickets[name].delay.hopeless for name in ("late", "in time")] == [True, False]
    assert desk.serve(2) == ["in time", "late"]


def test_who_has_missed_a_soft_limit_is_refused_once_its_hard_one_has_passed() -> None:
    desk = one()
    ticket = desk.queue("late", replace(SMALL, ttft_ms=Slo(5_000.0, hard=False), deadline_s=10.0))
    desk.clock.now += 6.0
    assert desk.router.pump() == []
    assert ticket.delay.hopeless
    desk.clock.now += 4.0
    assert desk.router.pump() == [ticket]
    assert isinstance(ticket.refused, NoFeasibleDeployment)


# ---- what is said meanwhile


def test_the_expected_wait_is_that_of_those_that_run() -> None:
    desk = one()
    e2e_ms = desk.busy[0].decision.e2e_ms
    assert e2e_ms is not None
    service_s = e2e_ms.mean / 1_000
    first, second = desk.queue("first"), desk.queue("second")
    assert desk.router.expected_wait_s(first) == pytest.approx(service_s)
    assert desk.router.expected_wait_s(second) == pytest.approx(2 * service_s)
    assert desk.router.expected_wait_s(SMALL) == pytest.approx(3 * service_s), "of somebody who would come now"
    desk.clock.now += service_s / 4
    assert desk.router.expected_wait_s(first) == pytest.approx(0.75 * service_s)
    desk.free()
    assert desk.router.expected_wait_s(first) == 0.0


def test_of_what_nothing_is_known_no_wait_is_promised() -> None:
    desk = Desk(profile(points=(), kv_blocks=70)).fill()
    assert desk.router.expected_wait_s(desk.queue("first")) is None


def test_the_wait_for_what_can_never_be_is_no_number() -> None:
    with pytest.raises(NoFeasibleDeployment):
        one().router.expected_wait_s(task(context=5_000))
