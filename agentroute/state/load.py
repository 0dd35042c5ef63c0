"""What others do to our pools: live load as scraped, less our own share, believed the less the older it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from agentroute.errors import UsageError, shown
from agentroute.state.steady import Steady

FRESH_S = 2.0
"""A report counts whole for so long: two scrape intervals. Assumed."""
TAU_S = 10.0
"""Beyond that it fades, by e in so many seconds: about the time in which an engine turns over its batch. Assumed."""
REFRESH_S = 0.05
"""While something fades, the figures are reckoned again no more often than this; they move by 0.5 % in it."""
MOST = 1_000_000_000

Trouble = Literal["unreachable", "dead", "hidden", "mixed"]
"""What keeps a server's load from being known: nobody answers at its address; it answers, but the engine behind it does
not work any more; it does not show its load; several servers answer at its address in turn."""
DOWN: frozenset[Trouble] = frozenset({"unreachable", "dead"})
"""Those with which it cannot take a request either."""

_GONE = 1e-3
"""What is left of a report that is as good as none: after 71 s."""
_RUNNING, _WAITING, _BLOCKS = range(3)


@dataclass(frozen=True, slots=True)
class Load:
    """What a running server says it is doing. ``None`` is what it does not say, never zero.

    Raises ``UsageError`` for a figure that cannot be.
    """

    running: int | None = None
    """Requests in its batch, whoever sent them."""
    waiting: int | None = None
    """Requests in its own queue."""
    kv_used: float | None = None
    """Share of the KV pool in use, 0 to 1."""
    at: float | None = None
    """When it was asked, in seconds by the router's clock; ``None``: just now."""
    trouble: Trouble | None = None
    """What is wrong with the server, or with asking it; ``None``: nothing."""
    said: str = ""
    """The same in words, for a person."""

    def __post_init__(self) -> None:
        if self.trouble is not None and self.trouble not in get_args(Trouble):
            raise UsageError(
                f"a load's trouble must be one of {', '.join(get_args(Trouble))}, got {shown(self.trouble)}"
            )
        for name in ("running", "waiting"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST):
                raise UsageError(f"a load's {name} must be a whole number from 0 to {MOST:,}, got {shown(value)}")
        if self.kv_used is not None and not (_is_number(self.kv_used) and 0.0 <= self.kv_used <= 1.0):
            raise UsageError(f"a load's kv_used must be a share from 0 to 1, got {shown(self.kv_used)}")
        if self.at is not None and not (_is_number(self.at) and math.isfinite(self.at)):
            raise UsageError(f"a load's at must be a finite number of seconds, got {shown(self.at)}")


class Others(NamedTuple):
    """What others have on each pool; arrays of shape (pools,), not to be written to. 0 where nothing is known."""

    running: NDArray[np.float64]
    """Requests in the engine's batch that are not ours."""
    waiting: NDArray[np.float64]
    """Requests in the engine's queue that are not ours."""
    in_flight: NDArray[np.float64]
    """Both."""
    blocks: NDArray[np.float64]
    """KV blocks that are not ours."""
    counts_known: NDArray[np.bool_]
    """Whether ``running`` is known, if only by a report that has begun to fade."""
    blocks_known: NDArray[np.bool_]


class Foreign:
    """What others have on our pools. Not locked: the router calls it under its own lock.

    A fresh report counts whole, an older one fades towards 0, which is what the ledger alone knows: metrics that
    stopped neither keep a pool full for ever nor make it look idle at once. Every figure has its own age, so a gauge
    that is missing from one report lets the older figure fade.
    """

    def __init__(self, pools: int) -> None:
        self._figures = np.zeros((3, pools))
        self._at = np.full((3, pools), -math.inf)
        self._reported = np.full(pools, -math.inf)
        self._steady = Steady()
        self._due = math.inf
        self._others = self._reckoned(0.0)

    def observe(
        self, pool: int, load: Load, *, own_running: float, own_blocks: float, capacity_blocks: float, now: float
    ) -> None:
        """Take in a report on ``pool``; one that is older than the last is ignored.

        ``own_running``: our calls in flight there when it was asked, whether in its batch or in its queue;
        ``own_blocks``: what they were using then (not what they hold for output to come); ``capacity_blocks``: its KV
        pool, infinite where unknown.

        Ours are taken off once, first off the batch: running' = max(0, running - own); what of ours the batch does not
        hold is in the queue: waiting' = max(0, waiting - max(0, own - running)). blocks' = max(0, used - own).
        """
        time = self._steady(now)
        at = time if load.at is None else time - max(0.0, now - load.at)
        if at < self._reported[pool]:
            return
        self._reported[pool] = at
        if load.running is not None:
            self._set(_RUNNING, pool, load.running - own_running, at)
        if load.waiting is not None:
            self._set(_WAITING, pool, load.waiting - max(0.0, own_running - (load.running or 0)), at)
        if load.kv_used is not None and math.isfinite(capacity_blocks):
            self._set(_BLOCKS, pool, load.kv_used * capacity_blocks - own_blocks, at)
        self._others = self._reckoned(time)

    def is_older(self, pool: int, load: Load, now: float) -> bool:
        """Whether a report on ``pool`` is older than the last that was taken in."""
        return load.at is not None and self._steady(now) - max(0.0, now - load.at) < self._reported[pool]

    def current(self, now: float) -> Others:
        """What others have at ``now``: prepared arrays, at most ``REFRESH_S`` old."""
        time = self._steady(now)
        if time >= self._due:
            self._others = self._reckoned(time)
        return self._others

    def age_s(self, pool: int, now: float) -> float | None:
        """Seconds since the last report on ``pool`` was asked for, or ``None`` when there was none."""
        at = float(self._reported[pool])
        return self._steady(now) - at if math.isfinite(at) else None

    def adopt(self, old: Foreign, pools: Mapping[int, int]) -> None:
        """Take over what is known of pools that have new numbers."""
        if old._steady.last == -math.inf:  # nothing was told yet
            return
        was, now = list(pools), list(pools.values())
        figures, at, reported = self._figures.copy(), self._at.copy(), self._reported.copy()
        figures[:, now], at[:, now], reported[now] = old._figures[:, was], old._at[:, was], old._reported[was]
        self._figures, self._at, self._reported, self._steady = figures, at, reported, old._steady
        self._others = self._reckoned(self._steady.last)

    def _set(self, figure: int, pool: int, value: float, at: float) -> None:
        self._figures[figure, pool], self._at[figure, pool] = max(0.0, value), at

    def _reckoned(self, time: float) -> Others:
        stale_s = time - self._at - FRESH_S
        weight = np.exp(np.maximum(stale_s, 0.0) / -TAU_S)
        weight[weight < _GONE] = 0.0
        known = weight > 0.0
        if not known.any():
            self._due = math.inf
        elif (fading := known & (weight < 1.0)).any():
            self._due = time + REFRESH_S
        else:
            self._due = time - float(stale_s[known & ~fading].max())
        figures = self._figures * weight
        in_flight = figures[_RUNNING] + figures[_WAITING]
        others = Others(
            figures[_RUNNING], figures[_WAITING], in_flight, figures[_BLOCKS], known[_RUNNING], known[_BLOCKS]
        )
        for array in (figures, known, *others):
            array.flags.writeable = False
        return others


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
