"""What holds of every decision, and of the ledger after any history."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from typing import Any

import pytest
from fleets import OFFERS, Clock, assert_nothing_is_held, grid, maybe, profile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentroute.decision import Decision
from agentroute.errors import FailureKind, NoFeasibleDeployment
from agentroute.fleet import Deployment, Fleet
from agentroute.lease import Lease
from agentroute.outcome import Outcome
from agentroute.policy import OBJECTIVES
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import PRIORITIES, Slo, Task
from agentroute.waiting import Ticket

some = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
BLOCKS, WINDOWS = maybe(st.sampled_from([100, 1_000, 5_000])), maybe(st.sampled_from([2_000, 20_000, 100_000]))
SKILLS = {"m0": {"code": 0.9}, "m1": {"code": 0.5}, "m2": {}}


@st.composite
def few(draw: st.DrawFn, name: str) -> Deployment:
    """A deployment with few points, so that many can be drawn."""
    measured = draw(st.booleans())
    made = profile(
        name,
        points=grid(draw(st.sampled_from([0.5, 1.0, 4.0])), (128, 8_192), (64,), (1, 16)) if measured else (),
        kv_blocks=draw(BLOCKS),
        window=draw(WINDOWS),
        slots=draw(maybe(st.integers(1, 32))),
        gpus=draw(maybe(st.integers(1, 8))),
        offers=draw(OFFERS),
        usd_per_hour=draw(maybe(st.floats(0.1, 10.0))),
        prefixes=draw(maybe(st.booleans())),
    )
    return Deployment(name, made, served_model=draw(st.sampled_from(sorted(SKILLS))))


NAMES = ("d0", "d1", "d2")
fleets = st.tuples(*(few(name) for name in NAMES)).map(lambda drawn: Fleet(drawn))
names = st.sampled_from(NAMES)
slos = st.none() | st.builds(Slo, st.floats(5.0, 20_000.0), hard=st.booleans())
tasks = st.builds(
    Task,
    context_tokens=st.integers(1, 30_000),
    max_output_tokens=st.none() | st.integers(1, 3_000),
    concurrency=st.integers(1, 40),
    ttft_ms=slos,
    tpot_ms=slos,
    deadline_s=slos,
    max_cost_usd=st.none() | st.floats(1e-6, 0.01),
    needs=st.frozensets(st.sampled_from(["tools", "vision"])),
    quality=st.just({}) | st.just({"code": 0.6}),
    allow=st.none() | st.frozensets(names, min_size=1),
    deny=st.frozensets(names, max_size=2),
    pin=st.none() | names,
    objective=st.sampled_from(["fit", "latency"]),
)


def decided(of: Fleet, asked: Task) -> Decision | None:
    try:
        return Router(of, quality=SKILLS, clock=Clock()).decide(asked)
    except NoFeasibleDeployment:
        return None


def worth(decision: Decision, name: str) -> tuple[int, float] | None:
    """How deployment ``name`` stands in a decision: rank, then score, the less the better; ``None``: not feasible."""
    a, by = decision._assessment, OBJECTIVES[decision.objective]
    d = [deployment.name for deployment in a.fleet.deployments].index(name)
    if not a.is_feasible(d):
        return None
    rank = int((a.known_rank if by.weighs_slos else a.rank)[d])
    return rank, float(by(a)[d])


def no_worse(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Whether ``one`` is as good; scores are read off single-precision tables."""
    if one[0] != other[0]:
        return one[0] < other[0]
    return other[1] != other[1] or one[1] <= other[1] * (1.0 + 1e-3) + 1e-9


# ---- a decision is feasible


@given(fleets, tasks)
@some
def test_what_is_chosen_keeps_every_hard_constraint(of: Fleet, asked: Task) -> None:
    decision = decided(of, asked)
    if decision is None:
        return
    chosen, name = decision.chosen, decision.deployment
    limits, offers = chosen.profile.limits, chosen.profile.capabilities
    assert limits is not None
    assert offers is not None
    output = asked.max_output_tokens or 1
    assert limits.max_model_len is None or asked.context_tokens + output <= limits.max_model_len
    pool = chosen.profile.pool
    assert pool is None or pool.units(asked.context_tokens + output) <= pool.blocks
    assert not any(value is False for capability, value in offers.offers.items() if capability in asked.needs)
    assert asked.allow is None or name in asked.allow
    assert name not in asked.deny
    assert asked.pin in (None, name)
    for skill, floor in asked.quality.items():
        assert SKILLS[chosen.served_model or ""].get(skill, -1.0) >= floor
    if asked.max_cost_usd is not None:
        assert decision.cost_usd is not None
        assert decision.cost_usd.mean <= asked.max_cost_usd * (1 + 1e-9)
    for field, estimate, scale in (
        ("ttft_ms", decision.ttft_ms, 1.0),
        ("tpot_ms", decision.tpot_ms, 1.0),
        ("deadline_s", decision.e2e_ms, 1_000.0),
    ):
        limit = getattr(asked, field)
        if limit is not None and limit.hard:
            assert estimate is not None
            assert estimate.mean <= limit.value * scale * (1 + 1e-9)


@given(fleets, tasks)
@some
def test_what_is_refused_has_one_reason_each(of: Fleet, asked: Task) -> None:
    with pytest.raises(NoFeasibleDeployment) as raised:
        Router(of, quality=SKILLS, clock=Clock()).decide(replace(asked, pin="d0", deny={"d0"}))
    assert sorted(raised.value.reasons) == list(NAMES)
    assert all(raised.value.reasons.values())


# ---- more to choose from


@given(fleets, few("new"), tasks)
@some
def test_one_more_deployment_never_makes_the_answer_worse(of: Fleet, more: Deployment, asked: Task) -> None:
    """Where it leaves the old answer what it was: the first known KV pool changes how unknown ones are ranked."""
    asked = replace(asked, allow=None)
    before = decided(of, asked)
    if before is None:
        return
    after = decided(Fleet([*of.deployments, more]), asked)
    assert after is not None
    old, still = worth(before, before.deployment), worth(after, before.deployment)
    assert old is not None
    assert still is not None
    best = worth(after, after.deployment)
    assert best is not None
    assert no_worse(best, still)
    if old[0] == still[0] and (still[1] == pytest.approx(old[1], rel=1e-3) or old[1] != old[1]):
        assert no_worse(best, old)


def relaxed(asked: Task, factor: float) -> list[Task]:
    """The task with one of its hard constraints given up, or made easier."""
    found: list[dict[str, Any]] = [{"allow": None}, {"deny": frozenset()}, {"pin": None}, {"quality": {}}]
    found += [{"needs": frozenset()}, {"max_cost_usd": asked.max_cost_usd and asked.max_cost_usd * factor}]
    for field in ("ttft_ms", "tpot_ms", "deadline_s"):
        limit = getattr(asked, field)
        if limit is not None and limit.hard:
            found += [{field: None}, {field: replace(limit, value=limit.value * factor)}]
    return [replace(asked, **change) for change in found]


@given(fleets, tasks, st.floats(1.0, 50.0), st.integers(0, 20))
@some
def test_giving_up_a_constraint_never_makes_the_answer_worse(of: Fleet, asked: Task, factor: float, which: int) -> None:
    strict, easier = decided(of, asked), relaxed(asked, factor)
    if strict is None:
        return
    freer = decided(of, easier[which % len(easier)])
    assert freer is not None
    best, old = worth(freer, freer.deployment), worth(freer, strict.deployment)
    assert best is not None
    assert old is not None, "what kept the harder constraint keeps the easier one"
    assert no_worse(best, old)


# ---- any history


SMALL = grid(1.0, (128, 8_192), (64,), (1, 16))


def shared_fleet() -> Fleet:
    """Two names on one pool, replicas, one that reports no prefix cache, one of unknown size."""
    a, b = profile("a", points=SMALL, kv_blocks=300, prefixes=True), profile("b", points=SMALL, kv_blocks=150)
    named = [Deployment(name, a, pool="gpu") for name in ("a1", "a2")]
    urls = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    return Fleet([*named, Deployment("b", b, urls=urls), Deployment("c", profile("c", points=SMALL, slots=2))])


def asks(value: int) -> Task:
    """One of many: with or without siblings, a prefix in common (of several lengths), limits, a conversation."""
    dice = random.Random(value)
    context = dice.choice([50, 300, 900, 2_000])
    siblings = dice.random() < 0.5
    return Task(
        context_tokens=context,
        max_output_tokens=dice.choice([None, 50, 400]),
        concurrency=dice.choice([2, 8]) if siblings else 1,
        group=dice.choice(["g", "g", None]) if siblings else None,
        shared_prefix_tokens=dice.choice([0, 32, 33, 48]) if siblings else 0,
        tpot_ms=dice.choice([None, Slo(20.0, hard=False)]),
        deadline_s=dice.choice([None, Slo(30.0, hard=False), Slo(5.0)]),
        session_id=dice.choice([None, "s"]),
        deny=frozenset({"c"}) if dice.random() < 0.7 else frozenset(),
        priority=dice.choice(PRIORITIES),
    )


class World:
    """A router with a history, and the leases and tickets that stand."""

    def __init__(self, router: Router | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.router, self.alone = router or Router(shared_fleet(), clock=self.clock), router is None
        self.leases: list[Lease] = []
        self.tickets: list[Ticket] = []
        self.told = 0

    def step(self, what: str, value: int) -> str | None:
        """One thing that happens; what it answers, where it is a decision."""
        r, lease = self.router, self.leases[value % len(self.leases)] if self.leases else None
        match what:
            case "acquire":
                try:
                    self.leases.append(r.acquire(asks(value)))
                except NoFeasibleDeployment as error:
                    return str(error)
                if self.alone:
                    self.check_no_pool_is_passed(self.leases[-1])
                return self.leases[-1].decision.explain()
            case "queue":
                self.tickets.append(r.queue(asks(value), on_done=self._tell))
            case "cancel" if self.tickets:
                self.tickets[value % len(self.tickets)].cancel()
            case "release" if lease:
                lease.release(after_s=(value % 3) * 0.5)
            case "settle" if lease:
                failure = dict(enumerate(FailureKind)).get(value % 40)
                lease.settle(
                    Outcome(ttft_ms=float(value + 1), tpot_ms=9.0, output_tokens=value, failure=failure),
                    after_s=value % 2,
                )
            case "extend" if lease:
                lease.extend(value * 20)
            case "first" if lease:
                lease.first_token()
            case "drop" if lease:
                self.leases.remove(lease)
            case "observe":
                used = None if value % 4 == 0 else (value % 100) / 100.0
                r.observe("a1" if value % 2 else "c", Load(running=value % 9, waiting=value % 3, kv_used=used))
            case "later":
                self.clock.now += value / 5.0
            case "earlier":
                self.clock.now -= value
        return None

    def _tell(self, _: Ticket) -> None:
        self.told += 1

    def check_no_pool_is_passed(self, lease: Lease) -> None:
        """What was held at this moment, and what others had, is what the pool has at most."""
        assert lease._placed is not None
        situation, pool = self.router._situation, lease._placed.hold.pool
        others = situation.foreign.current(self.router._clock()).blocks[pool]
        assert situation.ledger.held[pool] + others <= situation.ledger.capacity[pool]

    def check_the_books(self) -> None:
        """Every account is the sum over the holds that stand: a second book-keeping, from the holds alone."""
        with self.router._lock:
            ledger = self.router._situation.ledger
            self.router._now()
            for pool, holds in enumerate(ledger._holds):
                shared = {hold.shared.hash: hold.shared.blocks for hold in holds if hold.shared is not None}
                assert ledger.held[pool] == sum(hold.blocks for hold in holds) + sum(shared.values())
                assert ledger.in_flight[pool] == len(holds)
                resident = sum(hold.resident for hold in holds)
                assert ledger.resident[pool] == pytest.approx(resident, rel=1e-6, abs=1e-3)
                for key, blocks in shared.items():
                    same = [hold for hold in holds if hold.shared is not None and hold.shared.hash == key]
                    assert ledger._shared[pool, key] == [len(same), blocks]
            assert ledger.total == sum(map(len, ledger._holds))
            groups = [hold.group for holds in ledger._holds for hold in holds if hold.group is not None]
            assert ledger._siblings == {group: groups.count(group) for group in groups}

    def end(self) -> None:
        """Everybody goes, and time passes."""
        for ticket in self.tickets:
            ticket.cancel()
        for lease in self.leases:
            lease.release()
        self.tickets.clear()
        self.leases.clear()
        self.clock.now += 1_000.0
        assert_nothing_is_held(self.router)


HAPPENINGS = ("queue", "cancel", "release", "settle", "extend", "first", "drop", "observe", "later", "earlier")
happenings = st.lists(
    st.tuples(st.sampled_from(("acquire", "acquire", "acquire", *HAPPENINGS)), st.integers(0, 200)), max_size=40
)


@given(happenings)
@settings(max_examples=25)
def test_whatever_happens_the_books_balance_and_in_the_end_nothing_is_held(script: list[tuple[str, int]]) -> None:
    world = World()
    for what, value in script:
        world.step(what, value)
        world.check_the_books()
    tickets = len(world.tickets)
    world.end()
    assert world.told == tickets


@given(happenings)
@settings(max_examples=10)
def test_equal_histories_give_equal_decisions(script: list[tuple[str, int]]) -> None:
    one, other = World(), World()
    for what, value in script:
        assert one.step(what, value) == other.step(what, value)


def test_threads_that_do_anything_at_once_leave_nothing() -> None:
    """Six threads, each with leases and tickets of its own, while the clock jumps to and fro."""
    failures: list[BaseException] = []
    clock = Clock()
    r = Router(shared_fleet(), clock=clock)
    worlds = [World(r, clock) for _ in range(6)]

    def work(world: World, seed: int) -> None:
        dice = random.Random(seed)
        try:
            for _ in range(120):
                world.step(dice.choice(("acquire", "acquire", "acquire", *HAPPENINGS)), dice.randrange(200))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(world, seed)) for seed, world in enumerate(worlds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for world in worlds:
        for ticket in world.tickets:
            ticket.cancel()
        for lease in world.leases:
            lease.release()
        world.leases.clear()
    assert sum(world.told for world in worlds) == sum(len(world.tickets) for world in worlds)
    worlds.clear()
    clock.now += 10_000.0
    assert_nothing_is_held(r)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 6), st.booleans()), min_size=1, max_size=20))
@settings(max_examples=10)
def test_tasks_cancelled_at_any_moment_leave_nothing(script: list[tuple[int, int, bool]]) -> None:
    """Each is cancelled, or not, after some turns of the loop: before it waits, while it does, while it runs."""
    r = Router(Fleet([Deployment("a", profile("a", points=SMALL, kv_blocks=200))]), clock=Clock())
    done: list[int] = []

    async def one(value: int) -> None:
        async with r.admit(replace(asks(value), deny=frozenset(), deadline_s=None)):
            for _ in range(value % 4):
                await asyncio.sleep(0)
            done.append(value)

    async def run() -> int:
        running = [asyncio.create_task(one(value)) for value, _, _ in script]
        for turn in range(7):
            for (_, at, cancels), task in zip(script, running, strict=True):
                if cancels and at == turn:
                    task.cancel()
            await asyncio.sleep(0)
        results = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 5.0)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        return sum(result is None for result in results)

    assert asyncio.run(run()) == len(done)
    assert_nothing_is_held(r)
