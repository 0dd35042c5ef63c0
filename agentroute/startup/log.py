"""Reading a start-up log: which engine wrote it, and what it said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from agentroute.errors import UsageError
from agentroute.profile import EngineName
from agentroute.startup import llamacpp, sglang, trtllm, vllm
from agentroute.startup.facts import Started
from agentroute.startup.lines import Line, split


class Reader(Protocol):
    """What the file of one engine holds."""

    MARKS: tuple[str, ...]
    """Words that only this engine writes, or its command."""
    STARTS: tuple[str, ...]
    """Words that it writes once, when it starts."""
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
    engine = ENGINES[marked[0]]
    lines = split(text)
    starts = [line.number for line in lines if any(start in line.text for start in engine.STARTS)]
    again = len(starts) > 1
    started = engine.read([line for line in lines if line.number >= starts[-1]] if again else lines)
    if not list(started.facts()):
        raise UsageError(f"speaks of {marked[0]}, but holds nothing of its start, such as {engine.EXAMPLE!r}")
    if not again:
        return started
    remark = f"the log holds {len(starts)} starts; the last is read, from line {starts[-1]} on"
    return replace(started, remarks=(remark, *started.remarks))
