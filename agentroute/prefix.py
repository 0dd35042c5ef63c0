"""What a prompt begins with, as chained hashes: two prompts with an equal mark are equal up to there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from agentroute.errors import TaskError, shown

_DIGEST_BYTES = 8
_MAY_BE_EMPTY = (str, list, tuple, Mapping)
"""What a message may hold empty or leave out, to the same effect."""


class Mark(NamedTuple):
    """After a prompt's first ``tokens`` tokens the chained hash of what stands there is ``hash`` (64 bits)."""

    hash: int
    tokens: int


def marks(
    messages: Sequence[Mapping[str, Any]],
    token_counts: Sequence[int],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tools_tokens: int = 0,
) -> tuple[Mark, ...]:
    """A mark after every message, ascending in tokens.

    ``token_counts``: tokens of each message, ``tools_tokens`` of the tools; these stand before the first message. A
    hash covers the tools, the message and all that stands before it (BLAKE2b, RFC 7693, of 64 bits), so a chain that
    goes on from another shares its marks. The order of keys and what is left empty make no difference, nor does a lone
    text part instead of a string. An image counts by its data or its address, as given. Nobody is kept from making two
    prompts collide on purpose; all they win is a wrong guess of what is cached.

    Raises ``TaskError`` when the counts do not go with the messages, or a message is not made of JSON's types.
    """
    if len(token_counts) != len(messages):
        raise TaskError(f"token_counts must have one count a message ({len(messages)}), got {len(token_counts)}")
    digest = blake2b(_tools(tools) if tools else b"", digest_size=_DIGEST_BYTES).digest()
    tokens = _count(tools_tokens, "tools_tokens")
    found = []
    for k, message in enumerate(messages):
        tokens += _count(token_counts[k], "each of token_counts")
        digest = blake2b(digest + _message(message, k), digest_size=_DIGEST_BYTES).digest()
        found.append(Mark(int.from_bytes(digest), tokens))
    return tuple(found)


def named(kind: str, name: str, tokens: int) -> Mark:
    """A mark for a prefix known by name alone: a session's last prompt, what a group shares. Equal for an equal
    ``kind`` and ``name``, whatever the tokens; never equal to one of ``marks``."""
    head = kind.encode("utf-8", "surrogatepass")
    text = b"%d:%b%b" % (len(head), head, name.encode("utf-8", "surrogatepass"))
    return Mark(int.from_bytes(blake2b(text, digest_size=_DIGEST_BYTES, person=b"named").digest()), tokens)


def _tools(tools: Sequence[Mapping[str, Any]]) -> bytes:
    try:
        return _JSON.encode(tools).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"tools must be made of what JSON knows, got {shown(tools)}: {error}") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is none of it")


_JSON = json.JSONEncoder(sort_keys=True, default=_plain)
"""For schemas and tool calls, many small pieces, which it walks several times faster than ``_feed``; that one takes
content, where a large image is not to be escaped."""


def _message(message: Mapping[str, Any], k: int) -> bytes:
    """One message as bytes, equal for what makes equal prompts."""
    pieces: list[bytes] = []
    try:
        for key in sorted(message):
            value = message[key]
            if value is None or (not value and isinstance(value, _MAY_BE_EMPTY)):
                continue
            _feed(key, pieces)
            if type(value) is str:
                _feed(value, pieces)
            elif key == "content":
                _feed(_alone(value), pieces)
            else:
                pieces.append(b"j")
                _feed(_JSON.encode(value), pieces)
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"message {k} must be made of what JSON knows, got {shown(message)}: {error}") from None
    return b"".join(pieces)


def _alone(content: object) -> object:
    """The text of a content that is one text part and nothing else."""
    match content:
        case [{"type": "text", "text": str(text), **others}] if not others:
            return text
    return content


def _feed(value: object, pieces: list[bytes]) -> None:
    """Bytes that no other value has: every piece says what it is and how long."""
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        pieces.append(b"s%d:%b" % (len(data), data))
    elif isinstance(value, dict):
        pieces.append(b"m%d:" % len(value))
        for key in sorted(value):
            _feed(key, pieces)
            _feed(value[key], pieces)
    elif isinstance(value, list | tuple):
        pieces.append(b"l%d:" % len(value))
        for each in value:
            _feed(each, pieces)
    elif isinstance(value, bytes | bytearray):
        pieces.append(b"b%d:%b" % (len(value), bytes(value)))
    elif value is None or isinstance(value, int | float):
        pieces.append(b"n%b;" % repr(value).encode())
    elif isinstance(value, Mapping):
        _feed(dict(value), pieces)
    else:
        raise TypeError(f"a {type(value).__name__} is none of it")


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TaskError(f"{where} must be a whole number of tokens, 0 or more, got {shown(value)}")
    return value
