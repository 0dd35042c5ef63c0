"""What a decision reads of what is true, and what it learns from what became of a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import BLOCK, Clock, assert_nothing_is_held, fleet, grid, held, profile, task

from agentroute.errors import FailureKind, NoFeasibleDeployment, PoolFull
from agentroute.fleet import Deployment, Fleet
from agentroute.lease import Lease
from agentroute.outcome import Outcome
from agentroute.profile import Profile
from agentroute.route import Route
from agentroute.router import Router
from agentroute.state.breaker import FAILURES, MAX_OPEN_S, OPEN_S
from agentroute.state.load import Load
from agentroute.state.situation import group_of, marks_of
from agentroute.state.throttle import FIRST_S, MOST_S
from agentroute.task import Task

OK = Outcome(ttft_ms=60.0, tpot_ms=5.1)
FAILED = Outcome(failure=FailureKind.TIMEOUT)


def two(p: Profile | None = None, **more: Any) -> Router:
    p = p or profile(kv_blocks=20_000, prefixes=True)
    return Router(Fleet([Deployment("a", p), Deployment("b", p)]), **more)


def used(r: Router, deployment: str = "p") -> int:
    for candidate in r.decide(task(1, 1)).candidates:
        if candidate.deployment == deployment and candidate.headroom is not None:
            return candidate.headroom.blocks - candidate.headroom.free
    raise AssertionError(deployment)


def ttft_ms(r: Router, asked: Task, deployment: str) -> float:
    estimate = next(c.ttft_ms for c in r.decide(asked).candidates if c.deployment == deployment)
    assert estimate is not None
    return estimate.mean


# ---- who is whose sibling


def test_siblings_are_told_by_group_else_by_being_equal() -> None:
    asked = task(concurrency=3)
    assert group_of(task()) is None
    assert group_of(asked) == group_of(task(concurrency=3)) != group_of(task(context=999, concurrency=3))
    assert (
        group_of(replace(asked, group="g"))
        == group_of(task(context=5, concurrency=2).__class__(context_tokens=5, concurrency=2, group="g"))
        == "g"
    )


# ---- what siblings share is held once

SHARING = replace(task(concurrency=8), group="g", shared_prefix_tokens=40 * BLOCK)
"""69 blocks each, 40 of them the prefix."""


def test_what_siblings_share_is_held_once() -> None:
    r = Router(fleet(profile(kv_blocks=1_000, prefixes=True)))
    leases = []
    for i in range(8):
        leases.append(r.acquire(SHARING))
        assert used(r) == 40 + 29 * (i + 1)
    for i, lease in enumerate(leases):
        lease.release()
        left = 7 - i
        assert used(r) == (40 + 29 * left if left else 0)
    assert_nothing_is_held(r)


@pytest.mark.parametrize("reported", [None, False])
def test_only_where_prefix_caching_is_reported(reported: bool | None) -> None:
    r = Router(fleet(profile(kv_blocks=1_000, prefixes=reported)))
    leases = [held(r, SHARING) for _ in range(3)]
    assert used(r) == 69 * len(leases)


def test_more_siblings_fit_than_strangers() -> None:
    def admitted(asked: Task) -> int:
        r, leases = Router(fleet(profile(kv_blocks=300, prefixes=True))), []
        with pytest.raises(PoolFull):
            while True:
                leases.append(r.acquire(asked))
        return len(leases)

    assert (admitted(task()), admitted(SHARING)) == (4, 8)


def test_only_whole_blocks_are_shared() -> None:
    r = Router(fleet(profile(kv_blocks=1_000, prefixes=True)))
    leases = [held(r, replace(SHARING, shared_prefix_tokens=40 * BLOCK + BLOCK - 1)) for _ in range(2)]
    assert used(r) == 40 + 29 * len(leases)


@pytest.mark.parametrize("first", [0, 1])
def test_who_shares_more_than_its_sibling_holds_the_more_itself(first: int) -> None:
    r = Router(fleet(profile(kv_blocks=1_000, prefixes=True)))
    asked = [replace(SHARING, shared_prefix_tokens=2 * BLOCK), SHARING]
    leases = [r.acquire(asked[first]), r.acquire(asked[1 - first])]
    assert used(r) >= 69 + 29 + 38, "38 blocks of the longer prefix are nobody else's"
    for lease in leases:
        lease.release()
    assert_nothing_is_held(r)


def test_a_prefix_as_long_as_the_window_of_another_name_is_no_trouble() -> None:
    p, short = (profile(kv_blocks=1_000, prefixes=True, window=window) for window in (None, 640))
    r = Router(Fleet([Deployment("long", p, pool="gpu"), Deployment("short", short, pool="gpu")]))
    asked = replace(SHARING, max_output_tokens=None)
    leases = [r.acquire(asked) for _ in range(2)]
    assert [lease.deployment.name for lease in leases] == ["long"] * 2


# ---- what is held for an answer

ROUTED = Route(name="default", p95_output_tokens=100)


def test_of_an_answer_so_much_is_held_as_95_of_100_take() -> None:
    p = profile(kv_blocks=1_000, window=16_000)
    asked = task(1_000, 8_000)
    whole, p95 = Router(fleet(p)), Router(fleet(p), routes=[ROUTED])
    assert (held(whole, asked).blocks, held(p95, asked).blocks) == (9_000 // BLOCK + 1, 1_100 // BLOCK + 1)
    assert held(p95, task(1_000, 50)).blocks == 1_050 // BLOCK + 1, "but never more than it may be"


def test_though_the_longest_must_fit_the_pool_and_the_window() -> None:
    for p in (profile(kv_blocks=500, window=16_000), profile(kv_blocks=5_000, window=8_000)):
        with pytest.raises(NoFeasibleDeployment):
            Router(fleet(p), routes=[ROUTED]).decide(task(1_000, 8_000))


def test_a_longer_answer_takes_block_after_block() -> None:
    r = Router(fleet(profile(kv_blocks=1_000)), routes=[ROUTED])
    lease = r.acquire(task(1_000, 8_000))
    for output, blocks in ((100, 69), (104, 69), (105, 70), (50, 70), (1_000, 125)):
        assert lease.extend(output)
        assert (lease.blocks, used(r)) == (blocks, blocks)
    lease.release()
    assert lease.extend(9_000), "it is over"
    assert_nothing_is_held(r)


def test_one_that_outgrows_the_pool_stops_admission_until_there_is_room() -> None:
    r = Router(fleet(profile(kv_blocks=150)), routes=[ROUTED])
    lease, other = r.acquire(task(1_000, 1_300)), r.acquire(task(1_000, 1_300))
    assert not lease.extend(1_300)
    assert r._situation.ledger.overruns == 1
    with pytest.raises(PoolFull):
        r.acquire(task(1, 1))
    other.release()
    r.acquire(task(1, 1)).release()
    lease.release()
    assert_nothing_is_held(r)


# ---- what is warm

LONG = Task(context_tokens=8_000, max_output_tokens=100, session_id="s")


@pytest.mark.parametrize("objective", ["fit", "latency"])
def test_a_warm_prefix_shortens_the_ttft_and_draws_the_next_step(objective: str) -> None:
    r = two(objective=objective)
    r.acquire(replace(LONG, pin="b")).settle(Outcome(output_tokens=100))
    step = replace(LONG, context_tokens=8_200)
    assert ttft_ms(r, step, "b") < 0.2 * ttft_ms(r, step, "a")
    assert r.decide(step).deployment == "b"
    assert ttft_ms(r, replace(step, session_id="other"), "b") == pytest.approx(ttft_ms(r, step, "a"))


def test_a_child_finds_its_parents_prefix_and_not_the_rest_of_its_siblings() -> None:
    r = two()
    r.acquire(replace(LONG, context_tokens=2_000, session_id="parent", pin="b")).release()
    child = replace(LONG, session_id="c1", parent_session_id="parent")
    before, cold = ttft_ms(r, child, "b"), ttft_ms(r, child, "a")
    assert before < 0.9 * cold
    r.acquire(replace(child, pin="b")).release()
    assert ttft_ms(r, replace(child, session_id="c2"), "b") == pytest.approx(before, rel=0.02)
    assert ttft_ms(r, child, "b") < 0.2 * cold


def test_the_marks_of_a_task_are_all_that_is_known_of_its_beginning() -> None:
    asked = Task(
        context_tokens=900, prefix=((7, 100), (8, 500)), session_id="s", parent_session_id="p", concurrency=4,
        shared_prefix_tokens=200, group="g",
    )  # fmt: skip
    assert [mark.tokens for mark in marks_of(asked)] == [100, 200, 500, 900, 900]
    assert marks_of(task()) == ()


def test_where_there_is_no_prefix_cache_nothing_is_warm() -> None:
    r = two(profile(kv_blocks=20_000, prefixes=False))
    r.acquire(replace(LONG, pin="b")).release()
    assert ttft_ms(r, LONG, "b") == pytest.approx(ttft_ms(r, LONG, "a"))


# ---- who is down


def failures(r: Router, many: int, deployment: str = "a") -> None:
    for _ in range(many):
        r.acquire(replace(task(), pin=deployment)).settle(FAILED)


def test_after_faults_in_a_row_a_server_is_left_alone_and_others_take_over() -> None:
    clock = Clock()
    r = two(clock=clock)
    failures(r, FAILURES - 1)
    assert r.acquire(replace(task(), pin="a")).deployment.name == "a"
    failures(r, 1)
    with pytest.raises(PoolFull):
        r.acquire(replace(task(), pin="a"))
    assert {held(r, task()).deployment.name for _ in range(6)} == {"b"}


def test_an_answer_in_between_ends_the_row() -> None:
    r = two(clock=Clock())
    failures(r, FAILURES - 1)
    r.acquire(replace(task(), pin="a")).settle(OK)
    failures(r, FAILURES - 1)
    r.acquire(replace(task(), pin="a")).release()


@pytest.mark.parametrize("trouble", ["unreachable", "dead"])
def test_a_report_that_it_is_down_keeps_all_away_at_once_and_a_good_one_lets_one_try(trouble: Any) -> None:
    clock = Clock()
    r = two(clock=clock)
    r.acquire(replace(LONG, pin="a")).settle(Outcome(output_tokens=100))
    r.observe("a", Load(trouble=trouble))
    assert r.signs("a").closed_in_s == MAX_OPEN_S
    with pytest.raises(PoolFull):
        r.acquire(replace(task(), pin="a"))
    r.observe("a", Load(running=0))
    assert ttft_ms(r, LONG, "a") == pytest.approx(ttft_ms(r, LONG, "b"))  # it begins with an empty cache
    lease = r.acquire(replace(task(), pin="a"))
    with pytest.raises(PoolFull):
        r.acquire(replace(task(), pin="a"))
    lease.settle(OK)
    r.acquire(replace(task(), pin="a")).release()


@pytest.mark.parametrize("trouble", ["hidden", "mixed"])
def test_a_server_whose_load_is_not_known_is_used_all_the_same(trouble: Any) -> None:
    r = two(clock=Clock())
    r.observe("a", Load(trouble=trouble))
    assert r.signs("a").closed_in_s is None
    r.acquire(replace(task(), pin="a")).release()


def probe(r: Router, clock: Clock) -> Lease:
    """Let the first pause go by, and take the one call that may try."""
    failures(r, FAILURES)
    clock.now += OPEN_S
    lease = r.acquire(replace(task(), pin="a"))
    with pytest.raises(PoolFull):
        r.acquire(replace(task(), pin="a"))
    return lease


def test_one_probe_is_tried_and_its_answer_opens_the_door() -> None:
    clock = Clock()
    r = two(clock=clock)
    probe(r, clock).settle(OK)
    r.acquire(replace(task(), pin="a")).release()


def test_its_failure_shuts_it_for_twice_as_long() -> None:
    clock = Clock()
    r = two(clock=clock)
    probe(r, clock).settle(FAILED)
    clock.now += 1.9 * OPEN_S
    with pytest.raises(PoolFull):
        r.acquire(replace(task(), pin="a"))
    clock.now += 0.2 * OPEN_S
    r.acquire(replace(task(), pin="a")).settle(OK)


@pytest.mark.parametrize("how", ["released", "dropped"])
def test_a_probe_that_told_nothing_lets_the_next_try(how: str) -> None:
    clock = Clock()
    r = two(clock=clock)
    lease = probe(r, clock)
    if how == "released":
        lease.release()
    del lease
    r.acquire(replace(task(), pin="a")).settle(OK)


def test_who_waits_for_a_server_that_is_down_is_placed_when_it_may_be_tried() -> None:
    clock = Clock()
    r = two(clock=clock)
    failures(r, FAILURES)
    ticket = r.queue(replace(task(), pin="a"))
    assert not ticket.done
    clock.now += MAX_OPEN_S
    assert r.pump() == [ticket]


# ---- who is full


FULL = Outcome(failure=FailureKind.OVERLOADED)


def full(r: Router, there: int) -> list[Lease]:
    """So many are in flight at ``a``, and one more is turned away."""
    leases = [r.acquire(replace(task(), pin="a")) for _ in range(there)]
    r.acquire(replace(task(), pin="a")).settle(FULL)
    return leases


def test_a_server_that_is_full_is_up_and_takes_the_next_when_one_is_done() -> None:
    r = two(clock=Clock())
    leases = full(r, 3)
    with pytest.raises(PoolFull, match="it turned others away"):
        r.acquire(replace(task(), pin="a"))
    assert held(r, task()).deployment.name == "b"
    leases.pop().settle(OK)
    assert r.acquire(replace(task(), pin="a")).deployment.name == "a"


def test_however_often_it_turns_somebody_away_its_breaker_stays_closed() -> None:
    clock = Clock()
    r = two(clock=clock)
    leases = full(r, 2)
    for _ in range(4 * FAILURES):
        clock.now += MOST_S
        r.acquire(replace(task(), pin="a")).settle(FULL)
        assert r._situation.breaker.is_closed(0)
    leases.pop().settle(OK)
    leases.append(r.acquire(replace(task(), pin="a")))


def test_after_a_while_one_more_is_tried_and_its_first_token_says_that_it_was_taken() -> None:
    clock = Clock()
    r = two(clock=clock)
    leases = full(r, 2)
    clock.now += FIRST_S
    leases.append(r.acquire(replace(task(), pin="a")))
    with pytest.raises(PoolFull):
        r.acquire(replace(task(), pin="a"))
    leases[-1].first_token()
    leases.append(r.acquire(replace(task(), pin="a")))


@pytest.mark.parametrize("outcome", [None, FAILED, Outcome(failure=FailureKind.BAD_REQUEST)])
def test_a_try_that_told_nothing_of_the_room_lets_the_next_try(outcome: Outcome | None) -> None:
    clock = Clock()
    r = two(clock=clock)
    leases = full(r, 2)
    clock.now += FIRST_S
    tried = r.acquire(replace(task(), pin="a"))
    tried.settle(outcome) if outcome else tried.release()
    leases.append(r.acquire(replace(task(), pin="a")))


def test_for_so_long_as_the_server_asks_nothing_is_sent() -> None:
    clock = Clock()
    r = two(clock=clock)
    r.acquire(replace(task(), pin="a")).settle(replace(FULL, retry_after_s=4.0))
    ticket = r.queue(replace(task(), pin="a"))
    clock.now += 3.9
    assert r.pump() == []
    clock.now += 0.1
    assert r.pump() == [ticket]


def test_a_full_server_that_is_tried_whether_it_is_back_tells_nothing_of_that() -> None:
    clock = Clock()
    r = two(clock=clock)
    probe(r, clock).settle(FULL)
    assert not r._situation.breaker.is_closed(0)
    clock.now += FIRST_S
    r.acquire(replace(task(), pin="a")).settle(OK)
    assert r._situation.breaker.is_closed(0)


def test_a_group_goes_where_nobody_was_turned_away() -> None:
    r = two(clock=Clock())
    leases = full(r, 3)
    leases.pop().settle(OK)
    plan = r.spread(task(), fanout=12)
    assert {placement.deployment for placement in plan.placements} == {"b"}


# ---- who starts anew


@pytest.mark.parametrize(
    ("kind", "many", "gone"),
    [
        (FailureKind.ENGINE_DEAD, 1, True),
        (FailureKind.UNAVAILABLE, FAILURES - 1, False),
        (FailureKind.UNAVAILABLE, FAILURES, True),
        (FailureKind.TIMEOUT, FAILURES, False),
        (FailureKind.INTERRUPTED, FAILURES, False),
        (FailureKind.OVERLOADED, 1, False),
    ],
)
def test_what_was_warm_on_a_server_that_died_is_not_expected_any_more(kind: FailureKind, many: int, gone: bool) -> None:
    clock = Clock()
    r = two(clock=clock)
    for name in ("a", "b"):
        r.acquire(replace(LONG, pin=name)).settle(OK)
    for _ in range(many):
        r.acquire(replace(task(), pin="a")).settle(Outcome(failure=kind))
    clock.now += MAX_OPEN_S
    warm = r._situation.affinity.warm_tokens(marks_of(LONG), clock.now)
    assert warm is not None and warm[1] > 0
    assert bool(warm[0] == 0) is gone


# ---- what is learnt


def test_what_was_slower_than_predicted_is_predicted_slower_at_once() -> None:
    r = two(clock=Clock(), objective="latency")
    before = r.decide(task()).candidates[0]
    assert before.ttft_ms is not None
    assert before.tpot_ms is not None
    for _ in range(4):
        slow = Outcome(ttft_ms=2.5 * before.ttft_ms.mean, tpot_ms=2.5 * before.tpot_ms.mean)
        r.acquire(replace(task(), pin="a")).settle(slow)
    after = {c.deployment: c for c in r.decide(task()).candidates}
    assert after["b"].ttft_ms == before.ttft_ms
    assert 1.5 < after["a"].ttft_ms.mean / before.ttft_ms.mean <= 2.5  # type: ignore[union-attr]
    assert 1.5 < after["a"].tpot_ms.mean / before.tpot_ms.mean <= 2.5  # type: ignore[union-attr]
    assert r.decide(task()).deployment == "b"


def test_a_correction_is_of_the_curve_and_is_not_fed_back() -> None:
    """Seen twice what the curve says, again and again, the factor comes to two, and stays."""
    r = Router(fleet(profile(points=grid())), clock=Clock())
    curve = r.decide(task()).tpot_ms
    assert curve is not None
    for _ in range(60):
        r.acquire(task()).settle(Outcome(tpot_ms=2.0 * curve.mean))
    assert r.decide(task()).tpot_ms.mean == pytest.approx(2.0 * curve.mean, rel=0.15)  # type: ignore[union-attr]


def test_a_failed_call_teaches_no_latency() -> None:
    r = Router(fleet(profile()), clock=Clock())
    before = r.decide(task()).tpot_ms
    r.acquire(task()).settle(Outcome(failure=FailureKind.TIMEOUT, ttft_ms=1.0, tpot_ms=0.1, e2e_ms=10.0))
    assert r.decide(task()).tpot_ms == before


def test_a_lease_is_settled_once() -> None:
    r = Router(fleet(profile()), clock=Clock())
    lease = r.acquire(task())
    for _ in range(3):
        lease.settle(Outcome(tpot_ms=50.0))
    assert r._situation.corrections._cells[..., 6].max() == 1
    assert_nothing_is_held(r)


# ---- others


def test_others_and_our_own_are_not_counted_twice() -> None:
    """Three of five that run are ours, and of the blocks in use so many as ours have filled by now."""
    clock = Clock()
    r = Router(fleet(profile(kv_blocks=1_000)), clock=clock)
    leases = [held(r, task()) for _ in range(3)]
    r.observe("p", Load(running=5, kv_used=0.4))
    assert r.decide(task()).candidates[0].n == 6
    prompts = 3 * (1_000 // BLOCK + 1)
    assert used(r) == 3 * 69 + (400 - prompts)
    assert len(leases) == 3


@pytest.mark.parametrize("trouble", ["dead", None])
def test_a_report_that_was_overtaken_says_nothing_of_whether_a_server_is_up(trouble: Any) -> None:
    clock = Clock()
    r, now, before = Router(fleet(profile()), clock=clock), Load(trouble=trouble, at=100.0), None if trouble else "dead"
    clock.now = 100.0
    r.observe("p", now)
    stood = r.signs("p")
    r.observe("p", Load(running=None if before else 1, trouble=before, at=90.0))  # type: ignore[arg-type]
    assert r.signs("p") == stood
