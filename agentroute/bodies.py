"""What an OpenAI-shaped request asks for: its prompt's size, the most output, and what it needs. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from agentroute.counting import Counting
from agentroute.errors import UsageError, shown
from agentroute.shape.model import Capability
from agentroute.task import MAX_TOKENS
from agentroute.tokens import GENERIC, TokenCount, estimate

Endpoint = Literal["chat", "completions", "responses", "embeddings"]
"""Which of the OpenAI API's; its path is that of its name under ``/v1``, of chat ``/v1/chat/completions``."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


def size(body: Mapping[str, Any], endpoint: Endpoint, counting: Counting | None = None) -> TokenCount:
    """Tokens of a request's prompt, counted by the fingerprint of the fleet's model; raises ``UsageError``."""
    messages, ids = _prompt(body, endpoint)
    tools = body.get("tools")
    tools = tools if isinstance(tools, list | tuple) else ()
    if ids is not None:
        return TokenCount(ids, ids, "tokenizer")
    return estimate(messages, tools, fingerprint=GENERIC if counting is None else counting.fingerprint())


def _prompt(body: Mapping[str, Any], endpoint: Endpoint) -> tuple[list[Mapping[str, Any]], int | None]:
    """A request's prompt as messages, or the number of its tokens where it is given as such."""
    key = {"chat": "messages", "completions": "prompt", "responses": "input", "embeddings": "input"}[endpoint]
    said = body.get(key)
    if endpoint == "chat":
        if not isinstance(said, list | tuple) or not all(isinstance(message, Mapping) for message in said):
            raise UsageError(f"messages must be a list of objects, got {shown(said)}")
        return list(said), None
    if isinstance(said, str):
        parts: list[Mapping[str, Any]] = [_message(said)]
    elif isinstance(said, list | tuple) and said and all(type(part) is int for part in said):
        return [], len(said)
    elif isinstance(said, list | tuple) and all(isinstance(part, str | Mapping) for part in said):
        parts = [_message(part) if isinstance(part, str) else part for part in said]
        if endpoint == "embeddings" and parts:
            parts = [max(parts, key=lambda part: len(str(part.get("content", ""))))]  # each is read for itself
    elif isinstance(said, list | tuple) and all(isinstance(part, list | tuple) and part for part in said):
        return [], (max if endpoint == "embeddings" else sum)(len(part) for part in said)
    else:
        raise UsageError(f"{key} must be a text, or a list of texts or objects, got {shown(said)}")
    if endpoint == "responses" and isinstance(instructions := body.get("instructions"), str):
        parts.insert(0, _message(instructions))
    return parts, None


def _message(text: str) -> Mapping[str, Any]:
    return {"role": "user", "content": text}


def most_output(body: Mapping[str, Any]) -> int | None:
    """The most output tokens that a body asks for; raises ``UsageError``."""
    asked = [(key, body[key]) for key in _LIMITS if body.get(key) is not None]
    for key, value in asked:
        whole(value, MAX_TOKENS, key)
    return max((value for _, value in asked), default=None)


def needs(body: Mapping[str, Any]) -> frozenset[Capability]:
    """What a body needs of a deployment."""
    found: set[Capability] = set()
    if body.get("tools"):
        found.add("tools")
        if body.get("parallel_tool_calls") is True:
            found.add("parallel_tools")
    text = body.get("text")
    for format_ in (body.get("response_format"), text.get("format") if isinstance(text, Mapping) else None):
        if isinstance(format_, Mapping) and format_.get("type") == "json_schema":
            found.add("json_schema")
    if body.get("logprobs") or body.get("top_logprobs"):
        found.add("logprobs")
    messages = body.get("messages") or body.get("input")
    for message in messages if isinstance(messages, list | tuple) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list | tuple) else ():
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("image_url", "input_image", "image"):
                found.add("vision")
            elif kind in ("input_audio", "audio_url", "audio"):
                found.add("audio")
    return frozenset(found)


def whole(value: object, most: int, where: str, *, least: int = 1) -> int:
    """A whole number; raises ``UsageError`` that names where it was said."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{where} must be a whole number from {least} to {most:,}, got {shown(value)}")
    return value
