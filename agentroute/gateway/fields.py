"""The fields of a body that the gateway reads: what each must be, for a request and for the OpenAPI document alike.

Others pass through untouched. Every one of these may be null but ``model``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentroute.errors import UsageError, shown
from agentroute.payload import EndpointName, endpoint_of, whole
from agentroute.task import MAX_TOKENS

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field must be."""

    words: str
    schema: Schema
    fits: Callable[[Any], bool] | None = None
    """Whether a value is such; ``None``: who reads it says so."""


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _tokens(value: Any) -> bool:
    value = whole(value)
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TOKENS


FLAG = Kind("true or false", {"type": "boolean"}, lambda value: isinstance(value, bool))
OBJECT = Kind("an object", {"type": "object"}, lambda value: isinstance(value, dict))
OBJECTS = Kind("a list of objects", {"type": "array", "items": {"type": "object"}}, _objects)
TOKENS = Kind(
    f"a whole number of tokens from 1 to {MAX_TOKENS:,}",
    {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
    _tokens,
)
NOT_ASKED = Kind("false: nobody would fetch the answer", {"const": False}, lambda value: value is False)

_IDS: Schema = {"type": "array", "items": {"type": "integer"}}
_TEXT: Schema = {"type": "string"}
MESSAGES = Kind(
    "a list of messages",
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"role": _TEXT, "content": {"type": ["string", "array", "null"]}},
            "required": ["role"],
        },
    },
)
PROMPT = Kind(
    "a text or token ids",
    {"anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "maxItems": 1}]},
)
INPUT = Kind(
    "a text or a list of objects",
    {"anyOf": [_TEXT, OBJECTS.schema]},
    lambda value: isinstance(value, str) or _objects(value),
)
INPUTS = Kind(
    "texts, or token ids",
    {"anyOf": [_TEXT, _IDS, {"type": "array", "items": _TEXT}, {"type": "array", "items": _IDS}]},
)

_PROMPTS: dict[EndpointName, Kind] = {
    "chat": MESSAGES, "completions": PROMPT, "responses": INPUT, "embeddings": INPUTS,
}  # fmt: skip
_COMMON = {"metadata": OBJECT, "nvext": OBJECT}
_ANSWER = _COMMON | {"stream": FLAG, "stream_options": OBJECT}
_OF: dict[EndpointName, dict[str, Kind]] = {
    "chat": _ANSWER | {"tools": OBJECTS, "parallel_tool_calls": FLAG, "response_format": OBJECT},
    "completions": _ANSWER | {"response_format": OBJECT},
    "responses": _ANSWER | {"tools": OBJECTS, "parallel_tool_calls": FLAG, "text": OBJECT, "background": NOT_ASKED},
    "embeddings": _COMMON,
}


def fields_of(name: EndpointName) -> dict[str, Kind]:
    """By name the fields of an endpoint's body, ``model`` apart."""
    endpoint = endpoint_of(name)
    return {endpoint.prompt: _PROMPTS[name], **dict.fromkeys(endpoint.limits, TOKENS), **_OF[name]}


_CHECKED = {name: {key: kind for key, kind in fields_of(name).items() if kind.fits is not None} for name in _PROMPTS}


def check(name: EndpointName, body: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for a field that is not what it must be."""
    for key, kind in _CHECKED[name].items():
        value = body.get(key)
        if value is not None and kind.fits is not None and not kind.fits(value):
            raise UsageError(f"{key} must be {kind.words}, got {shown(value)}")
    if name != "chat":
        return
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise UsageError(f"messages must be {MESSAGES.words}, got {shown(messages)}")
    for i, each in enumerate(messages):
        _check_message(i, each)


def _check_message(i: int, message: Any) -> None:
    if not isinstance(message, dict):
        raise UsageError(f"messages[{i}] must be an object with a role and content, got {shown(message)}")
    if not isinstance(message.get("role"), str):
        raise UsageError(f"messages[{i}].role must be a text, got {shown(message.get('role'))}")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise UsageError(f"messages[{i}].content must be a text or a list of parts, got {shown(content)}")
