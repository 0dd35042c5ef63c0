"""Deciding and holding: routes, fleets, a pool that is full, and leases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import Clock, assert_nothing_is_held, fleet, held, profile, router, task

from agentroute.errors import NoFeasibleDeployment, PoolFull, TaskError, UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.route import Route
from agentroute.router import Router
from agentroute.task import Slo, Task

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


def test_a_lease_that_was_released_is_not_entered_again() -> None:
    lease = router(profile()).acquire(task())
    lease.release()
    with pytest.raises(UsageError, match="released already"), lease:
        pass


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
