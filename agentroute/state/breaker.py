"""A breaker for each pool: after faults in a row its server is left alone for a while, then tried with one call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentroute.errors import FailureKind
from agentroute.state.steady import Steady

FAULTS = frozenset(
    {
        FailureKind.UNAVAILABLE,
        FailureKind.ENGINE_DEAD,
        FailureKind.INTERRUPTED,
        FailureKind.TIMEOUT,
    }
)
"""What a breaker is told of. A client's mistake (bad_request, auth, not_found, context_overflow) and a caller who left
(cancelled, deadline) say nothing about the server and are never reported. A server that is full (overloaded) is up: it
is sent less, see ``throttle``."""
FAILURES = 3
"""Faults in a row that open a breaker. Assumed."""
WINDOW_S = 30.0
"""... all within so many seconds: faults that lie further apart are no series. Assumed."""
OPEN_S = 2.0
"""How long it stays open at first; twice as long after every probe that failed. Assumed."""
MAX_OPEN_S = 60.0
"""... and never longer: a server that restarted is found after a minute at the latest. Assumed. A report that it is
down counts for so long, too, so that one who stops reporting keeps nobody away for ever."""
PROBE_S = 120.0
"""A probe that nobody ended is forgotten after so long, longer than most prefills. Assumed."""


@dataclass(slots=True)
class _Open:
    """A breaker that is not closed: open until a time, then half-open, with a probe on its way or without."""

    until: float
    open_s: float
    probe_until: float = -math.inf
    reported: bool = False
    """Whether a report opened it, and not calls that failed."""


class Breaker:
    """Closed, open or half-open, by pool. Not locked: the router calls it under its own lock.

    Closed: calls go through. After ``FAILURES`` faults in a row within ``WINDOW_S`` it opens, and none goes through.
    After ``OPEN_S`` it is half-open: exactly one, the probe. Its success closes the breaker, its fault opens it for
    twice as long. Calls that were under way when it opened add nothing by failing; one that succeeds closes it.
    """

    def __init__(self, pools: int) -> None:
        self._pools = pools
        self._faults: dict[int, list[float]] = {}
        self._open: dict[int, _Open] = {}
        self._steady = Steady()
        self._closed: NDArray[np.bool_] | None = None
        self._due = math.inf

    def failed(self, pool: int, now: float) -> bool:
        """A call there ended with one of ``FAULTS``; whether it opened the breaker, or opened it again."""
        time = self._steady(now)
        if (state := self._open.get(pool)) is not None:
            if time < state.probe_until:
                open_s = min(2.0 * state.open_s, MAX_OPEN_S)
                self._open[pool] = _Open(time + open_s, open_s)
                self._reckon(time)
                return True
            return False
        faults = [at for at in self._faults.get(pool, ()) if time - at <= WINDOW_S]
        faults.append(time)
        if len(faults) < FAILURES:
            self._faults[pool] = faults
            return False
        self._faults.pop(pool, None)
        self._open[pool] = _Open(time + OPEN_S, OPEN_S)
        self._reckon(time)
        return True

    def reported_down(self, pool: int, now: float) -> None:
        """Somebody asked the server how it is: it cannot take a request. No call need fail to find that out."""
        time = self._steady(now)
        self._faults.pop(pool, None)
        self._open[pool] = _Open(time + MAX_OPEN_S, OPEN_S, reported=True)
        self._reckon(time)

    def reported_up(self, pool: int, now: float) -> None:
        """... it can. Where only such a report had opened the breaker it is half-open now; else that says nothing."""
        if self._open and (state := self._open.get(pool)) is not None and state.reported:
            time = self._steady(now)
            self._open[pool] = _Open(time, OPEN_S, state.probe_until)
            self._reckon(time)

    def succeeded(self, pool: int) -> None:
        """A call there was answered; its first token is enough to say so."""
        if self._faults:
            self._faults.pop(pool, None)
        if self._open and self._open.pop(pool, None) is not None:
            self._reckon(self._steady.last)

    def probe_started(self, pool: int, now: float) -> bool:
        """A call goes there; whether it is the probe, which whoever started it must see to the end."""
        if not self._open or (state := self._open.get(pool)) is None:
            return False
        time = self._steady(now)
        if time < state.until or time < state.probe_until:
            return False
        state.probe_until = time + PROBE_S
        self._reckon(time)
        return True

    def probe_ended(self, pool: int) -> None:
        """The probe ended and told nothing (it was cancelled, or was a client's mistake): the next may try."""
        if (state := self._open.get(pool)) is not None:
            state.probe_until = -math.inf
            self._reckon(self._steady.last)

    def closed(self, now: float) -> NDArray[np.bool_] | None:
        """Which pools a call may go to, shape (pools,), not to be written to; ``None``: to all of them.

        A half-open one counts, until its probe is on its way.
        """
        if self._closed is None:
            return None
        time = self._steady(now)
        if time >= self._due:
            self._reckon(time)
        return self._closed

    def tripped(self) -> frozenset[int]:
        """The pools whose breaker is open or half-open: one call at most may go there, no group."""
        return frozenset(self._open)

    def is_closed(self, pool: int) -> bool:
        """False where it is open or half-open: nobody knows yet whether the server is back."""
        return pool not in self._open

    def wait_s(self, pool: int, now: float) -> float:
        """Seconds until a call may go there, 0 when it may now; a probe on its way counts until it is forgotten."""
        if (state := self._open.get(pool)) is None:
            return 0.0
        shut_s = max(state.until, state.probe_until, time := self._steady(now)) - time
        return min(shut_s, max(MAX_OPEN_S, PROBE_S))  # a time and 120 s, less that time, may be more by its rounding

    def adopt(self, old: Breaker, pools: Mapping[int, int]) -> None:
        """Take over what is known of pools that have new numbers."""
        self._faults = {pools[pool]: faults for pool, faults in old._faults.items() if pool in pools}
        self._open = {pools[pool]: state for pool, state in old._open.items() if pool in pools}
        self._steady = old._steady
        self._reckon(self._steady.last)

    def _reckon(self, time: float) -> None:
        """Prepare what ``closed`` answers until something changes."""
        shut = [(pool, max(state.until, state.probe_until)) for pool, state in self._open.items()]
        shut = [(pool, until) for pool, until in shut if until > time]
        self._due = min((until for _, until in shut), default=math.inf)
        if not shut:
            self._closed = None
            return
        closed = np.ones(self._pools, dtype=np.bool_)
        closed[[pool for pool, _ in shut]] = False
        closed.flags.writeable = False
        self._closed = closed
