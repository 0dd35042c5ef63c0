"""``router.admit``: wait, be served, leave; with threads and with tasks, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fleets import assert_nothing_is_held, profile, router, task

from agentroute.errors import NoFeasibleDeployment, PoolFull, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.lease import Lease
from agentroute.router import Router
from agentroute.task import PRIORITIES, Task

SMALL = task(context=1_000)
UNITS = 69


def one() -> Router:
    """One pool that holds one ``SMALL``."""
    return router(profile(kv_blocks=70))


def free_blocks(r: Router) -> int:
    headroom = r.decide(task(context=1, output=1)).candidates[0].headroom
    assert headroom is not None
    return headroom.free


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come true within ten seconds")


# ---- with


def test_it_is_served_at_once_where_there_is_room() -> None:
    r = one()
    with r.admit(SMALL) as lease:
        assert free_blocks(r) == 70 - lease.blocks
    assert free_blocks(r) == 70


def test_it_waits_until_another_has_left() -> None:
    r, order = one(), []
    first = r.acquire(SMALL)

    def wait() -> None:
        with r.admit(SMALL):
            order.append("served")

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: r.expected_wait_s(SMALL) != 0.0)
    order.append("left")
    first.release()
    thread.join(10.0)
    assert order == ["left", "served"]
    assert free_blocks(r) == 70


@pytest.mark.alone
def test_what_can_never_be_placed_is_refused_at_once() -> None:
    r = one()
    before = time.monotonic()
    with pytest.raises(NoFeasibleDeployment, match="one request needs 257 KV blocks") as raised, r.admit(task(4_000)):
        pass
    assert not isinstance(raised.value, PoolFull)
    assert time.monotonic() - before < 0.2


def test_after_its_timeout_it_leaves_and_says_how_it_stood() -> None:
    r = one()
    said = pytest.raises(PoolFull, match=r"no place within 0\.05 s, 0 before it")
    with r.acquire(SMALL), said, r.admit(SMALL, timeout_s=0.05):
        pass
    assert free_blocks(r) == 70
    with r.acquire(SMALL):
        pass


@pytest.mark.parametrize("timeout_s", [float("nan"), "1"])
def test_a_time_to_wait_is_a_number(timeout_s: Any) -> None:
    with pytest.raises(UsageError, match="timeout_s must be a number of seconds or None"):
        one().admit(SMALL, timeout_s=timeout_s)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_without_any_time_it_is_served_where_there_is_room_and_else_not(timeout_s: float) -> None:
    r = one()
    with r.admit(SMALL, timeout_s=timeout_s), pytest.raises(PoolFull), r.admit(SMALL, timeout_s=timeout_s):
        pass


def test_time_alone_makes_room_for_who_waits() -> None:
    """A cancelled request's KV is freed after a while; nobody lets go of anything then."""
    r = one()
    r.acquire(SMALL).release(after_s=0.05)
    with r.admit(SMALL, timeout_s=5.0):
        pass


def test_a_lease_that_nobody_has_any_more_makes_room_for_who_waits() -> None:
    r = one()
    kept = [r.acquire(SMALL)]
    threading.Timer(0.05, kept.clear).start()
    with r.admit(SMALL, timeout_s=5.0):
        pass


def test_it_states_the_wait_before_it_is_entered_and_while_it_waits() -> None:
    r = one()
    assert r.admit(SMALL).expected_wait_s == 0.0
    with r.acquire(SMALL) as lease:
        service_s = lease.decision.e2e_ms.mean / 1_000  # type: ignore[union-attr]
        admission = r.admit(SMALL)
        assert admission.ahead == 0
        assert admission.expected_wait_s == pytest.approx(service_s, rel=0.2)
        with pytest.raises(NoFeasibleDeployment):
            _ = r.admit(task(4_000)).expected_wait_s


def test_an_admission_is_entered_once() -> None:
    admission = one().admit(SMALL)
    with admission:
        pass
    with pytest.raises(UsageError, match="entered already"), admission:
        pass


def test_a_block_that_raises_lets_go() -> None:
    r = one()
    with pytest.raises(ZeroDivisionError), r.admit(SMALL):
        raise ZeroDivisionError
    assert free_blocks(r) == 70


def test_it_can_be_left_from_outside() -> None:
    r, said = one(), []
    first = r.acquire(SMALL)
    admission = r.admit(SMALL)

    def wait() -> None:
        try:
            with admission:
                pass
        except UsageError as error:
            said.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: admission._ticket is not None)
    admission.cancel()
    thread.join(10.0)
    assert said == ["the ticket was cancelled"]
    first.release()
    assert free_blocks(r) == 70


# ---- async with


def test_asynchronously_it_is_the_same() -> None:
    r = one()

    async def wait(order: list[str]) -> None:
        async with r.admit(SMALL) as lease:
            order.append(f"served {lease.blocks}")

    async def run() -> list[str]:
        order: list[str] = []
        first = r.acquire(SMALL)
        waiting = asyncio.create_task(wait(order))
        await asyncio.sleep(0.01)
        order.append("left")
        first.release()
        await asyncio.wait_for(waiting, 10.0)
        with pytest.raises(NoFeasibleDeployment):
            async with r.admit(task(4_000)):
                pass
        with r.acquire(SMALL), pytest.raises(PoolFull, match=r"no place within 0\.05 s"):
            async with r.admit(SMALL, timeout_s=0.05):
                pass
        return order

    assert asyncio.run(run()) == ["left", f"served {UNITS}"]
    assert free_blocks(r) == 70


def test_room_made_by_another_thread_wakes_a_task() -> None:
    r = one()
    first = r.acquire(SMALL)

    async def run() -> None:
        threading.Timer(0.02, first.release).start()
        async with r.admit(SMALL, timeout_s=10.0):
            pass

    asyncio.run(run())
    assert free_blocks(r) == 70


@pytest.mark.parametrize("wait_s", [0.0, 0.001, 0.01])
def test_a_task_cancelled_while_it_waits_leaves_nothing(wait_s: float) -> None:
    r = one()

    async def wait() -> None:
        async with r.admit(SMALL):
            raise AssertionError

    async def run() -> None:
        first = r.acquire(SMALL)
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(wait_s)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert r.expected_wait_s(SMALL) != 0.0
        first.release()

    asyncio.run(run())
    assert free_blocks(r) == 70


def test_a_task_cancelled_as_its_place_comes_leaves_nothing() -> None:
    r = one()

    async def wait() -> None:
        async with r.admit(SMALL):
            await asyncio.sleep(10.0)

    async def run() -> None:
        for _ in range(20):
            first = r.acquire(SMALL)
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            first.release()  # it is placed, and will be told in the loop's next turn
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert free_blocks(r) == 70

    asyncio.run(run())


def test_what_a_loop_left_behind_is_given_back() -> None:
    """A task waits in a loop that is closed before its place comes."""
    r = one()
    first = r.acquire(SMALL)
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        async with r.admit(SMALL):
            raise AssertionError

    waiting = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    first.release()
    assert free_blocks(r) == 70
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    del waiting
    gc.collect()


# ---- a thousand at once


class Meter:
    """What stands in each pool, counted beside the ledger; blocks that siblings share once."""

    def __init__(self, capacity: dict[str, int]) -> None:
        self.capacity = capacity
        self.blocks = dict.fromkeys(capacity, 0)
        self.most = dict.fromkeys(capacity, 0)
        self.shared: Counter[tuple[str, object]] = Counter()
        self.served = 0
        self.lock = threading.Lock()

    def change(self, lease: Lease, sign: int) -> None:
        pool, placed = lease.deployment.pool or lease.deployment.name, lease._placed
        assert placed is not None
        with self.lock:
            self.served += sign > 0
            self.blocks[pool] += sign * placed.hold.blocks
            if (shared := placed.hold.shared) is not None:
                before = self.shared[pool, shared.hash] > 0
                self.shared[pool, shared.hash] += sign
                after = self.shared[pool, shared.hash] > 0
                self.blocks[pool] += (after - before) * shared.blocks
            self.most[pool] = max(self.most[pool], self.blocks[pool])


CAPACITY = {"shared": 600, "c": 300}


def of_two_pools() -> Router:
    """Two names on one pool, and one on its own."""
    shared, own = (profile(name, kv_blocks=blocks, prefixes=True) for name, blocks in CAPACITY.items())
    named = Deployment("a", shared, pool="shared"), Deployment("b", shared, pool="shared")
    return Router(Fleet([*named, Deployment("c", own)]))


def asks(i: int, dice: random.Random) -> Task:
    """Any of a few sizes and priorities, some in groups with a prefix in common."""
    context = dice.choice([200, 800, 1_600, 3_000])
    group = {"group": f"g{i % 7}", "concurrency": 20, "shared_prefix_tokens": 160} if i % 3 == 0 else {}
    return Task(
        context_tokens=context,
        max_output_tokens=100,
        priority=PRIORITIES[i % 3],
        **group,  # type: ignore[arg-type]
    )


def test_a_thousand_threads_and_tasks_never_pass_a_pool_are_all_served_and_leave_nothing() -> None:
    """250 acquire until they get in, 350 wait with ``with``, 400 with ``async with`` on two loops."""
    r, meter, failures = of_two_pools(), Meter(CAPACITY), []
    start = threading.Barrier(602)

    def guarded(work: Callable[[int], None]) -> Callable[[int], None]:
        def call(i: int) -> None:
            start.wait()
            try:
                work(i)
            except BaseException as error:
                failures.append(error)

        return call

    def acquires(i: int) -> None:
        dice = random.Random(i)
        asked = asks(i, dice)
        for round_ in range(1_000):
            try:
                with r.acquire(asked) as lease:
                    meter.change(lease, +1)
                    meter.change(lease, -1)
                return
            except PoolFull:
                time.sleep(dice.uniform(0.0, min(1.0, 0.1 * 2**round_)))

    def waits(i: int) -> None:
        with r.admit(asks(i, random.Random(i))) as lease:
            meter.change(lease, +1)
            meter.change(lease, -1)

    def loop(i: int) -> None:
        async def one(i: int) -> None:
            async with r.admit(asks(i, random.Random(i))) as lease:
                meter.change(lease, +1)
                await asyncio.sleep(0)
                meter.change(lease, -1)

        async def all_() -> None:
            await asyncio.gather(*(one(i + k) for k in range(200)))

        asyncio.run(all_())

    work = [(acquires, i) for i in range(250)] + [(waits, i) for i in range(250, 600)] + [(loop, 600), (loop, 800)]
    threads = [threading.Thread(target=guarded(what), args=(i,), daemon=True) for what, i in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not failures
    assert not any(thread.is_alive() for thread in threads), "somebody was never served"
    assert meter.served == 1_000
    assert all(most > 0.5 * meter.capacity[pool] for pool, most in meter.most.items()), "it was no crowd"
    assert all(most <= meter.capacity[pool] for pool, most in meter.most.items())
    assert_nothing_is_held(r)
