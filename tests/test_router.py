"""Deciding: what is refused and why, what comes first, and what a hold does to the next answer."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from fleets import (
    BLOCK,
    Clock,
    assert_nothing_is_held,
    fleet,
    fleets,
    grid,
    held,
    point,
    profile,
    profiles,
    router,
    task,
    tasks,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.errors import NoFeasibleDeployment, PoolFull, TaskError, UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.points import Measured
from agentroute.profile import Profile
from agentroute.route import Route
from agentroute.router import Router
from agentroute.shape.model import Capability
from agentroute.shape.sharding import Sharding
from agentroute.task import Slo, Task


def reason(p: Profile, asked: Task, *, routes: tuple[Route, ...] = ()) -> str | None:
    """Why ``p`` is refused, or ``None`` when it is not."""
    try:
        Router(fleet(p), routes=routes).decide(asked)
    except NoFeasibleDeployment as error:
        assert list(error.reasons) == [p.name]
        return str(error.reasons[p.name])
    return None


def names(r: Router, asked: Task) -> list[str]:
    return [c.deployment for c in r.decide(asked).candidates]


# ---- window


@pytest.mark.parametrize(
    ("context", "output", "said"),
    [
        (900, 100, None),
        (900, 101, "900 context and 101 output tokens do not fit its window of 1,000 (measured)"),
        (1_000, 1, "1,000 context and 1 output tokens do not fit its window of 1,000 (measured)"),
        (999, None, None),
        (1_000, None, "1,000 context and any output tokens do not fit its window of 1,000 (measured)"),
    ],
)
def test_prompt_and_answer_must_fit_the_window(context: int, output: int | None, said: str | None) -> None:
    assert reason(profile(window=1_000), task(context, output)) == said


def test_without_a_limit_the_length_of_the_model_is_assumed() -> None:
    with pytest.raises(NoFeasibleDeployment) as raised:
        Router.shipped().decide(task(context=2_000_000))
    assert str(raised.value.reasons["qwen3-32b/vllm-h100-tp4"]).endswith("do not fit its window of 40,960 (assumed)")


# ---- capabilities


@pytest.mark.parametrize(
    ("offers", "said"),
    [({"vision": True}, None), ({}, None), ({"vision": False}, "it does not offer vision")],
)
def test_what_is_known_to_be_lacking_is_refused(offers: dict[Capability, bool], said: str | None) -> None:
    assert reason(profile(offers=offers), Task(context_tokens=10, needs={"vision"})) == said


def test_an_unknown_capability_comes_after_a_known_one() -> None:
    unknown, known = profile("unknown", speed=9.0), profile("known", offers={"tools": True})
    decision = router(unknown, known).decide(Task(context_tokens=10, needs={"tools"}))
    assert [c.deployment for c in decision.candidates] == ["known", "unknown"]
    assert decision.candidates[1].standing == "whether it offers tools is unknown"


def test_a_profile_overrules_its_model() -> None:
    known = Fleet.shipped().deployments[0]
    assert known.model is not None
    offers = {"tools": not known.model.capabilities.get("tools", False)}
    without = replace(known, profile=profile("p", offers={"tools": False}), name="without")
    with_tools = replace(known, profile=profile("q", offers={"tools": True}), name="with")
    assert offers
    assert names(Router(Fleet([without, with_tools])), Task(context_tokens=10, needs={"tools"})) == ["with"]


# ---- KV


@pytest.mark.parametrize(
    ("context", "output", "said"),
    [
        (60 * BLOCK, 4 * BLOCK, None),
        (60 * BLOCK, 4 * BLOCK + 1, "one request needs 65 KV blocks of 16 tokens, the pool has 64"),
    ],
)
def test_a_request_that_can_never_fit_is_refused_with_the_numbers(context: int, output: int, said: str | None) -> None:
    assert reason(profile(kv_blocks=64), task(context, output)) == said


def test_siblings_beyond_what_fits_are_not_refused_but_wait() -> None:
    decision = router(profile(kv_blocks=69 * 2)).decide(task(concurrency=50))
    c = decision.candidates[0]
    assert (c.n, c.n_run) == (50, 2)
    assert c.wait_ms is not None
    assert c.wait_ms > 0


def test_an_unknown_pool_comes_after_a_known_one() -> None:
    unknown, known = profile("unknown", speed=9.0), profile("known", kv_blocks=100)
    decision = router(unknown, known).decide(task())
    assert [c.deployment for c in decision.candidates] == ["known", "unknown"]
    assert decision.candidates[1].standing == "KV unknown"
    assert decision.candidates[1].headroom is None


def test_an_unset_output_never_holds_the_whole_window() -> None:
    r = router(profile(kv_blocks=10_000, window=100_000))
    assert held(r, task(1_000, None)).blocks == -(-(1_000 + 1_024) // BLOCK)


def test_an_unset_output_holds_no_more_than_the_window_leaves() -> None:
    r = router(profile(kv_blocks=10_000, window=1_200))
    assert held(r, task(1_000, None)).blocks == 1_200 // BLOCK


# ---- SLOs


def test_a_bare_number_is_a_hard_mean_and_refused_with_the_numbers() -> None:
    assert re.fullmatch(r"TTFT of \S+ ms is over the hard limit of 5\.0 ms", reason(profile(), task(ttft_ms=5.0)) or "")
    assert re.fullmatch(
        r"TPOT of \S+ ms at 8 in flight is over the hard limit of 1\.0 ms",
        reason(profile(), task(tpot_ms=1.0, concurrency=8)) or "",
    )
    assert re.fullmatch(
        r"E2E of \S+ ms is over the hard limit of 10\.0 ms", reason(profile(), task(deadline_s=0.01)) or ""
    )


def test_waiting_counts_against_an_slo() -> None:
    p = profile(slots=2)
    assert reason(p, task(ttft_ms=500, concurrency=2)) is None
    assert "TTFT" in (reason(p, task(ttft_ms=500, concurrency=20)) or "")


def test_a_soft_slo_only_ranks_lower() -> None:
    slow, fast = profile("slow", gpus=1), profile("fast", gpus=8, speed=4.0)
    r, asked = router(slow, fast), task()
    assert names(r, asked) == ["slow", "fast"]
    assert names(r, replace(asked, ttft_ms=Slo(50.0, hard=False))) == ["fast", "slow"]
    assert names(r, replace(asked, ttft_ms=50.0)) == ["fast"]


def test_a_tail_is_judged_by_the_high_end_of_the_band_and_says_so() -> None:
    ttft = router(profile()).decide(task()).ttft_ms
    assert ttft is not None
    between = (ttft.mean + ttft.high) / 2
    asked = task()
    assert reason(profile(), replace(asked, ttft_ms=Slo(between))) is None
    said = reason(profile(), replace(asked, ttft_ms=Slo(between, "p95"))) or ""
    assert "TTFT p95 (judged by the high end of its band)" in said
    assert reason(profile(), replace(asked, ttft_ms=Slo(ttft.high * 1.001, "p95"))) is None


@pytest.mark.parametrize(("name", "said"), [("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("deadline_s", "E2E")])
def test_a_hard_slo_is_never_promised_where_nothing_was_measured(name: str, said: str) -> None:
    asked: dict[str, Any] = {"context_tokens": 10, name: 1e9}
    text = reason(profile(points=()), Task(**asked)) or ""
    assert text.startswith(f"its {said} is unknown (nothing measured), so a hard limit of ")


def test_a_soft_slo_on_an_unmeasured_deployment_ranks_it_last() -> None:
    fast, unmeasured = profile("measured", gpus=8), profile("unmeasured", points=(), gpus=1)
    asked = replace(task(), ttft_ms=Slo(1e6, hard=False))
    assert names(router(unmeasured, fast), asked) == ["measured", "unmeasured"]


# ---- routes


def test_the_slo_of_a_route_applies_unless_the_task_has_its_own() -> None:
    routes = [Route(name="r", ttft_ms=Slo(5.0, hard=False)), Route(name="hard", ttft_ms=Slo(5.0, hard=True))]
    r = Router(fleet(profile()), routes=routes)
    asked = replace(task(), route="r")
    assert "misses TTFT of 5.0 ms" in r.decide(asked).candidates[0].standing
    assert "keeps TTFT of 10.0 s" in r.decide(replace(asked, ttft_ms=10_000.0)).candidates[0].standing
    with pytest.raises(NoFeasibleDeployment):
        r.decide(replace(asked, route="hard"))
    assert r.decide(replace(asked, route="hard", ttft_ms=10_000.0)).deployment == "p"
    assert r.decide(replace(asked, route="default")).candidates[0].standing.startswith("no SLO to keep")


def test_only_what_a_route_allows_is_chosen() -> None:
    r = Router(fleet(profile("a", speed=9.0), profile("b")), routes=[Route(name="r", allow=frozenset({"b"}))])
    decision = r.decide(replace(task(), route="r"))
    assert decision.deployment == "b"
    assert {name: str(why) for name, why in decision.rejected.items()} == {
        "a": "neither the task nor its route allows it"
    }
    assert r.decide(task()).deployment == "a"


def test_a_route_cannot_allow_what_is_not_there() -> None:
    with pytest.raises(UnknownNameError, match="there is no deployment 'depl'; did you mean 'deply'\\?"):
        Router(fleet(profile("deply")), routes=[Route(name="r", allow=frozenset({"depl"}))])


def test_a_wrong_route_suggests_the_closest() -> None:
    with pytest.raises(UnknownNameError, match="there is no route 'bacth'; did you mean 'batch'\\?"):
        Router(fleet(profile()), routes=[Route(name="batch")]).decide(Task(context_tokens=1, route="bacth"))


# ---- fleets


def test_a_fleet_has_a_deployment_and_each_its_own_name() -> None:
    with pytest.raises(UsageError, match="at least one deployment"):
        Fleet([])
    with pytest.raises(UsageError, match="deployment names must differ, got 'a' twice"):
        Fleet([Deployment("a", profile()), Deployment("a", profile())])
    assert len(fleet(profile("a"), profile("b"))) == 2


def test_two_names_of_one_pool_count_together() -> None:
    p = profile(kv_blocks=200)
    r = Router(Fleet([Deployment("a", p, pool="gpu"), Deployment("b", p, pool="gpu")]))
    leases = [held(r, task()) for _ in range(2)]
    with pytest.raises(PoolFull) as raised:
        held(r, task())
    reasons = {name: str(why) for name, why in raised.value.reasons.items()}
    assert reasons == dict.fromkeys("ab", "one request needs 69 KV blocks, 62 of 200 are free now")
    assert {c.n for c in r.decide(task()).candidates} == {3}
    leases[0].release()
    assert held(r, task()).blocks == 69


def test_two_names_without_a_pool_stand_on_one_each() -> None:
    p = profile(kv_blocks=70)
    r = Router(Fleet([Deployment("a", p), Deployment("b", p)]))
    assert {held(r, task()).decision.deployment for _ in range(2)} == {"a", "b"}
    with pytest.raises(PoolFull):
        held(r, task())


def test_a_shared_pool_is_described_in_one_way() -> None:
    deployments = [Deployment(n, profile(n, kv_blocks=k), pool="gpu") for n, k in (("a", 1), ("b", 2))]
    with pytest.raises(
        UsageError, match="'a' and 'b' share the pool 'gpu', but their profiles describe it differently"
    ):
        Router(Fleet(deployments))


def test_replicas_cannot_share_a_named_pool() -> None:
    with pytest.raises(UsageError, match="'a' has 2 endpoints with a KV memory each"):
        Router(Fleet([Deployment("a", profile(), urls=("http://a", "http://b"), pool="gpu")]))


def test_of_several_endpoints_the_one_with_the_fewest_in_flight_is_chosen() -> None:
    urls = ("http://a", "http://b", "http://c")
    r = Router(Fleet([Deployment("d", profile(kv_blocks=70), urls=urls)]))
    leases = [held(r, task()) for _ in range(3)]
    assert sorted(str(lease.url) for lease in leases) == list(urls)
    with pytest.raises(PoolFull):
        held(r, task())
    leases[1].release()
    assert held(r, task()).url == leases[1].url


# ---- bursts


@pytest.mark.parametrize("objective", ["fit", "latency"])
@pytest.mark.parametrize("kv_blocks", [None, 10_000])
@pytest.mark.parametrize("concurrency", [1, 16])
def test_two_identical_servers_share_a_burst(objective: str, kv_blocks: int | None, concurrency: int) -> None:
    p = profile(kv_blocks=kv_blocks)
    r = Router(Fleet([Deployment("a", p), Deployment("b", p)]), objective=objective, clock=Clock())
    burst = Counter(held(r, task(concurrency=concurrency)).decision.deployment for _ in range(16))
    assert burst == {"a": 8, "b": 8}


def test_siblings_in_flight_are_not_counted_twice() -> None:
    r = router(profile())
    for _ in range(8):
        assert held(r, task(concurrency=8)).decision.candidates[0].n == 8


def test_strangers_in_flight_are_counted() -> None:
    r = router(profile())
    held(r, task(context=500))
    held(r, task(context=500))
    assert r.decide(task(concurrency=8)).candidates[0].n == 10


def test_a_busier_server_is_slower() -> None:
    r = router(profile(kv_blocks=10_000))
    alone = r.decide(task()).e2e_ms
    for _ in range(30):
        held(r, task())
    busy = r.decide(task()).e2e_ms
    assert alone is not None
    assert busy is not None
    assert busy.mean > alone.mean


# ---- full, or never


def test_a_pool_that_is_full_now_is_not_the_same_as_one_that_never_fits() -> None:
    r = router(profile(kv_blocks=70))
    with r.acquire(task()):
        with pytest.raises(PoolFull, match="no deployment has room now for a task of 1,000 context and 100 output"):
            held(r, task())
        with pytest.raises(NoFeasibleDeployment, match="no deployment can take a task of 5,000 context") as raised:
            held(r, task(context=5_000))
        assert not isinstance(raised.value, PoolFull)
        assert r.decide(task()).deployment == "p"
    held(r, task()).release()


def test_a_full_pool_gives_way_to_the_next_candidate() -> None:
    r = router(profile("large", kv_blocks=80), profile("small", kv_blocks=70))
    assert [held(r, task()).decision.deployment for _ in range(2)] == ["large", "small"]


def test_an_unknown_pool_never_fills() -> None:
    r = router(profile())
    for _ in range(100):
        held(r, task())
    assert r.decide(task()).candidates[0].n == 101


def test_a_lease_knows_where_it_leads() -> None:
    r = Router(Fleet([Deployment("d", profile(), urls=("http://a",))]), clock=lambda: 7.0)
    with r.acquire(task()) as lease:
        assert (lease.deployment.name, lease.url, lease.decision.decided_at) == ("d", "http://a", 7.0)


def test_time_comes_from_the_clock_alone() -> None:
    clock = Clock()
    r = Router(fleet(profile()), clock=clock)
    clock.now = 5.0
    assert r.decide(task()).decided_at == 5.0


@pytest.mark.parametrize("after_s", [float("nan"), float("inf"), -1.0])
def test_a_lease_is_let_go_of_after_a_finite_time(after_s: float) -> None:
    clock = Clock()
    r = Router(fleet(profile(kv_blocks=70)), clock=clock)
    lease = r.acquire(task())
    try:
        lease.release(after_s)
    except UsageError:
        lease.release()
    clock.now = 1e9
    held(r, task())


# ---- properties

quick = settings(max_examples=80, deadline=None)


def feasible(of: Fleet, asked: Task) -> bool:
    try:
        Router(of).decide(asked)
    except NoFeasibleDeployment:
        return False
    return True


@given(fleets(), tasks(), st.sampled_from(["fit", "latency"]), st.integers(0, 6))
@quick
def test_what_is_chosen_is_feasible(of: Fleet, asked: Task, objective: str, busy: int) -> None:
    r = Router(of, objective=objective)
    for _ in range(busy):
        try:
            held(r, asked)
        except NoFeasibleDeployment as error:
            assert sorted(error.reasons) == sorted(d.name for d in of.deployments)
            return
    try:
        decision = r.decide(asked)
    except NoFeasibleDeployment:
        return
    assert decision.deployment not in decision.rejected
    profile_ = decision.chosen.profile
    limits = profile_.limits
    assert limits is not None
    needed = asked.context_tokens + (asked.max_output_tokens or 1)
    assert limits.max_model_len is None or needed <= limits.max_model_len
    headroom = decision.candidates[0].headroom
    assert profile_.pool is None or (headroom is not None and headroom.needed <= profile_.pool.blocks)
    assert not any(profile_.capabilities.offers.get(n) is False for n in asked.needs if profile_.capabilities)  # type: ignore[call-overload]
    for name, estimate in (("ttft_ms", decision.ttft_ms), ("tpot_ms", decision.tpot_ms)):
        if (limit := getattr(asked, name)) is not None:
            assert estimate is not None
            assert estimate.mean <= limit * (1 + 1e-9)


@given(fleets(), tasks())
@quick
def test_equal_questions_get_equal_answers(of: Fleet, asked: Task) -> None:
    def answer() -> str:
        try:
            return Router(of).decide(asked).explain()
        except NoFeasibleDeployment as error:
            return str(error)

    assert answer() == answer()


@given(fleets(), tasks(), st.sampled_from(["ttft_ms", "tpot_ms", "deadline_s"]), st.floats(1.0, 100.0))
@quick
def test_relaxing_a_hard_slo_never_takes_an_answer_away(of: Fleet, asked: Task, name: str, factor: float) -> None:
    limit = getattr(asked, name)
    if limit is None or not feasible(of, asked):
        return
    relaxed: dict[str, Any] = {name: limit * factor}
    dropped: dict[str, Any] = {name: None}
    softened: dict[str, Any] = {name: Slo(limit, hard=False)}
    for change in (relaxed, dropped, softened):
        assert feasible(of, replace(asked, **change))


@given(fleets(), profiles("new"), tasks())
@quick
def test_another_deployment_never_takes_an_answer_away(of: Fleet, more: Profile, asked: Task) -> None:
    if feasible(of, asked):
        assert feasible(Fleet([Deployment("new", more), *of.deployments]), asked)
        assert feasible(Fleet([*of.deployments, Deployment("new", more)]), asked)


@given(fleets(), tasks(), st.integers(1, 50_000))
@quick
def test_a_longer_prompt_never_turns_a_no_into_a_yes(of: Fleet, asked: Task, more: int) -> None:
    """But for TPOT: where longer prompts leave room for fewer at once, each of these is faster."""
    asked = replace(asked, tpot_ms=None)
    if not feasible(of, asked):
        assert not feasible(of, replace(asked, context_tokens=asked.context_tokens + more))


@given(tasks(), st.integers(1, 50_000))
@settings(max_examples=40, deadline=None)
def test_not_even_in_the_shipped_fleet(asked: Task, more: int) -> None:
    asked = replace(asked, tpot_ms=None)
    longer = replace(asked, context_tokens=asked.context_tokens + more)
    try:
        SHIPPED.decide(asked)
    except NoFeasibleDeployment:
        with pytest.raises(NoFeasibleDeployment):
            SHIPPED.decide(longer)


SHIPPED = Router.shipped()


# ---- several KV memories, several endpoints, strangers


def with_ranks(ranks: int, *, kv_blocks: int, slots: int | None = None) -> Profile:
    """A profile with attention DP over ``ranks`` ranks, each with ``kv_blocks`` blocks and ``slots`` slots."""
    single = profile(kv_blocks=kv_blocks, slots=slots, gpus=ranks)
    return single.model_copy(update={"sharding": Sharding(attention_dp=ranks)})


def test_engines_behind_one_address_add_up_and_a_request_lives_in_one_of_them() -> None:
    one = profile(kv_blocks=69, slots=4)
    assert one.limits is not None
    two = one.model_copy(update={"limits": one.limits.model_copy(update={"engines": 2})})
    assert (one.kv_memories, two.kv_memories) == (1, 2)
    r = router(two)
    with pytest.raises(NoFeasibleDeployment, match="the pool of one engine has 69"):
        r.decide(task(context=1_100))
    leases = []
    with pytest.raises(PoolFull):
        while True:
            leases.append(held(r, task(context=500)))
    assert sum(lease.blocks for lease in leases) > 69


def test_a_request_lives_in_one_attention_dp_rank_but_the_ranks_add_up() -> None:
    r = router(with_ranks(8, kv_blocks=69))
    with pytest.raises(NoFeasibleDeployment, match="the pool of one attention-DP rank has 69"):
        r.decide(task(context=1_100))
    leases = [held(r, task()) for _ in range(7)]
    with pytest.raises(PoolFull):
        held(r, task())
    assert sum(lease.blocks for lease in leases) <= 0.9 * 8 * 69


def test_slots_are_those_of_one_rank() -> None:
    candidate = router(with_ranks(4, kv_blocks=10_000, slots=2)).decide(task(concurrency=20)).candidates[0]
    assert (candidate.n, candidate.n_run) == (20, 8)


def test_siblings_spread_over_the_endpoints_of_a_deployment() -> None:
    urls = tuple(f"http://127.0.0.1:{port}" for port in range(8001, 8005))
    r = Router(Fleet([Deployment("four", profile(slots=4), urls=urls)]))
    candidate = r.decide(task(concurrency=16)).candidates[0]
    assert (candidate.n, candidate.n_run, candidate.wait_ms) == (4, 4, 0.0)


def test_what_strangers_hold_is_not_free_to_run_in() -> None:
    r = router(profile(kv_blocks=100))
    with r.acquire(task(context=1_300)):
        candidate = r.decide(task()).candidates[0]
    assert (candidate.n, candidate.n_run) == (2, 1)
    assert candidate.wait_ms is not None
    assert candidate.wait_ms > 0


def test_a_slightly_larger_pool_does_not_take_everything() -> None:
    r = router(profile("x", kv_blocks=10_100), profile("y", kv_blocks=10_000))
    leases = [held(r, task()) for _ in range(100)]
    assert 40 <= sum(lease.decision.deployment == "x" for lease in leases) <= 60


# ---- who is a sibling


def test_siblings_of_different_size_are_told_by_their_group() -> None:
    r = router(profile())
    for i in range(8):
        lease = r.acquire(replace(task(context=1_000 + i, concurrency=8), group="reviewers"))
        assert lease.decision.candidates[0].n == 8


def test_equal_tasks_of_two_groups_are_strangers() -> None:
    r = router(profile())
    leases = [held(r, replace(task(concurrency=4), group="one")) for _ in range(4)]
    assert r.decide(replace(task(concurrency=4), group="two")).candidates[0].n == 8
    assert len(leases) == 4


def test_siblings_elsewhere_do_not_come_here_too() -> None:
    p = profile(kv_blocks=10_000)
    r = Router(Fleet([Deployment("a", p), Deployment("b", p)]))
    for _ in range(15):
        last = held(r, task(concurrency=16))
    assert max(candidate.n for candidate in last.decision.candidates) <= 9


# ---- measured tails


def test_a_measured_tail_is_believed_before_the_band() -> None:
    slow_tail = tuple(
        p.model_copy(update={"ttft_ms": Measured(mean=p.mean_ttft_ms(), p95=9 * (p.mean_ttft_ms() or 0))})
        for p in grid()
    )
    asked = Task(context_tokens=1_024, max_output_tokens=64, ttft_ms=Slo(200, stat="p95"))
    assert router(profile()).decide(asked)
    with pytest.raises(NoFeasibleDeployment, match=r"TTFT p95 \(judged by 9 x the mean, as measured\)"):
        router(profile(points=slow_tail)).decide(asked)


def test_points_beyond_what_runs_at_once_are_no_service_times() -> None:
    points = (point(1_000, 100, 1, 100, 10), point(1_000, 100, 64, 60_000, 10))
    for limited in (profile(points=points, slots=8), profile(points=points, kv_blocks=8 * 69)):
        ttft = router(limited).decide(task(concurrency=8)).ttft_ms
        assert ttft is not None and ttft.mean < 1_000
    only_queued = profile(points=points[1:], slots=8)
    with pytest.raises(NoFeasibleDeployment, match="measured only beyond what it runs at once"):
        router(only_queued).decide(task(ttft_ms=500))


# ---- routes


def test_a_bare_number_on_a_route_is_soft() -> None:
    r = Router(fleet(profile()), routes=[Route(name="default", ttft_ms=1)])
    assert "misses TTFT of 1.0 ms" in r.decide(task()).candidates[0].standing


@pytest.mark.parametrize("value", [0, -1, float("nan"), "fast", True])
def test_a_route_with_a_senseless_slo_is_refused(value: Any) -> None:
    with pytest.raises(TaskError):
        Route(name="default", ttft_ms=value)


def test_the_routes_of_a_router_do_not_change() -> None:
    with pytest.raises(TypeError):
        router(profile()).routes["new"] = Route(name="new")  # type: ignore[index]


def test_a_lease_that_was_released_is_not_entered_again() -> None:
    lease = router(profile()).acquire(task())
    lease.release()
    with pytest.raises(UsageError, match="released already"), lease:
        pass


def test_a_dry_run_judges_the_whole_group_and_a_lease_the_one_that_starts() -> None:
    r = router(profile(kv_blocks=10_000, slots=4))
    asked = task(concurrency=64, ttft_ms=1_000)
    with pytest.raises(NoFeasibleDeployment, match=r"at 64 in flight is over the hard limit of 1\.00 s"):
        r.decide(asked)
    with r.acquire(asked) as lease:
        assert lease.decision.candidates[0].wait_ms == 0.0


def test_what_was_waited_is_gone_from_the_limits_and_said() -> None:
    r = router(profile(kv_blocks=1_000))
    with r.acquire(task(deadline_s=10.0), waited_s=5.0):
        pass
    with pytest.raises(NoFeasibleDeployment, match=r"hard limit of 2\.00 s, 5\.00 s of it gone in waiting"):
        r.acquire(task(deadline_s=2.0), waited_s=5.0)


@pytest.mark.parametrize("waited_s", [-1.0, float("nan"), float("inf"), "1"])
@pytest.mark.parametrize("way", ["acquire", "queue", "admit"])
def test_a_wait_is_a_finite_time(way: str, waited_s: Any) -> None:
    r = router(profile())
    with pytest.raises(UsageError, match="waited_s must be a finite number"):
        getattr(r, way)(task(), waited_s=waited_s)
    assert r.queued == 0


@pytest.mark.parametrize("output", [-1, 10**30, 1.5, float("nan"), True, None])
def test_an_answer_grows_to_a_whole_number_of_tokens(output: Any) -> None:
    """A number that floats do not hold beside the others' blocks would take these with it."""
    r = router(profile(kv_blocks=200))
    with r.acquire(task()) as one, r.acquire(task()) as other:
        with pytest.raises(UsageError, match="output_tokens must be a whole number from 0 to 1,000,000,000"):
            one.extend(output)
        assert (one.blocks, other.blocks) == (69, 69)
    assert_nothing_is_held(r)


@pytest.mark.parametrize("outcome", [None, "ok", {"ttft_ms": 5.0}])
def test_a_lease_is_settled_with_an_outcome_and_held_until_then(outcome: Any) -> None:
    r = router(profile(kv_blocks=200))
    lease = r.acquire(task())
    with pytest.raises(UsageError, match="settled with an Outcome"):
        lease.settle(outcome)
    assert lease.blocks == 69
    lease.release()
    assert_nothing_is_held(r)


def test_a_shared_pool_has_one_number_of_ranks() -> None:
    deployments = [
        Deployment("a", profile("a", kv_blocks=100), pool="gpu"),
        Deployment("b", with_ranks(8, kv_blocks=100), pool="gpu"),
    ]
    with pytest.raises(UsageError, match="give both the same kv_pool and attention_dp"):
        Router(Fleet(deployments))
