"""What a request's body asks for, whichever endpoint it is for: its prompt, the tokens of it, its limit. No I/O."""

from __future__ import annotations

import heapq
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentroute.adapters.base import Endpoint
from agentroute.adapters.endpoints import CHATS, EMBEDDINGS, ENDPOINTS, RESPONSES
from agentroute.errors import UnknownNameError, UsageError, shown
from agentroute.task import MAX_TOKENS
from agentroute.tokens import GENERIC, Fingerprint, Previous, TokenCount, estimate, of_text

Messages = Sequence[Mapping[str, Any]]
EndpointName = Literal["chat", "completions", "responses", "embeddings"]


def endpoint_of(name: str) -> Endpoint:
    """The endpoint of that name; raises ``UnknownNameError``."""
    if name not in ENDPOINTS:
        raise UnknownNameError("endpoint", name, ENDPOINTS)
    return ENDPOINTS[name]


def messages_of(endpoint: Endpoint, prompt: Any, fields: Mapping[str, Any]) -> Messages:
    """What a chat template makes the prompt of: a chat's messages, the items of a response's input; none elsewhere.

    Raises ``UsageError`` for a prompt that is no such thing.
    """
    if endpoint is RESPONSES:
        told = fields.get("instructions")
        first = [{"role": "system", "content": told}] if isinstance(told, str) else []
        if prompt is None or isinstance(prompt, str):
            return [*first, *([{"role": "user", "content": prompt}] if prompt else ())]
        return [*first, *_mappings(prompt, "input", "every item of input must be a mapping")]
    if endpoint is not CHATS:
        return ()
    return _mappings(prompt, "messages", "every message must be a mapping with a role and content")


def _mappings(value: Any, name: str, each_must: str) -> Messages:
    # A list, and a dict below, is told apart in a fifth of the time that the abstract classes take.
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, Sequence)):
        raise UsageError(f"{name} must be a list of mappings, got {type(value).__name__}")
    for each in value:
        if not isinstance(each, (dict, Mapping)):
            raise UsageError(f"{each_must}, got {shown(each)}")
    return value


MOST_COUNTED = 256
"""Of several inputs the tokens of so many are counted, those of the most bytes: half a million short ones would take
20 s, in which nobody else is answered. Assumed: no shorter one has more tokens than all of these."""


def count(
    endpoint: Endpoint,
    prompt: Any,
    fields: Mapping[str, Any],
    *,
    fingerprint: Fingerprint = GENERIC,
    previous: Previous | None = None,
) -> TokenCount:
    """Tokens of the prompt; of several inputs, which are read one by one, those of the longest.

    Raises ``UsageError`` for a prompt that is no such thing, and for several prompts that each want an answer.
    """
    if endpoint in (CHATS, RESPONSES):
        messages = messages_of(endpoint, prompt, fields)
        return estimate(messages, tools_of(fields), fingerprint=fingerprint, previous=previous)
    inputs = _inputs(prompt, endpoint.prompt)
    if len(inputs) > 1 and endpoint is not EMBEDDINGS:
        raise UsageError(f"body must not hold several prompts (it has {len(inputs)}); ask several times")
    if len(inputs) > MOST_COUNTED:
        inputs = heapq.nlargest(MOST_COUNTED, inputs, key=_size)
    counts = [_input(one, endpoint.prompt, fingerprint) for one in inputs]
    return max(counts, key=lambda each: each.upper, default=of_text("", fingerprint))


def _size(one: Any) -> float:
    """What an input is ranked by before its tokens are counted: the bytes of a text, the number of ids."""
    if isinstance(one, str):
        return len(one.encode("utf-8", "surrogatepass"))
    return len(one) if isinstance(one, list | tuple) else math.inf


def _inputs(prompt: Any, name: str) -> Sequence[Any]:
    """Each of what stands for one prompt: a text, token ids, or what a model with eyes takes beside a text."""
    if prompt is None:
        return ()
    if isinstance(prompt, str | Mapping):
        return (prompt,)
    if not isinstance(prompt, list | tuple):
        raise UsageError(f"{name} must be a text, token ids or a list of such, got {type(prompt).__name__}")
    return (prompt,) if prompt and _is_id(prompt[0]) else prompt


def _input(one: Any, name: str, fingerprint: Fingerprint) -> TokenCount:
    if isinstance(one, str):
        return of_text(one, fingerprint)
    if isinstance(one, Mapping):
        return estimate([{"content": [one]}], fingerprint=fingerprint)
    if isinstance(one, list | tuple) and all(map(_is_id, one)):
        return TokenCount(max(1, len(one)), max(1, len(one)), "tokenizer")
    raise UsageError(f"{name} must be a text, token ids or a list of such, got {shown(one)} in it")


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def whole(value: Any) -> Any:
    """A number as a whole one, if it is: in JSON 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def limit_of(endpoint: Endpoint, fields: Mapping[str, Any]) -> int | None:
    """The limit on the answer, the largest where there are several; raises ``UsageError`` where it is none."""
    asked = [whole(fields[key]) for key in endpoint.limits if fields.get(key) is not None]
    for n in asked:
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_TOKENS:
            raise UsageError(f"a limit on the answer must be a whole number of tokens, at least 1, got {shown(n)}")
    return max(asked, default=None)


def limit_field(endpoint: Endpoint) -> str | None:
    """The field to write a limit on the answer in, where the caller has written none; ``None``: there is no answer."""
    return "max_tokens" if "max_tokens" in endpoint.limits else next(iter(endpoint.limits), None)


def tools_of(fields: Mapping[str, Any]) -> Sequence[Any]:
    """The tools among the fields."""
    tools = fields.get("tools")
    return tools if isinstance(tools, list | tuple) else ()


def read_body(body: bytes, *, strictly: bool = False) -> dict[str, Any]:
    """What a body says; raises ``UsageError`` where it is no JSON object.

    ``strictly``: nor is one that says two values under one key, of which servers take either, that has numbers which
    are none (NaN), or that is no UTF-8.
    """
    try:
        parsed = _STRICT.decode(str(body, "utf-8")) if strictly else json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError("the body is not JSON") from None
    if not isinstance(parsed, dict):
        raise UsageError(f"the body must be a JSON object, got {shown(parsed)}")
    return parsed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen = set[str]()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise UsageError(f"the body says {shown(twice)} twice")
    return made


def _no_number(text: str) -> None:
    raise UsageError(f"the body is not JSON: {text} is no number")


_STRICT = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number)


def renamed(body: bytes, was: str, model: str) -> bytes | None:
    """A body's bytes with another model's name; ``None`` where it cannot be told which of them are the name.

    The name is looked for, so that a long conversation need not be written anew. Inside of a text every quote has a
    backslash before it, so what is found is a key; if there is only one, and no letter is written as a number, it is
    the model's.
    """
    found = list(re.finditer(rb'"model"[ \t\r\n]*:[ \t\r\n]*(' + re.escape(json.dumps(was).encode()) + b")", body))
    if len(found) != 1 or b"\\u006" in body:
        return None
    start, end = found[0].span(1)
    return body[:start] + json.dumps(model).encode() + body[end:]
