"""What a fan-out is planned over, made of a compiled fleet and what is held; and the group that holds a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import hypot, log
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from agentroute.assessment import SUPPORTED, VERSION_BAND, Ask, Assessment, Limit, Metric, State
from agentroute.compiled import Bools, CompiledFleet, Floats, Ints
from agentroute.decision import Decision
from agentroute.errors import PoolFull, UsageError, shown
from agentroute.estimate import Estimate, milliseconds
from agentroute.reasons import NAMES, refused
from agentroute.split import MISSES_SOFT, Options
from agentroute.spread import Aim, Field, Site, Spread, plan
from agentroute.state.ledger import Hold, Ledger
from agentroute.task import MAX_CONCURRENCY, Task

if TYPE_CHECKING:
    from agentroute.router import Lease

_EVERY = 16
"""Concurrencies up to this are all evaluated; beyond, those ``_STEP`` apart, with lines in between."""
_STEP = 1.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A sibling of a group as numbers; arrays have shape (d,)."""

    fanout: int
    isl: int
    """Prompt tokens expected."""
    osl: int
    """Output tokens planned for."""
    units: Floats
    """Blocks that one sibling holds."""
    able: Bools
    """Deployments that could take one."""
    limits: tuple[Limit, ...] = ()
    """Those on TTFT and TPOT bound how many run at once, counted from a sibling's own launch; the one on E2E says in
    which statistic times are given."""
    shared_tokens: int = 0
    """Prompt tokens that all siblings begin with."""
    caching: Bools | None = None
    """Deployments that report prefix caching; ``None``: none does. Elsewhere every prompt is read whole."""

    @property
    def deadline(self) -> Limit | None:
        """The limit on E2E, if there is one."""
        return next((limit for limit in self.limits if limit.metric == "e2e_ms"), None)

    def cached_tokens(self) -> Floats | None:
        """By deployment, the tokens of a prompt that are in its cache after the first; ``None``: nowhere any."""
        if self.caching is None or not self.shared_tokens:
            return None
        return np.where(self.caching, float(min(self.shared_tokens, self.isl - 1)), 0.0)


def spread(task: Task, fanout: int, aim: Aim, ask: Ask, one: Assessment, state: State) -> Spread:
    """The plan for ``fanout`` siblings of a task, each like the ``one`` that was assessed.

    Raises ``UsageError`` for a group of no size, and what ``plan`` raises.
    """
    if not isinstance(fanout, int) or isinstance(fanout, bool) or not 1 <= fanout <= MAX_CONCURRENCY:
        raise UsageError(f"fanout must be a whole number from 1 to {MAX_CONCURRENCY:,}, got {shown(fanout)}")
    asked = Asked(fanout=fanout, isl=ask.isl, osl=ask.osl, units=one.units, able=one.able, limits=ask.limits)
    over = field(one.fleet, asked, state.held, state.in_flight, lambda d: refused(one, d))
    deadline = asked.deadline
    if deadline is None:
        return plan(task, over, fanout, aim=aim)
    return plan(task, over, fanout, aim=aim, deadline_s=deadline.limit_ms / 1_000.0, hard=deadline.hard)


def first_wave(plan: Spread, one: Assessment, ledger: Ledger) -> list[Hold]:
    """Holds for the first wave, in the order of the placements: all of them, or ``PoolFull`` and nothing is held."""
    holds: list[Hold] = []
    for placement in plan.placements:
        site, count = placement.site, placement.at_once
        blocks = int(one.units[site.index])
        free = ledger.capacity[site.pool] - ledger.held[site.pool]
        slots = max(one.fleet.slots[site.index] - ledger.in_flight[site.pool], 0.0)
        taken = [ledger.take(site.pool, blocks, plan.task.siblings) for _ in range(count if count <= slots else 0)]
        holds += [hold for hold in taken if hold]
        if len(taken) < count or None in taken:
            for hold in holds:
                ledger.free(hold)
            needed = f"{count * blocks:,} KV blocks, {free:,.0f}" if count <= slots else f"as many slots, {slots:,.0f}"
            reason = {site.deployment: f"{count:,} siblings need {needed} are free now"}
            raise PoolFull("something has taken the room since the group was planned", reason)
    return holds


def decisions(plan: Spread, objective: str, ask: Ask, one: Assessment, state: State, now: float) -> Iterator[Decision]:
    """One decision for each sibling of the first wave: its deployment and endpoint, at the load of that wave."""
    for placement in plan.placements:
        site = placement.site
        siblings = placement.at_once * int(one.fleet.endpoints[site.index])
        there = Assessment(one.fleet, ask._replace(concurrency=siblings), state, room_now=False)
        there.pool = there.pool.copy()
        there.pool[site.index] = site.pool
        yield from [Decision.of(plan.task, objective, there, site.index, now)] * placement.at_once


def field(fleet: CompiledFleet, asked: Asked, held: Floats, in_flight: Floats, unable: Callable[[int], str]) -> Field:
    """The sites where siblings could run, and E2E and price for each number at once.

    ``held`` (blocks) and ``in_flight`` (requests) are by pool; ``unable`` says why a deployment is not able. What is in
    flight is taken to stay, so a wave of c runs at n = in flight + c, and c is at most what slots and free blocks take.
    Times are those of the curves, made never to fall as n grows. Where prefix caching is reported, the siblings' common
    prefix takes its blocks once and is read once, by the first wave.
    """
    sites: list[Site] = []
    parts: list[tuple[Floats | Ints, ...]] = []
    reasons = {d.name: unable(i) for i, d in enumerate(fleet.deployments) if not asked.able[i]}
    full = False
    times = _Times(fleet, asked)
    factors = [(limit, times.factor(limit)) for limit in asked.limits]
    for endpoint in range(int(fleet.endpoints.max())):
        room = _Room.of(fleet, asked, held, in_flight, endpoint)
        there = asked.able & (fleet.endpoints > endpoint)
        ways = _Ways.of(times, room, there, factors)
        some: Bools = np.asarray(ways.able.any(axis=0))
        most = np.max(ways.at_once, axis=0, where=ways.able, initial=0.0)
        number = np.cumsum(some) - 1 + len(sites)
        for d in np.flatnonzero(there).tolist():
            if some[d]:
                sites.append(_site(fleet, room, ways, d, endpoint, int(most[d])))
            elif endpoint == 0:
                reasons[fleet.deployments[d].name] = ways.missing(d) or room.missing(d)
                full |= not ways.missing(d)
        cells = np.flatnonzero(ways.able.T)
        d_of = cells // len(ways.able)
        by_load = (ways.at_once, ways.e2e_s, ways.usd, ways.rank)
        of = [array.T.ravel().take(cells) for array in by_load]
        parts.append((room.pool[d_of], number[d_of], of[0], of[1], ways.once_s[d_of], of[2], of[3]))
    for site in sites:
        reasons.pop(site.deployment, None)
    whole = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    pool = whole[0]
    if (pool[1:] < pool[:-1]).any():
        order = np.argsort(pool, kind="stable")
        whole = [array[order] for array in whole]
        pool = whole[0]
    dense = np.cumsum(np.diff(pool, prepend=pool[:1]) != 0)
    options = Options(dense, whole[1].astype(np.int64), *whole[2:6])
    stat = asked.deadline.stat if asked.deadline else "mean"
    return Field(tuple(sites), options, whole[6], reasons, full, stat, times.estimate)


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """How fast a sibling would be."""

    fleet: CompiledFleet
    asked: Asked

    def at(self, n: Floats, cached_tokens: Floats | None) -> Floats:
        """(TTFT, TPOT) in milliseconds, shape (2, t, d), of loads of shape (t, d)."""
        cached = 0.0 if cached_tokens is None else cached_tokens
        each = self.fleet.curves.at(log(self.asked.isl), log(self.asked.osl), np.log(n), cached_tokens=cached)
        return np.maximum.accumulate(each, axis=1)

    def factor(self, limit: Limit) -> Floats:
        """By deployment, what its mean is multiplied by to be held against a limit, as ``Assessment.judged_ms``."""
        if limit.stat == "mean":
            return np.ones(len(self.fleet.deployments))
        tails = [curve.tails.get((limit.metric, limit.stat)) if curve else None for curve in self.fleet.curves.curves]
        return np.array([tail or 1.0 + self.band(d, limit.metric, 1.0, 0.5) for d, tail in enumerate(tails)])

    def band(self, d: int, metric: Metric, n: float, ttft_share: float) -> float:
        """Half-width of the 80 % band of a metric, as a fraction of the mean, as ``Assessment.band``."""
        curve = self.fleet.curves.curves[d]
        if curve is None:
            return float("nan")
        ttft, tpot = curve.bands((log(self.asked.isl), log(self.asked.osl), log(n)))
        elsewhere = curve.is_measured and self.fleet.deployments[d].profile.measured_elsewhere
        share = {"ttft_ms": 1.0, "tpot_ms": 0.0, "e2e_ms": ttft_share}[metric]
        return hypot(share * ttft, (1.0 - share) * tpot) + (VERSION_BAND if elsewhere else 0.0)

    def estimate(self, site: Site, at_once: int, seconds: float) -> Estimate:
        """A time at a site with its band."""
        n = site.in_flight + at_once
        load = log(self.asked.isl), log(self.asked.osl), log(n)
        ttft, tpot = self.fleet.curves.at(load[0], load[1], np.full(len(self.fleet.deployments), load[2]))[
            :, site.index
        ]
        share = float(ttft / (ttft + (self.asked.osl - 1.0) * tpot))
        band = 1.0 + self.band(site.index, "e2e_ms", n, share)
        extrapolated = self.fleet.curves.support(site.index, *load) < SUPPORTED
        curve = self.fleet.curves.curves[site.index]
        derived = curve is not None and not curve.is_measured
        origin = "derived" if derived else self.fleet.deployments[site.index].profile.latency_origin
        return Estimate(seconds, seconds / band, seconds * band, origin, extrapolated)


@dataclass(frozen=True, slots=True, eq=False)
class _Room:
    """What one endpoint of every deployment has room for; arrays of shape (d,)."""

    fleet: CompiledFleet
    units: Floats
    pool: Ints
    in_flight: Floats
    free: Floats
    """Blocks."""
    hot: Floats
    """Siblings' contexts that the free blocks hold, their common prefix once; infinite where the pool is unknown."""
    slots: Floats
    """Places that are not taken."""
    most: Floats
    """Siblings at once."""

    @classmethod
    def of(cls, fleet: CompiledFleet, asked: Asked, held: Floats, in_flight: Floats, endpoint: int) -> _Room:
        pool = np.array([own[min(endpoint, len(own) - 1)] for own in fleet.pools], dtype=np.int64)
        free = fleet.blocks - held[pool]
        cached = asked.cached_tokens()
        # Only whole blocks are shared, and each sibling has one of its own at the least.
        shared = 0.0 if cached is None else np.minimum(np.floor(cached / fleet.block_tokens), asked.units - 1.0)
        hot = np.maximum(np.floor((free - shared) / (asked.units - shared)), 0.0)
        slots = np.maximum(fleet.slots - in_flight[pool], 0.0)
        most = np.minimum(np.minimum(hot, slots), float(asked.fanout))
        return cls(fleet, asked.units, pool, in_flight[pool], free, hot, slots, most)

    def capped_by(self, d: int) -> str:
        """Why not more at once."""
        if self.most[d] < min(self.hot[d], self.slots[d]):
            return "all siblings"
        if self.hot[d] <= self.slots[d]:
            return f"KV blocks, {self.free[d]:,.0f} free of {self.fleet.blocks[d]:,.0f}, {self.units[d]:,.0f} for one"
        limits = self.fleet.deployments[d].profile.limits
        told = limits is not None and limits.max_num_seqs is not None
        free = f"{self.slots[d]:,.0f} free of {self.fleet.slots[d]:,.0f}"
        return f"slots, {free}" if told else f"slots unknown, {free} believed"

    def missing(self, d: int) -> str:
        """Why not even one."""
        if self.hot[d] < 1.0:
            return (
                f"one request needs {self.units[d]:,.0f} KV blocks, {self.free[d]:,.0f} of {self.fleet.blocks[d]:,.0f} "
                f"are free now"
            )
        return f"all of its {self.fleet.slots[d]:,.0f} slots are taken now"


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """E2E and price of every number at once at one endpoint of every deployment; arrays of shape (t, d) or (d,)."""

    at_once: Floats
    able: Bools
    e2e_s: Floats
    once_s: Floats
    usd: Floats
    rank: Ints
    broken: list[tuple[Limit, Floats]]
    """Hard limits and what is held against them with one sibling, shape (d,)."""
    room: _Room

    @classmethod
    def of(cls, times: _Times, room: _Room, there: Bools, factors: list[tuple[Limit, Floats]]) -> _Ways:
        fleet, asked = times.fleet, times.asked
        axis = counts(max(1, int(np.max(room.most, where=there, initial=1.0))))[:, None]
        at_once = np.minimum(axis, np.maximum(room.most, 1.0))
        able = there & (room.most >= 1.0) & (np.vstack([np.zeros(1), axis[:-1]]) < room.most)
        n = room.in_flight + at_once
        cached = asked.cached_tokens()
        ttft, tpot = times.at(n, cached)
        once_s = np.zeros(len(room.most))
        if cached is not None:
            once_s = np.maximum(times.at(n[:1], None)[0, 0] - ttft[0], 0.0) / 1_000.0
        e2e_s = (ttft + (asked.osl - 1.0) * tpot) / 1_000.0
        rank = np.broadcast_to(fleet.pool_rank, at_once.shape).copy()
        able &= ~np.isnan(e2e_s)
        broken = []
        for limit, factor in factors:
            if limit.metric == "e2e_ms":
                continue
            judged = (ttft if limit.metric == "ttft_ms" else tpot) * factor
            if limit.hard:
                able &= judged <= limit.limit_ms
                broken.append((limit, judged[0]))
            else:
                rank[judged > limit.limit_ms] = MISSES_SOFT
        by_time = fleet.usd_per_second * e2e_s / n
        by_token = fleet.usd_per_input_token * asked.isl + fleet.usd_per_output_token * asked.osl
        usd = np.where(np.isnan(by_token), by_time, by_token)
        for limit, factor in factors:
            if limit.metric == "e2e_ms" and limit.stat != "mean":
                e2e_s = e2e_s * factor
        return cls(at_once, able, e2e_s, once_s, usd, rank, broken, room)

    def missing(self, d: int) -> str | None:
        """Why not even one, where it is not for want of room at this moment."""
        if np.isnan(self.e2e_s[0, d]):
            return "nothing is measured or derived, so no time can be promised"
        for limit, judged in self.broken:
            if judged[d] > limit.limit_ms:
                return (
                    f"{NAMES[limit.metric]} of {milliseconds(float(judged[d]))} at "
                    f"{self.room.in_flight[d] + 1.0:,.0f} in flight is over the hard limit of "
                    f"{milliseconds(limit.limit_ms)}"
                )
        return None

    def capped_by(self, d: int, most: int) -> str:
        """Why not more at once."""
        if most < self.room.most[d] and self.broken:
            return " and ".join(f"{NAMES[limit.metric]} of {milliseconds(limit.limit_ms)}" for limit, _ in self.broken)
        return self.room.capped_by(d)


def _site(fleet: CompiledFleet, room: _Room, ways: _Ways, d: int, endpoint: int, most: int) -> Site:
    return Site(
        deployment=fleet.deployments[d].name,
        index=d,
        endpoint=endpoint,
        pool=int(room.pool[d]),
        in_flight=int(room.in_flight[d]),
        most=most,
        capped_by=ways.capped_by(d, most),
        hot=int(room.hot[d]) if fleet.known_pool[d] else None,
    )


def counts(most: int) -> Floats:
    """The numbers at once that are evaluated, ascending from 1 to ``most``: all small ones, then steps of 6 %."""
    far = max(0, int(np.ceil(np.log(most / _EVERY) / np.log(_STEP))))
    steps = np.ceil(_EVERY * _STEP ** np.arange(1, far + 1))
    every = np.concatenate([np.arange(1, _EVERY + 1), steps])
    return np.append(every[every < most], most).astype(np.float64)


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
