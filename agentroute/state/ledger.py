"""Who holds what: KV blocks and requests in flight, per physical pool."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """Blocks of one pool, held for one request."""

    pool: int
    blocks: int
    group: Hashable
    """What siblings share; they are told apart from strangers by it."""


@dataclass(slots=True)
class Ledger:
    """Holds per pool. Invariant: the blocks held never pass the pool's ``capacity``.

    ``capacity`` is in blocks, infinite where unknown. Not locked: the router calls it under its own lock.
    """

    capacity: NDArray[np.float64]
    held: NDArray[np.float64] = field(init=False)
    """Blocks held, by pool."""
    in_flight: NDArray[np.float64] = field(init=False)
    """Requests in flight, by pool; whole numbers, kept as floats since that is how a decision reckons with them."""
    total: int = 0
    """Requests in flight, in all pools."""
    _siblings: dict[Hashable, int] = field(default_factory=dict)
    _leaving: list[tuple[float, int, Hold]] = field(default_factory=list)
    _serial: int = 0

    def __post_init__(self) -> None:
        self.held = np.zeros(len(self.capacity))
        self.in_flight = np.zeros(len(self.capacity))

    @classmethod
    def of(cls, capacity: Sequence[float]) -> Ledger:
        """An empty ledger over pools of ``capacity`` blocks."""
        return cls(np.asarray(capacity, dtype=np.float64))

    def take(self, pool: int, blocks: int, group: Hashable) -> Hold | None:
        """Hold ``blocks`` of ``pool``, or ``None`` when they are not free."""
        if self.held[pool] + blocks > self.capacity[pool]:
            return None
        self.held[pool] += blocks
        self.in_flight[pool] += 1
        self.total += 1
        self._siblings[group] = self._siblings.get(group, 0) + 1
        return Hold(pool, blocks, group)

    def leave(self, hold: Hold, *, at: float) -> None:
        """Free a hold at a time to come: the runtime keeps a cancelled request's KV for a moment."""
        self._serial += 1
        heapq.heappush(self._leaving, (at, self._serial, hold))

    def settle(self, now: float) -> None:
        """Free the holds whose time has come."""
        while self._leaving and self._leaving[0][0] <= now:
            self.free(heapq.heappop(self._leaving)[2])

    def free(self, hold: Hold) -> None:
        """Free a hold now; each hold is freed once."""
        self.held[hold.pool] -= hold.blocks
        self.in_flight[hold.pool] -= 1
        self.total -= 1
        self._siblings[hold.group] -= 1
        if not self._siblings[hold.group]:
            del self._siblings[hold.group]

    def siblings(self, group: Hashable) -> int:
        """Requests of ``group`` in flight, in all pools."""
        return self._siblings.get(group, 0) if self._siblings else 0
