"""The router's own queue: who waits for room, in which order, and for how long about.

A request that finds no room waits here rather than in an engine's queue: here it can still go elsewhere, and nothing is
over-committed. So does one that would cost others more SLOs than it keeps (``misses.costs_more``): past saturation
somebody must be late, and this way the fewest are. Those that can still keep their SLOs come first, by priority and
then the earliest due; the rest after them, by priority and in the order they came. Waiting raises the priority, and
nobody yields to others for longer than ``LATE_S``, so that nobody waits for ever.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentroute.assessment import Assessment
from agentroute.errors import UsageError, shown
from agentroute.inputs import State
from agentroute.misses import costs_more
from agentroute.own import Lock
from agentroute.policy import Objective
from agentroute.ranking import MISSED
from agentroute.refusal import refusal
from agentroute.route import Route, soft
from agentroute.task import PRIORITIES, Task, slo

if TYPE_CHECKING:
    from agentroute.lease import Lease

AGE_S = 30.0
"""Who has waited so long counts as one priority higher. Assumed."""
RESERVE_S = 5.0
"""For who has waited so long for room a pool is kept free, however many smaller ones would still fit. Assumed."""
LATE_S = 120.0
"""Who can no longer keep its SLOs comes after those that can, and who would cost others theirs waits for them, but for
so long at most. Assumed."""
LOOK_AGAIN_S = 0.5
"""Who waits so as not to cost others their SLOs is not tried again sooner: what harms them changes no faster."""
MOST_REFUSED = 12
"""So many that find no place, one after the other, and nobody behind them is tried who may go to the same deployments:
those that come first are served first, and each try takes a tenth of a millisecond. Assumed."""
MOST_TRIED = 64
"""Tickets for the same deployments that are tried when something changes; those behind them get their turn as these
go."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Why a task is not placed now."""

    hopeless: bool = False
    """Whether its SLOs can no longer be kept: not even by an idle fleet, or not where it would be placed now."""
    pool: int | None = None
    """The pool that it waits for room in; ``None``: it is not room that lacks."""
    blocks: NDArray[np.float64] | None = None
    """What it needs at each deployment at the least, where it waits for room; NaN: that one cannot take it."""
    slack_s: float = math.inf
    """For so long an idle fleet could still keep its SLOs (its hard ones, where it is hopeless)."""
    again_s: float = 0.0
    """It need not be tried again before; more than 0: there is room, but others would lose more by it than it gains."""
    among: bytes | None = None
    """The deployments that may take it and can hold it; ``None``: not known yet."""


_NOWHERE: frozenset[int] = frozenset()
Place = Callable[[Task, float, "frozenset[int] | None"], "Lease | Delay"]
"""Place a task that has waited so many seconds, but in none of these pools (``None``: nowhere, only say why). Raises
what it is refused with."""
Room = Callable[[Delay], bool]
"""Whether there may be room by now for who waits for it; without, nothing else need be looked at."""


class Ticket:
    """A task's place in the queue; once ``done``, its ``lease`` is set, or what it was ``refused`` with."""

    def __init__(
        self, queue: Waiting, task: Task, at: float, on_done: Callable[[Ticket], None] | None, route: Route | None
    ) -> None:
        self.task, self.at = task, at
        self.lease: Lease | None = None
        self.refused: Exception | None = None
        self.cancelled = False
        self.delay = Delay()
        self.hope_until = -math.inf
        """Until then only room can change where it stands."""
        self.again_at = -math.inf
        """It is not tried before."""
        self._queue, self._on_done = queue, on_done
        self.number = next(queue.numbers)
        """Of those that came at the same time, the one with the lower number was first."""
        self.rank = PRIORITIES.index(task.priority or (route and route.priority) or "agent")
        """By its priority: the lowest comes first."""
        self.due = at + _patience_s(task, route)
        """When it must have been placed to keep its SLOs, in seconds of the router's clock; infinite: it has none."""

    @property
    def done(self) -> bool:
        """Whether it waits no longer."""
        return self.lease is not None or self.refused is not None or self.cancelled

    @property
    def ahead(self) -> int:
        """How many come before it."""
        return self._queue.ahead(self)

    def cancel(self) -> None:
        """Leave the queue; a lease that it has already is let go of."""
        self._queue.cancel(self)

    def result(self) -> Lease:
        """The lease; raises what it was refused with, or ``UsageError`` while it waits or when it was cancelled."""
        if self.refused is not None:
            raise self.refused
        if self.lease is None:
            raise UsageError("the ticket was cancelled" if self.cancelled else "the ticket waits still")
        return self.lease

    def _finish(self, lease: Lease | None, refused: Exception | None) -> None:
        # A traceback would keep alive what the frames of its callers hold, leases among it.
        self.lease, self.refused = lease, refused and refused.with_traceback(None)

    def _tell(self) -> None:
        if self._on_done is not None:
            self._on_done(self)


class Waiting:
    """The queue. Thread-safe; callbacks are called outside its lock, by whichever thread placed them."""

    def __init__(self, place: Place, room: Room, clock: Callable[[], float]) -> None:
        self._place, self._room, self._clock = place, room, clock
        self._tickets: list[Ticket] = []
        self._looked_at = -math.inf
        self.numbers = count()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._tickets)

    def join(
        self,
        task: Task,
        on_done: Callable[[Ticket], None] | None = None,
        route: Route | None = None,
        waited_s: float = 0.0,
    ) -> Ticket:
        """Queue ``task``; where nobody is before it and there is room, its ticket is done at once.

        So it is where it can never be placed, however many wait. ``route`` is the one whose SLOs apply; ``waited_s`` is
        how long it has waited elsewhere.
        """
        ticket = Ticket(self, task, self._clock() - waited_s, on_done, route)
        if len(self._tickets) >= MOST_REFUSED:  # it may not be tried
            try:
                why = self._place(task, waited_s, None)
            except Exception as refused:
                ticket._finish(None, refused)
                ticket._tell()
                return ticket
            if isinstance(why, Delay):
                ticket.delay = why
        with self._lock:
            self._tickets.append(ticket)
        self.pump()
        return ticket

    def at_once(self, task: Task, waited_s: float = 0.0) -> Lease | None:
        """The lease that a ticket for ``task`` would be done with at once, without one; ``None``: it may have to wait.

        Raises what the ticket would be refused with.
        """
        if self._tickets:
            return None
        found = self._place(task, waited_s, _NOWHERE)
        return None if isinstance(found, Delay) else found

    def pump(self, every_s: float = 0.0) -> list[Ticket]:
        """Place whom what has changed makes room for, and refuse whom it leaves none for; those are returned.

        Called whenever something has changed; with nobody waiting it costs nothing. Nothing is done when it was done
        less than ``every_s`` ago.
        """
        if not self._tickets or self._clock() - self._looked_at < every_s:
            return []
        with self._lock:
            done = self._placed(self._clock())
            gone = set(map(id, done))
            self._tickets = [ticket for ticket in self._tickets if id(ticket) not in gone]
        if len(done) == 1:
            done[0]._tell()
            return done
        with ExitStack() as all_are_told:  # whatever one of them raises
            for ticket in reversed(done):
                all_are_told.callback(ticket._tell)
        return done

    def cancel(self, ticket: Ticket) -> None:
        """Take ``ticket`` out of the queue, or let go of its lease."""
        with self._lock:
            waits = not ticket.done
            if waits:
                ticket.cancelled = True
                self._tickets = [other for other in self._tickets if other is not ticket]
        if ticket.lease is not None:
            ticket.lease.release()
        elif waits:
            with ExitStack() as both:  # a pool may have been kept free for it
                both.callback(self.pump)
                ticket._tell()

    @contextmanager
    def reconsidered(self) -> Iterator[None]:
        """Nobody is placed inside the block; what those that wait were told until then is forgotten."""
        with self._lock:
            yield
            for ticket in self._tickets:
                ticket.delay, ticket.hope_until, ticket.again_at = Delay(), -math.inf, -math.inf

    def ahead(self, ticket: Ticket) -> int:
        """How many come before ``ticket``."""
        with self._lock:
            now = self._clock()
            own = _order(ticket, now)
            return sum(_order(other, now) < own for other in self._tickets if other is not ticket)

    def ahead_of(self, task: Task, routes: Mapping[str, Route]) -> int:
        """How many would come before a task that came now; raises ``UsageError`` for what is none."""
        check_task(task)
        return self.ahead(Ticket(self, task, self._clock(), None, routes.get(task.route))) if self._tickets else 0

    def _placed(self, now: float) -> list[Ticket]:
        """Try those that wait, in their order."""
        done: list[Ticket] = []
        reserved: set[int] = set()
        delayed: dict[Task, Delay] = {}
        looked_at: dict[bytes | None, int] = defaultdict(int)
        refused_in_a_row: dict[bytes | None, int] = defaultdict(int)
        self._looked_at = now
        for ticket in sorted(self._tickets, key=lambda ticket: _order(ticket, now)):
            among = ticket.delay.among
            looked_at[among] += among is not None
            if looked_at[among] > MOST_TRIED:
                continue
            waited_s = max(0.0, now - ticket.at)
            if waited_s < AGE_S and ticket.task in delayed:
                ticket.delay = delayed[ticket.task]
                continue
            if now < ticket.again_at:
                continue
            if now < ticket.hope_until and not self._room(ticket.delay):
                found = ticket.delay
            else:
                if refused_in_a_row[among] >= MOST_REFUSED:
                    continue
                try:
                    answer = self._place(ticket.task, waited_s, frozenset(reserved))
                except Exception as refused:  # one of an objective of the user's own, too: it is that task's alone
                    ticket._finish(None, refused)
                    done.append(ticket)
                    continue
                if not isinstance(answer, Delay):
                    ticket._finish(answer, None)
                    done.append(ticket)
                    refused_in_a_row.clear()
                    continue
                ticket.delay = found = answer
                refused_in_a_row[found.among] += 1
                ticket.hope_until, ticket.again_at = now + found.slack_s, now + found.again_s
            if not found.hopeless:  # one that came later may still have hope
                delayed[ticket.task] = found
            if found.pool is not None and waited_s >= RESERVE_S:
                reserved.add(found.pool)
        return done


def check_task(task: object) -> None:
    """Raise ``UsageError`` unless it is a task."""
    if not isinstance(task, Task):
        raise UsageError(f"a router must be asked with a Task, got {shown(task)}")


def check_avoid(avoid: Iterable[int], pools: int) -> None:
    """Raise ``UsageError`` unless they are numbers of pools."""
    for pool in avoid:
        if isinstance(pool, bool) or not isinstance(pool, int) or not 0 <= pool < pools:
            raise UsageError(f"avoid must hold pools, as Decision.pool says, from 0 to {pools - 1}, got {shown(pool)}")


def check_waited(task: object, waited_s: float) -> None:
    """Raise ``UsageError`` unless it is a task that can have waited for so many seconds."""
    check_task(task)
    if not isinstance(waited_s, int | float) or not 0.0 <= waited_s < math.inf:
        raise UsageError(f"waited_s must be a finite number of seconds, 0 or more, got {shown(waited_s)}")


def where(task: Task, a: Assessment, objective: Objective, idle: State, waited_s: float, now: float) -> int | Delay:
    """The deployment that a waiting task is placed at now, or why none; ``idle`` is the state with nothing going on.

    Raises ``NoFeasibleDeployment`` for what not even an idle fleet could take.
    """
    best, among = a.best(objective), b"" if a.fits is None else a.fits.tobytes()
    if best is not None:
        if waited_s >= LATE_S or not objective.weighs_slos or not costs_more(a, best, waited_s):
            return best
        keeps = a.used is not None and bool(a.used[best] <= 1.0)
        return Delay(not keeps, again_s=LOOK_AGAIN_S, among=among)
    alone = Assessment(a.fleet, a.ask._replace(concurrency=1.0), idle, room_now=False)
    blocks = a.least_units if a.fits is None else np.where(a.fits, a.least_units, np.nan)
    first = alone.best(objective)
    if first is None:
        if a.able is not None and a.able.any():
            # What is warm, or who shares the costs, lets one take it as long as that lasts.
            return Delay(blocks=blocks, slack_s=0.0, among=among)
        raise refusal(task, objective, alone, now)
    hopeless = bool(alone.rank[first] >= MISSED)
    slack_s = alone.slack_ms(first, hard=hopeless) / 1_000.0
    return Delay(hopeless, int(alone.pool[first]), blocks, slack_s, among=among)


def _order(ticket: Ticket, now: float) -> tuple[bool, float, float, float, int]:
    waited_s = max(0.0, now - ticket.at)
    late = ticket.delay.hopeless and waited_s < LATE_S
    aged = ticket.rank - math.floor(waited_s / AGE_S)
    return late, aged, math.inf if ticket.delay.hopeless else ticket.due, ticket.at, ticket.number


def _patience_s(task: Task, route: Route | None) -> float:
    """Seconds until the first of the limits on its waiting has passed, its own or those of its route."""
    limits = (
        (slo(task.ttft_ms) or soft(route.ttft_ms if route else None), 0.001),
        (slo(task.deadline_s) or soft(route.deadline_s if route else None), 1.0),
    )
    return min((scale * limit.value for limit, scale in limits if limit is not None), default=math.inf)
