"""A caller that goes away ends what is done for him, whether the server tells of it itself or by ASGI alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

import pytest

from agentroute.gateway import gone
from agentroute.gateway.gone import CALLER, Caller, until_gone


class Reads:
    """A connection from which nothing is read, until it is told to be."""

    def __init__(self) -> None:
        self.on = False

    def resume_reading(self) -> None:
        self.on = True


class Request:
    """A request of somebody who can leave; ``told``: the server tells of it itself."""

    def __init__(self, told: bool) -> None:
        self.reads, self.scope = Reads(), dict[str, Any]()
        self._gone = asyncio.Event()
        if told:
            self.scope[CALLER] = Caller(self.reads)

    async def receive(self) -> MutableMapping[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._gone.set()
        if (caller := self.scope.get(CALLER)) is not None:
            caller.leave()


both = pytest.mark.parametrize("told", [True, False], ids=["told", "by ASGI"])


def run(work: Callable[[Request], Coroutine[Any, Any, None]], told: bool) -> None:
    async def main() -> None:
        async with asyncio.timeout(10.0):
            await work(Request(told))
        assert len(asyncio.all_tasks()) == 1, "nobody looks any more"

    asyncio.run(main())


@both
def test_what_is_done_for_somebody_ends_when_he_goes(told: bool) -> None:
    async def work(request: Request) -> None:
        asyncio.get_running_loop().call_later(0.05, request.leave)
        with pytest.raises(ConnectionAbortedError, match="went away"):
            async with until_gone(request.scope, request.receive):
                await asyncio.sleep(60.0)
        await asyncio.sleep(0)  # and the task goes on

    run(work, told)


@both
def test_who_stays_is_answered(told: bool) -> None:
    async def work(request: Request) -> None:
        async with until_gone(request.scope, request.receive):
            await asyncio.sleep(2 * gone.LOOK_AFTER_S)
        request.leave()  # with his answer
        await asyncio.sleep(2 * gone.LOOK_AFTER_S)

    run(work, told)


@both
def test_who_is_told_to_stop_is_not_taken_for_somebody_who_goes(told: bool) -> None:
    async def work(request: Request) -> None:
        async def answer() -> None:
            async with until_gone(request.scope, request.receive):
                await asyncio.sleep(60.0)

        task = asyncio.create_task(answer())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(work, told)


def test_for_who_is_gone_already_nothing_is_begun() -> None:
    async def work(request: Request) -> None:
        request.leave()
        with pytest.raises(ConnectionAbortedError):
            async with until_gone(request.scope, request.receive):
                pytest.fail("nobody waits for it")

    run(work, told=True)


def test_a_connection_is_read_from_so_that_its_end_is_seen() -> None:
    async def work(request: Request) -> None:
        async with until_gone(request.scope, request.receive):
            assert request.reads.on

    run(work, told=True)


def test_it_is_noticed_before_anybody_would_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone, "LOOK_AFTER_S", 60.0)
    test_what_is_done_for_somebody_ends_when_he_goes(told=True)
