"""How many at once a pool is sent once it has turned somebody away: less, but not nothing.

A server that is full is not down. It serves those that it took, so what it had when it said no is what it takes. So
many are sent again as those end; one more is tried after a while.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentroute.state.steady import Steady

FIRST_S = 0.5
"""So long after somebody was turned away one more is tried; twice as long after every such try that fails. Assumed."""
MOST_S = 10.0
"""... and never longer: a place that others gave up is found after ten seconds at the latest. Assumed."""
MOST_PAUSE_S = 60.0
"""For so long at most nothing is sent because the server asked for it (``Retry-After``). Assumed."""
TAKEN_S = 5.0
"""A try that was not turned away for so long was taken: servers that are full say so within half a second. Assumed."""
FORGET_S = 60.0
"""A pool that has turned nobody away for so long since the next could be tried is as good as any. Assumed."""


class Sent(NamedTuple):
    """What is noted of a request when it is sent."""

    reckoned: int
    """Others of ours that were there, and all that the pool had turned away by then."""
    trial: int | None = None
    """Its number where it is a try."""


@dataclass(slots=True)
class _Narrow:
    """What is known of a pool that turned somebody away."""

    limit: int
    """So many of ours it is known to take at once."""
    until: float
    """Nothing is sent before: the server's own wish."""
    next_at: float = 0.0
    """Not before is one more than ``limit`` tried."""
    step_s: float = FIRST_S
    gain: int = 1
    """By how much ``limit`` grows when the next try is taken: twice as much each time in a row."""
    trial: int | None = None
    """The try that is on its way."""
    trial_at: float = 0.0
    forget_at: float = math.inf


class Throttle:
    """Limits on requests in flight, by pool, for those that have turned somebody away. Not locked: the router calls it
    under its own lock.

    Somebody is turned away: no more are sent than those that were taken beside it, and nothing at all for as long as
    the server asks (``Retry-After``). Then, after ``FIRST_S``, one more is tried. If it is taken, the limit rises; if
    it is turned away, the limit stands, and the next is tried after twice as long.
    """

    def __init__(self) -> None:
        self._narrow: dict[int, _Narrow] = {}
        self._refused: dict[int, int] = {}
        """How many each pool has turned away, ever."""
        self._steady = Steady()
        self._trials = count()

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return bool(self._narrow)

    def turned_away(
        self, pool: int, sent: Sent, in_flight: int, now: float, retry_after_s: float | None = None
    ) -> None:
        """One was turned away; ``in_flight`` others of ours are there now.

        Those that it found there and that were taken are those that were there when it was sent, less those that were
        turned away since. That is too few where requests pass each other on the way: never fewer than are there now.
        """
        time, refused = self._steady(now), self._refused.get(pool, 0)
        self._refused[pool] = refused + 1
        taken = max(in_flight, sent.reckoned - refused)
        pause_s = min(retry_after_s or 0.0, MOST_PAUSE_S)
        one = self._narrow.get(pool)
        if one is None:
            one = self._narrow[pool] = _Narrow(taken, time)
        elif sent.trial is not None and sent.trial == one.trial:
            one.step_s = min(2.0 * one.step_s, MOST_S)
            one.trial = None
        else:
            one.limit = min(one.limit, taken)
        one.gain = 1
        one.until = max(one.until, time + pause_s)
        # With none in flight the server's word is all there is to go by.
        one.next_at = max(one.until, time + (pause_s if pause_s and not one.limit else pause_s + one.step_s))
        one.forget_at = one.next_at + FORGET_S

    def sent(self, pool: int, in_flight: int, now: float) -> Sent:
        """One is sent where ``in_flight`` others of ours are; what became of it must be told."""
        reckoned = in_flight + self._refused.get(pool, 0)
        one = self._narrow.get(pool)
        if one is None or in_flight < one.limit or one.trial is not None:
            return Sent(reckoned)
        one.trial, one.trial_at = next(self._trials), self._steady(now)
        return Sent(reckoned, one.trial)

    def answered(self, pool: int, sent: Sent, now: float) -> None:
        """The server answers it. That tells something of a try that is on its way, and of it once."""
        one = self._narrow.get(pool)
        if one is not None and sent.trial is not None and sent.trial == one.trial:
            self._raise(one, now)

    def _raise(self, one: _Narrow, now: float) -> None:
        """Its try was taken."""
        one.trial = None
        one.limit += one.gain
        one.gain *= 2
        one.step_s, one.next_at = FIRST_S, self._steady(now)

    def ended(self, pool: int, sent: Sent) -> None:
        """It ended and told nothing (it was cancelled, or failed in another way): the next may be tried."""
        one = self._narrow.get(pool)
        if one is not None and sent.trial == one.trial:
            one.trial = None

    def adopt(self, old: Throttle, pools: Mapping[int, int]) -> None:
        """Take over what is known of pools that have new numbers."""
        self._narrow = {pools[pool]: one for pool, one in old._narrow.items() if pool in pools}
        self._refused = {pools[pool]: refused for pool, refused in old._refused.items() if pool in pools}
        self._steady, self._trials = old._steady, old._trials

    def narrowed(self) -> frozenset[int]:
        """The pools that have a limit."""
        return frozenset(self._narrow)

    def allowed(
        self, up: NDArray[np.bool_] | None, in_flight: NDArray[np.float64], now: float
    ) -> NDArray[np.bool_] | None:
        """``up`` (which pools a call may go to, shape (pools,); ``None``: all), without those that take none now.

        ``in_flight``: our own requests there, shape (pools,).
        """
        time = self._steady(now)
        shut = []
        for pool, one in list(self._narrow.items()):
            if time >= one.forget_at:
                del self._narrow[pool]
                continue
            if one.trial is not None and time >= one.trial_at + TAKEN_S:
                self._raise(one, now)
            others = in_flight[pool] - (one.trial is not None)
            more = others == one.limit and one.trial is None and time >= one.next_at
            if time < one.until or not (others < one.limit or more):
                shut.append(pool)
        if not shut:
            return up
        up = np.ones(len(in_flight), dtype=np.bool_) if up is None else up.copy()
        up[shut] = False
        return up
