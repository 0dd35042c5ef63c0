"""What prompts do to a pool: they wait for one another, and those that are answered wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf

import numpy as np
from numpy.typing import NDArray

from agentroute.inputs import Queue
from agentroute.misses import STALL_SHARE

Floats = NDArray[np.float64]

TURNS_TAU_S = 20.0
"""A pool's rate of requests that have a TTFT to keep is an average over about so many seconds. Assumed."""
MOST_READING = 0.95
"""A server is not believed to read prompts in more of its time."""
REFRESH_S = 0.25
"""The rates, which fade with time, are reckoned again no more often than this."""
LEAST_BUDGET_MS = 200.0
"""A request can always lose as much; predictions are no better than that. Assumed."""

_ZERO, _MOST_READING, _STALL_SHARE = np.array(0.0), np.array(MOST_READING), np.array(STALL_SHARE)
_NOBODY = None, None, None


@dataclass(slots=True, eq=False)
class Reading:
    """A request whose prompt was sent to a pool."""

    pool: int
    budget_ms: float
    """What it can lose to others' prompts; infinite: any."""
    stall_ms: float
    """The pool's stall when it was placed, its own included."""
    work_ms: float
    """The pool's reading time of all prompts sent until then, its own included."""


class Prefills:
    """By pool: a clock of when all prompts sent so far are read, how much more those that are answered can lose, and
    how often such come that must not wait. Not locked; arrays are replaced, never changed.

    Engines read prompts in the order they come, so a prompt waits for those before it: ``free_at`` is when the last one
    is read. Every prompt takes ``STALL_SHARE`` of its time from those that are being answered there; each can lose what
    its SLO leaves over what was predicted.
    """

    def __init__(self, pools: int) -> None:
        self._free_at_ms = np.full(pools, -inf)
        self._stall_ms, self._work_ms = [0.0] * pools, [0.0] * pools
        self._bound: dict[int, Reading] = {}
        self._listed: tuple[NDArray[np.int64], Floats, Floats] | None = None
        self._reading, self._turns = np.zeros(pools), np.zeros(pools)
        self._most_reading, self._most_turns = 0.0, 0.0
        """The greatest of them."""
        self._share: Floats | None = None
        self._turn_room_ms = np.full(pools, inf)
        self._turns_at = -inf
        self._any_turns, self._busy_until_ms = False, -inf

    def queue(self, now: float) -> Queue | None:
        """What a prompt meets that is sent at ``now``; ``None``: nothing, anywhere."""
        now_ms = 1_000.0 * now
        if self._any_turns and now - self._turns_at > REFRESH_S:
            self._fade(now)
        turns = self._any_turns
        if self._busy_until_ms <= now_ms and not self._bound and not turns:
            return None
        backlog = self._free_at_ms - now_ms
        np.maximum(backlog, _ZERO, out=backlog)
        bound, budget, lost = self._list() if self._bound else _NOBODY
        if not turns:
            return Queue(backlog, bound, budget, lost, None, None, None)
        if self._share is None:
            self._share = np.minimum(self._reading, _MOST_READING)
            self._share *= _STALL_SHARE
        return Queue(backlog, bound, budget, lost, self._share, self._turns, self._turn_room_ms)

    def sent(
        self, pool: int, prefill_ms: float, now: float, *, budget_ms: float = inf, turn_room_ms: float = inf
    ) -> Reading:
        """A prompt that takes ``prefill_ms`` to read goes there.

        ``budget_ms`` is what it can lose to others' while it is answered, ``turn_room_ms`` what it could have waited
        before; infinite: any.
        """
        prefill_ms = prefill_ms if prefill_ms == prefill_ms else 0.0
        if not prefill_ms and not budget_ms < inf and not turn_room_ms < inf:  # nobody waits, and nobody minds
            return Reading(pool, max(budget_ms, LEAST_BUDGET_MS), self._stall_ms[pool], self._work_ms[pool])
        now_ms = 1_000.0 * now
        self._free_at_ms = self._free_at_ms.copy()
        free_at_ms = max(now_ms, self._free_at_ms.item(pool)) + prefill_ms
        self._free_at_ms[pool] = free_at_ms
        self._busy_until_ms = max(self._busy_until_ms, free_at_ms)
        self._stall_ms[pool] += STALL_SHARE * prefill_ms
        self._work_ms[pool] += prefill_ms
        reading = Reading(pool, max(budget_ms, LEAST_BUDGET_MS), self._stall_ms[pool], self._work_ms[pool])
        if budget_ms < inf:
            self._bound[id(reading)] = reading
        self._listed = None
        self._fade(now)
        self._reading[pool] = share = self._reading.item(pool) + prefill_ms / (1_000.0 * TURNS_TAU_S)
        self._most_reading = max(self._most_reading, share)
        self._any_turns = True
        if turn_room_ms < inf:
            before = self._turns.item(pool)
            self._turns[pool] = turns = before + 1.0 / TURNS_TAU_S
            self._most_turns = max(self._most_turns, turns)
            room = self._turn_room_ms.item(pool) if before else turn_room_ms
            self._turn_room_ms = self._turn_room_ms.copy()
            self._turn_room_ms[pool] = room + (max(0.0, turn_room_ms) - room) / (TURNS_TAU_S * turns)
        return reading

    def read(self, reading: Reading, now: float) -> None:
        """Its first token came, or it ended: only what was sent after it is left to be read, whatever was expected."""
        pool, left_ms = reading.pool, self._work_ms[reading.pool] - reading.work_ms
        if self._free_at_ms.item(pool) > (free_at_ms := 1_000.0 * now + left_ms):
            self._free_at_ms = self._free_at_ms.copy()
            self._free_at_ms[pool] = free_at_ms

    def ended(self, reading: Reading, now: float) -> None:
        """It is answered, or given up."""
        self.read(reading, now)
        if self._bound.pop(id(reading), None) is not None:
            self._listed = None

    def adopt(self, old: Prefills, pools: Mapping[int, int]) -> None:
        """Take over what is known of pools that have new numbers; the readings have theirs already."""
        was, now = list(pools), list(pools.values())
        for name in ("_free_at_ms", "_reading", "_turns", "_turn_room_ms"):
            getattr(self, name)[now] = getattr(old, name)[was]
        for before, after in pools.items():
            self._stall_ms[after], self._work_ms[after] = old._stall_ms[before], old._work_ms[before]
        self._bound = {key: reading for key, reading in old._bound.items() if reading.pool >= 0}
        self._most_reading, self._most_turns = old._most_reading, old._most_turns
        self._turns_at, self._any_turns, self._busy_until_ms = old._turns_at, old._any_turns, old._busy_until_ms

    def _list(self) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Pools, budgets and what was lost, of all that have a time to keep."""
        if self._listed is None:
            all_, stall = self._bound.values(), self._stall_ms
            self._listed = (
                np.array([reading.pool for reading in all_], dtype=np.int64),
                np.array([reading.budget_ms for reading in all_]),
                np.array([stall[reading.pool] - reading.stall_ms for reading in all_]),
            )
        return self._listed

    def _fade(self, now: float) -> None:
        left = exp(-max(0.0, now - self._turns_at) / TURNS_TAU_S)
        self._turns, self._reading, self._share = self._turns * left, self._reading * left, None
        self._most_turns, self._most_reading = self._most_turns * left, self._most_reading * left
        self._turns_at = now
        self._any_turns = self._most_turns > 1e-4 or self._most_reading > 1e-3
