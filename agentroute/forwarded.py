"""The bytes of an answer on their way through, as the server wrote them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

from agentroute.call import Reply
from agentroute.passage import Passage
from agentroute.portal import Portal
from agentroute.sse import Untold

if TYPE_CHECKING:
    from agentroute.decision import Decision


class AsyncForwarded:
    """The bytes of an answer as the server wrote them; then ``reply`` holds what they say.

    ``untold``: the token counts at the end of the stream are taken out, for whoever is to read it did not ask for them.
    """

    def __init__(self, passage: Passage, *, untold: bool = False) -> None:
        self._passage = passage
        self._untold = untold
        assert passage.head is not None
        self.status = passage.head.status_code
        """The HTTP status: 200."""
        self.headers: Mapping[str, str] = passage.head.headers
        """The server's headers."""

    @property
    def decision(self) -> Decision:
        """Why this deployment was chosen."""
        return self._passage.call.decision

    @property
    def reply(self) -> Reply | None:
        """The whole answer, once all of its bytes were taken."""
        return self._passage.call.reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        passage = self._passage
        if passage.answer is not None:
            yield passage.answer.body
            return
        raw = passage.raw
        assert raw is not None
        without = Untold() if self._untold else None
        while True:
            while raw:
                passage.call.ready.clear()  # nobody takes events here
                chunk = raw.popleft()
                if without is None or (chunk := without.feed(chunk)):
                    yield chunk
            if passage.call.reply is not None:
                await passage.drain()
                if not raw:
                    break
            else:
                await passage.read_on()
        if without is not None and (rest := without.flush()):
            yield rest


class Forwarded:
    """The bytes of an answer as the server wrote them; then ``reply`` holds what they say."""

    def __init__(self, portal: Portal, inner: AsyncForwarded) -> None:
        self._portal, self._inner = portal, inner
        self.status, self.headers = inner.status, inner.headers

    @property
    def decision(self) -> Decision:
        """Why this deployment was chosen."""
        return self._inner.decision

    @property
    def reply(self) -> Reply | None:
        """The whole answer, once all of its bytes were taken."""
        return self._inner.reply

    def __iter__(self) -> Iterator[bytes]:
        chunks = self._inner.__aiter__()
        while (chunk := self._portal.run(following(chunks))) is not None:
            yield chunk


async def following(chunks: AsyncIterator[bytes]) -> bytes | None:
    """The next chunk; ``None`` at the end."""
    return await anext(chunks, None)
