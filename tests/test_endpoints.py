"""Completions, responses and embeddings through the clients: the same way as chats, to a real server and to others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from servers import Server, answers, deployment, router

from agentroute.client import Client
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.task import Task

TALE = {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}
HI = {"input": "Say hi", "max_output_tokens": 5, "temperature": 0}


def sent(body: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"model": MODEL_ALIAS, **body, **more}).encode()


@pytest.mark.parametrize(("endpoint", "body"), [("completions", TALE), ("responses", HI)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_real_server_answers_any_call_that_it_has(
    llama_one: EmbeddedServer, endpoint: Any, body: dict[str, Any], stream: bool
) -> None:
    routed = router(deployment(llama_one.url, pool_tokens=2048))
    with Client(routed) as client, client.forward(sent(body, stream=stream), endpoint=endpoint) as answer:
        raw = b"".join(answer)
        reply = answer.reply
    assert reply is not None
    assert reply.text
    assert reply.usage.completion_tokens == 5
    assert reply.usage.prompt_tokens is not None
    assert reply.decision.task.context_tokens >= reply.usage.prompt_tokens
    assert reply.decision.task.max_output_tokens == 5
    assert (b"data: " in raw) == stream
    assert (reply.seen.ttft_s is not None) == stream
    if not stream:
        assert reply.raw == json.loads(raw)
    headroom = routed.decide(Task(context_tokens=1, max_output_tokens=1)).candidates[0].headroom
    assert headroom is not None
    assert headroom.free == 2048


EMBEDDED = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}],
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}


def test_embeddings_are_planned_by_the_longest_input_and_no_answer() -> None:
    body = sent({"input": ["one", "a text of some more words " * 20], "encoding_format": "float"})
    with Server(answers(json.dumps(EMBEDDED))) as server:
        there = deployment(server.url, adapter="vllm", pool_tokens=2048, served_model=MODEL_ALIAS)
        with Client(router(there)) as client, client.forward(body, endpoint="embeddings") as answer:
            assert json.loads(b"".join(answer)) == EMBEDDED
        assert (server.asked[0].target, server.asked[0].body) == ("/v1/embeddings", body)
    reply = answer.reply
    assert reply is not None
    assert (reply.raw["data"], reply.usage.prompt_tokens) == (EMBEDDED["data"], 4)
    task = reply.decision.task
    assert 100 < task.context_tokens < 400
    assert task.max_output_tokens == 1


def test_a_server_that_lacks_the_call_is_left_for_the_next() -> None:
    lacks = answers('{"error": {"code": 501, "message": "This server does not support embeddings."}}', status=501)
    with Server(lacks) as first, Server(answers(json.dumps(EMBEDDED))) as second:
        routed = router(deployment(first.url, name="a"), deployment(second.url, name="b"))
        with Client(routed) as client, client.forward(sent({"input": "x"}), endpoint="embeddings") as answer:
            assert json.loads(b"".join(answer)) == EMBEDDED
    assert answer.decision.deployment == "b"
    assert len(first.asked) == 1
