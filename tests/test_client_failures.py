"""Servers that answer badly, or not: each failure is of one kind, with the text so far."""

from __future__ import annotations

import asyncio
import socket
from typing import Literal

import pytest
from servers import (
    CHUNK,
    HELLO,
    STREAM_HEAD,
    WHOLE,
    Asked,
    Behaviour,
    Server,
    answers,
    deployment,
    free_port,
    read_request,
    router,
    says,
    silent,
    silent_after,
    streams,
)

from agentroute import transport
from agentroute.client import AsyncClient, Client, Retry, Timeout
from agentroute.errors import BackendError, FailureKind
from agentroute.router import Router
from agentroute.wire import Finished, TextDelta, Usage

pytestmark = pytest.mark.usefixtures("no_proxy")


def _failures(url: str, streaming: bool, *, patient: bool = True) -> tuple[BackendError, BackendError]:
    """How the sync and the async client fail there, when they may send nothing twice."""
    routed, timeout = router(deployment(url)), Timeout(read_s=20.0 if patient else 0.3)

    def fail() -> None:
        with Client(routed, timeout=timeout, retry=Retry(attempts=1)) as client:
            if not streaming:
                client.chat(HELLO)
            with client.stream(HELLO) as events:
                list(events)

    async def afail() -> None:
        async with AsyncClient(routed, timeout=timeout, retry=Retry(attempts=1)) as client:
            if not streaming:
                await client.chat(HELLO)
            async with client.stream(HELLO) as events:
                async for _ in events:
                    pass

    with pytest.raises(BackendError) as one:
        fail()
    with pytest.raises(BackendError) as other:
        asyncio.run(afail())
    return one.value, other.value


@pytest.mark.parametrize(
    ("behave", "kind", "words"),
    [
        (silent, FailureKind.TIMEOUT, "was silent for 0.3 s"),
        (says(b""), FailureKind.INTERRUPTED, "the connection broke"),
        (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), FailureKind.UNAVAILABLE, "does not speak HTTP"),
        (answers("<html>hi</html>", content_type="text/html"), FailureKind.UNAVAILABLE, "answered HTML, not JSON"),
        (answers("<title>Oops</title>", status=502), FailureKind.UNAVAILABLE, "answered HTML: Oops"),
        (answers("", status=302, headers={"location": "/login"}), FailureKind.UNAVAILABLE, "redirects"),
        (answers("", status=401), FailureKind.AUTH, "the body is empty"),
        (answers('{"error":{"message":"full","code":429}}'), FailureKind.OVERLOADED, "full"),
        (answers("x" * 1_000_000, status=500), FailureKind.UNAVAILABLE, "xxx..."),
        (answers("{}"), FailureKind.UNAVAILABLE, "without a choice"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_bad_answer_is_classified(behave: Behaviour, kind: FailureKind, words: str, streaming: bool) -> None:
    with Server(behave) as server:
        for error in _failures(server.url, streaming, patient=kind is not FailureKind.TIMEOUT):
            assert error.kind is kind
            assert words in error.detail
            assert error.url == server.url
            assert "\n" not in str(error)
        assert len(server.asked) == 2, "nothing is sent twice"


@pytest.mark.parametrize("url", [None, f"http://{'a' * 70}.invalid"], ids=["no HTTP", "no name"])
@pytest.mark.parametrize("wire", ["httpx", "aiohttp"])
def test_whatever_a_transport_raises_the_next_candidate_answers(
    wire: Literal["httpx", "aiohttp"], url: str | None
) -> None:
    if wire == "aiohttp":
        pytest.importorskip("aiohttp")
    with Server(says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")) as wrong, Server(answers(WHOLE)) as right:
        first = deployment(url or wrong.url, name="wrong", pool_tokens=100_000)
        routed = router(first, deployment(right.url, name="right"))
        with Client(routed, transport=wire) as client:
            assert client.chat(HELLO).decision.deployment == "right"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_server_that_is_down_is_unavailable(streaming: bool) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for error in _failures(url, streaming):
        assert error.kind is FailureKind.UNAVAILABLE
        assert "cannot be reached" in error.detail


@pytest.mark.parametrize(
    ("behave", "kind", "words", "text"),
    [
        (streams([CHUNK % "one", CHUNK % " two"], whole=False), FailureKind.INTERRUPTED, "broke", "one two"),
        (streams([CHUNK % "one"]), FailureKind.INTERRUPTED, "ended before the answer did", "one"),
        (streams([]), FailureKind.INTERRUPTED, "ended before the answer did", ""),
        (streams([CHUNK % "one", '{"choices":[{"d']), FailureKind.INTERRUPTED, "not JSON", "one"),
        (
            streams([CHUNK % "one", '{"error":{"message":"EngineCore encountered an issue.","code":500}}', "[DONE]"]),
            FailureKind.ENGINE_DEAD,
            "EngineCore",
            "one",
        ),
        (
            streams(['{"error":{"message":"The engine is currently busy","code":503}}', "[DONE]"]),
            FailureKind.OVERLOADED,
            "currently busy",
            "",
        ),
        (silent_after(STREAM_HEAD), FailureKind.TIMEOUT, "was silent for 0.3 s", ""),
        (
            silent_after(STREAM_HEAD + f"data: {CHUNK % 'one'}\n\n".encode()),
            FailureKind.TIMEOUT,
            "was silent for 0.3 s",
            "one",
        ),
        (says(STREAM_HEAD + b"data: " + b"x" * (2 << 20)), FailureKind.INTERRUPTED, "more than 1 MiB", ""),
        (says(STREAM_HEAD + b"<html>"), FailureKind.INTERRUPTED, "ended before the answer did", ""),
        (answers(WHOLE), FailureKind.UNAVAILABLE, "in one piece", ""),
        (streams(["[DONE]"]), FailureKind.UNAVAILABLE, "reason to stop, and held nothing else", ""),
        (streams(["[DONE]", "[DONE]"]), FailureKind.UNAVAILABLE, "reason to stop, and held nothing else", ""),
        (
            streams(['{"choices":[{"delta":{"role":"assistant"}}]}', "[DONE]"]),
            FailureKind.UNAVAILABLE,
            'it began with \'{"choices":[{"delta":{"role":"assistant"}}]}\'',
            "",
        ),
        (
            streams(['{"choices":[{"text":"one","finish_reason":"stop"}]}', "[DONE]"]),
            FailureKind.UNAVAILABLE,
            'it began with \'{"choices":[{"text":"one"',
            "",
        ),
        (
            streams(['{"type":"response.output_text.delta","delta":"one"}', "[DONE]"]),
            FailureKind.UNAVAILABLE,
            'it began with \'{"type":"response.output_text.delta"',
            "",
        ),
        (streams(['{"choices":[{"text":"","finish_reason":"stop"}]}']), FailureKind.INTERRUPTED, "ended before", ""),
    ],
)
def test_a_stream_that_goes_wrong_is_an_error_with_the_text_so_far(
    behave: Behaviour, kind: FailureKind, words: str, text: str
) -> None:
    with Server(behave) as server:
        for error in _failures(server.url, True, patient=kind is not FailureKind.TIMEOUT):
            assert (error.kind, error.text) == (kind, text)
            assert words in error.detail


@pytest.mark.parametrize("end", [["[DONE]"], []])
def test_a_stream_is_whole_when_it_is_done_or_has_a_reason_to_stop(end: list[str]) -> None:
    events = [CHUNK % "one", '{"choices":[{"delta":{},"finish_reason":"stop"}]}', *end]
    with Server(streams(events)) as server, Client(router(deployment(server.url))) as client:
        with client.stream(HELLO) as stream:
            assert list(stream) == [TextDelta("one"), Finished("stop")]
        assert stream.reply is not None
        assert stream.reply.usage == Usage()


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_may_be_empty_where_the_model_said_why_it_stopped(reason: str) -> None:
    stopped = f'{{"choices":[{{"index":0,"finish_reason":"{reason}"}}]}}'
    with Server(streams([stopped, "[DONE]"])) as server, Client(router(deployment(server.url))) as client:
        with client.stream(HELLO) as stream:
            assert list(stream) == [Finished(reason)]
        assert stream.reply is not None
        assert stream.reply.text == ""


def test_streams_one_after_the_other_share_a_connection() -> None:
    once = streams([CHUNK % "one", "[DONE]"])

    def again_and_again(connection: socket.socket, asked: Asked | None) -> None:
        while asked is not None:
            once(connection, asked)
            asked = read_request(connection)

    async def twice(routed: Router) -> None:
        async with AsyncClient(routed) as client:
            for _ in range(2):
                async with client.stream(HELLO) as events:
                    assert [event async for event in events] == [TextDelta("one")]

    with Server(again_and_again) as server:
        routed = router(deployment(server.url, adapter="openai"))
        with Client(routed) as client:
            for _ in range(2):
                with client.stream(HELLO) as events:
                    assert list(events) == [TextDelta("one")]
        assert len(server.asked) == 1
        asyncio.run(twice(routed))
        assert len(server.asked) == 2


def test_an_answer_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1 << 20)
    with Server(answers("x" * (2 << 20))) as server:
        assert "larger than 1 MiB" in _failures(server.url, False)[0].detail
