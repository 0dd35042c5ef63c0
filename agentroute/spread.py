"""A fan-out: how N siblings are best spread over the fleet before they are launched, and why so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from agentroute.errors import NoFeasibleDeployment, PoolFull, UsageError, shown
from agentroute.estimate import Estimate
from agentroute.latency.points import Statistic
from agentroute.origin import ORIGINS
from agentroute.reasons import Reason
from agentroute.spill import late, lines, order, seconds, spilling, unused
from agentroute.split import (
    CLOSE,
    MISSES_SOFT,
    Bools,
    Ints,
    Options,
    cheapest,
    filled,
    least_cost,
    least_makespan_s,
    longest_s,
    soonest,
    with_prices,
)
from agentroute.task import MAX_CONCURRENCY, Task
from agentroute.waiting import check_task

if TYPE_CHECKING:
    from agentroute.group import Group
    from agentroute.router import Router

Aim = Literal["latency", "cost"]


@dataclass(frozen=True, slots=True)
class Site:
    """One endpoint of a deployment, as a place for siblings."""

    deployment: str
    index: int
    """The deployment's number in the fleet."""
    endpoint: int
    """Which of its endpoints, from 0."""
    pool: int
    """The number of its KV pool; sites of one pool share what is free there."""
    in_flight: int
    """Requests that are there already, and taken to stay."""
    most: int
    """Siblings that run there at once, at most."""
    capped_by: str
    """What keeps them from being more."""
    hot: int | None
    """Siblings' contexts that the pool holds at once beside what is held; ``None``: the pool is unknown."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Siblings that one endpoint takes: ``at_once`` of them at a time, in ``waves`` rounds, ``requests`` in all."""

    site: Site
    at_once: int
    waves: int
    requests: int
    e2e_s: float
    """Of one sibling there, from its own launch on."""
    makespan_s: float
    """Until the last of them is done."""
    cost_usd: float | None
    """Of all of them; ``None`` where the price is unknown."""

    @property
    def deployment(self) -> str:
        """The deployment's name."""
        return self.site.deployment


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """What a fan-out is planned over: sites, the options at each, and who has none, with the reason."""

    sites: tuple[Site, ...]
    options: Options
    rank: Ints
    """By option, see ``MISSES_SOFT``."""
    refused: Mapping[str, Reason]
    full: bool
    """Whether some of the refused could take siblings at another time."""
    stat: Statistic
    """Which statistic times are: that of the deadline."""
    estimate: Callable[[Site, int, float], Estimate]
    """So many seconds, at a site with so many at once, as an estimate with its band."""

    def only(self, chosen: Bools) -> Field:
        """The same with only the chosen options."""
        options, _ = self.options.only(chosen)
        return replace(self, options=options, rank=self.rank[chosen])


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the siblings of a group should go. A value: what it was planned over comes with it."""

    task: Task
    """A sibling, with the whole group as its ``concurrency``; those of the next waves acquire with it."""
    aim: Aim
    placements: tuple[Placement, ...]
    """Most requests first."""
    makespan_s: float
    """Until the last sibling is done; waves start as soon as the one before is over."""
    cost_usd: float | None
    """``None`` where some price is unknown."""
    deadline_s: float | None
    """What had to be kept."""
    _over: Field = field(repr=False, compare=False)
    _chosen: Field = field(repr=False, compare=False)
    """What was chosen from: of ``_over``, the options of the ranks that were needed."""
    _by_s: float = field(repr=False, compare=False)
    """Until when pools could be used."""

    @property
    def fanout(self) -> int:
        """Siblings in the group."""
        return self.task.concurrency

    @property
    def at_once(self) -> int:
        """Siblings in flight at a time, everywhere: the first wave."""
        return sum(placement.at_once for placement in self.placements)

    @property
    def stat(self) -> Statistic:
        """Which statistic of a sibling's E2E times are made of: that of the deadline, else the mean."""
        return self._over.stat

    @property
    def makespan(self) -> Estimate:
        """The makespan with its band, in seconds."""
        own = [self.estimate(placement) for placement in self.placements]
        mean, low, high = (max(getattr(one, name) for one in own) for name in ("mean", "low", "high"))
        source = max((one.source for one in own), key=ORIGINS.index)
        extrapolated, interpolated = (
            any(getattr(one, name) for one in own) for name in ("extrapolated", "interpolated")
        )
        return Estimate(mean, low, high, source, extrapolated, interpolated)

    def estimate(self, placement: Placement) -> Estimate:
        """The makespan of one placement with its band, in seconds."""
        return self._over.estimate(placement.site, placement.at_once, placement.makespan_s)

    @property
    def spill(self) -> dict[str, int]:
        """In which order deployments are taken up as the group grows, each with the least group that does so.

        Exact for the least makespan; for the least cost by each one's lowest price, which is about right.
        """
        return spilling(self)

    @property
    def unused(self) -> dict[str, str]:
        """Deployments that take no sibling, each with its one reason."""
        return unused(self)

    def hold(self, router: Router) -> Group:
        """Hold the first wave of every endpoint, all of it or nothing; use the group as a context manager.

        Raises ``PoolFull`` when something has taken the room since this was planned.
        """
        return router.hold(self)

    def explain(self) -> str:
        """The plan and its reasons, as plain text."""
        return "\n".join(lines(self))


def as_sibling(task: Task, fanout: int) -> Task:
    """``task`` as one of ``fanout`` siblings; raises ``UsageError`` for what is no task, or a group of no size."""
    check_task(task)
    if not isinstance(fanout, int) or isinstance(fanout, bool) or not 1 <= fanout <= MAX_CONCURRENCY:
        raise UsageError(f"fanout must be a whole number from 1 to {MAX_CONCURRENCY:,}, got {shown(fanout)}")
    return replace(task, concurrency=fanout)


def plan(
    task: Task, over: Field, *, aim: Aim = "latency", deadline_s: float | None = None, hard: bool = True
) -> Spread:
    """The spread of ``task.concurrency`` siblings with the least makespan, or with the least cost among those that are
    over by ``deadline_s``.

    With a deadline the known KV pools come first: the unknown ones are used only when they alone do not keep it.
    Raises ``NoFeasibleDeployment`` when a ``hard`` deadline cannot be kept or nothing can take a sibling, ``PoolFull``
    when something could at another time.
    """
    fanout = task.concurrency
    if not over.sites:
        kind = PoolFull if over.full else NoFeasibleDeployment
        raise kind(
            f"no deployment can take any of {fanout:,} siblings{' now' if over.full else ''}", dict(over.refused)
        )
    ranks = over.rank if aim == "latency" else np.where(np.isnan(over.options.usd), MISSES_SOFT, over.rank)
    worst = sorted(set(ranks.tolist()))
    if deadline_s is None:
        worst = [max((rank for rank in worst if rank < MISSES_SOFT), default=worst[-1])]
    best_s, chosen = np.inf, over
    for rank in worst:
        narrowed = over.only(ranks <= rank)
        if aim == "cost" and (deadline_s is None or narrowed.options.done(deadline_s, fanout).sum() >= fanout):
            best_s, chosen = 0.0, narrowed
            break
        least_s = least_makespan_s(narrowed.options, fanout)
        if least_s < best_s * (1.0 - CLOSE):
            best_s, chosen = least_s, narrowed
        if deadline_s is None or least_s <= deadline_s * (1.0 + CLOSE):
            break
    if deadline_s is not None and hard and best_s > deadline_s * (1.0 + CLOSE):
        raise NoFeasibleDeployment(
            f"{fanout:,} siblings cannot be done within the hard limit of {seconds(deadline_s)}: "
            f"{seconds(best_s)} is the least",
            late(over, deadline_s, fanout),
        )
    by_s = best_s
    if aim == "cost":
        by_s = min(max(best_s, np.inf if deadline_s is None else deadline_s), longest_s(chosen.options, fanout))
    chosen = replace(chosen, options=chosen.options.raised(by_s))
    options = with_prices(chosen.options)
    requests: Ints | None = None
    if aim == "cost":
        requests = cheapest(options, fanout, by_s)
    if requests is None:
        requests = filled(options, by_s, fanout, order(chosen))
    taken = least_cost(options, requests, by_s)[0] if aim == "cost" else soonest(options, requests)
    placements = [
        _placement(chosen, int(taken[pool]), int(requests[pool]), balanced=aim == "latency")
        for pool in np.flatnonzero(requests)
    ]
    placements.sort(key=lambda placement: (-placement.requests, placement.site.index, placement.site.endpoint))
    costs = [placement.cost_usd for placement in placements]
    known = [cost for cost in costs if cost is not None]
    return Spread(
        task=task,
        aim=aim,
        placements=tuple(placements),
        makespan_s=max(placement.makespan_s for placement in placements),
        cost_usd=sum(known) if len(known) == len(costs) else None,
        deadline_s=deadline_s,
        _over=over,
        _chosen=chosen,
        _by_s=by_s,
    )


def _placement(over: Field, option: int, requests: int, *, balanced: bool) -> Placement:
    """``requests`` by one option; ``balanced``: in as many waves of as equal a size as there can be."""
    options = over.options
    site, most = int(options.site[option]), int(options.at_once[option])
    waves = -(-requests // most)
    at_once = -(-requests // waves) if balanced else min(most, requests)
    e2e_s, usd = float(options.e2e_s[option]), float(options.usd[option])
    if at_once < most:
        own = options.of_site(option)
        e2e_s, usd = (float(np.interp(at_once, options.at_once[own], of[own])) for of in (options.e2e_s, options.usd))
    return Placement(
        site=over.sites[site],
        at_once=at_once,
        waves=waves,
        requests=requests,
        e2e_s=e2e_s,
        makespan_s=float(options.once_s[option]) + waves * e2e_s,
        cost_usd=None if usd != usd else requests * usd,
    )
