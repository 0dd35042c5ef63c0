"""The router's own queue: who is next, who is kept a place, who is refused, and who is told."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fleets import Clock, fleet, profile, task
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.errors import NoFeasibleDeployment, PoolFull, UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.lease import Lease
from agentroute.profile import Profile
from agentroute.route import Route
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import Priority, Slo, Task
from agentroute.waiting import AGE_S, LATE_S, LOOK_AGAIN_S, MOST_TRIED, RESERVE_S, Delay, Ticket

SMALL, LARGE = task(context=1_000), task(context=4_000)
UNITS = {SMALL: 69, LARGE: 257}


class Desk:
    """A router with a clock to move, and who was placed, in their order."""

    def __init__(self, *profiles: Profile, routes: tuple[Route, ...] = (), objective: str = "fit") -> None:
        self.clock = Clock()
        self.router = Router(fleet(*profiles), routes=routes, objective=objective, clock=self.clock)
        self.placed: list[str] = []
        self.tickets: dict[str, Ticket] = {}
        self.busy: list[Lease] = []

    def fill(self, asked: Task = SMALL) -> Desk:
        """Hold all that there is room for."""
        while True:
            try:
                self.busy.append(self.router.acquire(asked))
            except PoolFull:
                return self

    def queue(self, name: str, asked: Task = SMALL, after_s: float = 0.0) -> Ticket:
        self.clock.now += after_s
        ticket = self.tickets[name] = self.router.queue(asked, on_done=lambda _: self.placed.append(name))
        return ticket

    def free(self) -> None:
        """One that runs is done."""
        self.busy.pop().release()

    def serve(self, many: int) -> list[str]:
        """So many are done one after the other; who came in for them."""
        before = len(self.placed)
        for _ in range(many):
            self.free() if self.busy else self.tickets[self.placed[-1]].result().release()
        return self.placed[before:]


def one(**more: Any) -> Desk:
    """One pool that holds one ``SMALL``, held."""
    return Desk(profile(kv_blocks=70, **more)).fill()


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


# ---- a place is kept for who is large


def test_many_small_ones_do_not_starve_a_large_one() -> None:
    """A pool of four: the large one needs all, and small ones come in as fast as others leave."""
    desk = Desk(profile(kv_blocks=4 * UNITS[SMALL])).fill()
    desk.queue("large", LARGE)
    for i in range(3):
        desk.queue(f"early {i}")
    assert desk.serve(1) == ["early 0"], "at first they may pass it by"
    desk.clock.now += RESERVE_S
    for i in range(3):
        desk.queue(f"late {i}")
    assert desk.serve(len(desk.busy)) == []
    desk.tickets["early 0"].result().release()
    assert desk.placed[1:] == ["large"]


def test_without_the_reservation_it_would_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentroute.waiting.RESERVE_S", math.inf)
    desk = Desk(profile(kv_blocks=4 * UNITS[SMALL])).fill()
    desk.queue("large", LARGE)
    for i in range(8):
        desk.queue(f"small {i}")
    desk.clock.now += RESERVE_S
    assert desk.serve(8) == [f"small {i}" for i in range(8)]


def test_a_pool_is_kept_free_and_the_others_are_not() -> None:
    small, large = profile("small", kv_blocks=2 * UNITS[SMALL]), profile("large", kv_blocks=UNITS[LARGE])
    desk = Desk(large, small)
    desk.fill(LARGE).fill()
    desk.queue("large", LARGE)
    desk.queue("little", after_s=RESERVE_S)
    desk.busy.pop().release()
    assert desk.placed == ["little"]
    assert desk.tickets["little"].result().decision.deployment == "small"


def test_when_who_it_was_kept_for_leaves_the_next_come_in() -> None:
    desk = Desk(profile(kv_blocks=4 * UNITS[SMALL])).fill()
    desk.queue("large", LARGE)
    desk.queue("little", after_s=RESERVE_S)
    desk.free()
    assert desk.placed == []
    desk.tickets["large"].cancel()
    assert desk.placed == ["large", "little"]


# ---- who yields to others


PERSON = replace(SMALL, ttft_ms=Slo(300.0, hard=False), tpot_ms=Slo(6.5, hard=False))
"""It can lose 200 ms while it is answered."""
LONG = task(context=8_000)
"""Its prompt takes 410 ms, and all that are being answered lose most of that."""


def beside_a_person(**more: Any) -> tuple[Desk, Lease]:
    desk = Desk(profile(**{"kv_blocks": 5_000, **more}))
    return desk, desk.queue("person", PERSON).result()


def test_who_costs_another_its_slo_and_keeps_none_waits_until_it_costs_none() -> None:
    desk, person = beside_a_person()
    desk.queue("long", LONG)
    assert desk.placed == ["person"]
    desk.clock.now += 2.0
    assert desk.router.pump() == []
    person.release()
    desk.clock.now += LOOK_AGAIN_S
    desk.router.pump()
    assert desk.placed == ["person", "long"]


def test_without_that_rule_it_would_cost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentroute.router.costs_more", lambda *_: False)
    desk, _ = beside_a_person()
    assert desk.queue("long", LONG).done


@pytest.mark.parametrize(("deadline_s", "waits"), [(100.0, False), (0.5, True)])
def test_who_keeps_one_of_its_own_by_it_does_not_wait(deadline_s: float, waits: bool) -> None:
    desk, _ = beside_a_person()
    assert desk.queue("long", replace(LONG, deadline_s=Slo(deadline_s, hard=False))).done is not waits


def test_who_costs_nobody_anything_does_not_wait() -> None:
    desk, _ = beside_a_person()
    assert desk.queue("short", SMALL).done


def test_an_objective_that_is_not_about_slos_keeps_nobody_waiting() -> None:
    desk = Desk(profile(kv_blocks=5_000), objective="latency")
    desk.queue("person", PERSON)
    assert desk.queue("long", LONG).done


def test_nobody_yields_for_ever() -> None:
    desk, _ = beside_a_person()
    ticket = desk.queue("long", LONG)
    desk.clock.now += LATE_S - 1.0
    assert desk.router.pump() == []
    desk.clock.now += 1.0
    assert desk.router.pump() == [ticket]


def test_the_longer_one_has_waited_the_more_others_may_lose() -> None:
    desk, _ = beside_a_person()
    ticket = desk.queue("shorter", task(context=2_900))
    assert not ticket.done
    desk.clock.now += LATE_S / 2
    assert desk.router.pump() == [ticket]


@pytest.mark.parametrize(("pools", "waits"), [("a", True), ("ab", False)])
def test_who_only_comes_later_is_no_reason_to_wait_where_it_can_go_elsewhere(pools: str, waits: bool) -> None:
    desk = Desk(*(profile(name, kv_blocks=5_000) for name in pools))
    for _ in range(100):
        for lease in [desk.queue("a person", PERSON).result() for _ in pools]:
            lease.release()
    assert desk.queue("long", LONG).done is not waits


def test_what_one_yields_to_another_it_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, _ = beside_a_person()
    desk.queue("long", LONG)
    monkeypatch.setattr(desk.router._waiting, "_place", lambda *_: pytest.fail("it was tried"))
    desk.clock.now += LOOK_AGAIN_S / 2
    assert desk.router.pump() == []


@pytest.mark.parametrize(("people", "waits"), [(1, False), (100, True)])
def test_the_last_room_is_left_to_those_who_come_and_can_still_keep_their_slos(people: int, waits: bool) -> None:
    """Where many have come lately, that is."""
    desk = Desk(profile(kv_blocks=5 * UNITS[SMALL]))
    for _ in range(people):
        desk.queue("a person", PERSON).result().release()
    desk.queue("one")
    desk.queue("another")
    late = desk.queue("late", replace(LARGE, context_tokens=2_600, deadline_s=Slo(0.01, hard=False)))
    assert late.done is not waits
    assert desk.queue("a person", PERSON).done is waits


def test_what_needs_a_pool_for_itself_gets_it_when_it_is_empty() -> None:
    desk = Desk(profile(kv_blocks=UNITS[LARGE]))
    for _ in range(100):
        desk.queue("a person", PERSON).result().release()
    assert desk.queue("large", LARGE).done


@pytest.mark.parametrize(("waited_s", "first"), [(AGE_S, "fresh"), (LATE_S - 1.0, "fresh"), (LATE_S, "late")])
def test_who_is_late_comes_after_those_in_time_however_it_ages_but_not_for_ever(waited_s: float, first: str) -> None:
    desk = one()
    desk.queue("late", replace(SMALL, deadline_s=Slo(1.0, hard=False)))
    desk.clock.now += 2.0
    desk.router.pump()
    desk.queue("fresh", replace(SMALL, deadline_s=Slo(1_000.0, hard=False)), after_s=waited_s - 2.0)
    assert desk.serve(1) == [first]


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


# ---- who leaves


def test_who_leaves_while_it_waits_is_told_once_and_takes_no_room() -> None:
    desk = one()
    ticket = desk.queue("first")
    for _ in range(3):
        ticket.cancel()
    assert (desk.placed, ticket.done, ticket.cancelled) == (["first"], True, True)
    with pytest.raises(UsageError, match="was cancelled"):
        ticket.result()
    desk.free()
    desk.router.acquire(SMALL).release()


def test_who_leaves_after_it_was_placed_gives_its_place_to_the_next() -> None:
    desk = one()
    first, second = desk.queue("first"), desk.queue("second")
    desk.free()
    for _ in range(3):
        first.cancel()
    assert desk.placed == ["first", "second"]
    assert (first.cancelled, second.done) == (False, True)


# ---- what makes room


def test_a_report_makes_room_too() -> None:
    desk = Desk(profile(kv_blocks=70))
    desk.router.observe("p", Load(running=1, kv_used=0.9))
    ticket = desk.queue("first")
    assert not ticket.done
    desk.router.observe("p", Load(running=0, kv_used=0.0))
    assert ticket.done


def test_time_makes_room_when_somebody_looks() -> None:
    desk = one()
    ticket = desk.queue("first")
    desk.busy.pop().release(after_s=3.0)
    desk.clock.now += 2.9
    assert desk.router.pump() == []
    desk.clock.now += 0.1
    assert desk.router.pump() == [ticket]


def test_looking_twice_within_the_interval_is_looking_once() -> None:
    desk = one()
    ticket = desk.queue("first")
    desk.busy.pop().release(after_s=0.1)
    desk.clock.now += 0.2
    assert desk.router.pump(every_s=0.3) == []
    desk.clock.now += 0.1
    assert desk.router.pump(every_s=0.3) == [ticket]


@pytest.mark.parametrize("jump_s", [5.0, 3_600.0])
def test_a_clock_set_back_stops_nobody(jump_s: float) -> None:
    desk = Desk(profile(kv_blocks=70))
    desk.clock.now = 10_000.0
    desk.fill()
    ticket = desk.queue("first")
    desk.busy.pop().release(after_s=3.0)
    desk.clock.now -= jump_s
    assert desk.router.pump(every_s=0.25) == []
    desk.clock.now += 3.1
    assert desk.router.pump(every_s=0.25) == [ticket]


def test_a_dropped_lease_makes_room_when_somebody_looks() -> None:
    desk = one()
    ticket = desk.queue("first")
    desk.busy.clear()
    assert desk.router.pump() == [ticket]


def test_while_there_is_no_room_nobody_is_assessed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision for each of those that wait, whenever anybody is done, would be most of the work of a full fleet."""
    desk = Desk(profile(kv_blocks=4 * UNITS[SMALL])).fill()
    for i in range(20):
        late = Slo(0.001, hard=False) if i % 2 else None
        desk.queue(f"large {i}", replace(LARGE, ttft_ms=late, deadline_s=1_000.0 + i))
    tried: list[float] = []
    place = desk.router._waiting._place

    def counted(asked: Task, waited_s: float, closed: frozenset[int] | None) -> Lease | Delay:
        tried.append(waited_s)
        return place(asked, waited_s, closed)

    monkeypatch.setattr(desk.router._waiting, "_place", counted)
    desk.free()
    desk.free()
    assert tried == []
    desk.free()
    desk.free()
    assert desk.placed == ["large 0"]


def test_room_of_a_prefix_that_siblings_hold_is_room() -> None:
    """A sibling needs 69 blocks, 62 of them the prefix that is held already: 7 are enough."""
    desk = Desk(profile(kv_blocks=100, prefixes=True))
    sibling = replace(SMALL, concurrency=4, group="g", shared_prefix_tokens=992)
    stranger = desk.router.acquire(task(context=400))
    ticket = desk.queue("sibling", sibling)
    assert not ticket.done
    stranger.release(after_s=1.0)
    desk.clock.now += 1.0
    with desk.router.acquire(replace(sibling, context_tokens=993, max_output_tokens=1)) as first:
        assert first.blocks == 63
        assert desk.router.pump() == [ticket]


# ---- callbacks


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
