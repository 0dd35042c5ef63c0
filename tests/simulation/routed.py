"""agentroute's router as a policy, whole or with one of its rules taken away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from simulation.engine import Server
from simulation.grounds import Ground, alike, fleet, profiles
from simulation.trace import Kind, Request
from simulation.world import Gauges, Placement, Policy, Result

from agentroute.assessment import Assessment
from agentroute.errors import PoolFull
from agentroute.lease import Lease
from agentroute.outcome import Outcome
from agentroute.policy import Objective
from agentroute.prefix import Mark
from agentroute.profile import Profile
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import Priority, Slo, Task
from agentroute.waiting import Delay, Ticket

PRIORITY: dict[Kind, Priority] = {"session": "interactive", "long": "agent", "burst": "agent", "batch": "batch"}
CANCEL_S = 0.2
"""How long a server keeps a cancelled request."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the router is given and may do."""

    curves: bool = True
    """Each deployment's own; without, all are believed to be as fast as the first."""
    prefix: bool = True
    """What a prompt begins with."""
    feedback: bool = True
    """How long calls took."""
    yields: bool = True
    """Whether a task waits where it would cost others more SLOs than it keeps."""
    queue: bool = True
    """Its own queue; without, what has no room now is sent on to wait in the engine that ``decide`` names."""
    scrapes: bool = True
    """The servers' gauges."""
    limits: bool = True
    """The tasks' SLOs."""
    objective: str = "fit"


def headroom(a: Assessment) -> NDArray[np.float64]:
    """The most free KV blocks: what spreads load and no more."""
    return np.asarray(a.held + a.units - a.fleet.blocks + a.fleet.blocks.max())


class Unyielding(Router):
    """A router in which nobody waits for the sake of others."""

    def _where(self, task: Task, assessment: Assessment, objective: Objective, waited_s: float) -> int | Delay:
        return super()._where(task, assessment, objective, math.inf)


class Routed:
    """Tasks go through ``Router.queue``; what is placed later comes with whatever made room."""

    def __init__(self, known: Sequence[Profile], rules: Rules) -> None:
        self.now = 0.0
        self.rules = rules
        known = known if rules.curves else alike(known)
        self.names = [p.name for p in known]
        self.router = (Router if rules.yields else Unyielding)(
            fleet(known), objective=rules.objective, objectives={"headroom": headroom}, clock=lambda: self.now
        )
        self._tickets: dict[int, Ticket] = {}
        self._leases: dict[int, Lease] = {}
        self._placed: list[Placement] = []

    def arrive(self, request: Request, now: float) -> Iterable[Placement]:
        self.now = now
        task = task_of(request, self.rules)
        if self.rules.queue:
            ticket = self.router.queue(task, on_done=lambda ticket: self._done(request, ticket))
            if not ticket.done:
                self._tickets[request.number] = ticket
        else:
            try:
                self._hold(request, self.router.acquire(task))
            except PoolFull:
                self._place(request, self.router.decide(task).deployment)
        return self._drain()

    def answers(self, request: Request, now: float) -> Iterable[Placement]:
        self.now = now
        if self.rules.feedback and (lease := self._leases.get(request.number)) is not None:
            lease.first_token()
        return self._drain()

    def ended(self, request: Request, result: Result, now: float) -> Iterable[Placement]:
        self.now = now
        lease, call = self._leases.pop(request.number, None), result.call
        if lease is not None and call is not None:
            lease.settle(outcome_of(request, result, self.rules), after_s=CANCEL_S if call.aborted else 0.0)
        return self._drain()

    def given_up(self, request: Request, now: float) -> Iterable[Placement]:
        self.now = now
        if (ticket := self._tickets.pop(request.number, None)) is not None:
            ticket.cancel()
        return self._drain()

    def observe(self, gauges: Sequence[Gauges], now: float) -> Iterable[Placement]:
        self.now = now
        for name, seen in zip(self.names, gauges, strict=True):
            if self.rules.scrapes:
                self.router.observe(name, Load(running=seen.running, waiting=seen.waiting, kv_used=seen.kv_usage))
        self.router.pump()
        return self._drain()

    def _done(self, request: Request, ticket: Ticket) -> None:
        if not ticket.cancelled:
            self._tickets.pop(request.number, None)
            self._hold(request, ticket.result())

    def _hold(self, request: Request, lease: Lease) -> None:
        self._leases[request.number] = lease
        self._place(request, lease.deployment.name)

    def _place(self, request: Request, name: str) -> None:
        self._placed.append(Placement(request, self.names.index(name)))

    def _drain(self) -> list[Placement]:
        placed, self._placed = self._placed, []
        return placed


def task_of(request: Request, rules: Rules) -> Task:
    """A request as an agent would put it: its SLOs are soft."""
    burst, limits = request.kind == "burst", rules.limits
    return Task(
        context_tokens=request.prompt_tokens,
        max_output_tokens=request.max_output_tokens,
        expected_output_tokens=request.expected_output_tokens,
        concurrency=request.siblings,
        group=request.session if burst else None,
        shared_prefix_tokens=request.pieces[-2].end if burst and rules.prefix else 0,
        session_id=request.session if rules.prefix and not burst else None,
        prefix=tuple(Mark(piece.key, piece.end) for piece in request.pieces) if rules.prefix else (),
        priority=PRIORITY[request.kind],
        ttft_ms=Slo(request.ttft_s * 1e3, hard=False) if request.ttft_s and limits else None,
        tpot_ms=Slo(request.tpot_s * 1e3, hard=False) if request.tpot_s and limits else None,
        deadline_s=Slo(request.deadline_s, hard=False) if request.deadline_s and limits else None,
    )


def outcome_of(request: Request, result: Result, rules: Rules) -> Outcome:
    """What the caller saw of a call."""
    call = result.call
    assert call is not None
    ttft_s = None if call.first_token_at is None else call.first_token_at - call.sent_at
    e2e_s = None if call.done_at is None else call.done_at - call.sent_at
    tpot_s = None
    if ttft_s is not None and e2e_s is not None and request.output_tokens > 1:
        tpot_s = (e2e_s - ttft_s) / (request.output_tokens - 1)
    seen = Outcome(
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens if e2e_s is not None else None,
        cached_tokens=call.cached_tokens,
    )
    if not rules.feedback:
        return seen
    ms = [None if s is None else s * 1e3 for s in (ttft_s, tpot_s, e2e_s)]
    return replace(seen, ttft_ms=ms[0], tpot_ms=ms[1], e2e_ms=ms[2])


def routed(ground: Ground, rules: Rules = Rules()) -> Callable[[Sequence[Server], int], Policy]:
    """Makes the router for a fleet; the seed of the trace is that of what its curves are off by, too."""
    return lambda servers, seed: Routed(profiles(ground, seed), rules)
