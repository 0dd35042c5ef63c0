"""The router: which deployment a task should go to, and the hold that makes the answer true."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from agentroute.asks import Quality
from agentroute.assessment import Assessment, Late
from agentroute.decision import Decision
from agentroute.errors import NoFeasibleDeployment
from agentroute.fallback import elsewhere, placing
from agentroute.fanout import spread
from agentroute.fleet import Fleet
from agentroute.group import Group, first_wave
from agentroute.inputs import Ask, State, There
from agentroute.lease import Lease
from agentroute.many import Batch, batched, together
from agentroute.misses import minds
from agentroute.outcome import Outcome
from agentroute.own import Lock
from agentroute.policy import OBJECTIVES, Objective, Score
from agentroute.refusal import refusal
from agentroute.route import Route
from agentroute.rules import Rules
from agentroute.spread import Spread, as_sibling
from agentroute.state.health import Signs
from agentroute.state.ledger import GONE
from agentroute.state.load import Load
from agentroute.state.placed import Placed
from agentroute.state.situation import Situation
from agentroute.state.steady import steady
from agentroute.task import Task
from agentroute.waiting import Delay, Ticket, Waiting, check_avoid, check_task, check_waited, where

if TYPE_CHECKING:
    from agentroute.admission import Admission
    from agentroute.doctor.finding import Finding

FIT = OBJECTIVES["fit"]
Answers = list[Decision | NoFeasibleDeployment]


class Router:
    """Decides where tasks go. Thread-safe.

    ``objective`` applies where neither task nor route names one, ``quality`` says how good models are at what (by model
    and skill, on a scale of your own), ``objectives`` are further scores by name; ``clock`` gives seconds, which stand
    still where it is set back. Raises ``UnknownNameError`` for an objective or an allowed deployment that is not there.
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
        self.rules = Rules(fleet, objective, routes, quality, objectives)
        """What it goes by; ``go_by`` replaces it."""
        self._clock = steady(clock)
        self._situation = Situation(self.rules.compiled)
        self._lock = Lock()
        self._waiting = Waiting(placing(self._place, lambda: self.routes), self._room, self._clock)
        self._dropped: deque[Placed] = deque()
        """What was held by leases that nobody let go of, and nobody has any more."""

    @property
    def fleet(self) -> Fleet:
        """The deployments that it chooses from."""
        return self.rules.fleet

    @property
    def routes(self) -> Mapping[str, Route]:
        """The routes by name, ``default`` among them."""
        return self.rules.routes

    @property
    def objective(self) -> str:
        """What applies where neither task nor route names an objective."""
        return self.rules.objective

    @classmethod
    def from_config(cls, path: str | Path = "agentroute.toml") -> Self:
        """A router over the deployments and routes of a configuration file; raises ``ConfigError``."""
        from agentroute.config import Config

        return Config.load(path).router(cls)

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
        check_task(task)
        with self._lock:
            rules, now = self.rules, self._now()
            state = self._situation.state(task, now)
        return self._decide(rules, task, state, now)

    def _decide(self, rules: Rules, task: Task, state: State, now: float) -> Decision:
        ask, _, objective = rules.ask(task)
        fleet = rules.compiled
        if rules.quick is not None and objective is FIT:
            there = rules.quick.best(ask, state, room_now=False)
            if there is not None:
                best = there.deployment
                on = Late(fleet, ask, state, False)
                return Decision.of(task, objective, on, fleet.deployments[best], best, now)
        assessment = Assessment(fleet, ask, state, room_now=False)
        found = assessment.best(objective)
        if found is None:
            return elsewhere(self.decide, task, rules.routes[task.route], refusal(task, objective, assessment, now))
        return Decision.of(task, objective, assessment, fleet.deployments[found], found, now)

    def decide_many(self, tasks: Sequence[Task]) -> Answers:
        """What ``decide`` says of each task, all at this moment; a task that nothing can take has its refusal there.

        Tasks of one kind are assessed together: equal needs, names, route, objective, and kinds of limits on means. The
        others (of a conversation, with a shared prefix, with limits on percentiles) are decided one by one.
        """
        for task in (tasks := list(tasks)):
            check_task(task)
        with self._lock:
            rules, now = self.rules, self._now()
            batches = batched(tasks, self._situation, now)
        decided: Answers = [NoFeasibleDeployment("", {})] * len(tasks)
        for batch in batches:
            alone = batch.places
            if batch.together:
                alone = self._decide_together(rules, tasks, batch, now, decided)
            for i in alone:
                try:
                    decided[i] = self._decide(rules, tasks[i], batch.state_of(i), now)
                except NoFeasibleDeployment as refused:
                    decided[i] = refused
        return decided

    def _decide_together(
        self, rules: Rules, tasks: Sequence[Task], batch: Batch, now: float, decided: Answers
    ) -> list[int]:
        """Decide what is of one kind; the places of those that are refused, or that the last digits decide."""
        here = [tasks[i] for i in batch.places]
        ask, name, objective = rules.ask(here[0])
        if name in rules.own:
            # An objective of the user's own need not understand many tasks at once.
            return batch.places
        stacked = rules.asks.stack(here, rules.routes[here[0].route], ask)
        made, left = together(batch, here, rules.compiled, stacked, lambda task: rules.ask(task)[0], objective, now)
        for i, decision in made:
            decided[i] = decision
        return left

    def acquire(self, task: Task, *, waited_s: float = 0.0, avoid: frozenset[int] = frozenset()) -> Lease:
        """Decide among the deployments that have room now, and hold one request's share of the KV pool.

        It is judged for this one request, which starts at once: siblings that come after it do not keep it waiting.
        ``waited_s`` is how long the task has waited for room already; its TTFT and its deadline have run since.
        ``avoid`` are pools (``Decision.pool``) that it must not go to, since it has just failed there. Use the lease as
        a context manager. Raises ``NoFeasibleDeployment``, or ``PoolFull`` when there would be a feasible
        deployment if others had finished.
        """
        check_waited(task, waited_s)
        with self._lock:
            rules, now = self.rules, self._now()
            check_avoid(avoid, len(rules.compiled.pool_blocks))
            ask, _, objective = rules.ask(task, waited_s)
            state = self._situation.state(task, now, avoid)
            found = self._leased(task, objective, ask, state, now)
            if found is not None:
                return found
            assessment = Assessment(rules.compiled, ask, state, room_now=True)
            best = assessment.best(objective)
            if best is not None:
                return self._lease(task, objective, assessment, assessment.there(best), now)
        there = partial(self.acquire, waited_s=waited_s, avoid=avoid)
        return elsewhere(there, task, rules.routes[task.route], refusal(task, objective, assessment, now))

    def spread(self, task: Task, *, fanout: int) -> Spread:
        """How ``fanout`` siblings, each like ``task``, are best spread before they are launched; holds nothing.

        The objective ``cost`` asks for the least money by the deadline, any other for the least makespan. Raises
        ``UsageError`` for a group of no size, and what ``plan`` raises.
        """
        one = as_sibling(task, fanout)
        with self._lock:
            rules = self.rules
            ask, name, _ = rules.ask(one)
            state = self._situation.group_state(one, self._now())
        try:
            return spread(one, "cost" if name == "cost" else "latency", rules.compiled, ask, state)
        except NoFeasibleDeployment as refused:
            return elsewhere(partial(self.spread, fanout=fanout), task, rules.routes[task.route], refused)

    def hold(self, plan: Spread) -> Group:
        """Hold the first wave of a plan, all of it or nothing; raises ``PoolFull`` when the room was taken since."""
        with self._lock:
            ask, _, objective = self.rules.ask(plan.task)
            held = first_wave(plan, objective, self.rules.compiled, ask, self._situation, self._now())
        return Group(plan, tuple(Lease(self, decision, placed) for decision, placed in held))

    def queue(self, task: Task, *, on_done: Callable[[Ticket], None] | None = None, waited_s: float = 0.0) -> Ticket:
        """Wait for a place without blocking: the ticket is done at once when there is one, else when there comes one.

        Who finds no room, or no place where a hard SLO is kept, waits for one; who never could is refused. ``on_done``
        is called by whichever thread makes room; the ticket's lease is then the receiver's to release. ``waited_s`` is
        how long it has waited already: its place is that of one who came then.
        """
        check_waited(task, waited_s)
        return self._waiting.join(task, on_done, self.routes.get(task.route), waited_s)

    def pump(self, *, every_s: float = 0.0) -> list[Ticket]:
        """Place those that wait, as far as there is room now; those that wait no longer are returned.

        The router does so itself whenever something is let go of or observed. Time alone makes room, too, so whoever
        waits calls it now and then; nothing is done when it was done less than ``every_s`` ago.
        """
        return self._waiting.pump(every_s)

    def admit(self, task: Task, *, timeout_s: float | None = None, waited_s: float = 0.0) -> Admission:
        """Wait for a lease, fairly: ``with router.admit(task) as lease`` or ``async with``.

        Raises ``NoFeasibleDeployment`` at once for a task that can never be placed, ``PoolFull`` after ``timeout_s``.
        """
        from agentroute.admission import Admission

        check_waited(task, waited_s)
        return Admission(self, task, timeout_s, waited_s)

    def expected_wait_s(self, waiting: Ticket | Task) -> float | None:
        """Seconds until a ticket is placed, or a task that would come now, about: 0 when it is, or would be, at once;
        ``None`` when nobody can say. Raises ``NoFeasibleDeployment`` for a task that can never be placed."""
        if isinstance(waiting, Ticket):
            if waiting.done:
                return 0.0
            ahead, delay = waiting.ahead, waiting.delay
        else:
            ahead = self._waiting.ahead_of(waiting, self.routes)
            with self._lock:
                rules, idle = self.rules, self._situation.idle
                ask, _, objective = rules.ask(waiting)
                state = self._situation.state(waiting, self._now())
            here = Assessment(rules.compiled, ask, state, room_now=True)
            try:
                found = where(waiting, here, objective, idle, 0.0, self._clock())
            except NoFeasibleDeployment as refused:
                return elsewhere(self.expected_wait_s, waiting, rules.routes[waiting.route], refused)
            if not isinstance(found, Delay) and not ahead:
                return 0.0
            delay = found if isinstance(found, Delay) else Delay()
        with self._lock:
            return self._situation.expected_wait_s(delay.pool, ahead, self._now())

    @property
    def queued(self) -> int:
        """How many wait in the queue."""
        return len(self._waiting)

    def observe(self, deployment: str, load: Load, *, url: str | None = None) -> None:
        """Take in what a running server says of itself; ``url`` tells which endpoint where there are several.

        Raises ``UnknownNameError``.
        """
        with self._lock:
            pool, capacity = self.rules.compiled.pool_named(deployment, url)
            self._situation.observe(pool, load, capacity, self._clock())
        self.pump()

    def signs(self, deployment: str, *, url: str | None = None) -> Signs:
        """How an endpoint has fared of late, the first one where ``url`` is not given; raises ``UnknownNameError``."""
        with self._lock:
            pool, _ = self.rules.compiled.pool_named(deployment, url)
            return self._situation.signs(self._now())[pool]

    def go_by(self, rules: Rules) -> None:
        """Go by other rules from now on, all at once. What is held where there is still the same server counts on, and
        so does what was learnt of it; leases, tickets and those who ask go on as they are."""
        with self._waiting.reconsidered(), self._lock:
            if rules.compiled is not self.rules.compiled:
                self._situation = self._situation.moved(rules.compiled, self._now())
            self.rules = rules
        self.pump()

    @property
    def clock(self) -> Callable[[], float]:
        """Its clock, in seconds: what the ``at`` of a load is told by."""
        return self._clock

    def doctor(self) -> list[Finding]:
        """What is wrong with the deployments, or may be: as they are set up and as they have run here; nobody is asked.

        The worst comes first. What the servers say of themselves is compared by ``agentroute doctor``.
        """
        from agentroute.doctor.running import examine

        with self._lock:
            rules, now = self.rules, self._now()
            signs, drifts = self._situation.signs(now), self._situation.corrections.drifting(now)
        return examine(rules.fleet.deployments, rules.compiled.pools, signs, drifts)

    def _now(self) -> float:
        """The time, with what was dropped by then let go of; called under the lock."""
        while self._dropped:
            placed = self._dropped.popleft()
            self._situation.ended(placed, None, self._clock())
            self._situation.ledger.free(placed.hold)
        return self._clock()

    def _release(self, lease: Lease, outcome: Outcome | None, after_s: float) -> None:
        with self._lock:
            placed, lease._placed = lease._placed, None
            if placed is None:
                return
            situation, now = self._situation, self._now()
            situation.ended(placed, outcome, now)
            if after_s > 0:
                situation.ledger.leave(placed.hold, at=now + after_s)
            else:
                situation.ledger.free(placed.hold)
        self.pump()

    def _read(self, lease: Lease) -> None:
        with self._lock:
            if lease._placed is not None:
                self._situation.begun(lease._placed, self._now())

    def _extend(self, lease: Lease, output_tokens: int) -> bool:
        with self._lock:
            placed = lease._placed
            if placed is None or placed.hold.deployment == GONE:
                return True
            tokens = lease.decision.task.context_tokens + output_tokens
            blocks = self.rules.compiled.block_table.units_at(placed.hold.deployment, tokens)
            return self._situation.extend(placed, blocks, self._clock())

    def _place(self, task: Task, waited_s: float, closed: frozenset[int] | None) -> Lease | Delay:
        """A lease where there is room now; else why not.

        ``closed`` are pools that it has no place in, ``None``: all of them.

        Raises ``NoFeasibleDeployment`` for what not even an idle fleet could take.
        """
        with self._lock:
            now = self._now()
            ask, _, objective = self.rules.ask(task, waited_s)
            state = self._situation.state(task, now, closed)
            if not minds(state.queue):
                found = self._leased(task, objective, ask, state, now)
                if found is not None:
                    return found
            assessment = Assessment(self.rules.compiled, ask, state, room_now=True)
            best = self._where(task, assessment, objective, waited_s)
            if isinstance(best, Delay):
                return best
            return self._lease(task, objective, assessment, assessment.there(best), now)

    def _where(self, task: Task, assessment: Assessment, objective: Objective, waited_s: float) -> int | Delay:
        """The deployment that a waiting task is placed at now, or why none; called under the lock."""
        return where(task, assessment, objective, self._situation.idle, waited_s, self._clock())

    def _room(self, delay: Delay) -> bool:
        """Whether some deployment has the blocks that somebody waits for; True where that is not what lacks."""
        with self._lock:
            fleet = self.rules.compiled
            if delay.blocks is None or fleet.replicated or len(delay.blocks) != len(fleet.deployments):
                return True
            held = self._situation.held(self._now())
        return bool((held.take(fleet.first_pool) + delay.blocks <= fleet.blocks).any())

    def _leased(self, task: Task, objective: Objective, ask: Ask, state: State, now: float) -> Lease | None:
        """A lease on what plain numbers find; ``None`` where arrays must be asked."""
        rules = self.rules
        quick = rules.quick if objective is FIT else None
        there = None if quick is None else quick.best(ask, state, room_now=True)
        if there is None:
            return None
        return self._lease(task, objective, Late(rules.compiled, ask, state, True), there, now)

    def _lease(self, task: Task, objective: Objective, on: Assessment | Late, there: There, now: float) -> Lease:
        """Hold what was found; called under the lock that it was found under."""
        placed = self._situation.take(task, on.ask, on.state, there, now)
        if placed is None:
            raise AssertionError("a deployment was chosen that has no room")
        best = there.deployment
        return Lease(self, Decision.of(task, objective, on, on.fleet.deployments[best], best, now), placed)
