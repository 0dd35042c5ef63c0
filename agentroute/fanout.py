"""What a fan-out is planned over, made of a compiled fleet and what is true now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np

from agentroute.assessment import SUPPORTED, Assessment, of_load
from agentroute.compiled import Bools, CompiledFleet, Floats, Ints
from agentroute.estimate import Estimate, milliseconds
from agentroute.inputs import Ask, Limit, Metric, State
from agentroute.reasons import NAMES, Reason, refused
from agentroute.split import MISSES_SOFT, Options
from agentroute.spread import Aim, Field, Site, Spread, plan
from agentroute.task import Task

_EVERY = 16
"""Concurrencies up to this are all evaluated; beyond, those ``_STEP`` apart, with lines in between."""
_STEP = 1.06


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A sibling of a group as numbers; arrays have shape (d,)."""

    fanout: int
    isl: float
    """Prompt tokens expected."""
    osl: float
    """Output tokens expected."""
    units: Floats
    """Blocks that one sibling holds, those of the common prefix among them."""
    shared_units: Floats
    """Blocks of the common prefix: held once in a pool, and read once; 0 where prefix caching is not reported."""
    able: Bools
    """Deployments that could take one."""
    limits: tuple[Limit, ...] = ()
    """Those on TTFT and TPOT bound how many run at once, counted from a sibling's own launch; the one on E2E says in
    which statistic times are given."""
    max_cost_usd: float | None = None
    """What one may cost alone, so that none costs more in company."""

    @classmethod
    def of(cls, ask: Ask, one: Assessment) -> Asked:
        """``one``: a single sibling of ``ask``, assessed without its limits and with nothing held for it yet."""
        every = np.ones(len(one.fleet.deployments), dtype=np.bool_)
        return cls(
            fanout=int(ask.concurrency),
            isl=ask.isl,
            osl=ask.osl,
            units=one.units,
            shared_units=one.shared_units if ask.concurrency > 1 else np.zeros(len(every)),
            able=every if one.able is None else one.able,
            limits=ask.limits,
            max_cost_usd=ask.max_cost_usd,
        )

    @property
    def deadline(self) -> Limit | None:
        """The limit on E2E, if there is one."""
        return next((limit for limit in self.limits if limit.metric == "e2e_ms"), None)


def spread(task: Task, aim: Aim, fleet: CompiledFleet, ask: Ask, state: State) -> Spread:
    """The plan for the siblings of a task, of which ``task`` is one. Raises what ``plan`` raises."""
    one = alone(fleet, ask, state)
    asked = Asked.of(ask, one)
    over = field(fleet, asked, state, lambda d: refused(one, d))
    deadline = asked.deadline
    if deadline is None:
        return plan(task, over, aim=aim)
    return plan(task, over, aim=aim, deadline_s=deadline.limit_ms / 1_000.0, hard=deadline.hard)


def alone(fleet: CompiledFleet, ask: Ask, state: State) -> Assessment:
    """A single sibling, without its limits, before anything is held for it or its like."""
    return Assessment(
        fleet,
        ask._replace(concurrency=1.0, limits=(), max_cost_usd=None),
        state._replace(shared=None, up=None),
        room_now=False,
    )


DOWN = Reason("down", "calls to it have failed, and it is not trusted with a group before one has succeeded")


def field(fleet: CompiledFleet, asked: Asked, state: State, unable: Callable[[int], Reason]) -> Field:
    """The sites where siblings could run, and E2E and price for each number at once.

    ``unable`` says why a deployment is not able. What is in flight is taken to stay, so a wave of c runs at
    n = in flight + c, and c is at most what slots and free blocks take. Times are those that a decision reads off the
    curves, with what it corrects them by, made never to fall as c grows. Only the first wave waits for the prompts that
    were sent before, and only it reads the common prefix.
    """
    sites: list[Site] = []
    parts: list[tuple[Floats | Ints, ...]] = []
    reasons = {d.name: unable(i) for i, d in enumerate(fleet.deployments) if not asked.able[i]}
    full = False
    times = _Times(fleet, asked, state)
    factors = [(limit, times.factor(limit)) for limit in asked.limits]
    for endpoint in range(int(fleet.endpoints.max())):
        room = _Room.of(fleet, asked, state, endpoint)
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
    state: State

    def at(self, pool: Ints, at_once: Floats, cached_tokens: Floats) -> Floats:
        """(TTFT, TPOT) in milliseconds, shape (2, t, d), of ``at_once`` siblings in pools, shape (t, d), without the
        prompts that were sent before; ``cached_tokens`` of each sibling's prompt are not read again, shape (d,).

        As ``Assessment`` predicts: their prompts compete with each other and with those of others, not with those of
        our own that are being answered; their steps do, each with the size it has.
        """
        asked, state, curves = self.asked, self.state, self.fleet.curves
        in_flight = state.in_flight.take(pool)
        own = np.zeros(len(pool)) if state.own is None else state.own.take(pool)
        first, n = in_flight - own + at_once, in_flight + at_once
        times = curves.at(log(asked.isl), log(asked.osl), np.log((first, n)))
        if state.resident is not None:
            reading = None if state.queue is None or state.queue.reading is None else state.queue.reading.take(pool)
            curves.among(times[1], asked.isl, asked.osl, state.resident.take(pool), own, reading)
        if cached_tokens.any():
            times[0] *= curves.cached_share(asked.isl, cached_tokens)
        if state.factors is not None:
            times *= of_load(state.factors, n)
        return np.maximum.accumulate(times, axis=1)

    def factor(self, limit: Limit) -> Floats:
        """By deployment, what its mean is multiplied by to be held against a limit, as ``Assessment.judged_ms``."""
        if limit.stat == "mean":
            return np.ones(len(self.fleet.deployments))
        tails = self.fleet.tails(limit.metric, limit.stat)
        return np.where(np.isnan(tails), 1.0 + self.bands(limit.metric, 1.0, 0.5), tails)

    def bands(self, metric: Metric, n: float, ttft_share: float) -> Floats:
        """Half-widths of the 80 % bands of a metric, as fractions of the mean, as ``Assessment.bands``."""
        ttft, tpot = self.fleet.bands.at(
            log(self.asked.isl), log(self.asked.osl), np.full(len(self.fleet.deployments), log(n))
        )
        share = {"ttft_ms": 1.0, "tpot_ms": 0.0, "e2e_ms": ttft_share}[metric]
        wider: Floats = np.hypot(share * ttft, (1.0 - share) * tpot) + self.fleet.version_bands
        return wider

    def estimate(self, site: Site, at_once: int, seconds: float) -> Estimate:
        """A time at a site with its band."""
        d, n, isl, osl = site.index, site.in_flight + at_once, self.asked.isl, self.asked.osl
        load = log(isl), log(osl), np.full(len(self.fleet.deployments), log(n))
        ttft, tpot = self.fleet.curves.at(*load)[:, d]
        band = 1.0 + float(self.bands("e2e_ms", n, float(ttft / (ttft + (osl - 1.0) * tpot)))[d])
        extrapolated = bool(self.fleet.bands.support(*load)[d] < SUPPORTED)
        profile, curve = self.fleet.deployments[d].profile, self.fleet.curves.curves[d]
        origin = "derived" if curve is not None and not curve.is_measured else profile.latency_origin
        measured_there = any(point.load == (isl, osl, n) for point in profile.points)
        interpolated = bool(profile.points) and not extrapolated and not measured_there
        return Estimate(seconds, seconds / band, seconds * band, origin, extrapolated, interpolated)


@dataclass(frozen=True, slots=True, eq=False)
class _Room:
    """What one endpoint of every deployment has room for; arrays of shape (d,)."""

    fleet: CompiledFleet
    units: Floats
    pool: Ints
    up: Bools
    """Whether it can be trusted with a group."""
    in_flight: Floats
    free: Floats
    """Blocks."""
    hot: Floats
    """Siblings' contexts that the free blocks hold, their common prefix once; infinite where the pool is unknown."""
    slots: Floats
    """Places that are not taken."""
    most: Floats
    """Siblings at once."""
    backlog_ms: Floats
    """Until the prompts that were sent there before are read."""
    warm_tokens: Floats
    """Of a sibling's prompt, what is in the KV cache already."""
    cached_tokens: Floats
    """The same once the first sibling has been there."""

    @classmethod
    def of(cls, fleet: CompiledFleet, asked: Asked, state: State, endpoint: int) -> _Room:
        pool = np.array([own[min(endpoint, len(own) - 1)] for own in fleet.pools], dtype=np.int64)
        none, in_flight = np.zeros(len(pool)), state.in_flight.take(pool)
        free = fleet.blocks - state.held.take(pool)
        to_hold = asked.shared_units
        if state.shared is not None:
            to_hold = to_hold * ~state.shared.take(pool)
        hot = np.maximum(np.floor((free - to_hold) / (asked.units - asked.shared_units)), 0.0)
        slots = np.maximum(fleet.slots - in_flight, 0.0)
        warm = none if state.cached_tokens is None else np.minimum(state.cached_tokens.take(pool), asked.isl)
        # A prompt's last token is always read.
        shared = np.minimum(asked.shared_units * fleet.block_tokens, max(asked.isl - 1.0, 0.0))
        return cls(
            fleet=fleet,
            units=asked.units,
            pool=pool,
            up=np.ones(len(pool), dtype=np.bool_) if state.up is None else state.up.take(pool),
            in_flight=in_flight,
            free=free,
            hot=hot,
            slots=slots,
            most=np.minimum(np.minimum(hot, slots), float(asked.fanout)),
            backlog_ms=none if state.queue is None else state.queue.backlog_ms.take(pool),
            warm_tokens=warm,
            cached_tokens=np.maximum(warm, shared),
        )

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

    def missing(self, d: int) -> Reason:
        """Why not even one."""
        if not self.up[d]:
            return DOWN
        if self.hot[d] < 1.0:
            needed, free = float(self.units[d]), float(self.free[d])
            said = f"one request needs {needed:,.0f} KV blocks, {free:,.0f} of {self.fleet.blocks[d]:,.0f} are free now"
            return Reason("no_room", said, needed, free, "KV blocks")
        return Reason("no_room", f"all of its {self.fleet.slots[d]:,.0f} slots are taken now", 1.0, 0.0, "slots")


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
    too_dear: Bools
    """Where one sibling alone costs more than ``max_cost_usd``."""
    max_cost_usd: float | None
    room: _Room

    @classmethod
    def of(cls, times: _Times, room: _Room, there: Bools, factors: list[tuple[Limit, Floats]]) -> _Ways:
        fleet, asked = times.fleet, times.asked
        axis = counts(max(1, int(np.max(room.most, where=there, initial=1.0))))[:, None]
        at_once = np.minimum(axis, np.maximum(room.most, 1.0))
        able = there & room.up & (room.most >= 1.0) & (np.vstack([np.zeros(1), axis[:-1]]) < room.most)
        ttft, tpot = times.at(room.pool, at_once, room.cached_tokens)
        once_ms = room.backlog_ms
        if (room.cached_tokens > room.warm_tokens).any():
            before = times.at(room.pool, at_once[:1], room.warm_tokens)[0, 0]
            once_ms = once_ms + np.maximum(before - ttft[0], 0.0)
        e2e_s, once_s = (ttft + (asked.osl - 1.0) * tpot) / 1_000.0, once_ms / 1_000.0
        rank = np.broadcast_to(fleet.pool_rank, at_once.shape).copy()
        able &= ~np.isnan(e2e_s)
        broken = []
        for limit, factor in factors:
            if limit.metric == "e2e_ms":
                continue
            judged = (ttft + once_ms if limit.metric == "ttft_ms" else tpot) * factor
            if limit.hard:
                able &= judged <= limit.limit_ms
                broken.append((limit, judged[0]))
            else:
                rank[judged > limit.limit_ms] = MISSES_SOFT
        by_time = fleet.usd_per_second * e2e_s / (room.in_flight + at_once)
        by_token = fleet.usd_per_input_token * asked.isl + fleet.usd_per_output_token * asked.osl
        usd = np.where(np.isnan(by_token), by_time, by_token)
        too_dear = np.zeros(len(once_s), dtype=np.bool_)
        if asked.max_cost_usd is not None:
            # What is not known to be cheap enough is not.
            too_dear = ~(usd[0] <= asked.max_cost_usd)
            able &= ~too_dear & (usd <= asked.max_cost_usd)
        for limit, factor in factors:
            if limit.metric == "e2e_ms" and limit.stat != "mean":
                e2e_s, once_s = e2e_s * factor, once_s * factor
        return cls(at_once, able, e2e_s, once_s, usd, rank, broken, too_dear, asked.max_cost_usd, room)

    def missing(self, d: int) -> Reason | None:
        """Why not even one, where it is not for want of room at this moment."""
        if np.isnan(self.e2e_s[0, d]):
            return Reason("unknown", "nothing is measured or derived, so no time can be promised")
        for limit, judged in self.broken:
            if (ms := float(judged[d])) > limit.limit_ms:
                said = (
                    f"{NAMES[limit.metric]} of {milliseconds(ms)} at {self.room.in_flight[d] + 1.0:,.0f} in flight is "
                    f"over the hard limit of {milliseconds(limit.limit_ms)}"
                )
                return Reason("slo", said, ms, limit.limit_ms, "ms")
        if self.too_dear[d]:
            usd = float(self.usd[0, d])
            if usd != usd:
                return Reason("unknown", "its price is unknown", None, self.max_cost_usd, "USD")
            said = f"one sibling costs ${usd:.3g} there, more than it may"
            return Reason("budget", said, usd, self.max_cost_usd, "USD")
        return None

    def capped_by(self, d: int, most: int) -> str:
        """Why not more at once."""
        limits = [f"{NAMES[limit.metric]} of {milliseconds(limit.limit_ms)}" for limit, _ in self.broken]
        if self.max_cost_usd is not None:
            limits.append(f"the cost of ${self.max_cost_usd:.3g}")
        return " and ".join(limits) if limits and most < self.room.most[d] else self.room.capped_by(d)


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
