"""The winner alone is the winner of all: what is quicker never answers otherwise."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace

import pytest
from fleets import OFFERS, Clock, grid, maybe, profile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentroute.assessment import Assessment
from agentroute.catalogue import shipped
from agentroute.errors import FailureKind, NoFeasibleDeployment
from agentroute.fleet import Deployment, Fleet
from agentroute.inputs import There
from agentroute.origin import Provenance
from agentroute.outcome import Outcome
from agentroute.policy import OBJECTIVES
from agentroute.profile import KvPool, Limits
from agentroute.quick import FEW, Quick
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import Slo, Task

FIT = OBJECTIVES["fit"]

BLOCKS, WINDOWS = maybe(st.sampled_from([100, 1_000, 20_000])), maybe(st.sampled_from([2_000, 20_000]))


@st.composite
def measured(draw: st.DrawFn, name: str) -> Deployment:
    made = profile(
        name,
        points=grid(draw(st.floats(0.3, 5.0)), (128, 8_192), (64, 512), (1, 16)),
        kv_blocks=draw(BLOCKS),
        window=draw(WINDOWS),
        slots=draw(maybe(st.integers(1, 32))),
        gpus=draw(st.integers(1, 8)),
        offers=draw(OFFERS),
        prefixes=draw(maybe(st.booleans())),
    )
    return Deployment(name, made)


names = st.sampled_from(("a", "b", "c"))
fleets = st.tuples(*(measured(name) for name in ("a", "b", "c"))).map(lambda drawn: Fleet(drawn))
slos = st.none() | st.builds(Slo, st.floats(5.0, 20_000.0), hard=st.booleans())
tasks = st.builds(
    Task,
    context_tokens=st.integers(1, 30_000),
    max_output_tokens=st.none() | st.integers(1, 3_000),
    concurrency=st.sampled_from([1, 1, 4, 30, 500]),
    ttft_ms=slos,
    tpot_ms=slos,
    deadline_s=slos,
    needs=st.frozensets(st.sampled_from(["tools", "vision"]), max_size=1),
    deny=st.frozensets(names, max_size=1),
    session_id=st.none() | st.sampled_from(["s", "t"]),
    step=st.none() | st.integers(1, 5),
    group=st.none() | st.just("g"),
)
happenings = st.lists(st.tuples(st.sampled_from(["go", "end", "learn", "fail", "see"]), tasks), max_size=8)


def happen(by: Router, script: list[tuple[str, Task]], clock: Clock) -> None:
    """Requests come and go, prompts wait for one another, something is learnt, others are seen, a server fails."""
    leases = []
    for what, asked in script:
        clock.now += 0.05
        if what == "see":
            by.observe("a", Load(running=asked.context_tokens % 7, waiting=asked.concurrency % 3))
            continue
        try:
            leases.append(by.acquire(asked))
        except NoFeasibleDeployment:
            continue
        if what == "end":
            leases.pop(0).release()
        elif what == "learn":
            leases.pop(0).settle(Outcome(ttft_ms=70.0, tpot_ms=30.0, output_tokens=90))
        elif what == "fail":
            leases.pop().settle(Outcome(failure=FailureKind.UNAVAILABLE))
    _KEPT.append(leases)


_KEPT: list[object] = []


def both(by: Router, asked: Task, *, room_now: bool) -> tuple[There | None, There | None]:
    """Who wins when asked quickly, and by an assessment of all."""
    assert by.rules.quick is not None
    ask, _, _ = by.rules.ask(asked)
    state = by._situation.state(asked, by._now())
    assessed = Assessment(by.rules.compiled, ask, state, room_now=room_now)
    best = assessed.best(FIT)
    return by.rules.quick.best(ask, state, room_now=room_now), None if best is None else assessed.there(best)


def assert_alike(found: There | None, expected: There | None) -> None:
    """Nothing is ever found that is not the winner; the numbers differ by their last digits."""
    if found is None:
        return
    assert expected is not None
    assert (found.deployment, found.pool, found.units) == (expected.deployment, expected.pool, expected.units)
    for name in There._fields:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-8, abs=1e-9), name


@given(fleets, happenings, st.lists(tasks, min_size=1, max_size=4), st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_winner_is_that_of_an_assessment_of_all(
    of: Fleet, script: list[tuple[str, Task]], asked: list[Task], room_now: bool
) -> None:
    clock = Clock()
    by = Router(of, clock=clock)
    happen(by, script, clock)
    for each in asked:
        assert_alike(*both(by, each, room_now=room_now))


def pools(count: int) -> Fleet:
    """Shipped profiles, whose models have layers of several kinds, each with a KV pool."""
    draw, profiles = random.Random(1), shipped().profile_names
    found = []
    for i in range(count):
        one = shipped().deployment(shipped().profile(profiles[7 * i % len(profiles)]))
        pool = KvPool(tokens=16 * draw.randint(5_000, 60_000), block_tokens=16)
        limits = Limits(max_num_seqs=256, kv_pool=pool, provenance=Provenance(origin="assumed", source="this test"))
        found.append(replace(one, name=f"d{i}", profile=one.profile.model_copy(update={"limits": limits})))
    return Fleet(found)


@pytest.mark.parametrize("count", [4, 40])
def test_over_shipped_profiles_too_and_it_nearly_always_answers(count: int) -> None:
    by, draw, leases, answered = Router(pools(count), clock=Clock()), random.Random(3), [], 0
    for k in range(150):
        asked = Task(
            context_tokens=draw.randint(10, 30_000),
            max_output_tokens=draw.choice([None, 1, 100, 2_000]),
            concurrency=draw.choice([1, 3, 64, 300]),
            ttft_ms=Slo(draw.choice([50.0, 500.0, 3_000.0]), hard=False),
            tpot_ms=draw.choice([None, Slo(20.0, hard=False)]),
            session_id=draw.choice([None, "a"]),
        )
        found, expected = both(by, asked, room_now=False)
        answered += found is not None
        assert_alike(found, expected)
        if k % 2 == 0 and expected is not None:
            leases.append(by.acquire(replace(asked, concurrency=1)))
    assert answered > 140


def test_of_two_alike_the_less_busy_one_wins_and_of_two_idle_ones_the_first() -> None:
    by = Router(Fleet(Deployment(name, profile(name, kv_blocks=1_000)) for name in ("a", "b", "c")), clock=Clock())
    asked = Task(context_tokens=1_000, max_output_tokens=100)
    leases = [by.acquire(asked) for _ in range(4)]
    assert [lease.deployment.name for lease in leases] == ["a", "b", "c", "a"]


def test_what_is_rare_is_left_to_the_assessment() -> None:
    of = Fleet([Deployment("a", profile("a", usd_per_hour=2.0)), Deployment("b", profile("b", usd_per_hour=3.0))])
    by = Router(of, clock=Clock())
    for rare in ({"ttft_ms": Slo(900.0, "p95")}, {"max_cost_usd": 1.0}):
        found, expected = both(by, Task(context_tokens=900, max_output_tokens=90, **rare), room_now=False)
        assert found is None
        assert expected is not None


def test_replicas_shared_pools_partly_measured_and_many_deployments_are_left_to_it_too() -> None:
    one, urls = profile("a"), ("http://127.0.0.1:1", "http://127.0.0.1:2")
    for of in (
        Fleet([Deployment("a", one, urls=urls)]),
        Fleet([Deployment("a", one, pool="p"), Deployment("b", one, pool="p")]),
        Fleet([Deployment("a", one), Deployment("b", profile("b", points=()))]),
        Fleet(Deployment(f"d{i}", one) for i in range(FEW + 1)),
    ):
        assert Router(of).rules.quick is None
    assert isinstance(Router(Fleet(Deployment(f"d{i}", one) for i in range(FEW))).rules.quick, Quick)


def test_a_decision_that_was_quick_says_as_much_as_any() -> None:
    by = Router(Fleet([Deployment("a", profile("a")), Deployment("b", profile("b", speed=2.0))]), clock=Clock())
    decision = by.decide(Task(context_tokens=1_000, max_output_tokens=100))
    assert decision.deployment == decision.chosen.name == decision.candidates[0].deployment == "b"
    assert decision.ttft_ms is not None
    assert decision.explain().startswith("b")


@pytest.mark.parametrize("count", [4, 32])
def test_a_router_takes_less_than_64_kib_for_each_deployment(count: int) -> None:
    profiles = [shipped().profile(name) for name in shipped().profile_names[::3][:count]]
    fleet = Fleet(shipped().deployment(profile) for profile in profiles)
    Router(fleet)  # what is imported or read for the first router is no other's
    tracemalloc.start()
    try:
        router = Router(fleet)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(router.fleet) == count
    assert taken / count < 64 * 1_024
