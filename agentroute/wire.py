"""What crosses the wire, as values: requests, answers, the events of a stream. No I/O.

An adapter turns a chat into a ``Request`` and an ``Answer`` back into a ``Completion``; the client moves the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request to a server; ``path`` is relative to the server's root (``/v1/chat/completions``)."""

    path: str
    body: Mapping[str, Any] | None = None
    """The JSON body of a POST; ``None`` makes it a GET."""
    keep_alive: bool = True
    """False: the connection must not be used again after this answer, since the server drops it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text. A piece is not a token."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call; pieces with the same ``index`` belong together, their ``arguments`` are concatenated."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """Why the model stopped: ``stop``, ``length``, ``tool_calls``, or the server's own word."""

    reason: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counted them; ``None`` where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Restarted:
    """The stream broke and begins anew elsewhere, as the caller allowed: all events before this one are void."""


Event = TextDelta | ReasoningDelta | ToolCallDelta | Finished | Usage | Restarted


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole tool call; ``arguments`` is the JSON text as the model wrote it."""

    id: str | None
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The server's JSON, untouched; empty for a stream."""
