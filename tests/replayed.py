"""Servers' answers out of tests/data/servers, sent back to an adapter that asks."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

from agentroute.probe import converse
from agentroute.wire import Answer, Request

R = TypeVar("R")

DATA = Path(__file__).parent / "data" / "servers"
NOT_FOUND = Answer(404, {}, b'{"detail":"Not Found"}')


def recorded(name: str) -> dict[str, Any]:
    """What a server answered, by route; a text is a list of lines."""
    answers: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return {path: _text(answer) for path, answer in answers.items()}


def _text(answer: Any) -> Any:
    lines = isinstance(answer, list) and all(isinstance(line, str) for line in answer)
    return "".join(f"{line}\n" for line in answer) if lines else answer


def talk(conversation: Generator[Request, Answer, R], answers: dict[str, Any]) -> R:
    """The end of a conversation with a server that answers so, and 404 to all else."""

    def answer(request: Request) -> Answer:
        found = answers.get(request.path, NOT_FOUND)
        if isinstance(found, Answer):
            return found
        return Answer(200, {}, (found if isinstance(found, str) else json.dumps(found)).encode())

    return converse(conversation, answer)
