"""What prompts do to a pool: they wait for one another, and those that are answered wait for them."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from math import exp, inf

import numpy as np
from numpy.typing import NDArray

from agentroute.inputs import Queue
from agentroute.misses import STALL_SHARE

Floats = NDArray[np.float64]

TURNS_TAU_S = 20.0
"""A pool's rate of requests that have a TTFT to keep is an average over about so many seconds. Assumed."""
REFRESH_S = 0.25
"""The rates, which fade with time, are reckoned again no more often than this."""
LEAST_BUDGET_MS = 200.0
"""A request can always lose as much; predictions are no better than that. Assumed."""


@dataclass(slots=True, eq=False)
class Reading:
    """A request whose prompt was sent to a pool."""

    pool: int
    key_ms: float
    """The pool's stall so far at which it would miss its SLO; infinite: it has none."""
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
        self._keys: list[list[float]] = [[] for _ in range(pools)]
        self._bound, self._room_ms = np.zeros(pools), np.full(pools, inf)
        self._turns, self._turn_room_ms = np.zeros(pools), np.full(pools, inf)
        self._turns_at = -inf
        self._any_bound, self._any_turns, self._busy_until_ms = 0, False, -inf

    def queue(self, now: float) -> Queue | None:
        """What a prompt meets that is sent at ``now``; ``None``: nothing, anywhere."""
        now_ms = 1_000.0 * now
        if self._any_turns and now - self._turns_at > REFRESH_S:
            self._fade(now)
        waits, bound, turns = self._busy_until_ms > now_ms, self._any_bound > 0, self._any_turns
        if not waits and not bound and not turns:
            return None
        backlog = self._free_at_ms - now_ms
        return Queue(
            np.maximum(backlog, 0.0, out=backlog),
            self._bound if bound else None,
            self._room_ms if bound else None,
            self._turns if turns else None,
            self._turn_room_ms if turns else None,
        )

    def sent(
        self, pool: int, prefill_ms: float, now: float, *, budget_ms: float = inf, turn_room_ms: float = inf
    ) -> Reading:
        """A prompt that takes ``prefill_ms`` to read goes there.

        ``budget_ms`` is what it can lose to others' while it is answered, ``turn_room_ms`` what it could have waited
        before; infinite: any.
        """
        prefill_ms = prefill_ms if prefill_ms == prefill_ms else 0.0
        now_ms = 1_000.0 * now
        self._free_at_ms = self._free_at_ms.copy()
        free_at_ms = max(now_ms, float(self._free_at_ms[pool])) + prefill_ms
        self._free_at_ms[pool] = free_at_ms
        self._busy_until_ms = max(self._busy_until_ms, free_at_ms)
        self._stall_ms[pool] += STALL_SHARE * prefill_ms
        self._work_ms[pool] += prefill_ms
        reading = Reading(pool, self._stall_ms[pool] + max(budget_ms, LEAST_BUDGET_MS), self._work_ms[pool])
        if reading.key_ms < inf:
            insort(self._keys[pool], reading.key_ms)
            self._any_bound += 1
        self._reckon(pool)
        if turn_room_ms < inf:
            self._fade(now)
            before = float(self._turns[pool])
            self._turns[pool] = before + 1.0 / TURNS_TAU_S
            room = float(self._turn_room_ms[pool]) if before else turn_room_ms
            self._turn_room_ms = self._turn_room_ms.copy()
            self._turn_room_ms[pool] = room + (max(0.0, turn_room_ms) - room) / (TURNS_TAU_S * self._turns[pool])
            self._any_turns = True
        return reading

    def read(self, reading: Reading, now: float) -> None:
        """Its first token came, or it ended: only what was sent after it is left to be read, whatever was expected."""
        pool, left_ms = reading.pool, self._work_ms[reading.pool] - reading.work_ms
        if self._free_at_ms[pool] > (free_at_ms := 1_000.0 * now + left_ms):
            self._free_at_ms = self._free_at_ms.copy()
            self._free_at_ms[pool] = free_at_ms

    def ended(self, reading: Reading, now: float) -> None:
        """It is answered, or given up."""
        self.read(reading, now)
        if reading.key_ms < inf:
            keys = self._keys[reading.pool]
            del keys[bisect_left(keys, reading.key_ms)]
            self._any_bound -= 1
            self._reckon(reading.pool)

    def _reckon(self, pool: int) -> None:
        """How many there have something to lose, and how much: that of the one a quarter up from the least."""
        keys = self._keys[pool]
        self._bound, self._room_ms = self._bound.copy(), self._room_ms.copy()
        self._bound[pool] = len(keys)
        self._room_ms[pool] = keys[len(keys) // 4] - self._stall_ms[pool] if keys else inf

    def _fade(self, now: float) -> None:
        self._turns = self._turns * exp(-max(0.0, now - self._turns_at) / TURNS_TAU_S)
        self._turns_at = now
        self._any_turns = bool(self._turns.max() > 1e-4)
