"""The group that holds the first wave of a plan: all of it, or nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from fleets import Clock, fleet, profile, router, task
from groups import UNITS, alike, caching

from agentroute.errors import PoolFull
from agentroute.fleet import Deployment, Fleet
from agentroute.router import Router
from agentroute.state.situation import group_of as sibling_group
from agentroute.task import Slo


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
