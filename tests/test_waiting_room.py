"""The router's own queue: what makes room, and for whom it is kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from desk import LARGE, SMALL, UNITS, Desk, one
from fleets import profile, task

from agentroute.errors import UsageError
from agentroute.lease import Lease
from agentroute.state.load import Load
from agentroute.task import Slo, Task
from agentroute.waiting import MOST_REFUSED, MOST_TRIED, RESERVE_S, Delay

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


def test_room_where_something_is_warm_is_waited_for() -> None:
    """Idle and cold the pool would be too slow for it; warm it is not, and so it stays for now."""
    desk = Desk(profile(kv_blocks=600, prefixes=True))
    step = Task(context_tokens=8_000, max_output_tokens=100, session_id="s")
    desk.router.acquire(step).release()
    desk.clock.now += 100.0
    again = replace(step, ttft_ms=200.0)
    desk.router.acquire(again).release()
    desk.clock.now += 100.0
    desk.fill(task(300))
    desk.clock.now += 100.0
    ticket = desk.queue("step", again)
    assert ticket.refused is None
    while desk.busy:
        desk.free()
    assert ticket.result().deployment.name == "p"


# ---- nobody waits behind those that wait for something else


@pytest.mark.parametrize("many", [MOST_REFUSED - 1, MOST_REFUSED, MOST_TRIED, 2 * MOST_TRIED])
@pytest.mark.parametrize("pin", ["free", None])
def test_who_may_go_where_there_is_room_does_not_wait_behind_those_that_may_not(many: int, pin: str | None) -> None:
    desk = Desk(profile("full", kv_blocks=70, speed=2.0), profile("free", kv_blocks=7_000))
    desk.busy.append(desk.router.acquire(replace(SMALL, pin="full")))
    for i in range(many):
        desk.queue(f"waits {i}", replace(SMALL, pin="full", deadline_s=Slo(1_000.0 + i, hard=False)))
    desk.queue("quick", replace(SMALL, pin=pin), after_s=1.0)
    assert desk.placed == ["quick"]
    desk.clock.now += 1_000.0
    desk.free()
    assert desk.placed == ["quick", "waits 0"]


# ---- who leaves

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
