"""Requests that come together: how many there are, where each lives, and what others hold there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from fleets import Clock, held, profile, router, task

from agentroute.errors import NoFeasibleDeployment, PoolFull, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.profile import Profile
from agentroute.router import Router
from agentroute.shape.sharding import Sharding

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


def test_a_dry_run_judges_the_whole_group_and_a_lease_the_one_that_starts() -> None:
    r = router(profile(kv_blocks=10_000, slots=4))
    asked = task(concurrency=64, ttft_ms=1_000)
    with pytest.raises(NoFeasibleDeployment, match=r"at 64 in flight is over the hard limit of 1\.00 s"):
        r.decide(asked)
    with r.acquire(asked) as lease:
        assert lease.decision.candidates[0].wait_ms == 0.0


def test_a_shared_pool_has_one_number_of_ranks() -> None:
    deployments = [
        Deployment("a", profile("a", kv_blocks=100), pool="gpu"),
        Deployment("b", with_ranks(8, kv_blocks=100), pool="gpu"),
    ]
    with pytest.raises(UsageError, match="give both the same kv_pool and attention_dp"):
        Router(Fleet(deployments))
