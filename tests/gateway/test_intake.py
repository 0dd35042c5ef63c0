"""Bodies: too large, too slow, in pieces, and cut off."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateways import HELLO, Served
from hypothesis import given
from hypothesis import strategies as st
from servers import Asked, Server, answers, deployment

from agentroute.errors import RefusedError
from agentroute.gateway import intake, proxy
from agentroute.gateway.intake import body_of
from agentroute.gateway.proxy import request_id

WHOLE = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
)


def read(pieces: list[bytes], most: int, length: int | None = None, *, cut: bool = False) -> bytes:
    """What is read of a body that comes in pieces."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": cut or i + 1 < len(pieces)}
        for i, piece in enumerate(pieces)
    ]
    left = iter([*messages, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        return next(left)

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return asyncio.run(body_of({"headers": headers}, receive, most))


@given(pieces=st.lists(st.binary(max_size=40), min_size=1, max_size=6), most=st.integers(0, 120))
def test_a_body_is_whole_or_too_large(pieces: list[bytes], most: int) -> None:
    whole = b"".join(pieces)
    if len(whole) <= most:
        assert read(pieces, most) == whole
        return
    with pytest.raises(RefusedError) as refused:
        read(pieces, most)
    assert refused.value.answer.status == 413


def test_a_length_that_is_too_large_is_refused_before_anything_is_read() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("it was read")

    with pytest.raises(RefusedError):
        asyncio.run(body_of({"headers": [(b"content-length", b"11")]}, receive, 10))


def test_who_goes_away_before_the_end_is_gone() -> None:
    with pytest.raises(ConnectionAbortedError):
        read([b"abc"], 10, cut=True)


def test_a_body_that_never_ends_is_not_waited_for() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    with pytest.raises(RefusedError) as refused:
        asyncio.run(body_of({"headers": []}, receive, 1_000_000, within_s=0.2))
    assert refused.value.answer.status == 408


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused_over_the_wire(chunked: bool) -> None:
    large = json.dumps(HELLO | {"user": "x" * 5_000}).encode()

    def pieces() -> Iterator[bytes]:
        for at in range(0, len(large), 500):
            yield large[at : at + 500]

    with (
        Server(answers(WHOLE)) as upstream,
        Served(deployment(upstream.url, adapter="openai"), max_body_bytes=4_096) as served,
    ):
        for path in ("/v1/chat/completions", "/v1/agentroute/decide"):
            answer = served.client.post(path, content=pieces() if chunked else large)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "body_too_large"
        assert served.chat().status_code == 200
        assert sum(asked.method == "POST" for asked in upstream.asked) == 1


def test_a_caller_that_trickles_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake.body_of, "__kwdefaults__", {"within_s": 0.3})
    with (
        Server(answers(WHOLE)) as upstream,
        Served(deployment(upstream.url, adapter="openai")) as served,
        socket.create_connection(("127.0.0.1", served.port)) as slow,
    ):
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        slow.settimeout(10.0)
        said = b""
        while piece := slow.recv(65_536):
            said += piece
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in said


def test_a_caller_that_takes_nothing_of_its_answer_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "SEND_S", 0.3)
    left = threading.Event()
    piece = json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 60_000}}]})

    def pours(connection: socket.socket, asked: Asked) -> None:
        if asked.method == "POST":
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            try:
                while True:
                    connection.sendall(b"data: " + piece.encode() + b"\n\n")
            except OSError:
                left.set()

    with (
        Server(pours) as upstream,
        Served(deployment(upstream.url, adapter="openai")) as served,
        socket.create_connection(("127.0.0.1", served.port)) as slow,
    ):
        body = json.dumps(HELLO | {"stream": True}).encode()
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert left.wait(20.0)  # the server's connection was closed
        assert served.ended()[0]["outcome"] == "not_taken"


@pytest.mark.alone
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/agentroute/decide"])
def test_a_body_of_many_tiny_messages_holds_up_nobody(path: str) -> None:
    many = json.dumps(HELLO | {"messages": [{"role": "user", "content": "x"}] * 200_000}).encode()
    told: list[httpx.Response] = []
    with Server(answers(WHOLE)) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        assert served.chat().status_code == 200
        url = f"http://127.0.0.1:{served.port}{path}"
        asking = threading.Thread(target=lambda: told.append(httpx.post(url, content=many, timeout=60.0)))
        took = []
        began = time.monotonic()
        asking.start()
        while asking.is_alive():
            at = time.monotonic()
            assert served.get("/health").status_code == 200
            took.append(time.monotonic() - at)
            time.sleep(0.01)
        whole_s = time.monotonic() - began
    assert told[0].status_code == 200
    assert max(took) < whole_s / 3.0  # nearly all of it, where it is read in the event loop


@pytest.mark.parametrize("given_", [b"req-1.a_B", b"x" * 100])
def test_a_plain_request_id_is_kept(given_: bytes) -> None:
    assert request_id([(b"x-request-id", given_)]) == given_.decode()


@pytest.mark.parametrize("given_", [b"", b"a b", b"x" * 101, b"a\r\nset-cookie: b", "é".encode()])
def test_any_other_is_replaced(given_: bytes) -> None:
    made = request_id([(b"x-request-id", given_)])
    assert made != given_.decode("latin-1")
    assert len(made) == 32
