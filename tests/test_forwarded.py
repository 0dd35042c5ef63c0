"""Bytes passed on: what came in goes out, and what comes back does, too."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import faults
import pytest
from faults import FaultServer
from fleets import nothing_is_held
from pair import one, two

from agentroute.client import AsyncClient, Client
from agentroute.errors import BackendError, FailureKind, UsageError

STREAMED = b'{"model": "m",  "messages": [{"role":"user","content":"hi there"}], "stream": true, "max_tokens": 9,'
STREAMED += b' "stream_options": {"include_usage": true}}'
WHOLE = b'{"messages": [{"role":"user","content":"hi there"}],"max_tokens": 9,   "model": "m"}'


@pytest.mark.parametrize("body", [STREAMED, WHOLE])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_forwarded_request_and_its_answer_are_the_same_bytes(first: FaultServer, body: bytes, way: str) -> None:
    first.bodies = []
    router = one(first)
    if way == "sync":
        with Client(router) as client, client.forward(body) as back:
            status, kind, got = back.status, back.headers["content-type"], b"".join(back)
            reply, decision = back.reply, back.decision
    else:

        async def forward() -> Any:
            async with AsyncClient(router) as client, client.forward(body) as back:
                got = b"".join([chunk async for chunk in back])
                return back.status, back.headers["content-type"], got, back.reply, back.decision

        status, kind, got, reply, decision = asyncio.run(forward())
    assert first.bodies == [body]
    sent = [piece[piece.index(b"\r\n") + 2 : -2] for piece in faults.whole("hi there")[1:-1]]
    assert (status, kind, got) == (
        (200, "text/event-stream", b"".join(sent))
        if body is STREAMED
        else (200, "application/json", faults.completion("hi there"))
    )
    assert reply is not None
    assert (reply.text, reply.usage.prompt_tokens) == ("hi there", 7)
    assert decision.deployment == "one"
    nothing_is_held(router)


def test_a_forwarded_request_names_the_servers_own_model(first: FaultServer) -> None:
    first.bodies = []
    with Client(one(first)) as client, client.forward(WHOLE.replace(b'"m"', b'"alias"')) as back:
        assert b"".join(back) == faults.completion("hi there")
    assert json.loads(first.bodies[0]) == json.loads(WHOLE)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages": "hi"}'])
def test_what_is_no_chat_request_is_refused(first: FaultServer, body: bytes) -> None:
    with Client(one(first)) as client, pytest.raises(UsageError), client.forward(body):
        pass
    assert not first.asked


def test_a_forwarded_stream_that_breaks_is_an_error_after_its_bytes(first: FaultServer) -> None:
    first.fault = faults.reset_after_content
    got = b""
    with Client(one(first)) as client, client.forward(STREAMED) as back, pytest.raises(BackendError) as caught:
        for chunk in back:
            got += chunk
    assert b'"content": "be"' in got
    assert caught.value.kind is FailureKind.INTERRUPTED


@pytest.mark.parametrize("said", ["", '{"choices": [{"text": "hi", "finish_reason": "stop"}]}'])
def test_of_a_stream_without_an_answer_nothing_is_passed_on(first: FaultServer, second: FaultServer, said: str) -> None:
    events = (faults.event(said) if said else b"") + faults.event("[DONE]")
    first.fault = faults.says(faults.HEAD + events + faults.END)
    with Client(two(first, second)) as client, client.forward(STREAMED) as back:
        got = b"".join(back)
    assert back.reply is not None
    assert (back.reply.text, back.decision.deployment) == ("hi there", "two")
    assert b'"text"' not in got and got.count(b"[DONE]") == 1
    assert (first.asked.total(), second.asked.total()) == (1, 1)


@pytest.mark.parametrize("others", ["before", "after"])
def test_all_of_several_answers_are_passed_on_and_the_first_is_read(first: FaultServer, others: str) -> None:
    def piece(index: int, text: str, reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": {"content": text} if text else {}, "finish_reason": reason}
        return faults.event({"choices": [choice]})

    mine = [piece(0, "hi"), piece(0, " there"), piece(0, "", "stop")]
    theirs = [piece(1, "un"), piece(1, "heard"), piece(1, "", "length")]
    pairs = zip(mine, theirs, strict=True) if others == "after" else zip(theirs, mine, strict=True)
    sent = [each for pair in pairs for each in pair] + [faults.event("[DONE]")]
    first.fault = faults.says(faults.HEAD + b"".join(sent) + faults.END)
    with Client(one(first)) as client, client.forward(STREAMED) as back:
        got = b"".join(back)
    assert got == b"".join(event[event.index(b"\r\n") + 2 : -2] for event in sent)
    assert back.reply is not None
    assert (back.reply.text, back.reply.finish_reason) == ("hi there", "stop")
