"""A fan-out over a fleet: what is taken up, what is not and why, and the group that holds it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from fleets import BLOCK, Clock, fleet, fleets, grid, point, profile, router, task
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentroute.catalogue import shipped
from agentroute.errors import FailureKind, NoFeasibleDeployment, PoolFull, UsageError
from agentroute.fanout import counts
from agentroute.fleet import Deployment, Fleet
from agentroute.outcome import Outcome
from agentroute.profile import Profile
from agentroute.router import Router
from agentroute.spread import Spread
from agentroute.state.breaker import FAILURES
from agentroute.state.load import Load
from agentroute.state.situation import group_of as sibling_group
from agentroute.task import Slo, Task

UNITS = 69
"""Blocks of one request of ``task()``: 1,100 tokens."""


def requests(spread: Spread) -> dict[str, int]:
    """Siblings by deployment."""
    found: dict[str, int] = {}
    for placement in spread.placements:
        found[placement.deployment] = found.get(placement.deployment, 0) + placement.requests
    return found


# ---- what is planned


def test_one_sibling_goes_where_it_is_done_first() -> None:
    one = router(profile("slow", kv_blocks=1_000), profile("fast", speed=2.0, kv_blocks=1_000), objective="latency")
    spread, decision = one.spread(task(), fanout=1), one.decide(task())
    assert requests(spread) == {"fast": 1} and decision.deployment == "fast"
    assert decision.e2e_ms is not None
    assert spread.makespan_s == pytest.approx(decision.e2e_ms.mean / 1_000)
    assert (spread.at_once, spread.placements[0].waves) == (1, 1)
    assert spread.makespan.low == pytest.approx(decision.e2e_ms.low / 1_000)


def test_a_group_that_is_larger_than_all_pools_goes_in_waves() -> None:
    spread = router(profile("a", kv_blocks=5 * UNITS)).spread(task(), fanout=23)
    (placement,) = spread.placements
    assert (placement.requests, placement.waves, placement.at_once) == (23, 5, 5)
    assert spread.makespan_s == pytest.approx(5 * placement.e2e_s)
    assert placement.site.capped_by == f"KV blocks, {5 * UNITS} free of {5 * UNITS}, {UNITS} for one"


def test_waves_are_of_even_size() -> None:
    (placement,) = router(profile("a", kv_blocks=8 * UNITS)).spread(task(), fanout=10).placements
    assert (placement.waves, placement.at_once) == (2, 5)


def test_the_slots_cap_what_runs_at_once() -> None:
    (placement,) = router(profile("a", kv_blocks=100 * UNITS, slots=7)).spread(task(), fanout=14).placements
    assert (placement.at_once, placement.site.capped_by) == (7, "slots, 7 free of 7")


def test_what_is_in_flight_takes_blocks_and_slows_the_group() -> None:
    busy = Router(fleet(profile("a", kv_blocks=10 * UNITS)), clock=Clock())
    alone = busy.spread(task(), fanout=6).placements[0]
    leases = [busy.acquire(task(concurrency=4)) for _ in range(4)]
    beside = busy.spread(task(), fanout=6).placements[0]
    assert (alone.at_once, beside.at_once, beside.site.in_flight, beside.site.most) == (6, 6, 4, 6)
    ten = busy.decide(task(concurrency=6)).e2e_ms
    assert ten is not None
    assert beside.makespan_s == pytest.approx(ten.mean / 1_000) and beside.e2e_s > alone.e2e_s
    assert beside.makespan_s > beside.e2e_s, "the prompts that were sent before are read first"
    for lease in leases:
        lease.release()


def test_contexts_stay_hot_as_far_as_the_free_blocks_hold_them() -> None:
    (placement,) = router(profile("a", kv_blocks=30 * UNITS, slots=10)).spread(task(), fanout=40).placements
    assert placement.site.hot == 30 and placement.at_once == 10
    spread = router(profile("a", slots=10)).spread(task(), fanout=40)
    assert spread.placements[0].site.hot is None and "KV unknown" in spread.explain()


def test_several_endpoints_hold_their_multiple() -> None:
    urls = tuple(f"http://gpu{i}" for i in range(3))
    one = Router(Fleet([Deployment("a", profile("a", kv_blocks=4 * UNITS), urls=urls)]))
    spread = one.spread(task(), fanout=24)
    assert [(p.site.endpoint, p.at_once, p.requests) for p in spread.placements] == [(0, 4, 8), (1, 4, 8), (2, 4, 8)]


def test_two_names_of_one_pool_hold_what_the_pool_holds() -> None:
    shared = profile("p", kv_blocks=4 * UNITS)
    twice = Router(Fleet([Deployment("a", shared, pool="gpu"), Deployment("b", shared, pool="gpu")]))
    spread = twice.spread(task(), fanout=12)
    assert spread.at_once == 4 and spread.makespan_s == router(shared).spread(task(), fanout=12).makespan_s
    assert spread.unused == {"b": "it shares its KV pool with a, which takes it"}


def test_the_least_cost_fills_the_cheap_deployment_and_the_deadline_spills_the_rest() -> None:
    fleet = router(
        profile("cheap", kv_blocks=4 * UNITS, usd_per_hour=1.0),
        profile("dear", kv_blocks=400 * UNITS, usd_per_hour=20.0),
    )
    plan = {seconds: fleet.spread(by_cost(seconds), fanout=20) for seconds in (None, 20.0, 1.4)}
    assert requests(plan[None]) == requests(plan[20.0]) == {"cheap": 20}
    assert set(requests(plan[1.4])) == {"cheap", "dear"}
    costs = [spread.cost_usd for spread in plan.values()]
    assert costs[0] == costs[1] and costs[1] is not None and costs[2] is not None and costs[1] < costs[2]
    assert all(spread.makespan_s <= (seconds or 1e9) for seconds, spread in plan.items())
    assert list(plan[1.4].spill) == ["cheap", "dear"]


def by_cost(deadline_s: float | None) -> Task:
    return replace(task(), deadline_s=deadline_s, objective="cost")


# ---- SLOs


@pytest.mark.parametrize(
    ("metric", "limit_ms", "name"), [("ttft_ms", 100.0, "TTFT of 100 ms"), ("tpot_ms", 6.0, "TPOT of 6.0 ms")]
)
def test_a_hard_slo_limits_how_many_run_at_once(metric: str, limit_ms: float, name: str) -> None:
    fleet = router(profile("a", kv_blocks=100 * UNITS))
    (placement,) = fleet.spread(task(**{metric: limit_ms}), fanout=64).placements  # type: ignore[arg-type]
    assert 1 < placement.site.most < 64 and placement.site.capped_by == name
    kept = getattr(fleet.decide(replace(task(), concurrency=placement.site.most)), metric)
    missed = getattr(fleet.decide(replace(task(), concurrency=placement.site.most + 1)), metric)
    assert kept.mean <= limit_ms < missed.mean


def test_a_soft_slo_is_kept_where_waves_can_keep_it() -> None:
    soft = replace(task(), tpot_ms=Slo(6.0, hard=False))
    fast, slow = profile("fast", kv_blocks=100 * UNITS), profile("slow", speed=0.5, kv_blocks=100 * UNITS)
    spread = router(fast, slow).spread(soft, fanout=64)
    assert requests(spread) == {"fast": 64} and spread.at_once <= 8
    assert spread.unused == {"slow": "it misses a soft SLO that others keep"}
    assert requests(router(slow).spread(soft, fanout=64)) == {"slow": 64}


def test_a_hard_deadline_that_all_together_cannot_keep_is_refused_with_what_each_could_do() -> None:
    fleet = router(profile("a", kv_blocks=4 * UNITS), profile("b", speed=0.1, kv_blocks=4 * UNITS))
    with pytest.raises(NoFeasibleDeployment, match="100 siblings cannot be done within the hard limit") as got:
        fleet.spread(task(deadline_s=2.0), fanout=100)
    assert str(got.value.reasons["a"]) == "it can have done 12 of 100 by then"
    assert str(got.value.reasons["b"]).startswith("one answer takes 5.")
    missed = fleet.spread(replace(task(), deadline_s=Slo(2.0, hard=False)), fanout=100)
    assert "the deadline of 2.00 s is missed" in missed.explain()
    assert missed.makespan_s == pytest.approx(fleet.spread(task(), fanout=100).makespan_s)


def test_a_tail_deadline_is_held_against_the_high_end_of_the_band() -> None:
    fleet = router(profile("a", kv_blocks=100 * UNITS, kv="bf16"))
    mean = fleet.spread(task(deadline_s=100.0), fanout=8)
    tail = fleet.spread(replace(task(), deadline_s=Slo(100.0, stat="p95")), fanout=8)
    assert tail.makespan_s > mean.makespan_s and "(p95)" in tail.explain()


# ---- who may take part


def test_an_unmeasured_deployment_is_never_promised() -> None:
    spread = router(profile("a", kv_blocks=4 * UNITS), profile("new", points=())).spread(task(), fanout=50)
    assert spread.unused == {"new": "nothing is measured or derived, so no time can be promised"}


def test_an_unknown_pool_runs_what_is_believed_and_comes_after_the_known_where_these_keep_the_deadline() -> None:
    known, unknown = profile("known", kv_blocks=4 * UNITS), profile("unknown", speed=1.5)
    fleet = router(known, unknown)
    within = fleet.spread(task(deadline_s=60.0), fanout=40)
    assert requests(within) == {"known": 40}
    assert within.unused == {"unknown": "KV unknown; those whose pool is known keep the deadline"}
    assert set(requests(fleet.spread(task(deadline_s=3.0), fanout=40))) == {"known", "unknown"}
    alone = router(unknown).spread(task(), fanout=2_000).placements[0]
    assert alone.site.most == 4 * 64 and alone.site.capped_by == "slots unknown, 256 free of 256 believed"


def test_nothing_feasible_is_said_with_every_reason() -> None:
    fleet = router(
        profile("short", window=500),
        profile("small", kv_blocks=10),
        profile("new", points=()),
        profile("slow", speed=0.01),
    )
    with pytest.raises(NoFeasibleDeployment, match="no deployment can take any of 7 siblings") as got:
        fleet.spread(task(ttft_ms=500.0), fanout=7)
    assert not isinstance(got.value, PoolFull)
    assert {name: str(reason).split()[0] for name, reason in got.value.reasons.items()} == {
        "short": "1,000", "small": "one", "new": "nothing", "slow": "TTFT",
    }  # fmt: skip


def test_a_fleet_that_is_full_now_says_so() -> None:
    full = router(profile("a", kv_blocks=UNITS))
    with full.acquire(task()), pytest.raises(PoolFull, match="siblings now") as got:
        full.spread(task(), fanout=3)
    assert {name: str(reason) for name, reason in got.value.reasons.items()} == {
        "a": f"one request needs {UNITS} KV blocks, 0 of {UNITS} are free now"
    }


@pytest.mark.parametrize("fanout", [0, -1, 1.5, True, 2_000_000])
def test_a_group_of_no_size_is_a_mistake(fanout: int) -> None:
    with pytest.raises(UsageError, match="fanout must be a whole number from 1 to 1,000,000"):
        router(profile("a")).spread(task(), fanout=fanout)


# ---- the shared prefix


PREFIX = 800 // BLOCK
"""Blocks of a common prefix of 800 tokens."""


def caching(profile: Profile) -> Profile:
    """The same with prefix caching reported."""
    assert profile.limits is not None
    return profile.model_copy(update={"limits": profile.limits.model_copy(update={"prefix_caching": True})})


def alike(shared: int = 800) -> Task:
    """``task()`` with a prefix that its siblings have in common."""
    return replace(task(), shared_prefix_tokens=shared)


def test_a_shared_prefix_is_held_and_read_once_where_prefix_caching_is_reported() -> None:
    one = router(caching(profile("a", kv_blocks=200)), profile("b", kv_blocks=200))
    without, with_ = (one.spread(asked, fanout=50)._over for asked in (task(), alike()))
    assert [site.most for site in without.sites] == [2, 2]
    assert [site.most for site in with_.sites] == [(200 - PREFIX) // (UNITS - PREFIX), 2]
    assert with_.sites[0].hot == with_.sites[0].most
    first, before = with_.options, without.options
    assert first.once_s[0] > 0 and first.e2e_s[0] < before.e2e_s[0]
    assert first.once_s[0] + first.e2e_s[0] == pytest.approx(before.e2e_s[0])
    other = first.site == 1
    assert (first.once_s[other] == 0).all()
    assert first.e2e_s[other] == pytest.approx(before.e2e_s[before.site == 1])


def test_one_alone_shares_nothing() -> None:
    one = router(caching(profile("a", kv_blocks=200)))
    assert one.spread(alike(), fanout=1).makespan_s == one.spread(task(), fanout=1).makespan_s


def test_a_held_prefix_takes_its_blocks_once_and_those_that_come_later_only_their_own() -> None:
    one = router(caching(profile("a", kv_blocks=202)))
    spread, ledger = one.spread(alike(), fanout=20), one._situation.ledger
    count, own = spread.at_once, UNITS - PREFIX
    assert (spread.placements[0].waves, count) == (3, 7)
    with spread.hold(one) as group:
        assert ledger.held[0] == PREFIX + count * own
        with one.acquire(spread.task):
            assert ledger.held[0] == PREFIX + (count + 1) * own
        for lease in group.leases[1:]:
            lease.release()
        assert ledger.held[0] == UNITS
    assert ledger.held[0] == 0


def test_a_prefix_that_siblings_hold_already_takes_no_room_and_no_time() -> None:
    one = router(caching(profile("a", kv_blocks=200)))
    alone = one.spread(alike(), fanout=20)
    with one.acquire(alone.task):
        beside = one.spread(alike(), fanout=20)
        site = beside.placements[0].site
        assert site.most == (200 - UNITS) // (UNITS - PREFIX)
        with beside.hold(one):
            assert one._situation.ledger.total == 1 + beside.at_once


def test_a_prompt_that_is_warm_somewhere_makes_the_group_quicker_there() -> None:
    one = router(caching(profile("a", kv_blocks=1_000)), caching(profile("b", kv_blocks=1_000)))
    step = replace(task(), session_id="s")
    with one.acquire(step) as lease:
        warm = lease.deployment.name
    (placement,) = one.spread(step, fanout=1).placements
    assert placement.deployment == warm
    assert placement.makespan_s < one.spread(task(), fanout=1).makespan_s


# ---- what is true now


@given(
    st.lists(st.tuples(st.integers(100, 6_000), st.integers(10, 500)), max_size=5),
    st.just(1.0) | st.floats(0.4, 2.5),
    st.integers(1, 12),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_wave_is_predicted_as_a_decision_predicts_a_group(
    others: list[tuple[int, int]], slower: float, fanout: int, foreign: bool
) -> None:
    clock = Clock()
    one = Router(fleet(profile("a", kv_blocks=4_000)), clock=clock)
    with one.acquire(task()) as first:
        assert first.decision.ttft_ms is not None and first.decision.tpot_ms is not None
        seen = [slower * time.mean for time in (first.decision.ttft_ms, first.decision.tpot_ms)]
        first.settle(Outcome(ttft_ms=seen[0], tpot_ms=seen[1], output_tokens=100))
    if foreign:
        one.observe("a", Load(running=3, kv_used=0.1))
    leases = [one.acquire(task(context, output)) for context, output in others]
    decided = one.decide(task(concurrency=fanout)).e2e_ms
    spread = one.spread(task(), fanout=fanout)
    assert decided is not None and len(spread.placements) == 1
    placement = spread.placements[0]
    assert placement.waves == 1 and placement.site.in_flight == len(others) + 3 * foreign
    # More at once are never taken to be quicker, whatever was learnt at more at once.
    assert spread.makespan_s >= decided.mean / 1_000 * (1 - 1e-6)
    if slower == 1.0:
        assert spread.makespan_s == pytest.approx(decided.mean / 1_000)
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("seconds", [0.0, 1_000.0])
def test_a_server_that_failed_takes_no_group_before_it_has_answered_one(seconds: float) -> None:
    clock = Clock()
    one = Router(fleet(profile("a", kv_blocks=400), profile("b", speed=0.5, kv_blocks=400)), clock=clock)
    whole = one.spread(task(), fanout=8)
    for _ in range(FAILURES):
        with one.acquire(replace(task(), pin="a")) as lease:
            lease.settle(Outcome(failure=FailureKind.UNAVAILABLE))
    clock.now += seconds
    spread = one.spread(task(), fanout=8)
    assert requests(spread) == {"b": 8} and spread.unused["a"].startswith("calls to it have failed")
    with pytest.raises(PoolFull) as got:
        whole.hold(one)
    assert str(got.value.reasons["a"]).startswith("calls to it have failed") and one._situation.ledger.total == 0
    with pytest.raises(PoolFull, match="siblings now"):
        one.spread(replace(task(), pin="a"), fanout=8)


def test_a_cost_that_one_sibling_must_not_pass_rules_out_who_is_dearer() -> None:
    one = router(
        profile("cheap", speed=0.5, usd_per_hour=1.0, kv_blocks=400),
        profile("dear", usd_per_hour=50.0, kv_blocks=400),
        profile("unpriced", kv_blocks=400),
    )
    alone = one.decide(replace(task(), pin="dear")).cost_usd
    assert alone is not None
    spread = one.spread(replace(task(), max_cost_usd=0.001), fanout=8)
    assert requests(spread) == {"cheap": 8} and spread.cost_usd is not None and spread.cost_usd <= 8 * 0.001
    assert spread.unused == {
        "dear": f"one sibling costs ${alone.mean:.3g} there, more than it may",
        "unpriced": "its price is unknown",
    }


# ---- the order of taking up


@given(fleets(most=3), st.integers(2, 12))
@settings(max_examples=15, deadline=None)
def test_a_deployment_is_taken_up_from_the_group_that_is_said(fleet: Fleet, fanout: int) -> None:
    one = Router(fleet)
    try:
        plans = [one.spread(task(), fanout=n) for n in range(1, fanout + 1)]
    except NoFeasibleDeployment:
        assume(False)
    for name, first in plans[-1].spill.items():
        assert next(plan.fanout for plan in plans if name in requests(plan)) == first


# ---- properties


@given(
    fleets(),
    st.integers(1, 40) | st.integers(100, 2_000),
    st.sampled_from(["latency", "cost"]),
    st.none() | st.floats(0.5, 60.0),
)
@settings(max_examples=60, deadline=None)
def test_a_plan_places_every_sibling_within_every_limit(
    fleet: Fleet, fanout: int, objective: str, deadline_s: float | None
) -> None:
    one = Router(fleet)
    assume(objective == "latency" or not np.isnan(one._compiled.usd_per_second).all())
    try:
        spread = one.spread(replace(task(), deadline_s=deadline_s, objective=objective), fanout=fanout)
    except NoFeasibleDeployment as error:
        assert set(error.reasons) == {d.name for d in fleet.deployments}
        return
    assert sum(requests(spread).values()) == fanout
    assert set(requests(spread)) | set(spread.unused) == {d.name for d in fleet.deployments}
    assert not set(requests(spread)) & set(spread.unused)
    assert deadline_s is None or spread.makespan_s <= deadline_s * (1 + 1e-6)
    for placement in spread.placements:
        assert placement.at_once <= placement.site.most <= fanout
        assert (placement.waves - 1) * placement.at_once < placement.requests <= placement.waves * placement.at_once
    assert spread.explain() and spread == one.spread(spread.task, fanout=fanout)
    with spread.hold(one) as group:
        ledger = one._situation.ledger
        assert len(group.leases) == spread.at_once == ledger.total
        assert (ledger.held <= ledger.capacity).all()
    assert one._situation.ledger.total == 0 and not one._situation.ledger.held.any()


@given(fleets(most=3), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_another_deployment_never_makes_it_longer(fleet: Fleet, fanout: int) -> None:
    fewer = Fleet(fleet.deployments[:-1]) if len(fleet) > 1 else fleet
    try:
        before = Router(fewer).spread(task(), fanout=fanout).makespan_s
    except NoFeasibleDeployment:
        return
    assert Router(fleet).spread(task(), fanout=fanout).makespan_s <= before * (1 + 1e-6)


@given(st.integers(1, 100_000))
@settings(max_examples=60, deadline=None)
def test_the_numbers_at_once_are_few_and_never_far_apart(most: int) -> None:
    axis = counts(most)
    assert axis[0] == 1 and axis[-1] == most and (np.diff(axis) > 0).all()
    assert len(axis) < 180
    assert (axis[1:] <= np.maximum(axis[:-1] + 1, np.ceil(axis[:-1] * 1.07))).all()


@pytest.mark.parametrize("fanout", [70, 150, 1_000])
def test_what_is_left_out_of_the_numbers_at_once_costs_nothing(fanout: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("qwen3-32b/vllm-h100-tp4", "qwen3-32b/trtllm-h100-tp2", "llama-3.1-8b/trtllm-h100-tp1")
    fleet = Router(Fleet(shipped().deployment(shipped().profile(name)) for name in names))
    by_time = Task(context_tokens=5_000, max_output_tokens=500)
    deadline_s = 1.5 * fleet.spread(by_time, fanout=fanout).makespan_s
    by_price = replace(by_time, objective="cost", deadline_s=deadline_s)
    few = [fleet.spread(one, fanout=fanout) for one in (by_time, by_price)]
    monkeypatch.setattr("agentroute.fanout._EVERY", 10_000)
    every = [fleet.spread(one, fanout=fanout) for one in (by_time, by_price)]
    assert few[0].makespan_s == pytest.approx(every[0].makespan_s, rel=0.005)
    assert few[1].cost_usd == pytest.approx(every[1].cost_usd, rel=0.01)


# ---- holding


def test_a_held_group_has_a_lease_for_every_sibling_of_the_first_wave() -> None:
    urls = ("http://gpu0", "http://gpu1")
    one = Router(
        Fleet([Deployment("a", profile("a", kv_blocks=3 * UNITS), urls=urls), Deployment("b", profile("b", slots=2))])
    )
    spread = one.spread(task(), fanout=30)
    with spread.hold(one) as group:
        assert len(group.leases) == spread.at_once == one._situation.ledger.total
        assert {lease.url for lease in group.leases if lease.deployment.name == "a"} == set(urls)
        assert [lease.deployment.name for lease in group.leases] == [
            placement.deployment for placement in spread.placements for _ in range(placement.at_once)
        ]
        assert {lease.blocks for lease in group.leases if lease.deployment.name == "a"} == {UNITS}
        group.leases[0].release()
        assert one._situation.ledger.total == spread.at_once - 1
    assert one._situation.ledger.total == 0 and not one._situation.ledger.held.any()


@pytest.mark.parametrize("shared", [0, 800])
def test_a_group_is_held_as_if_each_sibling_had_acquired(shared: int) -> None:
    """What is held, promised and expected, and what comes next is the same."""
    spread = (held := fresh()).spread(replace(alike(shared), ttft_ms=Slo(9_000.0), tpot_ms=Slo(90.0)), fanout=6)
    one_by_one = fresh()
    with spread.hold(held) as group:
        leases = [one_by_one.acquire(spread.task) for _ in range(spread.at_once)]
        for together, alone in zip(group.leases, leases, strict=True):
            assert (together.decision.ttft_ms, together.blocks) == (alone.decision.ttft_ms, alone.blocks)
            assert together.decision.tpot_ms == alone.decision.tpot_ms
        a, b = held._situation, one_by_one._situation
        for name in ("held", "in_flight", "resident"):
            np.testing.assert_array_equal(getattr(a.ledger, name), getattr(b.ledger, name))
        assert (a.ledger.siblings(sibling_group(spread.task)), a.ledger.total) == (spread.at_once, spread.at_once)
        assert held.decide(spread.task) == one_by_one.decide(spread.task)
        assert held.decide(spread.task).e2e_ms == one_by_one.decide(spread.task).e2e_ms
        for lease in leases:
            lease.release()


def fresh() -> Router:
    return Router(fleet(caching(profile("a", kv_blocks=1_000))), clock=Clock())


def test_a_group_is_held_where_the_plan_says_whichever_endpoint_is_less_busy() -> None:
    urls = ("http://gpu0", "http://gpu1")
    one = Router(Fleet([Deployment("a", profile("a", kv_blocks=10 * UNITS), urls=urls)]))
    busy = [one.acquire(task(concurrency=2)) for _ in range(2)]
    assert {lease.url for lease in busy} == set(urls)
    busy[1].release()
    spread = one.spread(task(), fanout=19)
    with spread.hold(one) as group:
        count = {url: sum(lease.url == url for lease in group.leases) for url in urls}
        assert count == {urls[p.site.endpoint]: p.at_once for p in spread.placements}
        assert (one._situation.ledger.held <= one._situation.ledger.capacity).all()
    busy[0].release()


def test_a_group_is_held_whole_or_not_at_all() -> None:
    one = router(profile("a", kv_blocks=4 * UNITS), profile("b", speed=1.1, kv_blocks=4 * UNITS))
    spread = one.spread(task(), fanout=8)
    assert spread.at_once == 8
    with one.acquire(task()) as lease:
        taken = lease.deployment.name
        with pytest.raises(PoolFull, match="something has taken the room") as got:
            spread.hold(one)
        assert {name: str(reason) for name, reason in got.value.reasons.items()} == {
            taken: f"4 siblings need {4 * UNITS} KV blocks, {3 * UNITS} are free now"
        }
        assert one._situation.ledger.total == 1
    slots = router(profile("a", slots=4))
    whole = slots.spread(task(), fanout=4)
    with slots.acquire(task()), pytest.raises(PoolFull, match="as many slots, 3 are free now"):
        whole.hold(slots)


def test_a_held_group_works_in_async_code_and_is_let_go_of_after_an_error() -> None:
    one = router(profile("a", kv_blocks=8 * UNITS))

    async def held() -> None:
        async with one.spread(task(), fanout=5).hold(one) as group:
            assert len(group.leases) == one._situation.ledger.total == 5
            raise ValueError

    with pytest.raises(ValueError):
        asyncio.run(held())
    assert one._situation.ledger.total == 0


def test_the_plan_in_words() -> None:
    spread = router(profile("a", kv_blocks=4 * UNITS, usd_per_hour=2.0), profile("new", points=())).spread(
        task(), fanout=9
    )
    text = spread.explain()
    for part in ("9 siblings on 1 deployment, 3 at once", "3 x 3", "a from 1", "not used:", "new: nothing", "$"):
        assert part in text, text


def test_measured_points_that_fall_with_the_load_do_not_make_a_plan_wrong() -> None:
    """More at once is never taken to be quicker: three repeats at 16 in flight happened to be quick."""
    points = tuple(
        point(p.isl, p.osl, p.concurrency, p.ttft_ms.mean, p.tpot_ms.mean / (2 if p.concurrency == 16 else 1))
        for p in grid()
        if p.ttft_ms and p.ttft_ms.mean and p.tpot_ms and p.tpot_ms.mean
    )
    one = router(profile("a", points=points, kv_blocks=100 * UNITS))
    e2e = [one.spread(task(), fanout=n).placements[0].e2e_s for n in (4, 8, 12, 16)]
    assert e2e == sorted(e2e)
