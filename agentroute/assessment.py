"""What a task would meet at every deployment, in arrays: does it fit, how fast would it be, what would it take."""

from __future__ import annotations

from math import hypot, log
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentroute.compiled import Bools, CompiledFleet, Floats, Ints
from agentroute.latency.points import Statistic
from agentroute.origin import Origin
from agentroute.policy import SLO_MARGIN, Objective

Metric = Literal["ttft_ms", "tpot_ms", "e2e_ms"]

VERSION_BAND = 0.16
"""How far another engine version moves TPOT at the median, over public curves of the same deployment. It widens the
band where version or KV type are unknown, or differ from those of the measurement."""
SUPPORTED = 0.95
"""Least share of a prediction that must rest on measured cells for it not to be called extrapolated."""

UNKNOWN_CAPABILITY = 2
SLO_STEP = 4
MISSED = 2 * SLO_STEP
"""The rank of a deployment: 1 for an unknown KV pool, 2 for an unknown capability, 4 for an SLO kept without the
margin, 8 for one missed. The least rank wins; the objective decides within a rank."""

_SLO_BOUNDS = np.array([1.0 - SLO_MARGIN, 1.0])
_SLO_RANK = np.array([0, SLO_STEP, MISSED])


class Limit(NamedTuple):
    """An SLO in milliseconds on one metric."""

    metric: Metric
    limit_ms: float
    stat: Statistic
    hard: bool
    asked_ms: float | None = None
    """What was asked for, where some of it has gone by in waiting; ``limit_ms`` is what is left."""
    waited_ms: float = 0.0
    """What has gone by."""


class Ask(NamedTuple):
    """A task as numbers."""

    context_tokens: int
    isl: int
    """Prompt tokens expected, for prediction; admission goes by ``context_tokens``."""
    osl: int
    """Output tokens planned for."""
    output_is_set: bool
    concurrency: int
    needs: int
    """Bits of ``compiled.BIT``."""
    limits: tuple[Limit, ...]
    allowed: Bools | None
    """Deployments that the route allows; ``None``: all."""

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return self.context_tokens + self.osl


class State(NamedTuple):
    """What is true at the time of a decision: by pool, blocks held and requests in flight."""

    held: Floats
    in_flight: Floats
    siblings: int
    """Siblings of the task that are in flight, anywhere."""
    total: int
    """Everything in flight, anywhere."""


class Assessment:
    """A task against every deployment; arrays have shape (d,), times are milliseconds with the wait included.

    ``n`` is the load the task would meet (everything in flight on the endpoint, and the siblings to come, spread over a
    deployment's endpoints), ``n_run`` what of it can run at once. A closed loop of n requests over n_run places waits
    (n - n_run) / throughput(n_run), by Little's law.
    """

    def __init__(self, fleet: CompiledFleet, ask: Ask, state: State, *, room_now: bool) -> None:
        self.fleet, self.ask = fleet, ask
        self._extrapolated: dict[int, bool] = {}
        self._bands: dict[int, tuple[float, float]] = {}
        self.pool = _pools(fleet, state) if fleet.replicated else fleet.first_pool
        self.held: Floats = state.held.take(self.pool)
        self.in_flight: Floats = state.in_flight.take(self.pool)
        # Siblings that are not in flight yet, this one included.
        to_come = max(1, ask.concurrency - state.siblings)
        self.n: Floats = self.in_flight + (np.ceil(to_come / fleet.endpoints) if fleet.replicated else float(to_come))
        self.n_run = self.n
        if fleet.any_known_pool or state.total + to_come > fleet.least_slots:
            self.n_run = self._running()
        self._predict(self.in_flight + 1.0 if room_now else self.n)
        self.able: Bools = self._fits()
        """Deployments that could take the task, whether or not they have room at this moment."""
        self.rank: Ints = fleet.pool_rank
        self.used: Floats | None = None
        """Predicted over allowed, of the SLO that is nearest to breaking."""
        self._judge()
        self.feasible = self.able
        if room_now and fleet.any_known_pool:
            self.feasible = self.able & (self.held + self.units <= fleet.blocks)

    @property
    def units(self) -> Floats:
        """Blocks that one request would hold."""
        tokens: Floats | float = float(self.ask.tokens)
        if not self.ask.output_is_set:
            tokens = np.minimum(self.fleet.window_tokens, tokens)
        return np.asarray(np.ceil(tokens / self.fleet.block_tokens))

    def _running(self) -> Floats:
        """At most the slots, and those in flight with what the free blocks still take; one request can always run."""
        fleet = self.fleet
        room = self.in_flight + np.floor((fleet.blocks - self.held) / self.units)
        running: Floats = np.maximum(1.0, np.minimum(self.n, np.minimum(fleet.slots, room)))
        return running

    def _predict(self, queue: Floats) -> None:
        """Times at ``n_run``; of ``queue`` requests, those that do not run at once wait.

        Where the request is to start now, the siblings that come after it do not keep it waiting.
        """
        ask = self.ask
        self.ttft_ms, self.tpot_ms = self.fleet.curves.at(log(ask.isl), log(ask.osl), np.log(self.n_run))
        self.service_ms: Floats = self.ttft_ms + (ask.osl - 1.0) * self.tpot_ms
        """E2E without the wait."""
        self.e2e_ms: Floats = self.service_ms
        self.wait_ms: Floats | None = None
        if self.n_run is not self.n:
            self.wait_ms = np.maximum(queue - self.n_run, 0.0) / self.n_run * self.service_ms
            self.ttft_ms = self.ttft_ms + self.wait_ms
            self.e2e_ms = self.service_ms + self.wait_ms

    def _fits(self) -> Bools:
        fleet, ask = self.fleet, self.ask
        needed = ask.tokens if ask.output_is_set else ask.context_tokens + 1
        fits: Bools = fleet.window_tokens >= float(needed)
        if fleet.any_known_pool:
            fits &= self.units <= fleet.request_blocks
        if ask.needs:
            fits &= fleet.capability_mask(ask.needs)[0]
        if ask.allowed is not None:
            fits &= ask.allowed
        return fits

    def _judge(self) -> None:
        if self.ask.needs:
            self.rank = self.rank + UNKNOWN_CAPABILITY * self.fleet.capability_mask(self.ask.needs)[1]
        for limit in self.ask.limits:
            share = self.judged_ms(limit) / limit.limit_ms
            self.used = share if self.used is None else np.maximum(self.used, share)
            if limit.hard:
                self.able &= share <= 1.0
        if self.used is not None:
            # NaN, an SLO that nothing was measured for, sorts last: it ranks with the missed ones.
            self.rank = self.rank + _SLO_RANK.take(_SLO_BOUNDS.searchsorted(self.used))

    def judged_ms(self, limit: Limit) -> Floats:
        """What an SLO is held against: the mean; another statistic by its measured ratio, else the high end."""
        mean: Floats = getattr(self, limit.metric)
        if limit.stat == "mean":
            return mean
        factor: Floats = np.array([self.tail(d, limit) or 1.0 + self.band(d, limit.metric) for d in range(len(mean))])
        return mean * factor

    def tail(self, d: int, limit: Limit) -> float | None:
        """The most that a limit's statistic was measured over the mean at deployment ``d``; ``None``: not measured."""
        curve = self.fleet.curves.curves[d]
        return curve.tails.get((limit.metric, limit.stat)) if curve else None

    def order(self, objective: Objective) -> NDArray[np.intp]:
        """Feasible deployments, best first: by rank, within a rank by the objective, of equals the less busy one."""
        score = objective(self)
        if self.used is not None:
            score = np.where(self.rank < MISSED, score, self.used)
        ranked = self._sorted(score)
        return ranked[: int(self.feasible.sum())]

    def best(self, objective: Objective) -> int | None:
        """The first of ``order``; ``None`` when nothing is feasible."""
        best = self._sorted(objective(self))[0]
        if not self.feasible[best]:
            return None
        if self.used is not None and self.rank[best] >= MISSED:
            best = self._sorted(self.used)[0]
        return int(best)

    def _sorted(self, score: Floats) -> NDArray[np.intp]:
        """All deployments, the infeasible last; a score that is NaN, unknown, comes after every known one."""
        return np.lexsort((self.in_flight, score, self.rank, ~self.feasible))

    @property
    def cost_usd(self) -> Floats:
        """US dollars for one request: its share of the accelerators' time at this load, or its tokens' price."""
        fleet, ask = self.fleet, self.ask
        by_time = fleet.usd_per_second * self.service_ms / (1_000.0 * self.n_run)
        by_token = fleet.usd_per_input_token * ask.isl + fleet.usd_per_output_token * ask.osl
        return np.where(by_token == by_token, by_token, by_time)

    @property
    def gpu_seconds(self) -> Floats:
        """Accelerator-seconds that one sibling takes while the group is there: GPUs x E2E / siblings."""
        seconds: Floats = self.fleet.gpus * (self.e2e_ms * (0.001 / self.ask.concurrency))
        return seconds

    def extrapolated(self, d: int) -> bool:
        """Whether the load at deployment ``d`` is outside the measured ones, or rests on filled cells between them."""
        if d not in self._extrapolated:
            self._extrapolated[d] = self.fleet.curves.support(d, *self._load(d)) < SUPPORTED
        return self._extrapolated[d]

    def origin(self, d: int) -> Origin:
        """Where the times of deployment ``d`` come from: its points, else its roofline."""
        curve = self.fleet.curves.curves[d]
        derived = curve is not None and not curve.is_measured
        return "derived" if derived else self.fleet.deployments[d].profile.latency_origin

    def band(self, d: int, metric: Metric) -> float:
        """Half-width of the 80 % band of a metric at deployment ``d``, as a fraction of the mean."""
        curve = self.fleet.curves.curves[d]
        if curve is None:
            return float("nan")
        if d not in self._bands:
            self._bands[d] = curve.bands(self._load(d))
        ttft, tpot = self._bands[d]
        # What moves with the version moves both alike.
        wider = VERSION_BAND if curve.is_measured and self.fleet.deployments[d].profile.measured_elsewhere else 0.0
        if metric == "ttft_ms":
            return ttft + wider
        if metric == "tpot_ms":
            return tpot + wider
        share = float(self.ttft_ms[d] / self.e2e_ms[d])
        return hypot(share * ttft, (1.0 - share) * tpot) + wider

    def _load(self, d: int) -> tuple[float, float, float]:
        return log(self.ask.isl), log(self.ask.osl), log(self.n_run[d])


def _pools(fleet: CompiledFleet, state: State) -> Ints:
    """For each deployment the pool of its endpoint with the fewest requests in flight."""
    return np.array([min(pools, key=lambda pool: state.in_flight[pool]) for pools in fleet.pools], dtype=np.int64)
