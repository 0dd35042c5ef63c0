"""The way back to a caller: pieces go on as they come, and who takes nothing of them is let go of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest

from agentroute.gateway import proxy
from agentroute.gateway.proxy import Way


async def pieces(*data: bytes, every_s: float = 0.0) -> AsyncIterator[bytes]:
    for one in data:
        await asyncio.sleep(every_s)
        yield one


def sent(answer: AsyncIterator[bytes], *, takes_s: float = 0.0) -> list[bytes]:
    """What a caller got that takes so long for each piece."""
    got: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(takes_s)
        got.append(message["body"])

    asyncio.run(Way(send, "id").pieces(answer))
    return got


def test_every_piece_is_sent_on_as_it_came() -> None:
    assert sent(pieces(b"a", b"", b"b")) == [b"a", b"", b"b"]


def test_a_caller_that_takes_nothing_for_too_long_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "SEND_S", 0.05)
    with pytest.raises(TimeoutError):
        sent(pieces(b"a", b"b"), takes_s=10.0)


def test_who_takes_each_piece_in_time_may_take_as_long_as_he_likes_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "SEND_S", 0.5)
    assert sent(pieces(*[b"a"] * 6), takes_s=0.1) == [b"a"] * 6


def test_the_time_between_the_pieces_is_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "SEND_S", 0.05)
    assert sent(pieces(b"a", b"b", every_s=0.2)) == [b"a", b"b"]


def test_what_cancels_it_is_no_timeout() -> None:
    async def cancelled() -> None:
        async def send(message: MutableMapping[str, Any]) -> None:
            await asyncio.Event().wait()

        task = asyncio.create_task(Way(send, "id").pieces(pieces(b"a")))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
