"""Reading a start-up log: which engine wrote it, and what it said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from agentroute.errors import UsageError
from agentroute.profile import EngineName
from agentroute.startup import llamacpp, sglang, trtllm, vllm
from agentroute.startup.facts import Started
from agentroute.startup.lines import Line, full, plain, split
from agentroute.startup.starts import Sign, last_start

MOST_REMARKS = 20
"""How many remarks are passed on; a person reads no more."""


class Reader(Protocol):
    """What the file of one engine holds."""

    MARKS: tuple[str, ...]
    """Words that only this engine writes, or its command."""
    WORDS: tuple[str, ...]
    """Words of which every line holds one that ``read`` understands."""
    SIGNS: tuple[Sign, ...]
    """The lines that it writes when it starts."""
    EXAMPLE: str
    """A line that should be in its log."""

    def read(self, lines: Sequence[Line]) -> Started:
        """What its lines say."""
        ...


ENGINES: dict[EngineName, Reader] = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp, "trtllm": trtllm}
"""The engines whose logs are understood."""


def read(text: str) -> Started:
    """What a start-up log says, or a file that holds the command line.

    Of several starts in one log, the last counts. Raises ``UsageError`` when no engine's lines are in it, or those of
    two engines. No line is ever repeated in the error: it may hold a key.
    """
    marked = [name for name, engine in ENGINES.items() if any(mark in text for mark in engine.MARKS)]
    if not marked:
        like = "; ".join(f"{name}: {engine.EXAMPLE!r}" for name, engine in ENGINES.items())
        raise UsageError(f"holds no start-up line of an engine that is understood; there should be one such as {like}")
    if len(marked) > 1:
        raise UsageError(f"holds start-up lines of {' and '.join(marked)}; give the log of one server")
    engine, text = ENGINES[marked[0]], plain(text)
    last = last_start(text, engine.SIGNS)
    lines = split(text, engine.WORDS, last.place)
    started = engine.read(lines)
    if not list(started.facts()):
        raise UsageError(f"speaks of {marked[0]}, but holds nothing of its start, such as {engine.EXAMPLE!r}")
    remarks = list(started.remarks[:MOST_REMARKS])
    if more := len(started.remarks) - len(remarks):
        remarks.append(f"and {more} more like these")
    if full(lines):
        remarks.insert(
            0, f"the log has more lines of a start than one start writes; it is read up to line {lines[-1].number}"
        )
    if last.starts > 1:
        remarks.insert(0, f"the log holds {last.starts} starts; the last is read, from line {last.place.number} on")
    return replace(started, remarks=tuple(remarks))
