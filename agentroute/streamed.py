"""The answer of a stream, event by event, for both clients."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

from agentroute.call import Reply
from agentroute.errand import Errand
from agentroute.errors import BackendError
from agentroute.passage import Means, Passage
from agentroute.portal import Portal
from agentroute.trip import Trip
from agentroute.wire import Event, Restarted

if TYPE_CHECKING:
    from agentroute.decision import Decision


class AsyncEvents:
    """The events of a stream, once; then ``reply`` holds the whole answer."""

    def __init__(self, trip: Trip, passage: Passage) -> None:
        self._trip, self._passage = trip, passage

    @classmethod
    async def of(cls, means: Means, errand: Errand) -> Self:
        """Those of a new call, once its first content is there; raises what ``Trip.begin`` does."""
        trip = Trip(means, errand)
        return cls(trip, await trip.begin())

    @property
    def decision(self) -> Decision:
        """Why this deployment was chosen."""
        return self._passage.call.decision

    @property
    def reply(self) -> Reply | None:
        """The whole answer; ``None`` until the last event has been received."""
        return None if self._passage.call.ready else self._passage.call.reply

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        ready = self._passage.call.ready or await self._more()
        if not ready:
            raise StopAsyncIteration
        return ready.popleft()

    async def _batch(self) -> deque[Event]:
        """All events that are there."""
        ready = await self._more()
        taken = ready.copy()
        ready.clear()
        return taken

    async def _more(self) -> deque[Event]:
        """The events that are there, at least one; none at the end."""
        while not (call := self._passage.call).ready:
            if call.reply is not None:
                await self._passage.drain()
                break
            try:
                await self._passage.read_on()
            except BackendError as error:
                self._passage = await self._trip.anew(error, self._passage)
                self._passage.call.ready.appendleft(Restarted())
        return call.ready

    async def _close(self) -> None:
        """Let go of the connection, which cancels what is left of the answer."""
        await self._passage.close()


class Events:
    """The events of a stream, once; then ``reply`` holds the whole answer."""

    def __init__(self, portal: Portal, inner: AsyncEvents) -> None:
        self._portal, self._inner = portal, inner
        self._ready: deque[Event] = deque()

    @property
    def decision(self) -> Decision:
        """Why this deployment was chosen."""
        return self._inner.decision

    @property
    def reply(self) -> Reply | None:
        """The whole answer; ``None`` until the last event has been received."""
        return None if self._ready else self._inner.reply

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if not self._ready:
            self._ready = self._portal.run(self._inner._batch())
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def _close(self) -> None:
        """Hand out no more: the block has been left."""
        self._ready.clear()
