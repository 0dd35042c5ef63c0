"""One physical KV memory, counted in the engine's blocks, and what may be asked of every engine's."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

NULL_BLOCKS = 1
"""Blocks that vLLM keeps to itself: entries of a block table that hold nothing point there (``BlockPool.null_block``).
Its log and its metrics count them in; a request that needs all that they count waits for ever."""


class Scarce(NamedTuple):
    """What a pool runs out of first: one sequence takes ``needed`` of the ``available``, both in ``unit``."""

    unit: str
    needed: float
    available: float


@lru_cache(maxsize=1_024)
def kv_blocks(block_tokens: int) -> str:
    """The unit of a pool of such blocks."""
    return "tokens of KV" if block_tokens == 1 else f"KV blocks of {block_tokens:,} tokens"


class KvPool(Protocol):
    """A KV memory of a known size. An engine's own pool may have more to say; this is what all of them answer."""

    @property
    def blocks(self) -> int:
        """Blocks that the engine hands out."""

    @property
    def block_tokens(self) -> int:
        """Tokens of one sequence in the smallest block; 1 where only states are kept, which hold any length."""

    def units(self, tokens: int) -> int:
        """Blocks that one sequence of ``tokens`` tokens occupies at most."""

    def concurrency(self, tokens: int) -> float:
        """Sequences of ``tokens`` tokens that fit at once, with its fraction; below 1 when not even one does."""

    def sequences(self, tokens: int) -> int:
        """Whole sequences of ``tokens`` tokens that fit at once."""

    def longest_tokens(self, limit: int = ...) -> int:
        """The longest sequence that fits alone, in tokens, at most ``limit``; 0 when none does."""

    def scarcest(self, tokens: int) -> Scarce:
        """What sequences of ``tokens`` tokens run out of first."""


class KvLayout(Protocol):
    """How a sharded model's cache is laid out by one engine: everything but the memory that it is given."""

    def pool_of(self, cache_gib: float) -> KvPool:
        """The pool in ``cache_gib`` GiB per accelerator, the least of all ranks: all that is left for the cache.

        That is KV and states together: where the engine gives each its own memory, this splits it.
        """

    def pool(self, kv_gib: float) -> KvPool:
        """The pool in ``kv_gib`` GiB of KV per accelerator as the engine's log prints it, states apart."""

    def needed_gib(self, tokens: int) -> float:
        """GiB of KV per accelerator on the fullest stage for one sequence of ``tokens`` tokens."""


class Pool(NamedTuple):
    """A KV memory of ``blocks`` blocks of ``block_tokens`` tokens each."""

    blocks: int
    block_tokens: int

    def units(self, tokens: int) -> int:
        """Blocks that a sequence of ``tokens`` tokens occupies; an engine hands out whole blocks."""
        return -(-tokens // self.block_tokens)

    def concurrency(self, tokens: int) -> float:
        """Sequences of ``tokens`` tokens that fit at once, with its fraction."""
        return self.blocks / max(1, self.units(tokens))

    def sequences(self, tokens: int) -> int:
        """How many sequences of ``tokens`` tokens fit at once."""
        return self.blocks // max(1, self.units(tokens))

    def longest_tokens(self, limit: int = 1 << 30) -> int:
        """The longest sequence that fits alone, in tokens, at most ``limit``."""
        return min(self.tokens, limit)

    def scarcest(self, tokens: int) -> Scarce:
        """Blocks: there is nothing else to run out of."""
        return Scarce(kv_blocks(self.block_tokens), self.units(tokens), self.blocks)

    def __str__(self) -> str:
        if self.block_tokens == 1:
            return f"{self.blocks:,} tokens"
        return f"{self.blocks:,} blocks of {self.block_tokens:,} tokens"

    @property
    def tokens(self) -> int:
        """Tokens of one sequence that would fill the pool exactly."""
        return self.blocks * self.block_tokens
