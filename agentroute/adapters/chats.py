"""The endpoint for chats: how their answers are read, whole and in pieces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentroute.adapters.base import Endpoint
from agentroute.adapters.reading import choice_in, count, first, mappings, text_of, tokens, word
from agentroute.errors import BackendError, FailureKind
from agentroute.wire import (
    Completion,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)

CHAT = "/v1/chat/completions"


def _chat(raw: Mapping[str, Any]) -> Completion | None:
    choice = choice_in(raw.get("choices")) or first(raw.get("choices"))
    message = choice.get("message")
    if not isinstance(message, (dict, Mapping)):
        return None
    return Completion(
        text=text_of(message.get("content")),
        tool_calls=tuple(_tool_call(call) for call in mappings(message.get("tool_calls"))),
        reasoning=_reasoning(message),
        finish_reason=finish_of(choice),
        usage=usage_in(raw) or Usage(),
        raw=raw,
    )


def _chat_events(value: Mapping[str, Any]) -> Sequence[Event]:
    out: list[Event] = []
    choice = choice_in(value.get("choices"))
    delta = choice.get("delta")
    if isinstance(delta, (dict, Mapping)):
        if reasoning := _reasoning(delta):
            out.append(ReasoningDelta(reasoning))
        if text := text_of(delta.get("content")):
            out.append(TextDelta(text))
        for position, call in enumerate(mappings(delta.get("tool_calls"))):
            out.append(_tool_call_delta(call, position))
    if (reason := finish_of(choice)) and ("delta" in choice or "text" not in choice):  # else that of a completion
        out.append(Finished(reason))
    if usage := usage_in(value):
        out.append(usage)
    return out


def usual_text(value: Any) -> str | None:
    """The text of a piece that holds text and nothing else, as nearly all do; ``None`` for every other.

    What it takes for one, ``_chat_events`` reads alike, in four times the time.
    """
    if type(value) is not dict or value.get("error") is not None or value.get("usage") is not None:
        return None
    choices = value.get("choices")
    if type(choices) is not list or len(choices) != 1 or type(choice := choices[0]) is not dict:
        return None
    if choice.get("index", 0) != 0 or choice.get("finish_reason") is not None:
        return None
    delta = choice.get("delta")
    if type(delta) is not dict or len(delta) != 1:
        return None
    text = delta.get("content")
    return text if type(text) is str else None


def usage_in(raw: Mapping[str, Any]) -> Usage | None:
    """The token counts of an answer, or of the piece of a stream that holds them."""
    return usage_of(raw.get("usage"))


CHATS = Endpoint(
    name="chat",
    path=CHAT,
    prompt="messages",
    limits=("max_completion_tokens", "max_tokens", "n_predict"),
    completion=_chat,
    events=_chat_events,
    usage=usage_in,
    asks_usage=True,
)
"""The endpoint for chats."""


def finish_of(choice: Mapping[str, Any]) -> str | None:
    """Why a choice ended; raises ``BackendError`` (interrupted) when the server gave it up.

    SGLang ends a request that was aborted without a reason of its own with ``abort`` and no error (0.5.23,
    ``serving_chat.py``), vLLM has ``abort`` and ``error`` (0.32, ``v1/engine``).
    """
    reason = word(choice.get("finish_reason"))
    if reason in _GIVEN_UP:
        raise BackendError(FailureKind.INTERRUPTED, f"the server gave the answer up: finish_reason is {reason!r}")
    return reason


_GIVEN_UP = ("abort", "error", "cancelled")


def usage_of(value: Any) -> Usage | None:
    """Token counts, or ``None`` when there are none; a count that is not one is unknown."""
    if not isinstance(value, (dict, Mapping)):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, (dict, Mapping)) else None
    return Usage(tokens(value.get("prompt_tokens")), tokens(value.get("completion_tokens")), tokens(cached))


def _reasoning(message: Mapping[str, Any]) -> str:
    return text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))


def _function(call: Mapping[str, Any]) -> tuple[str | None, str]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return word(function.get("name")), arguments or ""


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    name, arguments = _function(call)
    return ToolCall(word(call.get("id")), name or "", arguments)


def _tool_call_delta(call: Mapping[str, Any], position: int) -> ToolCallDelta:
    name, arguments = _function(call)
    index = count(call.get("index"))
    return ToolCallDelta(position if index is None else index, word(call.get("id")), name, arguments)
