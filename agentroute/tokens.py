"""How many tokens a conversation is: a value, an upper bound, and where they come from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentroute.origin import Origin

BYTES_PER_TOKEN = 4.0
"""Assumed for English prose with a vocabulary of 32k or more."""
TOKENS_PER_MESSAGE = 8
"""Assumed for the chat template's marks around one message."""
TEMPLATE_TOKENS = 32
"""Assumed at most for what a template adds once, such as a system message of its own."""
LETTERS_PER_TOKEN = 2
"""Assumed at worst within one run of letters of a word: names, and languages that a vocabulary hardly knows."""

_CODED_LETTERS = 16
"""A word at least so long, of both cases and digits, is taken for base64 or an id, a token a letter."""

_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]|[^\x00-\x7f]+|[^\sA-Za-z0-9]")
_GAPS = re.compile(r"\s{2,}")


@dataclass(frozen=True, slots=True)
class TokenCount:
    """``value`` tokens expected, ``upper`` at most, and the ``origin`` of both."""

    value: int
    upper: int
    origin: Origin


def estimate(messages: Sequence[Mapping[str, Any]], extra: Mapping[str, Any] | None = None) -> TokenCount:
    """Tokens of ``messages`` (and of what else goes into the prompt, such as tools) from their text alone: assumed."""
    texts = [_text(message) for message in messages]
    if extra:
        texts.append(json.dumps(extra, default=str))
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    marks = TOKENS_PER_MESSAGE * (len(messages) + 1)
    return TokenCount(
        value=round(size / BYTES_PER_TOKEN) + marks,
        upper=sum(_at_most(text) for text in texts) + marks + TEMPLATE_TOKENS,
        origin="assumed",
    )


def _at_most(text: str) -> int:
    """Tokens that a byte-pair vocabulary will hardly exceed: digits, signs and foreign bytes may each be one."""
    most = len(_GAPS.findall(text)) + sum(_of_word(word) for word in text.split())
    return max(most, round(len(text) / BYTES_PER_TOKEN))


def _of_word(word: str) -> int:
    if len(word) >= _CODED_LETTERS and word.isascii() and _is_coded(word):
        return len(word)
    most = 0
    for piece in _PIECES.findall(word):
        if piece[0] > "\x7f":
            most += len(piece.encode("utf-8", "surrogatepass"))
        elif piece[0].isalpha():
            most += -(-len(piece) // LETTERS_PER_TOKEN)
        else:
            most += 1
    return most


def _is_coded(word: str) -> bool:
    return not word.isalpha() and word != word.lower() and word != word.upper() and any(c.isdigit() for c in word)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str) and message.keys() <= {"role", "content"}:
        return content
    return json.dumps(message, ensure_ascii=False, default=str)
