"""Answers as they come off the wire: plain bytes only."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable

import httpx
import pytest

from agentroute.errors import BackendError, FailureKind
from agentroute.transport import aread, asend, chunks, send
from agentroute.wire import Answer

Get = Callable[[httpx.Response], Answer]
ASKED = httpx.Request("GET", "http://server.test/v1/models")


def sync(response: httpx.Response) -> Answer:
    with httpx.Client(transport=httpx.MockTransport(lambda _: response)) as client:
        return send(client, ASKED)


def whole(response: httpx.Response) -> Answer:
    async def answered(_: httpx.Request) -> httpx.Response:
        return response

    return asyncio.run(asend(answered, ASKED))


def in_pieces(response: httpx.Response) -> Answer:
    async def joined() -> bytes:
        return b"".join([chunk async for chunk in chunks(response)])

    return Answer(response.status_code, {}, asyncio.run(joined()))


EVERY_WAY = pytest.mark.parametrize("get", [sync, whole, in_pieces])


@EVERY_WAY
@pytest.mark.parametrize("encoding", ["gzip", "br", "x-unheard-of", "gzip, identity"])
def test_an_encoding_that_nobody_asked_for_is_refused_before_anything_is_unpacked(get: Get, encoding: str) -> None:
    response = httpx.Response(200, stream=httpx.ByteStream(gzip.compress(b"{}")))
    response.headers["content-encoding"] = encoding
    with pytest.raises(BackendError, match=f"answered in the encoding '{encoding}' though plain bytes were") as caught:
        get(response)
    assert (caught.value.kind, caught.value.status) == (FailureKind.UNAVAILABLE, 200)


@EVERY_WAY
@pytest.mark.parametrize("headers", [{}, {"content-encoding": "identity"}, {"Content-Encoding": " "}])
def test_plain_bytes_are_taken_as_they_are(get: Get, headers: dict[str, str]) -> None:
    assert get(httpx.Response(200, stream=httpx.ByteStream(b"{}"), headers=headers)).body == b"{}"


def test_an_errors_body_is_cut_and_a_good_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentroute.transport.MAX_ERROR_BYTES", 4)
    assert asyncio.run(aread(httpx.Response(500, content=b"overflow"))).body == b"over"
    assert asyncio.run(aread(httpx.Response(200, content=b"overflow"))).body == b"overflow"
