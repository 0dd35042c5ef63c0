"""How many tokens a conversation is: the best rung of a ladder that stands, with an upper bound and its source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import agentroute.tokens.marks as marks
from agentroute.origin import Origin
from agentroute.tokens.classes import pairs
from agentroute.tokens.fingerprint import GENERIC, Fingerprint
from agentroute.tokens.messages import Prompt, prompt_of

Source = Literal["usage", "server", "tokenizer", "fingerprint", "generic fingerprint", "size"]
"""usage: what the server counted in the step before, and an estimate of what is new; server: it was asked; tokenizer: a
file on this machine; fingerprint: the characters, by the model's weights or by nobody's in particular; size: bytes
alone. The earlier in this list, the better."""

_ORIGINS: dict[Source, Origin] = {
    "usage": "reported",
    "server": "reported",
    "tokenizer": "derived",
    "fingerprint": "derived",
    "generic fingerprint": "assumed",
    "size": "assumed",
}

BYTES_PER_TOKEN = 4.0
"""Assumed for English prose with a vocabulary of 32k or more; Japanese and base64 have a third of that."""

Messages = Sequence[Mapping[str, Any]]


class Tokenizer(Protocol):
    """Whatever counts the tokens of a text, such as ``LocalTokenizer``."""

    def count(self, text: str) -> int:
        """Tokens of a text, without a template's marks."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """``value`` tokens expected, ``upper`` at most, and the ``source`` of both.

    ``assumed``: how many of ``value`` stand for images and audio, of which nobody knows the size.
    """

    value: int
    upper: int
    source: Source
    assumed: int = 0

    @property
    def origin(self) -> Origin:
        """The source in the words of every other number."""
        return _ORIGINS[self.source]


@dataclass(frozen=True, slots=True)
class Previous:
    """What the server counted for the step before, and how long its conversation was.

    ``completion_tokens``: of the answer, which the conversation now holds; ``None`` when the server did not say.
    """

    prompt_tokens: int
    completion_tokens: int | None
    extent: tuple[int, int, int]

    @classmethod
    def of(
        cls, messages: Messages, prompt_tokens: int, completion_tokens: int | None = None, *, tools: Sequence[Any] = ()
    ) -> Previous:
        """The step that sent ``messages`` and ``tools``, with its usage."""
        return cls(prompt_tokens, completion_tokens, _extent(messages, tools))


def _extent(messages: Messages, tools: Sequence[Any]) -> tuple[int, int, int]:
    """Messages, characters or parts of their contents, and tools: whether a conversation still begins the same way."""
    contents = (message.get("content") for message in messages)
    return len(messages), sum(len(one) for one in contents if isinstance(one, str | list | tuple)), len(tools)


def estimate(
    messages: Messages,
    tools: Sequence[Any] = (),
    *,
    fingerprint: Fingerprint = GENERIC,
    previous: Previous | None = None,
    served: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> TokenCount:
    """Tokens of the prompt that ``messages`` and ``tools`` become.

    The best of what is given counts: the step before (``previous``) as long as the conversation has only grown, what
    the server said of this very prompt (``served``), a ``tokenizer``, the ``fingerprint`` of the model's.
    """
    if previous is not None:
        sent = previous.extent[0]
        if sent <= len(messages) and _extent(messages[:sent], tools) == previous.extent:
            return _grown(previous, messages[sent:], fingerprint)
    if served is not None:
        return TokenCount(served, served, "server")
    prompt = prompt_of(messages, tools)
    once, once_at_most = marks.TEMPLATE, marks.TEMPLATE_AT_MOST + marks.MESSAGE_AT_MOST
    if fingerprint.template_tokens is not None:
        once, once_at_most = fingerprint.template_tokens, max(once_at_most, fingerprint.template_tokens)
    if tools:
        once, once_at_most = once + marks.TOOLS, once_at_most + marks.TOOLS_AT_MOST
    around, around_at_most = _marks(prompt, fingerprint)
    text, text_at_most, schemas, schemas_at_most = _of_text(prompt, fingerprint, tokenizer)
    source: Source = fingerprint.source if tokenizer is None else "tokenizer"
    value = text + once + around + schemas
    upper = text_at_most + once_at_most + around_at_most + marks.TOOLS_SPREAD * schemas_at_most
    return _whole(value, upper, source, prompt.assumed)


def _of_text(
    prompt: Prompt, fingerprint: Fingerprint, tokenizer: Tokenizer | None
) -> tuple[float, float, float, float]:
    """Tokens of the messages' text and of the tools', each a value and an upper bound."""
    if tokenizer is None:
        schemas, schemas_at_most = fingerprint.tokens(pairs(prompt.tools)) if prompt.tools else (0.0, 0.0)
        return *fingerprint.tokens(pairs(prompt.text)), schemas, schemas_at_most
    text, tools = tokenizer.count(prompt.text), tokenizer.count(prompt.tools)
    return text, text, tools, tools


def _grown(previous: Previous, new: Messages, fingerprint: Fingerprint) -> TokenCount:
    """The step before, its answer, and what has come since. An answer's reasoning may have been left out."""
    value = upper = previous.prompt_tokens
    answer = previous.completion_tokens
    if new and new[0].get("role") == "assistant" and answer is not None:
        expected, at_most, _ = _alone(new[:1], fingerprint)
        value += answer if answer <= at_most else round(expected)
        upper += answer + marks.MESSAGE_AT_MOST
        new = new[1:]
    more, more_at_most, assumed = _alone(new, fingerprint)
    return _whole(value + more, upper + more_at_most, "usage", assumed)


def _alone(messages: Messages, fingerprint: Fingerprint) -> tuple[float, float, int]:
    """Tokens of messages in the middle of a conversation: a value, an upper bound, and how many are assumed."""
    prompt = prompt_of(messages)
    value, upper = fingerprint.tokens(pairs(prompt.text))
    around, around_at_most = _marks(prompt, fingerprint)
    return value + around, upper + around_at_most, prompt.assumed


def _marks(prompt: Prompt, fingerprint: Fingerprint) -> tuple[int, int]:
    """Tokens around the messages, and of images and audio: a value and an upper bound."""
    each = marks.MESSAGE if fingerprint.message_tokens is None else fingerprint.message_tokens
    value = each * prompt.messages + marks.TOOL_CALL * prompt.tool_calls
    upper = max(each, marks.MESSAGE_AT_MOST) * prompt.messages + marks.TOOL_CALL_AT_MOST * prompt.tool_calls
    return value + prompt.assumed, upper + prompt.assumed_at_most


def of_text(text: str, fingerprint: Fingerprint = GENERIC) -> TokenCount:
    """Tokens of a text that no template is put around: a completion's prompt, an input of an embedding."""
    value, upper = fingerprint.tokens(pairs(text))
    return _whole(value + marks.ENDS, upper + marks.ENDS_AT_MOST, fingerprint.source, 0)


def of_size(size_bytes: int) -> TokenCount:
    """Tokens of so many bytes of text that nobody has looked at: one every four, and no more than one each.

    A vocabulary that falls back to bytes makes at most a token of a byte.
    """
    return _whole(size_bytes / BYTES_PER_TOKEN, size_bytes, "size", 0)


def _whole(value: float, upper: float, source: Source, assumed: int) -> TokenCount:
    expected = max(1, round(value))
    return TokenCount(expected, max(expected, math.ceil(upper)), source, assumed)
