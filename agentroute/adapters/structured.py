"""The shape that an answer must have, in each runtime's dialect.

A JSON schema travels in ``response_format`` everywhere. Everything else, and schemas in older words, is written in as
many ways as there are runtimes: ``guided_*`` (vLLM up to 0.11, Dynamo), ``structured_outputs`` (vLLM since; it ignores
``guided_*`` now and answers unconstrained, 0.32 ``serve/engine/protocol.py``), ``regex`` and ``ebnf`` (SGLang),
``grammar`` and ``json_schema`` (llama.cpp), and ``response_format`` with more types (TensorRT-LLM).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

from agentroute.errors import UsageError, shown

Constraint = Literal["schema", "regex", "choice", "grammar"]
Writer = Callable[[Any], Mapping[str, Any]]
"""From the constraint to the fields that state it."""

_ALONE: Mapping[str, Constraint] = {
    "guided_json": "schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "schema",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}
"""A field that holds a constraint by itself."""
_INSIDE: Mapping[str, Constraint] = {"json": "schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
"""A key of ``structured_outputs``."""
_TYPES: Mapping[str, tuple[str, Constraint]] = {
    "json": ("schema", "schema"),
    "regex": ("regex", "regex"),
    "ebnf": ("ebnf", "grammar"),
}
"""A type of ``response_format`` that is not OpenAI's, and the key that holds the constraint."""


def constraints(body: Mapping[str, Any]) -> Iterator[tuple[Constraint, str, Any]]:
    """The kind, the field that says it, and the constraint; OpenAI's own ``response_format`` is not among them.

    Raises ``UsageError`` for choices that are no list, and for two kinds at once: an answer has one shape (vLLM, SGLang
    and llama.cpp refuse a pair; recalled).
    """
    kinds = {kind for kind, _, _ in _said(body)}
    if len(kinds) > 1:
        raise UsageError(f"the constraint on an answer must be a single one, got {' and '.join(sorted(kinds))}")
    for kind, name, value in _said(body):
        if kind == "choice" and not isinstance(value, list | tuple):
            raise UsageError(f"the choices in {name} must be a list, got {shown(value)}")
        yield kind, name, value


def _said(body: Mapping[str, Any]) -> Iterator[tuple[Constraint, str, Any]]:
    for name, kind in _ALONE.items():
        if body.get(name) is not None:
            yield kind, name, body[name]
    inside = body.get("structured_outputs")
    if isinstance(inside, Mapping):
        for name, kind in _INSIDE.items():
            if inside.get(name) is not None:  # vLLM takes one of them at a time
                yield kind, "structured_outputs", inside[name]
    wanted = body.get("response_format")
    named = wanted.get("type") if isinstance(wanted, Mapping) else None
    if isinstance(wanted, Mapping) and isinstance(named, str) and named in _TYPES:
        key, kind = _TYPES[named]
        if wanted.get(key) is not None:
            yield kind, "response_format", wanted[key]


def schema(value: Any) -> Mapping[str, Any]:
    """A JSON schema as OpenAI's wire has it; a string is its JSON."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": value}}}


def inside(kind: str) -> Writer:
    """vLLM's way: a key of ``structured_outputs``; up to 0.11 it reads ``guided_*``, which it ignores since."""
    return lambda value: {"structured_outputs": {kind: value}, f"guided_{kind}": value}


def alone(name: str) -> Writer:
    """A field of its own."""
    return lambda value: {name: value}


def typed(name: str) -> Writer:
    """TensorRT-LLM's way: a type of ``response_format`` and a key of the same name."""
    return lambda value: {"response_format": {"type": name, name: value}}


def as_regex(write: Writer) -> Writer:
    """Choices for a runtime that knows regular expressions alone."""
    return lambda value: write("|".join(_SPECIAL.sub(r"\\\g<0>", str(choice)) for choice in value))


def as_grammar(write: Writer) -> Writer:
    """Choices for a runtime that knows grammars alone."""
    return lambda value: write(
        "root ::= " + " | ".join(json.dumps(str(choice), ensure_ascii=False) for choice in value)
    )


_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
"""What means something in a regular expression; ``re.escape`` also escapes blanks, which not every engine takes."""
