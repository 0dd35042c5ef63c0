"""The router: which deployment a task should go to, and the hold that makes the answer true."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np

from agentroute.assessment import Ask, Assessment, Limit, Metric, State
from agentroute.compiled import BIT, CompiledFleet
from agentroute.decision import Decision, refusal
from agentroute.errors import UnknownNameError, UsageError
from agentroute.fanout import Group, decisions, first_wave, spread
from agentroute.fleet import Deployment, Fleet
from agentroute.policy import objective as objective_by_name
from agentroute.route import Route, soft
from agentroute.spread import Spread
from agentroute.state.ledger import Hold, Ledger
from agentroute.task import UNSET_OUTPUT_TOKENS, Slo, Task, slo

_MS_PER: dict[Metric, float] = {"ttft_ms": 1.0, "tpot_ms": 1.0, "e2e_ms": 1_000.0}


class Router:
    """Decides where tasks go. Thread-safe.

    ``objective`` applies where neither task nor route names one; ``clock`` gives seconds that never go back.
    Raises ``UnknownNameError`` for an objective or an allowed deployment that does not exist.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        objective: str = "fit",
        routes: Iterable[Route] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fleet = fleet
        self.objective = objective
        by_name = {"default": Route(name="default")}
        for route in (routes := tuple(routes)):
            if sum(other.name == route.name for other in routes) > 1:
                raise UsageError(f"route names must differ, got {route.name!r} twice")
            by_name[route.name] = route
        self.routes: Mapping[str, Route] = MappingProxyType(by_name)
        self._clock = clock
        self._compiled = CompiledFleet.of(fleet)
        self._ledger = Ledger.of(self._compiled.pool_blocks)
        self._lock = threading.Lock()
        names = [deployment.name for deployment in fleet.deployments]
        self._allowed = {}
        for route in self.routes.values():
            for name in route.allow or ():
                if name not in names:
                    raise UnknownNameError("deployment", name, names)
            self._check_objective(route.objective or objective)
            if route.allow is not None:
                self._allowed[route.name] = np.array([name in route.allow for name in names])

    @classmethod
    def from_config(cls, path: str | Path = "agentroute.toml") -> Self:
        """A router over the deployments and routes of a configuration file; raises ``ConfigError``."""
        from agentroute.config import Config

        config = Config.load(path)
        return cls(config.fleet(), objective=config.objective, routes=config.router_routes())

    @classmethod
    def shipped(cls, *, objective: str = "fit") -> Self:
        """A router over the shipped profiles. It only decides: they have no endpoints to call."""
        return cls(Fleet.shipped(), objective=objective)

    def decide(self, task: Task) -> Decision:
        """Where ``task`` should go now. A dry run: holds nothing.

        One request that can never fit is refused; siblings beyond what runs at once queue, and the wait is part of the
        prediction: it is that of the whole group, judged before any of it has started. Raises ``NoFeasibleDeployment``
        with every deployment's reason.
        """
        ask, objective = self._ask(task)
        with self._lock:
            assessment, now = self._assess(task, ask, room_now=False)
        return _decision(task, objective, assessment, assessment.best(objective_by_name(objective)), now)

    def acquire(self, task: Task, *, waited_s: float = 0.0) -> Lease:
        """Decide among the deployments that have room now, and hold one request's share of the KV pool.

        It is judged for this one request, which starts at once: siblings that come after it do not keep it waiting.
        ``waited_s`` is how long the task has waited for room already; its TTFT and its deadline have run since. Use the
        lease as a context manager. Raises ``NoFeasibleDeployment``, or ``PoolFull`` when there would be a feasible
        deployment if others had finished.
        """
        if not 0.0 <= waited_s < math.inf:
            raise UsageError(f"waited_s must be a finite number of seconds, 0 or more, got {waited_s!r}")
        ask, objective = self._ask(task, waited_s)
        with self._lock:
            assessment, now = self._assess(task, ask, room_now=True)
            best = assessment.best(objective_by_name(objective))
            hold = None
            if best is not None:
                pool, blocks = int(assessment.pool[best]), int(assessment.units[best])
                hold = self._ledger.take(pool, blocks, task.siblings)
        decision = _decision(task, objective, assessment, best, now)
        if hold is None:
            raise AssertionError("a deployment was chosen that has no room")
        return Lease(self, decision, hold)

    def _assess(self, task: Task, ask: Ask, *, room_now: bool) -> tuple[Assessment, float]:
        """The task against every deployment as things stand, and the time; called under the lock."""
        ledger, now = self._ledger, self._clock()
        ledger.settle(now)
        siblings = ledger.siblings(task.siblings) if ask.concurrency > 1 else 0
        state = State(ledger.held, ledger.in_flight, siblings, ledger.total)
        return Assessment(self._compiled, ask, state, room_now=room_now), now

    def _ask(self, task: Task, waited_s: float = 0.0) -> tuple[Ask, str]:
        """The task as numbers, completed by its route, and the objective to choose by."""
        route = self.routes.get(task.route)
        if route is None:
            raise UnknownNameError("route", task.route, self.routes)
        needs = 0
        for need in task.needs:
            needs |= BIT[need]  # type: ignore[index]
        ask = Ask(
            context_tokens=task.context_tokens,
            isl=task.expected_context_tokens or task.context_tokens,
            osl=task.max_output_tokens or UNSET_OUTPUT_TOKENS,
            output_is_set=task.max_output_tokens is not None,
            concurrency=task.concurrency,
            needs=needs,
            limits=_limits(task, route, waited_s * 1_000.0),
            allowed=self._allowed.get(route.name),
        )
        objective = task.objective or route.objective or self.objective
        if task.objective:
            self._check_objective(objective)
        return ask, objective

    def _check_objective(self, name: str) -> None:
        objective_by_name(name)
        fleet = self._compiled
        if name == "cost" and bool(np.all(np.isnan(fleet.usd_per_second) & np.isnan(fleet.usd_per_input_token))):
            raise UsageError("the objective 'cost' needs a price; give one deployment's profile a [price]")

    def _release(self, lease: Lease, after_s: float) -> None:
        with self._lock:
            hold, lease._hold = lease._hold, None
            if hold is None:
                return
            if after_s > 0:
                self._ledger.leave(hold, at=self._clock() + after_s)
            else:
                self._ledger.free(hold)

    def spread(self, task: Task, *, fanout: int) -> Spread:
        """How ``fanout`` siblings are best spread before they are launched; holds nothing. Raises as ``plan`` does."""
        ask, objective = self._ask(task)
        with self._lock:
            one, state, _ = self._one(task, ask)
        return spread(task, fanout, "cost" if objective == "cost" else "latency", ask, one, state)

    def hold(self, plan: Spread) -> Group:
        """Hold the first wave of a plan, all of it or nothing; raises ``PoolFull`` when the room was taken since."""
        ask, objective = self._ask(plan.task)
        with self._lock:
            one, state, now = self._one(plan.task, ask)
            holds = first_wave(plan, one, self._ledger)
        made = decisions(plan, objective, ask, one, state, now)
        return Group(plan, tuple(Lease(self, decision, hold) for decision, hold in zip(made, holds, strict=True)))

    def _one(self, task: Task, ask: Ask) -> tuple[Assessment, State, float]:
        one, now = self._assess(task, ask._replace(concurrency=1, limits=()), room_now=False)
        return one, State(self._ledger.held.copy(), self._ledger.in_flight.copy(), 0, self._ledger.total), now


def _decision(task: Task, objective: str, assessment: Assessment, best: int | None, now: float) -> Decision:
    if best is None:
        raise refusal(task, assessment)
    return Decision.of(task, objective, assessment, best, now)


def _limits(task: Task, route: Route, waited_ms: float) -> tuple[Limit, ...]:
    """The SLOs that apply: the task's own, else the route's; what was waited already is no longer left."""
    limits = []
    metrics: tuple[tuple[Metric, float | Slo | None, float | Slo | None], ...] = (
        ("ttft_ms", task.ttft_ms, route.ttft_ms),
        ("tpot_ms", task.tpot_ms, route.tpot_ms),
        ("e2e_ms", task.deadline_s, route.deadline_s),
    )
    for metric, own, inherited in metrics:
        if own is None and inherited is None:
            continue
        chosen = soft(inherited) if own is None else slo(own)
        if chosen is not None:
            asked_ms, gone_ms = chosen.value * _MS_PER[metric], 0.0 if metric == "tpot_ms" else waited_ms
            left_ms = max(asked_ms - gone_ms, _NO_TIME_MS)
            limits.append(Limit(metric, left_ms, chosen.stat, chosen.hard, asked_ms, gone_ms))
    return tuple(limits)


_NO_TIME_MS = 1e-6
"""What is left of a limit that has passed: nothing keeps it, and it can still be divided by."""


class Lease:
    """A decision and the hold behind it, for one request. Leaving the block lets go of it."""

    def __init__(self, router: Router, decision: Decision, hold: Hold) -> None:
        self.decision = decision
        self._router = router
        self._hold: Hold | None = hold

    @property
    def deployment(self) -> Deployment:
        """The chosen deployment."""
        return self.decision.chosen

    @property
    def blocks(self) -> int:
        """KV blocks that it holds; 0 once released."""
        return self._hold.blocks if self._hold else 0

    @property
    def url(self) -> str | None:
        """The base URL of the chosen endpoint, or ``None`` when the deployment has none."""
        return self.decision.url

    def release(self, after_s: float = 0.0) -> None:
        """Let go, now or after the seconds that a runtime keeps a cancelled request; a second time does nothing."""
        if not 0.0 <= after_s < math.inf:
            raise UsageError(f"after_s must be a finite number of seconds, 0 or more, got {after_s!r}")
        self._router._release(self, after_s)

    def __enter__(self) -> Self:
        if self._hold is None:
            raise UsageError("the lease was released already; acquire another")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
