"""The router's own queue: who waits for room, in which order, and for how long about.

A request that finds no room waits here rather than in an engine's queue: here it can still go elsewhere, and nothing is
over-committed. The order is by priority; within one, those that can still keep their SLOs come first, the earliest due
before the others; the rest after them, in the order they came. Waiting raises the priority, so that nobody waits for
ever.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentroute.errors import AgentrouteError, UsageError
from agentroute.task import PRIORITIES, Task, slo

if TYPE_CHECKING:
    from agentroute.router import Lease

AGE_S = 30.0
"""Who has waited so long counts as one priority higher. Assumed."""
RESERVE_S = 5.0
"""For who has waited so long for room a pool is kept free, however many smaller ones would still fit. Assumed."""
MOST_TRIED = 64
"""Tickets that are tried when something changes; those behind them get their turn as these go."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Why a task is not placed now."""

    hopeless: bool = False
    """Whether its SLOs could not be kept any more, even by an idle fleet."""
    pool: int | None = None
    """The pool that it waits for room in; ``None``: it is not room that lacks."""


Place = Callable[[Task, float, frozenset[int]], "Lease | Delay"]
"""Place a task that has waited so many seconds, but in none of these pools. Raises what it is refused with."""


class Ticket:
    """A task's place in the queue; once ``done``, its ``lease`` is set, or what it was ``refused`` with."""

    def __init__(self, queue: Waiting, task: Task, at: float, on_done: Callable[[Ticket], None] | None) -> None:
        self.task, self.at = task, at
        self.lease: Lease | None = None
        self.refused: AgentrouteError | None = None
        self.cancelled = False
        self.delay = Delay()
        self._queue, self._on_done = queue, on_done
        self.due = at + _patience_s(task)
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

    def _finish(self, lease: Lease | None, refused: AgentrouteError | None) -> None:
        self.lease, self.refused = lease, refused

    def _tell(self) -> None:
        if self._on_done is not None:
            self._on_done(self)


class Waiting:
    """The queue. Thread-safe; callbacks are called outside its lock, by whichever thread placed them."""

    def __init__(self, place: Place, clock: Callable[[], float]) -> None:
        self._place, self._clock = place, clock
        self._tickets: list[Ticket] = []
        self._looked_at = -math.inf
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._tickets)

    def join(self, task: Task, on_done: Callable[[Ticket], None] | None = None) -> Ticket:
        """Queue ``task``; where nobody is before it and there is room, its ticket is done at once."""
        ticket = Ticket(self, task, self._clock(), on_done)
        with self._lock:
            self._tickets.append(ticket)
        self.pump()
        return ticket

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
        for ticket in done:
            ticket._tell()
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
            ticket._tell()

    def ahead(self, ticket: Ticket) -> int:
        """How many come before ``ticket``."""
        with self._lock:
            now = self._clock()
            own = _order(ticket, now)
            return sum(_order(other, now) < own for other in self._tickets if other is not ticket)

    def _placed(self, now: float) -> list[Ticket]:
        """Try those that wait, in their order."""
        done: list[Ticket] = []
        reserved: set[int] = set()
        delayed: dict[Task, Delay] = {}
        self._looked_at = now
        for ticket in sorted(self._tickets, key=lambda ticket: _order(ticket, now))[:MOST_TRIED]:
            waited_s = max(0.0, now - ticket.at)
            if waited_s < AGE_S and ticket.task in delayed:
                ticket.delay = delayed[ticket.task]
                continue
            try:
                found = self._place(ticket.task, waited_s, frozenset(reserved))
            except AgentrouteError as refused:
                ticket._finish(None, refused)
                done.append(ticket)
                continue
            if not isinstance(found, Delay):
                ticket._finish(found, None)
                done.append(ticket)
                continue
            ticket.delay = delayed[ticket.task] = found
            if found.pool is not None and waited_s >= RESERVE_S:
                reserved.add(found.pool)
        return done


def _order(ticket: Ticket, now: float) -> tuple[float, bool, float, float]:
    aged = PRIORITIES.index(ticket.task.priority) - math.floor(max(0.0, now - ticket.at) / AGE_S)
    hopeless = ticket.delay.hopeless
    return aged, hopeless, math.inf if hopeless else ticket.due, ticket.at


def _patience_s(task: Task) -> float:
    """Seconds until the first of its own limits on waiting has passed."""
    limits = ((slo(task.ttft_ms), 0.001), (slo(task.deadline_s), 1.0))
    return min((scale * limit.value for limit, scale in limits if limit is not None), default=math.inf)
