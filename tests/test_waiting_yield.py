"""Who waits though there is room: who would cost others more SLOs than it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from desk import LARGE, SMALL, UNITS, Desk, one
from fleets import profile, task

from agentroute.lease import Lease
from agentroute.task import Slo
from agentroute.waiting import AGE_S, LATE_S, LOOK_AGAIN_S

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
    monkeypatch.setattr("agentroute.waiting.costs_more", lambda *_: False)
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
