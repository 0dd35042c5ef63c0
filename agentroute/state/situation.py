"""What is true right now: what is held, what others do, what is warm, who is down; and a task's view of it."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

import numpy as np
from numpy.typing import NDArray

from agentroute.compiled import CompiledFleet
from agentroute.errors import FailureKind, UsageError, shown
from agentroute.inputs import Ask, Otherwise, State, There
from agentroute.outcome import Outcome
from agentroute.prefix import Mark, named
from agentroute.state.affinity import Affinity
from agentroute.state.breaker import FAULTS, Breaker
from agentroute.state.corrections import METRICS, Corrections, context_region
from agentroute.state.health import Health, Signs
from agentroute.state.ledger import GONE, Ledger, Shared
from agentroute.state.load import DOWN, Foreign, Load, Others
from agentroute.state.moved import Moved
from agentroute.state.placed import Placed
from agentroute.state.prefills import Prefills
from agentroute.state.throttle import Throttle
from agentroute.task import MAX_TOKENS, Task

Floats = NDArray[np.float64]


class Situation:
    """Not locked: the router calls it under its own lock."""

    def __init__(self, fleet: CompiledFleet) -> None:
        pools = len(fleet.pool_blocks)
        self._fleet = fleet
        self.ledger, self.foreign, self.breaker = Ledger.of(fleet.pool_blocks), Foreign(pools), Breaker(pools)
        self.prefills, self.throttle = Prefills(pools), Throttle()
        self.affinity, self.corrections = Affinity(fleet.cache_tokens), Corrections(len(fleet.deployments))
        self.health = Health(_pipelined(fleet))
        self.idle = State(np.zeros(pools), np.zeros(pools))
        """With nothing going on."""
        self._seen: tuple[Floats | None, Floats | None, Others | None] = None, None, None
        self._others = 0.0, False
        """What others have in flight, and whether they have anything."""
        self._grouped: tuple[Task | None, Hashable] = None, None
        self._merged: tuple[Floats, Floats, float] = self.ledger.held, self.ledger.in_flight, 0.0

    def state(self, task: Task, now: float, closed: frozenset[int] | None = frozenset()) -> State:
        """What ``task`` meets at ``now``, with no place for it in the pools ``closed`` (``None``: in none at all)."""
        ledger = self.ledger
        ledger.settle(now)
        held, in_flight, total = self._both(now)
        own, up = ledger.total > 0, self.breaker.closed(now)
        if self.throttle:
            up = self.throttle.allowed(up, ledger.in_flight, now)
        if closed is None:
            up = np.zeros(len(held), dtype=np.bool_)
        elif closed:
            up = np.ones(len(held), dtype=np.bool_) if up is None else up.copy()
            up[[pool for pool in closed if pool < len(up)]] = False  # some are told of an earlier fleet
        siblings, shared = 0, None
        if own and task.concurrency > 1:
            group = self._group(task)
            siblings = ledger.siblings(group)
            if task.shared_prefix_tokens and (pools := ledger.holds_shared((group, task.shared_prefix_tokens))):
                shared = np.zeros(len(held), dtype=np.bool_)
                shared[pools] = True
        tokens, table = task.expected_context_tokens or task.context_tokens, self.corrections.table(now)
        cached, otherwise = None, None
        if is_marked(task):
            cached, otherwise = self._warm(task, tokens, now)
        if table is not None:
            otherwise = Otherwise(table) if otherwise is None else otherwise._replace(factors=table)
        if own and task.group is not None and (in_flight_of := ledger.siblings(task.group)):
            otherwise = (otherwise or Otherwise())._replace(siblings=in_flight_of, shared=self._shared(task))
        return State(
            held,
            in_flight,
            siblings,
            total,
            ledger.resident if own else None,
            ledger.in_flight if own else None,
            self.prefills.queue(now),
            cached,
            up,
            shared,
            None if table is None else table[context_region(tokens)],
            otherwise,
        )

    def _warm(self, task: Task, tokens: int, now: float) -> tuple[Floats | None, Otherwise | None]:
        """How many of the prompt's ``tokens`` are cached, by pool, and of which parts."""
        warm_tokens, talks = self.affinity.warm_tokens, (task.parent_session_id, task.session_id)
        begun = talk = group = None
        if task.prefix:
            begun = warm_tokens(sorted((Mark(*mark) for mark in task.prefix), key=_by_tokens), now)
        if any(talks):
            talk = warm_tokens([named("session", one, MAX_TOKENS) for one in talks if one], now)
        if task.shared_prefix_tokens and (task.concurrency > 1 or task.group is not None):
            name = self._group(task) if task.group is None else task.group
            group = warm_tokens((named("group", str(name), task.shared_prefix_tokens),), now)
        if begun is None and talk is None and group is None:
            return None, None
        cached = begun
        if talk is not None:
            of_talk = np.minimum(talk, float(tokens))
            cached = of_talk if cached is None else np.maximum(cached, of_talk)
        if group is not None and task.concurrency > 1:
            cached = group if cached is None else np.maximum(cached, group)
        # An equal task alone is a sibling where no group is named: with other numbers it has none of it.
        return cached, Otherwise(None, begun, talk, None if task.group is None else group)

    def _shared(self, task: Task) -> tuple[tuple[int, NDArray[np.bool_]], ...]:
        """The prefixes that the task's group holds."""
        found = []
        for length, pools in self.ledger.shared_by(task.group).items() if task.shared_prefix_tokens else ():
            held = np.zeros(len(self._fleet.pool_blocks), dtype=np.bool_)
            held[pools] = True
            found.append((length, held))
        return tuple(found)

    def held(self, now: float) -> Floats:
        """Blocks of each pool that our own calls hold, and those that others use."""
        self.ledger.settle(now)
        return self._both(now)[0]

    def group_state(self, task: Task, now: float, closed: frozenset[int] = frozenset()) -> State:
        """What a group of tasks meets: no place for it where a server is only tried whether it is back, or whether it
        takes one more."""
        return self.state(task, now, closed | self.breaker.tripped() | self.throttle.narrowed())

    def has_free(self, pool: int, blocks: float, now: float) -> bool:
        """Whether so many blocks can be taken there, in so many parts as one likes."""
        ledger = self.ledger
        return bool(ledger.held[pool] + blocks + self.foreign.current(now).blocks[pool] <= ledger.capacity[pool])

    def take(self, task: Task, ask: Ask, state: State, there: There, now: float) -> Placed | None:
        """Hold what the task needs ``there``, as it was assessed in ``state``; ``None`` when it is not free."""
        d, pool = there.deployment, there.pool
        group, marks = self._group(task) if task.concurrency > 1 else None, marks_of(task)
        units, shared = there.units, None
        if task.shared_prefix_tokens and group is not None and self._fleet.keeps_prefixes[d]:
            # Siblings that say they share more, or less, do not share these blocks.
            blocks = self._fleet.block_table.whole(ask.shared_tokens)[d]
            shared = Shared((group, task.shared_prefix_tokens), int(blocks))
            if state.shared is not None and state.shared[pool]:
                units += shared.blocks  # ``units`` left them out, the ledger wants all
        cached = 0.0 if state.cached_tokens is None else min(float(state.cached_tokens[pool]), ask.isl)
        service_s = there.service_ms / 1_000.0
        self._passed(pool, now)
        before = int(self.ledger.in_flight[pool])
        hold = self.ledger.take(
            pool,
            int(units),
            group,
            shared=shared,
            resident=(ask.isl + ask.osl / 2.0) / 1_000.0,
            foreign=self.foreign.current(now).blocks.item(pool),
            at=now,
            prompt_blocks=self._fleet.block_table.units_at(d, ask.context_tokens),
            service_s=service_s if service_s == service_s else 0.0,
        )
        if hold is None:
            return None
        if marks:
            self.affinity.learn(pool, self._learnt(task, marks, now), now, ask.isl - cached)
        reading = self.prefills.sent(
            pool, there.prefill_ms, now, budget_ms=budget_ms(ask, state, there), turn_room_ms=turn_room_ms(ask, there)
        )
        probe, sent = self.breaker.probe_started(pool, now), self.throttle.sent(pool, before, now)
        hold.deployment, hold.reading = d, reading
        by_ttft, by_tpot = there.factors
        curve_ms = there.ttft_ms / by_ttft, there.tpot_ms / by_tpot
        return Placed(d, hold, reading, marks, probe, ask.isl, there.n_run, curve_ms, sent)

    def _learnt(self, task: Task, marks: tuple[Mark, ...], now: float) -> tuple[Mark, ...]:
        """``marks`` with that of the parent's conversation as long as it is known to be: beyond it the prompt is the
        task's own, and not that of the parent's other children."""
        if task.parent_session_id is None:
            return marks
        parent = named("session", task.parent_session_id, task.context_tokens)
        warm = self.affinity.warm_tokens((parent,), now)
        others = tuple(mark for mark in marks if mark.hash != parent.hash)
        if warm is None:
            return others
        return tuple(sorted((*others, Mark(parent.hash, int(warm.max()))), key=_by_tokens))

    def ended(self, placed: Placed, outcome: Outcome | None, now: float) -> None:
        """Learn from what became of a request; its hold is freed apart. ``None``: nothing was seen of it."""
        pool, deployment = placed.hold.pool, placed.hold.deployment
        if pool == GONE:
            return
        self._passed(pool, now)
        self.prefills.ended(placed.reading, now)
        if outcome is None or outcome.failure is not None:
            self._failed(placed, outcome, now)
            return
        self.breaker.succeeded(pool)
        self.throttle.answered(pool, placed.sent, now)
        for metric, predicted_ms in zip(METRICS, placed.curve_ms, strict=True):
            seen_ms = getattr(outcome, metric)
            if seen_ms is not None and deployment != GONE:
                self.corrections.seen(deployment, metric, placed.isl, placed.n, predicted_ms, seen_ms, now)
        if outcome.output_tokens:
            self.affinity.learn(pool, (), now, outcome.output_tokens)

    def _failed(self, placed: Placed, outcome: Outcome | None, now: float) -> None:
        """Learn from a request that was not answered."""
        pool, failure = placed.hold.pool, outcome and outcome.failure
        if outcome is not None and failure == FailureKind.OVERLOADED:
            others = int(self.ledger.in_flight[pool]) - 1
            self.throttle.turned_away(pool, placed.sent, others, now, outcome.retry_after_s)
        else:
            self.throttle.ended(pool, placed.sent)
        if failure in FAULTS:
            opened = self.breaker.failed(pool, now)
            if failure == FailureKind.ENGINE_DEAD or (opened and failure == FailureKind.UNAVAILABLE):
                # What cannot be reached, again and again, starts anew: with an empty cache.
                self.affinity.forget(pool)
        elif placed.probe:
            self.breaker.probe_ended(pool)

    def begun(self, placed: Placed, now: float) -> None:
        """Its first token came: its prompt is read, and the server has taken it."""
        if placed.hold.pool == GONE:
            return
        self.prefills.read(placed.reading, now)
        self.throttle.answered(placed.hold.pool, placed.sent, now)

    def observe(self, pool: int, load: Load, capacity_blocks: float, now: float) -> None:
        """Take in what a running server says of itself; a report that is older than the last is ignored.

        Raises ``UsageError`` for what is no load.
        """
        if not isinstance(load, Load):
            raise UsageError(f"what a server says of itself must be a Load, got {shown(load)}")
        if self.foreign.is_older(pool, load, now):
            return
        self.ledger.settle(now)
        self._passed(pool, now)
        self.health.reported(pool, load, now)
        if load.trouble in DOWN:
            self.breaker.reported_down(pool, now)
            self.affinity.forget(pool)  # it starts anew: with an empty cache
        else:
            self.breaker.reported_up(pool, now)
        self.foreign.observe(
            pool,
            load,
            own_running=float(self.ledger.in_flight[pool]),
            own_blocks=self.ledger.used(pool, now),
            capacity_blocks=capacity_blocks,
            now=now,
        )

    def extend(self, placed: Placed, blocks: int, now: float) -> bool:
        """Let a request's hold grow to ``blocks``; False, and noted, where the pool has no more."""
        extended = self.ledger.extend(placed.hold, blocks)
        if not extended:
            self.health.overran(placed.hold.pool, now)
        return extended

    def signs(self, now: float) -> list[Signs]:
        """How every pool has fared of late."""
        found = []
        for pool in range(len(self._fleet.pool_blocks)):
            self._passed(pool, now)
            closed_in_s = None if self.breaker.is_closed(pool) else self.breaker.wait_s(pool, now)
            age_s = self.foreign.age_s(pool, now)
            found.append(self.health.signs(pool, now, age_s=age_s, closed_in_s=closed_in_s))
        return found

    def moved(self, fleet: CompiledFleet, now: float) -> Situation:
        """Where things stand for another fleet: what is still there goes on as it was. This one is given up."""
        self.ledger.settle(now)
        new, to = Situation(fleet), Moved.between(self._fleet, fleet)
        new.ledger.adopt(self.ledger, to.pools, to.deployments)
        new.prefills.adopt(self.prefills, to.pools)
        new.breaker.adopt(self.breaker, to.pools)
        new.throttle.adopt(self.throttle, to.pools)
        new.foreign.adopt(self.foreign, to.pools)
        new.health.adopt(self.health, to.pools)
        new.affinity.adopt(self.affinity, to.pools)
        new.corrections.adopt(self.corrections, to.same_curves)
        return new

    def _passed(self, pool: int, now: float) -> None:
        """Note for how long there have been so many in flight, before that changes."""
        if pool in self.health.counted:
            others = self.foreign.current(now).in_flight[pool]
            self.health.passed(pool, float(self.ledger.in_flight[pool] + others), now)

    def expected_wait_s(self, pool: int | None, ahead: int, now: float) -> float | None:
        """Seconds until one more request is done in ``pool`` (in any, for ``None``) after ``ahead`` others are.

        Those that should have been done by now tell nothing: they may be over at any moment, or take as long again.
        ``None`` where nothing else is running that a time was predicted for.
        """
        there_still = pool is None or pool < len(self._fleet.pool_blocks)
        ends = [end for end in self.ledger.ends(pool if there_still else None) if end > now]
        if not ends:
            return None
        # Beyond those in flight the same pace goes on.
        rounds, place = divmod(ahead, len(ends))
        return ends[place] - now + rounds * (ends[-1] - now)

    def _both(self, now: float) -> tuple[Floats, Floats, float]:
        """Blocks and requests of our own and of others, and all requests; the same arrays until something changes."""
        ledger, others = self.ledger, self.foreign.current(now)
        held, in_flight, before = self._seen
        if ledger.held is not held or ledger.in_flight is not in_flight or others is not before:
            if others is not before:
                self._others = float(others.in_flight.sum()), bool(others.in_flight.any() or others.blocks.any())
            together, busy = (ledger.held, ledger.in_flight), float(ledger.total)
            if self._others[1]:
                together, busy = (
                    (ledger.held + others.blocks, ledger.in_flight + others.in_flight),
                    busy + self._others[0],
                )
            self._merged = *together, busy
            self._seen = ledger.held, ledger.in_flight, others
        return self._merged

    def _group(self, task: Task) -> Hashable:
        """``group_of``, which takes as long as ten other steps, once for each task that is placed."""
        asked, group = self._grouped
        if asked is not task:
            self._grouped = task, (group := group_of(task))
        return group


def _pipelined(fleet: CompiledFleet) -> set[int]:
    """The pools of deployments that split layers."""
    sides = [(d.profile.sharding, d.profile.disaggregated) for d in fleet.deployments]
    splits = [apart.decode.sharding if apart else split for split, apart in sides]
    return {pool for pools, split in zip(fleet.pools, splits, strict=True) if split and split.pp > 1 for pool in pools}


def group_of(task: Task) -> Hashable:
    """What tells siblings from strangers; ``None`` for a task without siblings."""
    if task.concurrency == 1:
        return None
    return hash(task) if task.group is None else task.group


def is_marked(task: Task) -> bool:
    """Whether anything is known of what the prompt begins with."""
    return bool(task.prefix or task.session_id or task.parent_session_id or (task.shared_prefix_tokens))


def marks_of(task: Task) -> tuple[Mark, ...]:
    """What is known of what the prompt begins with: its messages, its conversation, what its siblings share."""
    if not is_marked(task):
        return ()
    tokens = task.expected_context_tokens or task.context_tokens
    found = [Mark(*mark) for mark in task.prefix]
    found += [named("session", one, tokens) for one in (task.parent_session_id, task.session_id) if one]
    if task.shared_prefix_tokens and (group := group_of(task)) is not None:
        found.append(named("group", str(group), task.shared_prefix_tokens))
    return tuple(sorted(found, key=_by_tokens))


def _by_tokens(mark: Mark) -> int:
    return mark.tokens


def budget_ms(ask: Ask, state: State, there: There) -> float:
    """What a task placed there can lose to others' prompts while it is answered, by its SLOs; infinite: any."""
    least, reading = inf, state.queue.reading if state.queue else None
    lost_ms = 0.0 if reading is None else there.tpot_ms * float(reading[there.pool])
    for limit in ask.limits:
        if limit.metric == "tpot_ms":
            least = min(least, (limit.limit_ms - (there.tpot_ms - lost_ms)) * ask.osl)
        elif limit.metric == "e2e_ms":
            least = min(least, limit.limit_ms - (there.service_ms + there.wait_ms) + lost_ms * ask.osl)
    return least


def turn_room_ms(ask: Ask, there: There) -> float:
    """What it could have waited for the prompts before its own, by the TTFT that it must keep; infinite: any."""
    least = inf
    for limit in ask.limits:
        if limit.metric == "ttft_ms":
            least = min(least, limit.limit_ms)
    return least - there.prefill_ms
