"""How many tokens a conversation is: a value, an upper bound, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentroute.origin import Origin

BYTES_PER_TOKEN = 4.0
"""Assumed for English prose with a vocabulary of 32k or more."""
BYTES_PER_TOKEN_AT_WORST = 1.5
"""Assumed for ids, base64 and other text that a vocabulary does not know."""
TOKENS_PER_MESSAGE = 8
"""Assumed for the chat template's marks around one message."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """``value`` tokens expected, ``upper`` at most, and the ``origin`` of both."""

    value: int
    upper: int
    origin: Origin


def estimate(messages: Sequence[Mapping[str, Any]], extra: Mapping[str, Any] | None = None) -> TokenCount:
    """Tokens of ``messages`` (and of what else goes into the prompt, such as tools) from their UTF-8 size: assumed."""
    size = sum(len(_text(message).encode("utf-8", "surrogatepass")) for message in messages)
    if extra:
        size += len(json.dumps(extra, default=str))
    marks = TOKENS_PER_MESSAGE * (len(messages) + 1)
    return TokenCount(
        value=round(size / BYTES_PER_TOKEN) + marks,
        upper=round(size / BYTES_PER_TOKEN_AT_WORST) + marks,
        origin="assumed",
    )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str) and message.keys() <= {"role", "content"}:
        return content
    return json.dumps(message, ensure_ascii=False, default=str)
