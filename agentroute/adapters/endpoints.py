"""The endpoints of the OpenAI wire: chats, completions, responses and embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentroute.adapters.base import Endpoint
from agentroute.adapters.chats import CHATS, finish_of, usage_in
from agentroute.adapters.failures import stream_failure
from agentroute.adapters.reading import choice_in, count, first, mappings, text_of, tokens, within, word
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

__all__ = ["CHATS", "COMPLETIONS", "EMBEDDINGS", "ENDPOINTS", "RESPONSES"]


# --- completions


def _completion(raw: Mapping[str, Any]) -> Completion | None:
    choice = choice_in(raw.get("choices")) or first(raw.get("choices"))
    if not isinstance(choice.get("text"), str):
        return None
    return Completion(text=choice["text"], finish_reason=finish_of(choice), usage=usage_in(raw) or Usage(), raw=raw)


def _completion_events(value: Mapping[str, Any]) -> Sequence[Event]:
    out: list[Event] = []
    choice = choice_in(value.get("choices"))
    if text := text_of(choice.get("text")):
        out.append(TextDelta(text))
    if (reason := finish_of(choice)) and ("text" in choice or "delta" not in choice):  # else that of a chat
        out.append(Finished(reason))
    if usage := usage_in(value):
        out.append(usage)
    return out


COMPLETIONS = Endpoint(
    name="completions",
    path="/v1/completions",
    prompt="prompt",
    limits=("max_tokens", "n_predict"),
    completion=_completion,
    events=_completion_events,
    usage=usage_in,
    asks_usage=True,
)
"""A text goes on. Without a limit vLLM and SGLang answer 16 tokens."""


# --- responses


def _response_usage(raw: Mapping[str, Any]) -> Usage | None:
    """The tokens of a response, or of an event that carries one."""
    said = within(raw, "response") or raw
    if not isinstance(said.get("usage"), Mapping):
        return None
    usage = said["usage"]
    cached = tokens(within(usage, "input_tokens_details").get("cached_tokens"))
    return Usage(tokens(usage.get("input_tokens")), tokens(usage.get("output_tokens")), cached)


def _given_up(response: Mapping[str, Any]) -> BackendError:
    error = stream_failure({"error": response.get("error")}) if response.get("error") else None
    status = word(response.get("status")) or "failed"
    return error or BackendError(FailureKind.INTERRUPTED, f"the server gave the answer up: its status is {status!r}")


def _response_finish(response: Mapping[str, Any]) -> str | None:
    """In the words of chats: ``stop``, ``length``, ``tool_calls``."""
    status = response.get("status")
    if status in ("failed", "cancelled"):
        raise _given_up(response)
    if status == "incomplete":
        reason = word(within(response, "incomplete_details").get("reason"))
        return "length" if reason in (None, "max_output_tokens") else reason
    if status != "completed":
        return None
    called = any(item.get("type") == "function_call" for item in mappings(response.get("output")))
    return "tool_calls" if called else "stop"


def _response(raw: Mapping[str, Any]) -> Completion | None:
    if not isinstance(raw.get("output"), list):
        return None
    finish = _response_finish(raw)
    items = list(mappings(raw["output"]))

    def texts(kind: str, *keys: str) -> str:
        return "".join(text_of(item.get(key)) for item in items if item.get("type") == kind for key in keys)

    return Completion(
        text=texts("message", "content"),
        tool_calls=tuple(
            ToolCall(word(item.get("call_id")) or word(item.get("id")), word(item.get("name")) or "", _arguments(item))
            for item in items
            if item.get("type") == "function_call"
        ),
        reasoning=texts("reasoning", "summary", "content"),
        finish_reason=finish,
        usage=_response_usage(raw) or Usage(),
        raw=raw,
    )


def _arguments(item: Mapping[str, Any]) -> str:
    return word(item.get("arguments")) or ""


_THOUGHT = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_ENDED = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


def _response_events(value: Mapping[str, Any]) -> Sequence[Event | Completion]:
    kind = value.get("type")
    if kind in _ENDED:
        response = within(value, "response")
        if kind in ("response.failed", "response.cancelled"):
            raise _given_up(response)
        reason = _response_finish(response) or ("length" if kind == "response.incomplete" else "stop")
        return [event for event in (_response(response), Finished(reason), _response_usage(response)) if event]
    delta = value.get("delta")
    if kind == "response.output_text.delta":
        return (TextDelta(delta),) if isinstance(delta, str) and delta else ()
    if kind in _THOUGHT:
        return (ReasoningDelta(delta),) if isinstance(delta, str) and delta else ()
    index = count(value.get("output_index")) or 0
    if kind == "response.function_call_arguments.delta":
        return (ToolCallDelta(index, arguments=delta),) if isinstance(delta, str) and delta else ()
    item = within(value, "item")
    if kind == "response.output_item.added" and item.get("type") == "function_call":
        return (ToolCallDelta(index, word(item.get("call_id")) or word(item.get("id")), word(item.get("name"))),)
    return ()


RESPONSES = Endpoint(
    name="responses",
    path="/v1/responses",
    prompt="input",
    limits=("max_output_tokens",),
    completion=_response,
    events=_response_events,
    usage=_response_usage,
)
"""Passed through as the caller wrote it; its stream ends with ``response.completed``, which holds all of it."""


# --- embeddings


def _embeddings(raw: Mapping[str, Any]) -> Completion | None:
    if not isinstance(raw.get("data"), list):
        return None
    return Completion(text="", usage=usage_in(raw) or Usage(), raw=raw)


EMBEDDINGS = Endpoint(
    name="embeddings",
    path="/v1/embeddings",
    prompt="input",
    limits=(),
    completion=_embeddings,
    events=None,
    usage=usage_in,
)
"""Vectors; they stand in ``Completion.raw``."""


ENDPOINTS: Mapping[str, Endpoint] = {each.name: each for each in (CHATS, COMPLETIONS, RESPONSES, EMBEDDINGS)}
"""All of them, by name."""
