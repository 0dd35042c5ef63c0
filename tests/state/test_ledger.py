"""The ledger: whatever is taken and freed in whatever order, no pool holds more than it has."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter

import numpy as np
import pytest
from fleets import Clock, fleet, profile, router, task
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.errors import PoolFull
from agentroute.lease import Lease
from agentroute.router import Router
from agentroute.state.ledger import Hold, Ledger

CAPACITY = (10.0, 3.0, math.inf)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 6)),
        st.tuples(st.just("free"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 50), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.integers(0, 5), st.just(0)),
    ),
    max_size=40,
)


@given(operations)
@settings(max_examples=150, deadline=None)
def test_what_is_held_is_what_was_taken_and_not_yet_freed(script: list[tuple[str, int, int]]) -> None:
    ledger, now = Ledger.of(CAPACITY), 0
    alive: list[Hold] = []
    leaving: list[tuple[int, Hold]] = []
    for what, a, b in script:
        if what == "take":
            before = sum(h.blocks for h in [*alive, *(h for _, h in leaving)] if h.pool == a)
            hold = ledger.take(a, b, group=f"g{b % 2}")
            assert (hold is None) == (before + b > CAPACITY[a])
            if hold is not None:
                alive.append(hold)
        elif what == "free" and alive:
            ledger.free(alive.pop(a % len(alive)))
        elif what == "leave" and alive:
            hold = alive.pop(a % len(alive))
            ledger.leave(hold, at=now + b)
            leaving.append((now + b, hold))
        elif what == "wait":
            now += a
            ledger.settle(now)
            leaving = [(at, hold) for at, hold in leaving if at > now]
        standing = [*alive, *(hold for _, hold in leaving)]
        for pool, capacity in enumerate(CAPACITY):
            assert ledger.held[pool] == sum(h.blocks for h in standing if h.pool == pool) <= capacity
            assert ledger.in_flight[pool] == sum(h.pool == pool for h in standing)
        for group in ("g0", "g1"):
            assert ledger.siblings(group) == sum(h.group == group for h in standing)


def test_an_empty_ledger_holds_nothing() -> None:
    ledger = Ledger.of([5.0, math.inf])
    assert not np.any(ledger.held)
    assert not np.any(ledger.in_flight)
    assert not ledger.siblings("anyone")


def test_what_leaves_is_freed_at_its_time_and_not_before() -> None:
    ledger = Ledger.of([5.0])
    hold = ledger.take(0, 5, "g")
    assert hold is not None
    ledger.leave(hold, at=3.0)
    ledger.settle(2.999)
    assert ledger.held[0] == 5
    ledger.settle(3.0)
    assert ledger.held[0] == 0


# ---- through the router


def test_a_lease_is_let_go_of_once() -> None:
    r = router(profile(kv_blocks=200))
    lease, other = r.acquire(task()), r.acquire(task())
    for _ in range(3):
        lease.release()
    assert free_blocks(r) == 200 - other.blocks


def test_a_lease_let_go_of_later_is_not_let_go_of_now() -> None:
    clock = Clock()
    r = Router(fleet(profile(kv_blocks=70)), clock=clock)
    lease = r.acquire(task())
    lease.release(after_s=3.0)
    lease.release()
    clock.now = 2.9
    with pytest.raises(PoolFull):
        r.acquire(task())
    clock.now = 3.0
    r.acquire(task()).release()


def test_a_block_that_raises_lets_go() -> None:
    r = router(profile(kv_blocks=70))
    with pytest.raises(ZeroDivisionError), r.acquire(task()):
        raise ZeroDivisionError
    assert free_blocks(r) == 70


def test_deciding_holds_nothing() -> None:
    r = router(profile(kv_blocks=70))
    for _ in range(5):
        r.decide(task())
    assert free_blocks(r) == 70


def test_two_hundred_threads_never_pass_a_pool_and_leave_nothing_behind() -> None:
    """Each lease adds to a count of its own, beside the ledger, while it stands."""
    blocks = {"a": 300, "b": 140}
    r = router(*(profile(name, kv_blocks=n) for name, n in blocks.items()))
    in_use: Counter[str] = Counter()
    most: Counter[str] = Counter()
    guard, start = threading.Lock(), threading.Barrier(200)
    full: list[PoolFull] = []
    failures: list[BaseException] = []

    def note(lease: Lease, sign: int) -> None:
        name = lease.decision.deployment
        with guard:
            in_use[name] += sign * lease.blocks
            most[name] = max(most[name], in_use[name])

    def work(seed: int) -> None:
        dice = random.Random(seed)
        start.wait()
        for _ in range(3):
            try:
                with r.acquire(task(context=dice.randint(1, 2_000))) as lease:
                    note(lease, +1)
                    note(lease, -1)
            except PoolFull as error:
                full.append(error)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(most[name] <= blocks[name] for name in blocks)
    assert free_blocks(r) == 300


def test_one_lease_released_by_many_threads_is_freed_once() -> None:
    r = router(profile(kv_blocks=10_000))
    kept = r.acquire(task())
    for _ in range(20):
        lease, start = r.acquire(task()), threading.Barrier(8)

        def let_go(lease: Lease = lease, start: threading.Barrier = start) -> None:
            start.wait()
            lease.release()

        threads = [threading.Thread(target=let_go) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert free_blocks(r) == 10_000 - kept.blocks


def free_blocks(r: Router) -> int:
    headroom = r.decide(task(context=1, output=1)).candidates[0].headroom
    assert headroom is not None
    return headroom.free
