"""Who holds what: KV blocks and requests in flight, per physical pool."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentroute.state.prefills import Reading

Floats = NDArray[np.float64]
GONE = -1
"""In place of the number of a pool, or a deployment, that is no longer there."""


class Shared(NamedTuple):
    """Whole blocks of a prefix that several requests have in common: held once for all of them."""

    hash: Hashable
    blocks: int


@dataclass(slots=True, eq=False)
class Hold:
    """Blocks of one pool, held for one request; only the ledger changes it."""

    pool: int
    """``GONE``: the router has given up the pool since."""
    blocks: int
    """Its own, without those of ``shared``."""
    group: Hashable
    """What siblings share; ``None``: it has none."""
    shared: Shared | None = None
    resident: float = 0.0
    """What it keeps in the KV cache on average, in thousands of tokens."""
    at: float = 0.0
    """When it was taken, in seconds of the router's clock."""
    prompt_blocks: int = 0
    """Those of ``blocks`` that the prompt fills; the rest fill as the answer grows."""
    service_s: float = 0.0
    """How long it is expected to take; 0: nobody knows."""
    deployment: int = 0
    """Whose request it is."""
    reading: Reading | None = None
    """What its prompt does to the pool."""

    @property
    def total(self) -> int:
        """Its blocks, those of ``shared`` among them."""
        return self.blocks + (self.shared.blocks if self.shared else 0)

    def used(self, now: float) -> float:
        """The blocks that it is believed to use at ``now``."""
        if self.service_s <= 0:
            return float(self.blocks)
        grown = min(1.0, max(0.0, (now - self.at) / self.service_s))
        return self.prompt_blocks + grown * max(0, self.blocks - self.prompt_blocks)


@dataclass(slots=True)
class Ledger:
    """Holds per pool. No hold is taken that would pass the pool's ``capacity``.

    ``capacity`` is in blocks, infinite where unknown. Not locked: the router calls it under its own lock. The arrays
    are replaced, never changed, so that who reads them keeps what was true.
    """

    capacity: Floats
    held: Floats = field(init=False)
    """Blocks held, by pool."""
    in_flight: Floats = field(init=False)
    """Requests in flight, by pool; whole numbers, kept as floats since that is how a decision reckons with them."""
    resident: Floats = field(init=False)
    """Sums of the requests' ``resident``, by pool."""
    total: int = 0
    """Requests in flight, in all pools."""
    overruns: int = 0
    """How often a request grew beyond what its pool has."""
    _siblings: dict[Hashable, int] = field(default_factory=dict)
    _shared: dict[tuple[int, Hashable], list[int]] = field(default_factory=dict)
    """By pool and prefix: how many hold it, and its blocks."""
    _holds: list[set[Hold]] = field(init=False)
    _leaving: list[tuple[float, int, Hold]] = field(default_factory=list)
    _serial: int = 0

    def __post_init__(self) -> None:
        pools = len(self.capacity)
        self.held, self.in_flight, self.resident = np.zeros(pools), np.zeros(pools), np.zeros(pools)
        self._holds = [set() for _ in range(pools)]

    @classmethod
    def of(cls, capacity: Sequence[float]) -> Ledger:
        """An empty ledger over pools of ``capacity`` blocks."""
        return cls(np.asarray(capacity, dtype=np.float64))

    def take(
        self,
        pool: int,
        blocks: int,
        group: Hashable = None,
        *,
        shared: Shared | None = None,
        resident: float = 0.0,
        foreign: float = 0.0,
        at: float = 0.0,
        prompt_blocks: int = 0,
        service_s: float = 0.0,
    ) -> Hold | None:
        """Hold ``blocks`` of ``pool`` (those of ``shared`` among them), or ``None`` when they are not free.

        ``foreign`` blocks of the pool are in use by others.
        """
        more = blocks
        if shared is not None:
            blocks -= shared.blocks
            standing = self._shared.get((pool, shared.hash))
            if standing is not None:
                more = blocks
        if self.held[pool] + more + foreign > self.capacity[pool]:
            return None
        hold = Hold(pool, blocks, group, shared, resident, at, prompt_blocks, service_s)
        if shared is not None:
            if standing is None:
                self._shared[pool, shared.hash] = [1, shared.blocks]
            else:
                standing[0] += 1
        self._change(hold, more, 1)
        return hold

    def extend(self, hold: Hold, blocks: int) -> bool:
        """Let a hold grow to ``blocks`` (those of its ``shared`` among them); the engine gives them, asked or not.

        False, and an overrun, when that passes the pool: nothing more is taken there until enough is free again.
        """
        more = blocks - hold.total
        if more <= 0 or hold.pool == GONE:
            return True
        hold.blocks += more
        self.held = self.held.copy()
        self.held[hold.pool] += more
        if self.held[hold.pool] <= self.capacity[hold.pool]:
            return True
        self.overruns += 1
        return False

    def leave(self, hold: Hold, *, at: float) -> None:
        """Free a hold at a time to come: the runtime keeps a cancelled request's KV for a moment."""
        self._serial += 1
        heapq.heappush(self._leaving, (at, self._serial, hold))

    def settle(self, now: float) -> bool:
        """Free the holds whose time has come; whether there were any."""
        leaving = self._leaving
        if not leaving or leaving[0][0] > now:
            return False
        while leaving and leaving[0][0] <= now:
            self.free(heapq.heappop(leaving)[2])
        return True

    def free(self, hold: Hold) -> None:
        """Free a hold now; each hold is freed once."""
        if hold.pool == GONE:
            return
        less = hold.blocks
        if hold.shared is not None:
            standing = self._shared[hold.pool, hold.shared.hash]
            standing[0] -= 1
            if not standing[0]:
                less += standing[1]
                del self._shared[hold.pool, hold.shared.hash]
        self._change(hold, -less, -1)

    def adopt(self, old: Ledger, pools: Mapping[int, int], deployments: Mapping[int, int]) -> None:
        """Take over the holds of a ledger that is given up; ``pools`` and ``deployments`` are the new numbers by the
        old ones. What is held where there is no pool any more is let go of.

        A pool may be smaller than what is held there: nothing more is taken until enough is free.
        """
        self.overruns, self._serial = old.overruns, old._serial
        for hold in (hold for holds in old._holds for hold in holds):
            blocks = hold.blocks
            hold.pool, hold.deployment = pools.get(hold.pool, GONE), deployments.get(hold.deployment, GONE)
            if hold.reading is not None:
                hold.reading.pool = hold.pool
            if hold.pool == GONE:
                continue
            if hold.shared is not None:
                standing = self._shared.setdefault((hold.pool, hold.shared.hash), [0, hold.shared.blocks])
                blocks += 0 if standing[0] else standing[1]
                standing[0] += 1
            self._change(hold, blocks, 1)
        self._leaving = [leaving for leaving in old._leaving if leaving[2].pool != GONE]
        heapq.heapify(self._leaving)

    def siblings(self, group: Hashable) -> int:
        """Requests of ``group`` in flight, in all pools."""
        return self._siblings.get(group, 0) if self._siblings else 0

    def used(self, pool: int, now: float) -> float:
        """Blocks of ``pool`` that our own requests are believed to use at ``now``; they may hold more."""
        shared = sum(blocks for (own, _), (_, blocks) in self._shared.items() if own == pool)
        return sum(hold.used(now) for hold in self._holds[pool]) + shared

    def ends(self, pool: int | None = None) -> list[float]:
        """When the requests of ``pool`` (of all, for ``None``) are expected to be done, the earliest first."""
        pools = range(len(self._holds)) if pool is None else (pool,)
        return sorted(hold.at + hold.service_s for p in pools for hold in self._holds[p] if hold.service_s > 0)

    def holds_shared(self, hash_: Hashable) -> list[int]:
        """The pools in which a prefix is held."""
        return [pool for pool, own in self._shared if own == hash_] if self._shared else []

    def shared_by(self, group: Hashable) -> dict[int, list[int]]:
        """The prefixes that a group holds, by their length in tokens, and in which pools."""
        found: dict[int, list[int]] = {}
        for pool, own in self._shared:
            if isinstance(own, tuple) and own[0] == group:
                found.setdefault(own[1], []).append(pool)
        return found

    def _change(self, hold: Hold, blocks: int, count: int) -> None:
        """Enter a hold (``count`` 1) or cross it out (-1), with its ``blocks``."""
        pool, group = hold.pool, hold.group
        if count > 0:
            self._holds[pool].add(hold)
        else:
            self._holds[pool].discard(hold)
        self.held, self.in_flight = self.held.copy(), self.in_flight.copy()
        self.held[pool] += blocks
        self.in_flight[pool] += count
        self.total += count
        self.resident = self.resident.copy()
        if self.in_flight[pool]:
            self.resident[pool] += count * hold.resident
        else:
            self.resident[pool] = 0.0  # rounding does not add up
        if group is not None:
            self._siblings[group] = self._siblings.get(group, 0) + count
            if not self._siblings[group]:
                del self._siblings[group]
