"""The router: which deployment a task should go to, and the hold that makes the answer true."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

from agentroute.asks import Asks, Quality
from agentroute.assessment import MISSED, Assessment
from agentroute.compiled import CompiledFleet
from agentroute.decision import Decision, refusal
from agentroute.errors import UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.inputs import Ask
from agentroute.outcome import Outcome
from agentroute.policy import Objective, Score
from agentroute.policy import objective as objective_by_name
from agentroute.route import Route
from agentroute.state.load import Load
from agentroute.state.situation import Placed, Situation
from agentroute.task import Task
from agentroute.waiting import Delay, Ticket, Waiting

if TYPE_CHECKING:
    from agentroute.admission import Admission


class Router:
    """Decides where tasks go. Thread-safe.

    ``objective`` applies where neither task nor route names one, ``quality`` says how good models are at what (by model
    and skill, on a scale of your own), ``objectives`` are further scores by name; ``clock`` gives seconds that never go
    back. Raises ``UnknownNameError`` for an objective or an allowed deployment that does not exist.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        objective: str = "fit",
        routes: Iterable[Route] = (),
        quality: Quality = MappingProxyType({}),
        objectives: Mapping[str, Score] = MappingProxyType({}),
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
        self._asks = Asks(self._compiled, quality)
        self._own = {name: Objective(name, score) for name, score in objectives.items()}
        self._situation = Situation(self._compiled)
        self._waiting = Waiting(self._place, clock)
        self._lock = threading.Lock()
        self._dropped: deque[Placed] = deque()
        """What was held by leases that nobody let go of, and nobody has any more."""
        for route in self.routes.values():
            self._asks.mask(route.allow or ())
            self._objective(route.objective or objective)

    @classmethod
    def from_config(cls, path: str | Path = "agentroute.toml") -> Self:
        """A router over the deployments and routes of a configuration file; raises ``ConfigError``."""
        from agentroute.config import Config

        config = Config.load(path)
        return cls(
            config.fleet(),
            objective=config.objective,
            routes=config.router_routes(),
            quality=config.quality,
            objectives=config.own_objectives(),
        )

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
        ask, name, objective = self._ask(task)
        with self._lock:
            now = self._now()
            state = self._situation.state(task, now)
        assessment = Assessment(self._compiled, ask, state, room_now=False)
        best = assessment.best(objective)
        if best is None:
            raise refusal(task, assessment)
        return Decision.of(task, name, assessment, best, now)

    def acquire(self, task: Task, *, waited_s: float = 0.0) -> Lease:
        """Decide among the deployments that have room now, and hold one request's share of the KV pool.

        It is judged for this one request, which starts at once: siblings that come after it do not keep it waiting.
        ``waited_s`` is how long the task has waited for room already; its TTFT and its deadline have run since. Use the
        lease as a context manager. Raises ``NoFeasibleDeployment``, or ``PoolFull`` when there would be a feasible
        deployment if others had finished.
        """
        if not 0.0 <= waited_s < math.inf:
            raise UsageError(f"waited_s must be a finite number of seconds, 0 or more, got {waited_s!r}")
        ask, name, objective = self._ask(task, waited_s)
        with self._lock:
            now = self._now()
            state = self._situation.state(task, now)
            assessment = Assessment(self._compiled, ask, state, room_now=True)
            best = assessment.best(objective)
            if best is not None:
                return self._lease(task, name, assessment, best, now)
        raise refusal(task, assessment)

    def queue(self, task: Task, *, on_done: Callable[[Ticket], None] | None = None) -> Ticket:
        """Wait for a place without blocking: the ticket is done at once when there is one, else when there comes one.

        Who finds no room, or no place where a hard SLO is kept, waits for one; who never could is refused. ``on_done``
        is called by whichever thread makes room; the ticket's lease is then the receiver's to release.
        """
        return self._waiting.join(task, on_done)

    def pump(self, *, every_s: float = 0.0) -> list[Ticket]:
        """Place those that wait, as far as there is room now; those that wait no longer are returned.

        The router does so itself whenever something is let go of or observed. Time alone makes room, too, so whoever
        waits calls it now and then; nothing is done when it was done less than ``every_s`` ago.
        """
        return self._waiting.pump(every_s)

    def admit(self, task: Task, *, timeout_s: float | None = None) -> Admission:
        """Wait for a lease, fairly: ``with router.admit(task) as lease`` or ``async with``.

        Raises ``NoFeasibleDeployment`` at once for a task that can never be placed, ``PoolFull`` after ``timeout_s``.
        """
        from agentroute.admission import Admission

        return Admission(self, task, timeout_s)

    def expected_wait_s(self, waiting: Ticket | Task) -> float | None:
        """Seconds until a ticket is placed, or a task that would come now, about: 0 when it is, or would be, at once;
        ``None`` when nobody can say. Raises ``NoFeasibleDeployment`` for a task that can never be placed."""
        if isinstance(waiting, Ticket):
            if waiting.done:
                return 0.0
            ahead, delay = waiting.ahead, waiting.delay
        else:
            ahead = len(self._waiting)
            ask, _, objective = self._ask(waiting)
            with self._lock:
                state = self._situation.state(waiting, self._now())
            found = self._where(waiting, Assessment(self._compiled, ask, state, room_now=True), objective)
            if not isinstance(found, Delay) and not ahead:
                return 0.0
            delay = found if isinstance(found, Delay) else Delay()
        with self._lock:
            return self._situation.expected_wait_s(delay.pool, ahead, self._now())

    def observe(self, deployment: str, load: Load, *, url: str | None = None) -> None:
        """Take in what a running server says of itself; ``url`` tells which endpoint where there are several.

        Raises ``UnknownNameError``.
        """
        pool, capacity = self._compiled.pool_named(deployment, url)
        with self._lock:
            self._situation.observe(pool, load, capacity, self._clock())
        self.pump()

    def _now(self) -> float:
        """The time, with what was dropped by then let go of; called under the lock."""
        while self._dropped:
            placed = self._dropped.popleft()
            self._situation.ended(placed, None, self._clock())
            self._situation.ledger.free(placed.hold)
        return self._clock()

    def _ask(self, task: Task, waited_s: float = 0.0) -> tuple[Ask, str, Objective]:
        """The task as numbers, completed by its route, and the objective to choose by, with its name."""
        route = self.routes.get(task.route)
        if route is None:
            raise UnknownNameError("route", task.route, self.routes)
        name = task.objective or route.objective or self.objective
        ask, objective = self._asks.of(task, route, waited_s), self._objective(name)
        return self._asks.judged(ask, task, route) if name == "quality" else ask, name, objective

    def _objective(self, name: str) -> Objective:
        objective, fleet = objective_by_name(name, self._own), self._compiled
        if name == "cost" and not fleet.any_price:
            raise UsageError("the objective 'cost' needs a price; give one deployment's profile a [price]")
        return objective

    def _release(self, lease: Lease, outcome: Outcome | None, after_s: float) -> None:
        situation = self._situation
        with self._lock:
            placed, lease._placed = lease._placed, None
            if placed is None:
                return
            now = self._now()
            situation.ended(placed, outcome, now)
            if after_s > 0:
                situation.ledger.leave(placed.hold, at=now + after_s)
            else:
                situation.ledger.free(placed.hold)
        self.pump()

    def _read(self, lease: Lease) -> None:
        with self._lock:
            if lease._placed is not None:
                self._situation.prefills.read(lease._placed.reading, self._now())

    def _extend(self, lease: Lease, output_tokens: int) -> bool:
        with self._lock:
            placed = lease._placed
            if placed is None:
                return True
            tokens = lease.decision.task.context_tokens + output_tokens
            blocks = -(-tokens // int(self._compiled.block_tokens[placed.deployment]))
            return self._situation.ledger.extend(placed.hold, blocks)

    def _place(self, task: Task, waited_s: float, closed: frozenset[int]) -> Lease | Delay:
        """A lease where there is room now; else why not.

        Raises ``NoFeasibleDeployment`` for what not even an idle fleet could take.
        """
        ask, name, objective = self._ask(task, waited_s)
        with self._lock:
            now = self._now()
            assessment = Assessment(self._compiled, ask, self._situation.state(task, now, closed), room_now=True)
            best = self._where(task, assessment, objective)
            return best if isinstance(best, Delay) else self._lease(task, name, assessment, best, now)

    def _where(self, task: Task, assessment: Assessment, objective: Objective) -> int | Delay:
        """The deployment that a waiting task is placed at now, or why none."""
        best = assessment.best(objective)
        if best is not None:
            return best
        ask = assessment.ask._replace(concurrency=1.0)
        idle = Assessment(self._compiled, ask, self._situation.idle, room_now=False)
        first = idle.best(objective)
        if first is None:
            raise refusal(task, idle)
        return Delay(bool(idle.rank[first] >= MISSED), int(idle.pool[first]))

    def _lease(self, task: Task, objective: str, assessment: Assessment, best: int, now: float) -> Lease:
        """Hold what was found; called under the lock that it was found under."""
        placed = self._situation.take(task, assessment, best, now)
        if placed is None:
            raise AssertionError("a deployment was chosen that has no room")
        return Lease(self, Decision.of(task, objective, assessment, best, now), placed)


class Lease:
    """A decision and the hold behind it, for one request. Leaving the block lets go of it."""

    def __init__(self, router: Router, decision: Decision, placed: Placed) -> None:
        self.decision = decision
        self._router = router
        self._placed: Placed | None = placed

    def __del__(self) -> None:
        # Called wherever the last reference goes, under the router's lock, too: so nothing is done here.
        if self._placed is not None:
            self._router._dropped.append(self._placed)

    @property
    def deployment(self) -> Deployment:
        """The chosen deployment."""
        return self.decision.chosen

    @property
    def blocks(self) -> int:
        """KV blocks that it holds; 0 once released."""
        placed = self._placed
        return placed.hold.total if placed else 0

    @property
    def url(self) -> str | None:
        """The base URL of the chosen endpoint, or ``None`` when the deployment has none."""
        return self.decision.url

    def release(self, after_s: float = 0.0) -> None:
        """Let go, now or after the seconds that a runtime keeps a cancelled request; a second time does nothing."""
        if not 0.0 <= after_s < math.inf:
            raise UsageError(f"after_s must be a finite number of seconds, 0 or more, got {after_s!r}")
        self._router._release(self, None, after_s)

    def settle(self, outcome: Outcome, *, after_s: float = 0.0) -> None:
        """Let go, and let the router learn from what became of the request: what is slow, what is warm, who is down."""
        if not 0.0 <= after_s < math.inf:
            raise UsageError(f"after_s must be a finite number of seconds, 0 or more, got {after_s!r}")
        self._router._release(self, outcome, after_s)

    def first_token(self) -> None:
        """Say that its first token came: the prompts before it and its own are read, and who comes waits for less."""
        self._router._read(self)

    def extend(self, output_tokens: int) -> bool:
        """Say that the answer has grown to so many tokens, beyond what was held for it.

        False where the pool has no more: the request goes on, the engine sees to that, but nothing else is placed
        there until enough is free again.
        """
        return self._router._extend(self, output_tokens)

    def __enter__(self) -> Self:
        if self._placed is None:
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
