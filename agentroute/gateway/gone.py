"""Callers that go away before they have their answer: what is done for them ends at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from agentroute.gateway.intake import Receive, Scope

LOOK_AFTER_S = 0.02
"""Under another server than ``agentroute serve``, who goes away sooner is noticed by then. Assumed."""

CALLER = "agentroute.caller"
"""Where in the scope of a request its ``Caller`` stands, where the server tells of him."""


class Reads(Protocol):
    """What reading from a connection goes on by."""

    def resume_reading(self) -> None:
        """Read on: a connection is not seen to end while nothing is read from it."""


class Caller:
    """Whether who sent a request is still there, for who answers it, told by the connection itself."""

    __slots__ = ("_reads", "_tell", "left")

    def __init__(self, reads: Reads) -> None:
        self._reads, self.left = reads, False
        self._tell: Callable[[], None] | None = None

    def leave(self) -> None:
        """He is gone."""
        self.left = True
        if self._tell is not None:
            self._tell()

    def watch(self, tell: Callable[[], None] | None) -> None:
        """Call this once he goes; ``None``: nobody need know any more."""
        self._tell = tell
        if tell is not None:
            self._reads.resume_reading()  # another request behind this one stops that


@asynccontextmanager
async def until_gone(scope: Scope, receive: Receive) -> AsyncIterator[None]:
    """Cancel what is inside as soon as the caller goes away, and raise ``ConnectionAbortedError``."""
    me, gone = asyncio.current_task(), False
    assert me is not None

    def cancel() -> None:
        nonlocal gone
        gone = True
        me.cancel()

    caller: Caller | _Asked = scope.get(CALLER) or _Asked(receive)
    if caller.left:
        raise ConnectionAbortedError("the caller went away")
    caller.watch(cancel)
    try:
        yield
    except asyncio.CancelledError:
        if gone and me.uncancel() == 0:
            raise ConnectionAbortedError("the caller went away") from None
        raise
    finally:
        caller.watch(None)


class _Asked:
    """The same by ASGI alone: a task that waits for the next message, which takes as long as a twentieth of a request,
    and is begun only where the answer takes a while."""

    left = False

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    def watch(self, tell: Callable[[], None] | None) -> None:
        if tell is not None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_AFTER_S, self._begin, tell)
            return
        for each in (self._timer, self._looking):
            if each is not None:
                each.cancel()

    def _begin(self, tell: Callable[[], None]) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look(tell))

    async def _look(self, tell: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        tell()
