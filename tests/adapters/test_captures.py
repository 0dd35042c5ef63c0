"""Every answer that was captured from a real server means what happened there; see ``tests/data/captures``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentroute.adapters import adapter
from agentroute.adapters.base import Adapter, Endpoint
from agentroute.adapters.endpoints import CHATS, COMPLETIONS
from agentroute.adapters.openai import json_object
from agentroute.assembly import Assembly
from agentroute.errors import BackendError, FailureKind
from agentroute.sse import EventDecoder
from agentroute.wire import Answer, Completion

DATA = Path(__file__).parents[1] / "data" / "captures"
ROWS: dict[str, list[dict[str, Any]]] = {
    path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(DATA.glob("*.jsonl"))
}
HOW_MANY = {"dynamo": 56, "llamacpp": 43, "sglang-router": 49, "transformers-serve": 42, "vllm": 120}
ADAPTERS = {
    "dynamo": "dynamo",
    "llamacpp": "llamacpp",
    "sglang-router": "sglang_router",
    "transformers-serve": "transformers",
    "vllm": "vllm",
}
"""By file."""

TABLE = [pytest.param(server, row, id=row["id"]) for server, rows in ROWS.items() for row in rows]


def endpoint_of(asked: str) -> Endpoint | None:
    return next((each for each in (CHATS, COMPLETIONS) if asked.startswith(f"POST {each.path}")), None)


def streamed(wire: Adapter, endpoint: Endpoint, body: bytes) -> Completion:
    """The answer in a whole stream; its bytes come in pieces of seven."""
    decoder, assembly = EventDecoder(), Assembly()
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    for data in [data for piece in pieces for data in decoder.feed(piece)] + decoder.flush():
        if data.strip() == "[DONE]":
            return assembly.completion()
        assembly.take(wire.events(data, endpoint))
    if assembly.finish_reason is None:
        raise BackendError(FailureKind.INTERRUPTED, "the stream ended before the answer did")
    return assembly.completion()


def read(wire: Adapter, row: dict[str, Any]) -> Completion | None:
    """What a client makes of the answer; ``None`` for a good one that is no completion."""
    body = row["body"].encode()
    answer = Answer(row["status"] or 0, row["headers"], body)
    endpoint = endpoint_of(row["asked"])
    if (
        endpoint
        and row["status"] in (200, None)
        and not body.startswith(b'{"id"')
        and not body.startswith(b'{"choices"')
    ):
        return streamed(wire, endpoint, body if body.startswith(b"data:") else b"data: " + body + b"\n\n")
    if row["status"] != 200:
        raise wire.classify(answer)
    if endpoint:
        return wire.completion(answer, endpoint)
    if body.startswith(b"{") and not body.endswith(b"..."):
        json_object(answer, wire.classify)  # which must not take it for an error
    return None


@pytest.mark.parametrize(("server", "row"), TABLE)
def test_an_answer_means_what_happened_on_the_server(server: str, row: dict[str, Any]) -> None:
    wire = adapter(ADAPTERS[server])
    try:
        found = read(wire, row)
    except BackendError as error:
        assert error.kind == row["kind"], error
        assert error.status in (row["status"], None) or row["status"] in (200, None)
        assert error.detail
        return
    assert row["kind"] == "good"
    if found is None:
        assert "answer" not in row
        return
    told: dict[str, Any] = {"text": found.text, "finish": found.finish_reason}
    told |= {"reasoning": found.reasoning} if found.reasoning else {}
    told |= {"calls": [[call.name, call.arguments] for call in found.tool_calls]} if found.tool_calls else {}
    usage = [found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.cached_tokens]
    told |= {"usage": usage} if usage != [None] * 3 else {}
    assert told == row["answer"]


def test_how_many_answers_are_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = Counter(row["kind"] for rows in ROWS.values() for row in rows)
    with capsys.disabled():
        print(
            f"\n{sum(kinds.values())} captured answers: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}"
        )
    assert {server: len(rows) for server, rows in ROWS.items()} == HOW_MANY
    assert len({row["id"] for rows in ROWS.values() for row in rows}) == sum(HOW_MANY.values())


def test_a_usage_that_was_asked_for_comes_back_from_every_server() -> None:
    for rows in ROWS.values():
        good = [row for row in rows if row["kind"] == "good"]
        asked = [row for row in good if row["id"].endswith(("/chat", "/chat_stream_usage", "/completions"))]
        assert asked
        for row in asked:
            prompt, completion, _ = row["answer"]["usage"]
            assert prompt > 0
            assert completion > 0
