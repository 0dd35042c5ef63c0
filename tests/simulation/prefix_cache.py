"""The prefix cache of a simulated engine: chained segments of prompts, the least lately used first out.

A real engine hashes every block; here a message is one segment, which is evicted block by block from its tail. That is
the same order: an engine frees a request's blocks tail first, and whoever uses a block uses all before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

BLOCK = 16
"""Tokens in a block."""


class Piece(NamedTuple):
    """One message of a prompt: ``key`` names the whole prompt up to ``end`` tokens."""

    key: int
    end: int


@dataclass(slots=True, eq=False)
class Segment:
    """Whole blocks of one piece that are in memory."""

    key: int
    whole: int
    """Blocks that it has when all of it is there."""
    blocks: int
    """Blocks that are there."""
    refs: int = 0
    """Running requests that stand on it."""


class PrefixCache:
    """Segments in memory. ``idle`` ones, which nobody stands on, are free to be evicted."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._idle: OrderedDict[int, Segment] = OrderedDict()
        self.blocks = 0
        """Blocks of all segments."""
        self.idle_blocks = 0
        """Blocks of those that nobody stands on."""

    def hit(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """Blocks of a prompt that are there from its start on, and those of them that are idle."""
        found = idle = 0
        for piece in pieces:
            segment = self._segments.get(piece.key)
            if segment is None:
                break
            found += segment.blocks
            idle += 0 if segment.refs else segment.blocks
            if segment.blocks < segment.whole:
                break
        return found, idle

    def hold(self, pieces: Sequence[Piece]) -> list[Segment]:
        """Stand on every piece; what is not there is added whole. The caller has seen to the memory."""
        held, start = [], 0
        for piece in pieces:
            segment = self._segments.get(piece.key)
            if segment is None:
                segment = Segment(piece.key, piece.end // BLOCK - start // BLOCK, 0)
                self._segments[piece.key] = segment
            if segment.refs == 0 and piece.key in self._idle:
                del self._idle[piece.key]
                self.idle_blocks -= segment.blocks
            segment.refs += 1
            self.blocks += segment.whole - segment.blocks
            segment.blocks = segment.whole
            held.append(segment)
            start = piece.end
        return held

    def add(self, key: int, whole: int, blocks: int) -> None:
        """Keep ``blocks`` of the ``whole`` that a request wrote after its prompt, now that it has ended."""
        if key in self._segments:
            return
        self._segments[key] = self._idle[key] = Segment(key, whole, blocks)
        self.blocks += blocks
        self.idle_blocks += blocks

    def let_go(self, held: Sequence[Segment], computed_blocks: int) -> None:
        """Stand no longer on these; of a prompt that was not read to its end, only what was computed stays."""
        before, there = 0, []
        for segment in held:
            # Nobody else can stand on what has not been computed yet.
            kept = min(segment.blocks, max(0, computed_blocks - before))
            before += segment.blocks
            there.append(segment.blocks if segment.refs > 1 else kept)
        for segment, blocks in zip(reversed(held), reversed(there), strict=True):
            self.blocks -= segment.blocks - blocks
            segment.blocks = blocks
            segment.refs -= 1
            if segment.refs:
                continue
            if segment.blocks == segment.whole or segment.blocks:
                self._idle[segment.key] = segment
                self.idle_blocks += segment.blocks
            else:
                del self._segments[segment.key]

    def evict(self, blocks: int) -> None:
        """Free so many idle blocks, the least lately used first."""
        while blocks > 0:
            key, segment = next(iter(self._idle.items()))
            gone = min(blocks, segment.blocks)
            segment.blocks -= gone
            self.blocks -= gone
            self.idle_blocks -= gone
            blocks -= gone
            if not segment.blocks:
                del self._idle[key], self._segments[key]
