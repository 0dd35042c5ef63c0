"""What a task would meet at every deployment, in arrays: does it fit, how fast would it be, what would it take."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentroute import misses, ranking
from agentroute.compiled import Bools, CompiledFleet, Floats, Ints
from agentroute.inputs import LOADS, Ask, Limit, Metric, State, There
from agentroute.lazy import lazy
from agentroute.origin import Origin
from agentroute.policy import Objective

_LOADS = np.array(LOADS)
Columns = tuple[list[float], ...]
"""Numbers of every deployment, one list for each kind."""

SUPPORTED = 0.95
"""Least share of a prediction that must rest on measured cells for it not to be called extrapolated."""

SHARED_BY = 8.0
"""Requests that share a step, in reckoning what one costs; not those of the moment, or the fullest would be cheapest.
Assumed."""
# An array without an axis is a quicker operand than a number.
_ZERO, _ONE, _SHARED_BY = np.array(0.0), np.array(1.0), np.array(SHARED_BY)


class Assessment:
    """A task against every deployment; arrays have shape (d,), of many tasks (t, d); times are milliseconds with the
    wait included.

    ``n`` is the load the task would meet (everything in flight on the endpoint, and the siblings to come, spread over a
    deployment's endpoints), ``n_run`` what of it can run at once. A closed loop of n requests over n_run places waits
    (n - n_run) / throughput(n_run), by Little's law.
    """

    def __init__(self, fleet: CompiledFleet, ask: Ask, state: State, *, room_now: bool) -> None:
        self.fleet, self.ask, self.state, self.room_now = fleet, ask, state, room_now
        self.held, self.in_flight = state.held, state.in_flight
        self.pool: Ints = fleet.first_pool
        if not fleet.aligned:
            self.pool = _pools(fleet, state) if fleet.replicated else fleet.first_pool
            self.held, self.in_flight = state.held.take(self.pool), state.in_flight.take(self.pool)
        # Siblings that are not in flight yet, this one included.
        to_come: Any = ask.concurrency
        if _some(state.siblings != 0):
            to_come = np.maximum(to_come - state.siblings, 1.0)
        if fleet.replicated:
            to_come = np.ceil(to_come / fleet.endpoints)
        self.n: Floats = self.in_flight + to_come
        self._waits = _some(state.total + to_come > fleet.least_slots) or (
            fleet.any_known_pool and np.count_nonzero(self.full > fleet.blocks) > 0
        )
        self.n_run = self._running() if self._waits else self.n
        self.n_first = self._first(1.0 if room_now else to_come)
        self._predict(to_come)
        self._judge()

    @lazy
    def units(self) -> Floats:
        """Blocks that one request would hold, beside those that siblings hold for it already."""
        units = self.blocks_of(self.ask.held_tokens)
        if self.state.shared is not None:
            # A window may leave no more than what is shared; nothing is placed there, but this is divided by.
            units = np.maximum(units - self.shared_units * self.at_pool(self.state.shared), 1.0)
        return units

    @lazy
    def full(self) -> Floats:
        """Blocks that would be held, were all siblings there."""
        full: Floats = self.units * self.ask.concurrency
        full += self.held
        return full

    @property
    def least_units(self) -> Floats:
        """The same, if siblings held what they share everywhere."""
        return self.blocks_of(self.ask.held_tokens) - self.shared_units

    @lazy
    def shared_units(self) -> Floats:
        """Whole blocks of the prefix that siblings share, where it would be held once for all of them."""
        return self.fleet.block_table.whole(self.ask.shared_tokens) * self.fleet.keeps_prefixes

    def blocks_of(self, tokens: Floats | float) -> Floats:
        """Blocks of so many tokens of one request; where its answer has no length, no more than the window's."""
        if not self.ask.output_is_set:
            tokens = np.minimum(self.fleet.window_tokens, tokens)
        return self.fleet.block_table.units(tokens)

    def _running(self) -> Floats:
        """At most the slots, and those in flight with what the free blocks still take; one request can always run."""
        fleet = self.fleet
        if fleet.any_known_pool:
            running: Floats = fleet.blocks - self.held
            running = running / self.units
            np.floor(running, running)
            running += self.in_flight
            running = np.minimum(running, self.n)
        else:
            running = self.n
        running = np.minimum(running, fleet.slots)
        np.maximum(running, _ONE, out=running)
        return running

    def _first(self, to_come: Any) -> Floats:
        """Requests that the prompt competes with besides those of ``State.queue``: siblings, and those of others."""
        if self.state.own is None:
            return self.n_run if not self.room_now else np.minimum(self.n_run, self.in_flight + to_come)
        first: Floats = self.in_flight - self.at_pool(self.state.own)
        first = first + to_come
        return np.minimum(first, self.n_run) if self._waits else first

    def _distinct_loads(self, to_come: Any) -> tuple[Floats, Ints | None]:
        """Loads of many tasks, of those that meet the same only one, and which of them each meets; ``None``: its own.

        They are ``n`` where none waits, and that goes by how many siblings a task has: often as many as others have.
        """
        if self._waits or np.shape(to_come) != np.shape(self.ask.isl):
            return self.n_run.copy(), None
        distinct, which = np.unique(to_come[:, 0], return_inverse=True)
        return self.in_flight + distinct[:, None], which

    def _predict(self, to_come: Any) -> None:
        """TTFT at ``n_first`` and behind the prompts that were sent before; TPOT at ``n_run``."""
        ask, state, curves = self.ask, self.state, self.fleet.curves
        if isinstance(ask.isl, np.ndarray):
            which = None
            if self.n_first is self.n_run:
                loads, which = self._distinct_loads(to_come)
            else:
                loads = np.empty((2, *self.n_run.shape))
                loads[0], loads[1] = self.n_first, self.n_run
            np.log(loads, loads)
            times = curves.at_each(np.log(ask.isl)[:, 0], np.log(ask.osl)[:, 0], loads, which)
        else:
            loads = np.array((self.n_first, self.n_run))
            np.log(loads, loads)
            times = curves.at(log(ask.isl), log(ask.osl), loads)
        queue = state.queue
        if state.resident is not None and state.own is not None:
            reading = None if queue is None or queue.reading is None else self.at_pool(queue.reading)
            curves.among(times[1], ask.isl, ask.osl, self.at_pool(state.resident), self.at_pool(state.own), reading)
        if state.cached_tokens is not None:
            times[0] *= curves.cached_share(ask.isl, self.at_pool(state.cached_tokens))
        self.factors: Floats | None = None
        """By what the curves' times were multiplied, (2, d)."""
        if state.factors is not None:
            self.factors = of_load(state.factors, self.n_run)
            times *= self.factors
        # One by one: iterating over an array takes three times as long.
        self.prefill_ms: Floats = times[0]
        """TTFT with no prompt of our own before it."""
        self.tpot_ms: Floats = times[1]
        self.steps_ms: Floats = self.tpot_ms * (ask.osl - 1.0)
        """From the first token to the last."""
        self.ttft_ms: Floats = self.prefill_ms
        if queue is not None:
            self.ttft_ms = self.prefill_ms + self.at_pool(queue.backlog_ms)
        self.wait_ms: Floats | None = None
        if self._waits:
            self.wait_ms = self._wait()
            self.ttft_ms = self.ttft_ms + self.wait_ms

    def _wait(self) -> Floats:
        """Of the requests that do not run at once, each waits for all that do. Where the request is to start now, the
        siblings that come after it do not keep it waiting."""
        self.service_ms = self.ttft_ms + self.steps_ms
        if self.room_now:
            wait: Floats = self.in_flight - self.n_run
            wait += _ONE
            np.maximum(wait, _ZERO, out=wait)
        else:
            wait = self.n - self.n_run
        wait *= self.service_ms
        wait /= self.n_run
        return wait

    @lazy
    def service_ms(self) -> Floats:
        """E2E without the wait."""
        return self.ttft_ms + self.steps_ms

    @lazy
    def e2e_ms(self) -> Floats:
        """Until the whole answer is there."""
        return self.service_ms if self.wait_ms is None else self.service_ms + self.wait_ms

    def at_pool(self, of_pools: NDArray[Any]) -> NDArray[Any]:
        """An array over pools as one over deployments."""
        return of_pools if self.fleet.aligned else of_pools.take(self.pool, axis=-1)

    def _judge(self) -> None:
        """Who could take the task, and who keeps the SLOs."""
        fleet, ask, state = self.fleet, self.ask, self.state
        able: Bools | None = None
        tokens = ask.tokens
        needed = tokens if ask.output_is_set else ask.context_tokens + 1.0
        if _some(needed > fleet.least_window_tokens):
            able = fleet.window_tokens >= needed
        if _some(tokens > fleet.least_request_tokens):
            able = _and(able, self.blocks_of(tokens) <= fleet.request_blocks)
        rank = fleet.pool_rank
        if ask.needs:
            offered, unknown = fleet.capability_mask(ask.needs)
            able = _and(able, offered)
            rank = rank + unknown
        self.cramped: Bools | None = None
        """Where the next steps of the task's conversation would not fit; ``None``: nowhere."""
        if _some(ask.grown_tokens > min(fleet.least_window_tokens, fleet.least_request_tokens)):
            over = self.blocks_of(ask.grown_tokens) > fleet.request_blocks
            self.cramped = over | (fleet.window_tokens < ask.grown_tokens)
        if ask.allowed is not None:
            able = _and(able, ask.allowed)
        self.fits = able
        """Deployments that may take the task and can hold it, however busy they are; ``None``: all."""
        if ask.max_cost_usd is not None:
            # A cost that is unknown cannot be promised.
            able = _and(able, self.cost_usd <= ask.max_cost_usd)
        self.used: Floats | None = None
        """Predicted over allowed, of the SLO that is nearest to breaking; NaN: nothing was measured for it."""
        for limit in ask.limits:
            share = self.judged_ms(limit) / limit.limit_ms
            if limit.hard:
                able = _and(able, share <= 1.0)
            self.used = share if self.used is None else np.maximum(self.used, share)
        self.able = able
        """Deployments that could take the task, whether or not they have room at this moment; ``None``: all."""
        self.known_rank: Ints = rank
        """1 for an unknown KV pool and 2 for an unknown capability."""
        free: Bools | None = None
        if state.up is not None:
            free = state.up if fleet.aligned else state.up.take(self.pool)
        if self.room_now and fleet.any_known_pool:
            free = _and(free, self.held + self.units <= fleet.blocks)
        self.feasible = _and(able, free) if free is not None else able
        """Those of them that can take it now; ``None``: all."""

    @lazy
    def rank(self) -> Ints:
        """``known_rank``, whether a conversation would soon not fit, and how well SLOs are kept: its own, and those of
        others there."""
        return ranking.rank(self)

    @lazy
    def own_miss(self) -> Floats | None:
        """How likely the task is to miss an SLO of its own; ``None``: it has none."""
        return misses.own(self)

    @lazy
    def harm(self) -> Floats | None:
        """How many others are expected to miss an SLO because of it, soon; ``None``: nobody there has one."""
        return misses.harm(self)

    def judged_ms(self, limit: Limit) -> Floats:
        """What an SLO is held against: the mean; another statistic by its measured ratio, else the high end."""
        mean: Floats = getattr(self, limit.metric)
        if limit.stat == "mean":
            return mean
        tails = self.fleet.tails(limit.metric, limit.stat)
        measured = tails == tails
        return mean * (tails if measured.all() else np.where(measured, tails, 1.0 + self.bands[limit.metric]))

    def slack_ms(self, d: int, *, hard: bool = False) -> float:
        """How much longer a task could wait and still keep its SLOs (its hard ones) at deployment ``d``; infinite: for
        ever."""
        waiting = [limit for limit in self.ask.limits if limit.metric != "tpot_ms" and limit.hard >= hard]
        return min((limit.limit_ms - float(self.judged_ms(limit)[d]) for limit in waiting), default=float("inf"))

    def tail(self, d: int, limit: Limit) -> float | None:
        """The most that a limit's statistic was measured over the mean at deployment ``d``; ``None``: not measured."""
        curve = self.fleet.curves.curves[d]
        return curve.tails.get((limit.metric, limit.stat)) if curve else None

    def is_feasible(self, d: int) -> bool:
        """Whether deployment ``d`` can take the task now."""
        return self.feasible is None or bool(self.feasible[d])

    def order(self, objective: Objective) -> NDArray[np.intp]:
        """Feasible deployments, best first: by rank, within a rank by the objective, of equals the less busy one."""
        return ranking.order(self, objective)

    def best(self, objective: Objective) -> int | None:
        """The first of ``order``; ``None`` when nothing is feasible."""
        return ranking.best(self, objective)

    def there(self, d: int) -> There:
        """What the task meets at deployment ``d``."""
        wait_ms = 0.0 if self.wait_ms is None else self.wait_ms.item(d)
        return There(
            d,
            self.pool.item(d),
            self.units.item(d),
            self.prefill_ms.item(d),
            self.tpot_ms.item(d),
            self.ttft_ms.item(d) - wait_ms,
            self.service_ms.item(d),
            wait_ms,
            self.n_run.item(d),
            (1.0, 1.0) if self.factors is None else (self.factors.item(0, d), self.factors.item(1, d)),
        )

    @lazy
    def cost_usd(self) -> Floats:
        """US dollars for one request: its share of the accelerators' time at this load, or its tokens' price."""
        fleet, ask = self.fleet, self.ask
        by_time = fleet.usd_per_second * self.service_ms / (1_000.0 * self.n_run)
        by_token = fleet.usd_per_input_token * ask.isl + fleet.usd_per_output_token * ask.osl
        return np.where(by_token == by_token, by_token, by_time)

    @property
    def gpu_seconds(self) -> Floats:
        """Accelerator-seconds that the request takes about: until its first token, which it has for itself, and its
        share of the steps after that, of ``SHARED_BY``."""
        seconds: Floats = np.maximum(self.n_run, _SHARED_BY)
        seconds = self.steps_ms / seconds
        seconds += self.prefill_ms
        seconds *= self.fleet.gpu_ms
        return seconds

    def extrapolated(self, d: int) -> bool:
        """Whether the load at deployment ``d`` is outside the measured ones, or rests on filled cells between them."""
        return bool(self._extrapolated[d])

    @lazy
    def _extrapolated(self) -> Bools:
        return self.fleet.bands.support(log(self.ask.isl), log(self.ask.osl), np.log(self.n_run)) < SUPPORTED

    @lazy
    def said(self) -> dict[str, tuple[list[float], Columns]]:
        """What objectives say of every deployment, by name, and of what they make it up, as far as they were asked for
        an explanation."""
        return {}

    def origin(self, d: int) -> Origin:
        """Where the times of deployment ``d`` come from: its points, else its roofline."""
        curve = self.fleet.curves.curves[d]
        derived = curve is not None and not curve.is_measured
        return "derived" if derived else self.fleet.deployments[d].profile.latency_origin

    @lazy
    def bands(self) -> Mapping[Metric, Floats]:
        """By metric half-widths of the 80 % bands, as fractions of the mean; NaN where there is no curve."""
        ttft, tpot = self.fleet.bands.at(log(self.ask.isl), log(self.ask.osl), np.log(self.n_run))
        share, wider = self.ttft_ms / self.e2e_ms, self.fleet.version_bands
        # What moves with the version moves both alike.
        e2e = np.hypot(share * ttft, (1.0 - share) * tpot) + wider
        return {"ttft_ms": ttft + wider, "tpot_ms": tpot + wider, "e2e_ms": e2e}


class Late(NamedTuple):
    """What an assessment is made of, for one that is only made when somebody asks."""

    fleet: CompiledFleet
    ask: Ask
    state: State
    room_now: bool

    def __call__(self, _: object = None) -> Assessment:
        """The assessment."""
        return Assessment(self.fleet, self.ask, self.state, room_now=self.room_now)


def of_load(factors: Floats, n: Floats) -> Floats:
    """The factors of ``State`` at each deployment's load, shape (2, ..., d); ``n`` has shape (..., d)."""
    region = _LOADS.searchsorted(n, "right")
    if factors.ndim > 3:
        at_load: Floats = np.take_along_axis(factors, np.broadcast_to(region, factors.shape[1:3])[None, ..., None], -1)
        return at_load[..., 0]
    return factors[:, np.arange(n.shape[-1]), region]


def _some(condition: bool | Bools) -> bool:
    """Whether it holds of any task."""
    return condition if isinstance(condition, bool) else bool(np.count_nonzero(condition))


def _and(a: Bools | None, b: Bools) -> Bools:
    return b if a is None else a & b


def _pools(fleet: CompiledFleet, state: State) -> Ints:
    """For each deployment the pool of its endpoint with the fewest requests in flight, of those that are up."""
    busy = state.in_flight if state.up is None else np.where(state.up, state.in_flight, np.inf)
    return np.array([min(pools, key=lambda pool: busy[pool]) for pools in fleet.pools], dtype=np.int64)
