"""What is true right now: what is held, what others do, who is down; and a task's view of it."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

import numpy as np
from numpy.typing import NDArray

from agentroute.assessment import Assessment, State
from agentroute.compiled import CompiledFleet
from agentroute.latency.table import mix_of
from agentroute.state.breaker import Breaker
from agentroute.state.ledger import Hold, Ledger
from agentroute.state.load import Foreign, Load, Others
from agentroute.task import Task

Floats = NDArray[np.float64]


def group_of(task: Task) -> Hashable:
    """What tells siblings from strangers; ``None`` for a task without siblings."""
    if task.concurrency == 1:
        return None
    return hash(task) if task.group is None else task.group


class Situation:
    """Not locked: the router calls it under its own lock."""

    def __init__(self, fleet: CompiledFleet) -> None:
        pools = len(fleet.pool_blocks)
        self.ledger, self.foreign, self.breaker = Ledger.of(fleet.pool_blocks), Foreign(pools), Breaker(pools)
        self.idle = State(np.zeros(pools), np.zeros(pools))
        """With nothing going on."""
        self._seen: tuple[Floats | None, Floats | None, Others | None] = None, None, None
        self._merged: tuple[Floats, Floats, float] = self.ledger.held, self.ledger.in_flight, 0.0

    def state(self, task: Task, now: float, closed: frozenset[int] = frozenset()) -> State:
        """What ``task`` meets at ``now``, with no place for it in the pools ``closed``."""
        ledger = self.ledger
        ledger.settle(now)
        siblings = 0
        if ledger.total and task.concurrency > 1:
            siblings = ledger.siblings(group_of(task))
        held, in_flight, total = self._both(now)
        own, up = ledger.total > 0, self.breaker.closed(now)
        if closed:
            up = np.ones(len(held), dtype=np.bool_) if up is None else up.copy()
            up[list(closed)] = False
        return State(
            held,
            in_flight,
            siblings,
            total,
            ledger.mix if own else None,
            ledger.in_flight if own else None,
            ledger.tpot_ms if ledger.promised else None,
            up=up,
        )

    def take(self, assessment: Assessment, d: int, group: Hashable, now: float) -> Hold | None:
        """Hold what the assessed task needs at deployment ``d``; ``None`` when it is not free."""
        a, fleet, ask = assessment, assessment.fleet, assessment.ask
        pool, service_ms = int(a.pool[d]), float(a.service_ms[d])
        return self.ledger.take(
            pool,
            int(a.units[d]),
            group,
            mix=mix_of(ask.isl, ask.osl),
            tpot_ms=promised_tpot_ms(a, d),
            foreign=float(self.foreign.current(now).blocks[pool]),
            at=now,
            prompt_blocks=int(-(-ask.context_tokens // fleet.block_tokens[d])),
            service_s=service_ms / 1_000.0 if service_ms == service_ms else 0.0,
        )

    def observe(self, pool: int, load: Load, capacity_blocks: float, now: float) -> None:
        """Take in what a running server says of itself."""
        self.ledger.settle(now)
        self.foreign.observe(
            pool,
            load,
            own_running=float(self.ledger.in_flight[pool]),
            own_blocks=self.ledger.used(pool, now),
            capacity_blocks=capacity_blocks,
            now=now,
        )

    def expected_wait_s(self, pool: int | None, ahead: int, now: float) -> float | None:
        """Seconds until one more request is done in ``pool`` (in any, for ``None``) after ``ahead`` others are.

        ``None`` where nothing is running that a time was predicted for.
        """
        ends = self.ledger.ends(pool)
        if not ends:
            return None
        # Beyond those in flight the same pace goes on.
        rounds, place = divmod(ahead, len(ends))
        return max(0.0, ends[place] - now) + rounds * max(0.0, ends[-1] - now)

    def _both(self, now: float) -> tuple[Floats, Floats, float]:
        """Blocks and requests of our own and of others, and all requests; the same arrays until something changes."""
        ledger, others = self.ledger, self.foreign.current(now)
        held, in_flight, before = self._seen
        if ledger.held is not held or ledger.in_flight is not in_flight or others is not before:
            together = ledger.in_flight + others.in_flight
            self._merged = ledger.held + others.blocks, together, float(together.sum())
            self._seen = ledger.held, ledger.in_flight, others
        return self._merged


def promised_tpot_ms(a: Assessment, d: int) -> float:
    """The TPOT that a task placed at ``d`` must keep to keep its SLOs, where it is predicted to; infinite: any."""
    least = inf
    for limit in a.ask.limits:
        if limit.metric == "tpot_ms":
            least = min(least, limit.limit_ms)
        elif limit.metric == "e2e_ms" and a.ask.osl > 1:
            least = min(least, (limit.limit_ms - float(a.ttft_ms[d])) / (a.ask.osl - 1.0))
    return least if least >= a.tpot_ms[d] else inf
