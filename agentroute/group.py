"""The group that holds a plan: a lease for each sibling of the first wave, taken all together."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from agentroute.assessment import Assessment
from agentroute.compiled import CompiledFleet
from agentroute.decision import Decision
from agentroute.errors import PoolFull
from agentroute.fanout import DOWN, Asked, alone
from agentroute.inputs import Ask, State
from agentroute.policy import Objective
from agentroute.reasons import Reason
from agentroute.spread import Placement, Site, Spread
from agentroute.state.placed import Placed
from agentroute.state.situation import Situation
from agentroute.task import Task

if TYPE_CHECKING:
    from agentroute.lease import Lease


def first_wave(
    plan: Spread, objective: Objective, fleet: CompiledFleet, ask: Ask, situation: Situation, now: float
) -> list[tuple[Decision, Placed]]:
    """Hold the first wave, in the order of the placements: all of it, or ``PoolFull`` and nothing is held.

    Each sibling is placed as ``acquire`` places one: behind the prompts of those before it, on the prefix that they
    have written, among as many as the wave has.
    """
    state = situation.group_state(plan.task, now)
    asked = Asked.of(ask, alone(fleet, ask, state))
    for placement in plan.placements:
        if reason := _lacking(placement, fleet, asked, state, situation, now):
            raise PoolFull("something has taken the room since the group was planned", {placement.deployment: reason})
    return [
        _placed(plan.task, objective, placement.site, left, fleet, ask, situation, now)
        for placement in plan.placements
        for left in range(placement.at_once, 0, -1)
    ]


def _lacking(
    placement: Placement, fleet: CompiledFleet, asked: Asked, state: State, situation: Situation, now: float
) -> Reason | None:
    """Why an endpoint does not take its part of the first wave; ``None``: it does."""
    site, count = placement.site, placement.at_once
    if state.up is not None and not state.up[site.pool]:
        return DOWN
    slots = max(float(fleet.slots[site.index] - state.in_flight[site.pool]), 0.0)
    if count > slots:
        said = f"{count:,} siblings need as many slots, {slots:,.0f} are free now"
        return Reason("no_room", said, float(count), slots, "slots")
    shared = asked.shared_units[site.index]
    blocks = count * (asked.units[site.index] - shared)
    if state.shared is None or not state.shared[site.pool]:
        blocks += shared
    if not situation.has_free(site.pool, blocks, now):
        free = situation.ledger.capacity[site.pool] - state.held[site.pool]
        said = f"{count:,} siblings need {blocks:,.0f} KV blocks, {max(free, 0.0):,.0f} are free now"
        return Reason("no_room", said, float(blocks), max(float(free), 0.0), "KV blocks")
    return None


def _placed(
    task: Task,
    objective: Objective,
    site: Site,
    left: int,
    fleet: CompiledFleet,
    ask: Ask,
    situation: Situation,
    now: float,
) -> tuple[Decision, Placed]:
    """One sibling at a site, of ``left`` that go there still, itself included."""
    elsewhere = frozenset(fleet.pools[site.index]) - {site.pool}
    state = situation.group_state(task, now, elsewhere)._replace(siblings=0)
    siblings = float(left * fleet.endpoints[site.index])
    there = Assessment(fleet, ask._replace(concurrency=siblings), state, room_now=True)
    placed = situation.take(task, there.ask, state, there.there(site.index), now)
    if placed is None:
        raise AssertionError("a group was placed where there is no room")
    return Decision.of(task, objective, there, fleet.deployments[site.index], site.index, now), placed


class Group:
    """The first wave of a fan-out, held: one lease for each of its siblings. Leaving the block lets go of the rest.

    A lease that is released makes room for the next sibling, which acquires as any task does.
    """

    def __init__(self, plan: Spread, leases: tuple[Lease, ...]) -> None:
        self.plan = plan
        self.leases = leases
        """In the order of the plan's placements."""

    def release(self) -> None:
        """Let go of every lease that is still held."""
        for lease in self.leases:
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
