"""One physical KV memory, counted in the engine's blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pool:
    """A KV memory of ``blocks`` blocks of ``block_tokens`` tokens each."""

    blocks: int
    block_tokens: int

    def units(self, tokens: int) -> int:
        """Blocks that a sequence of ``tokens`` tokens occupies; an engine hands out whole blocks."""
        return -(-tokens // self.block_tokens)

    def sequences(self, tokens: int) -> int:
        """How many sequences of ``tokens`` tokens fit at once."""
        return self.blocks // max(1, self.units(tokens))

    @property
    def tokens(self) -> int:
        """Tokens of one sequence that would fill the pool exactly."""
        return self.blocks * self.block_tokens
