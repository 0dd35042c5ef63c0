"""Which pool has which prefix warm, as far as can be told from what was sent there."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentroute.prefix import Mark
from agentroute.state.steady import Steady

UNKNOWN_TOKENS = 10**12
"""The capacity of a pool of unknown size: more than is ever written there, so that only time makes it forget."""


_FEW = 4
"""Pools that are quicker asked one by one than all at once as arrays."""


_Use = tuple[int, int, float]
"""One prefix in one pool: its tokens, the count of tokens written to the pool at which the last of it is evicted, and
when it expires. A plain tuple: twenty are made a call."""


@dataclass(slots=True)
class _Warm:
    """Where one prefix is warm."""

    pools: int = 0
    """The pools as bits."""
    uses: dict[int, _Use] = field(default_factory=dict)
    rows: NDArray[np.float64] | None = None
    """Tokens and evicted_at by pool, shape (2, pools), once it is warm in more than a few; 0 and infinite elsewhere."""
    until: float = math.inf
    """No use expires before."""

    def put(self, pool: int, use: _Use, pools: int) -> None:
        self.pools |= 1 << pool
        self.uses[pool] = use
        self.until = min(self.until, use[2])
        if self.rows is not None:
            self.rows[0, pool], self.rows[1, pool] = use[0], use[1]
        elif len(self.uses) > _FEW:
            self.rows = np.zeros((2, pools))
            self.rows[1] = math.inf
            for each, (tokens, evicted_at, _) in self.uses.items():
                self.rows[0, each], self.rows[1, each] = tokens, evicted_at

    def drop(self, pool: int) -> None:
        self.pools &= ~(1 << pool)
        del self.uses[pool]
        if self.rows is not None:
            self.rows[0, pool], self.rows[1, pool] = 0.0, math.inf


class Affinity:
    """Prefixes by pool, at most ``max_entries`` of (prefix, pool); the least recently used go first. Not locked: the
    router calls it under its own lock.

    ``capacity_tokens_by_pool``: what each pool's prefix cache holds, in tokens; ``None`` or infinite where unknown, 0
    where there is none. ``expire_s``: seconds after which an entry that was not used is given up.

    An engine evicts the least recently used blocks, the end of a prefix before its beginning (vLLM frees a request's
    blocks in reverse for this: ``free`` in v1/core/single_type_kv_cache_manager.py; SGLang evicts the leaves of its
    tree, each as a whole: ``evict`` in srt/mem_cache/radix_cache.py). So of a prefix, as many tokens are still there as
    the capacity exceeds what was written since its last use: exact when all else is one-off, too high by what other
    prefixes keep warm without writing.
    """

    def __init__(
        self, capacity_tokens_by_pool: Sequence[float | None], max_entries: int = 20_000, expire_s: float = 3_600.0
    ) -> None:
        self._capacity = [_tokens(capacity) for capacity in capacity_tokens_by_pool]
        self._written = [0] * len(self._capacity)
        self._written_by_pool = np.zeros(len(self._capacity))
        self._max_entries = max_entries
        self._expire_s = expire_s
        self._warm: OrderedDict[int, _Warm] = OrderedDict()
        self._entries = 0
        self._steady = Steady()

    def __len__(self) -> int:
        """Entries of (prefix, pool)."""
        return self._entries

    def learn(self, pool: int, marks: Sequence[Mark], now: float, written_tokens: float) -> None:
        """A prompt with these marks was, or is being, computed on ``pool``, which wrote ``written_tokens`` there: what
        of the prompt was not cached, and the output. No marks: it is churn alone."""
        self._write(pool, max(0, math.ceil(written_tokens)))
        if not self._capacity[pool]:
            return
        until = self._steady(now) + self._expire_s
        evicted_at = self._written[pool] + self._capacity[pool]
        for mark in reversed(marks):  # the shortest last, so that it is the most recent
            warm = self._warm.get(mark.hash)
            if warm is None:
                warm = self._warm[mark.hash] = _Warm()
            else:
                self._warm.move_to_end(mark.hash)
            use = (mark.tokens, evicted_at, until)
            if warm.rows is None and pool in warm.uses:
                warm.uses[pool] = use
            else:
                self._entries += pool not in warm.uses
                warm.put(pool, use, len(self._capacity))
        while self._entries > self._max_entries:
            self._entries -= len(self._warm.popitem(last=False)[1].uses)

    def warm_tokens(self, marks: Sequence[Mark], now: float) -> NDArray[np.float64] | None:
        """Tokens of a prompt with these marks that each pool has cached, shape (pools,), or ``None``: none anywhere.

        From the longest mark down; a pool that has all of one is not asked about shorter ones.
        """
        if not self._warm or not marks:
            return None
        time, everything, done = self._steady(now), (1 << len(self._capacity)) - 1, 0
        best: NDArray[np.float64] | None = None
        found: dict[int, int] = {}
        for mark in reversed(marks):
            warm = self._warm.get(mark.hash)
            if warm is None or not (left := warm.pools & ~done):
                continue
            if warm.rows is None or left.bit_count() <= _FEW or time >= warm.until:
                done |= self._one_by_one(mark, warm, left, time, found)
            else:
                tokens = np.minimum(warm.rows[0], mark.tokens)
                cached = np.minimum(warm.rows[1] - self._written_by_pool, tokens)
                done |= (full := left & _bits(cached >= mark.tokens))
                if full != left and (gone := left & _bits(cached <= 0.0)):
                    self._one_by_one(mark, warm, gone, time, found)
                best = cached if best is None else np.maximum(best, cached)
            if done == everything:
                break
        if best is None:
            if not found:
                return None
            best = np.zeros(len(self._capacity))
            best[list(found)] = list(found.values())
            return best
        for pool, tokens_there in found.items():
            if tokens_there > best[pool]:
                best[pool] = tokens_there
        np.maximum(best, 0.0, out=best)
        return best if best.any() else None

    def _one_by_one(self, mark: Mark, warm: _Warm, left: int, time: float, found: dict[int, int]) -> int:
        """Note in ``found`` what the pools ``left`` have of one prefix; returns those that have all of it, as bits."""
        done = 0
        while left:
            bit = left & -left
            left ^= bit
            pool = bit.bit_length() - 1
            tokens, evicted_at, until = warm.uses[pool]
            cached = evicted_at - self._written[pool]
            if cached <= 0 or time >= until:
                self._drop(mark.hash, warm, pool)
                continue
            if tokens > mark.tokens:
                tokens = mark.tokens
            if cached > tokens:
                cached = tokens
            if cached >= mark.tokens:
                done |= bit
            if cached > found.get(pool, 0):
                found[pool] = cached
        if time >= warm.until:
            warm.until = min((until for _, _, until in warm.uses.values()), default=math.inf)
        return done

    def forget(self, pool: int) -> None:
        """Its cache is gone: the server restarted, or was flushed."""
        self._write(pool, self._capacity[pool])

    def adopt(self, old: Affinity, pools: Mapping[int, int]) -> None:
        """Take over what is known of pools that have new numbers; it stands as it was learnt, by the old capacity."""
        for before, after in pools.items():
            self._write(after, old._written[before])
        for hash_, was in old._warm.items():
            warm = _Warm()
            for before, use in was.uses.items():
                if before in pools and self._capacity[pools[before]]:
                    warm.put(pools[before], use, len(self._capacity))
            if warm.uses:
                self._warm[hash_] = warm
                self._entries += len(warm.uses)
        self._steady = old._steady

    def _write(self, pool: int, tokens: int) -> None:
        self._written[pool] += tokens
        self._written_by_pool[pool] = self._written[pool]

    def _drop(self, key: int, warm: _Warm, pool: int) -> None:
        warm.drop(pool)
        self._entries -= 1
        if not warm.uses:
            del self._warm[key]


def _bits(pools: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(pools, bitorder="little").tobytes(), "little")


def _tokens(capacity: float | None) -> int:
    return UNKNOWN_TOKENS if capacity is None or not capacity < UNKNOWN_TOKENS else max(0, int(capacity))
