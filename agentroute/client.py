"""The clients: choose, call, settle, and try elsewhere what fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import httpx

from agentroute.call import Reply, Seen
from agentroute.counting import Counting
from agentroute.ended import Observer
from agentroute.errand import Errand
from agentroute.forwarded import AsyncForwarded, Forwarded
from agentroute.passage import Means
from agentroute.patience import Timeout
from agentroute.payload import EndpointName, Messages, endpoint_of
from agentroute.pools import Wire
from agentroute.portal import Portal
from agentroute.session import Session
from agentroute.streamed import AsyncEvents, Events
from agentroute.task import Task
from agentroute.tries import Retry
from agentroute.trip import Trip

if TYPE_CHECKING:
    from agentroute.router import Router

__all__ = [
    "AsyncClient",
    "AsyncEvents",
    "AsyncForwarded",
    "Client",
    "Events",
    "Forwarded",
    "Reply",
    "Retry",
    "Seen",
    "Session",
    "Timeout",
]

Resume = Literal["restart"] | None
T = TypeVar("T")


class AsyncClient:
    """Chooses a deployment for every chat, calls it and settles; what fails goes to the next candidate.

    ``timeout`` is how long to wait, ``retry`` how hard a call is tried. ``transport``: ``"aiohttp"`` (extra ``fast``),
    ``"httpx"``, ``"auto"`` (the first where it is installed and the environment names no proxy), or one of httpx's own,
    for tests. Proxies and certificates come from the environment; redirects are not followed. ``observers`` are told of
    every call that ends, see ``agentroute.telemetry``. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        router: Router,
        *,
        timeout: Timeout | None = None,
        retry: Retry | None = None,
        transport: httpx.AsyncBaseTransport | Wire = "auto",
        observers: Sequence[Observer] = (),
    ) -> None:
        timeout, retry = Timeout() if timeout is None else timeout, Retry() if retry is None else retry
        self._means = Means.of(router, timeout, retry, transport, observers)
        self.router, self.timeout, self.retry = router, timeout, retry

    @property
    def counting(self) -> Counting:
        """How the fleet's models count tokens, as its calls have taught so far."""
        return self._means.counting

    async def chat(
        self,
        messages: Messages,
        *,
        task: Task | None = None,
        body: Mapping[str, Any] | None = None,
        session: Session | None = None,
        retried: int = 0,
    ) -> Reply:
        """Ask and wait for the whole answer. Cancelling it closes the connection at once.

        ``body`` holds further request fields (``tools``, ``temperature``, ...), passed through untouched. Without a
        ``task``, one is made from the messages. ``session`` is the conversation that it is a step of, ``retried`` how
        often the caller has sent it before (``x-stainless-retry-count``). Raises ``NoFeasibleDeployment``, ``PoolFull``
        (after ``timeout.queue_s``), ``BackendError`` with every attempt, or ``UsageError``.
        """
        errand = Errand.of(
            messages,
            task,
            body,
            streaming=False,
            counting=self._means.counting,
            session=session,
            retried=retried,
        )
        return await self._whole(errand)

    async def call(
        self,
        endpoint: EndpointName,
        body: Mapping[str, Any],
        *,
        task: Task | None = None,
        session: Session | None = None,
        retried: int = 0,
    ) -> Reply:
        """Ask any endpoint and wait for the whole answer: ``call("embeddings", {"input": texts})``.

        ``body`` is the request without ``model``; ``Reply.raw`` is the server's JSON, which holds the vectors of
        embeddings. Other arguments and errors as for ``chat``.
        """
        errand = Errand.whole(
            endpoint_of(endpoint), body, task, counting=self._means.counting, session=session, retried=retried
        )
        return await self._whole(errand)

    async def _whole(self, errand: Errand) -> Reply:
        passage = await Trip(self._means, errand).begin()
        await passage.close()
        reply = passage.call.reply
        assert reply is not None
        return reply

    @asynccontextmanager
    async def stream(
        self,
        messages: Messages,
        *,
        task: Task | None = None,
        body: Mapping[str, Any] | None = None,
        session: Session | None = None,
        retried: int = 0,
        resume: Resume = None,
    ) -> AsyncIterator[AsyncEvents]:
        """Ask, wait for the first content, and take the answer as it comes. Leaving the block cancels what is left.

        Arguments and errors as for ``chat``. What fails before the first content goes to the next candidate; what fails
        after it is raised while iterating, with what came so far. ``resume="restart"``: it begins anew elsewhere after
        a ``Restarted`` event, which voids those before it.
        """
        errand = Errand.of(
            messages,
            task,
            body,
            streaming=True,
            counting=self._means.counting,
            session=session,
            retried=retried,
            resume=resume,
        )
        events = await AsyncEvents.of(self._means, errand)
        try:
            yield events
        finally:
            await events._close()

    @asynccontextmanager
    async def stream_call(
        self,
        endpoint: EndpointName,
        body: Mapping[str, Any],
        *,
        task: Task | None = None,
        session: Session | None = None,
        retried: int = 0,
        resume: Resume = None,
    ) -> AsyncIterator[AsyncEvents]:
        """Ask an endpoint that streams, and take the answer as it comes, in the same events as that of a chat.

        ``endpoint`` and ``body`` are those of ``call``, other arguments and errors those of ``stream``. Embeddings do
        not stream (``UsageError``).
        """
        errand = Errand.whole(
            endpoint_of(endpoint),
            body,
            task,
            streaming=True,
            counting=self._means.counting,
            session=session,
            retried=retried,
            resume=resume,
        )
        events = await AsyncEvents.of(self._means, errand)
        try:
            yield events
        finally:
            await events._close()

    @asynccontextmanager
    async def forward(
        self,
        body: bytes,
        *,
        endpoint: EndpointName = "chat",
        task: Task | None = None,
        session: Session | None = None,
        retried: int = 0,
        parsed: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[AsyncForwarded]:
        """Send a request as it came in, byte for byte where nothing in it need change, and take the bytes back.

        ``endpoint``: which call it is a body of. Whether it streams stands in the body. ``parsed``: what the body says,
        where it was read already. Tokens that agentroute alone asked a stream for are left out. Errors as for
        ``stream``.
        """
        errand = Errand.forwarded(
            body,
            task,
            endpoint=endpoint_of(endpoint),
            counting=self._means.counting,
            session=session,
            retried=retried,
            parsed=parsed,
        )
        passage = await Trip(self._means, errand).begin()
        try:
            yield AsyncForwarded(passage, untold=errand.asks_usage_itself)
        finally:
            await passage.close()

    async def aclose(self) -> None:
        """Close every connection, for good."""
        await self._means.pools.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Client:
    """The sync twin of ``AsyncClient``: the same arguments and methods; usable from several threads.

    Its calls run on an event loop in a thread of its own.
    """

    def __init__(
        self,
        router: Router,
        *,
        timeout: Timeout | None = None,
        retry: Retry | None = None,
        transport: httpx.AsyncBaseTransport | Wire = "auto",
        observers: Sequence[Observer] = (),
    ) -> None:
        self._inner = AsyncClient(router, timeout=timeout, retry=retry, transport=transport, observers=observers)
        self.router, self.timeout, self.retry = router, self._inner.timeout, self._inner.retry
        self._portal = Portal(self._inner._means.pools.aclose)

    def chat(
        self,
        messages: Messages,
        *,
        task: Task | None = None,
        body: Mapping[str, Any] | None = None,
        session: Session | None = None,
        retried: int = 0,
    ) -> Reply:
        """Ask and wait for the whole answer; see ``AsyncClient.chat``."""
        return self._portal.run(self._inner.chat(messages, task=task, body=body, session=session, retried=retried))

    def call(
        self,
        endpoint: EndpointName,
        body: Mapping[str, Any],
        *,
        task: Task | None = None,
        session: Session | None = None,
        retried: int = 0,
    ) -> Reply:
        """Ask any endpoint and wait for the whole answer; see ``AsyncClient.call``."""
        return self._portal.run(self._inner.call(endpoint, body, task=task, session=session, retried=retried))

    def stream(
        self,
        messages: Messages,
        *,
        task: Task | None = None,
        body: Mapping[str, Any] | None = None,
        session: Session | None = None,
        retried: int = 0,
        resume: Resume = None,
    ) -> AbstractContextManager[Events]:
        """Ask, wait for the first content, and take the answer as it comes; see ``AsyncClient.stream``."""
        return self._streamed(
            self._inner.stream(messages, task=task, body=body, session=session, retried=retried, resume=resume)
        )

    def stream_call(
        self,
        endpoint: EndpointName,
        body: Mapping[str, Any],
        *,
        task: Task | None = None,
        session: Session | None = None,
        retried: int = 0,
        resume: Resume = None,
    ) -> AbstractContextManager[Events]:
        """Ask an endpoint that streams, and take the answer as it comes; see ``AsyncClient.stream_call``."""
        return self._streamed(
            self._inner.stream_call(endpoint, body, task=task, session=session, retried=retried, resume=resume)
        )

    @contextmanager
    def forward(
        self,
        body: bytes,
        *,
        endpoint: EndpointName = "chat",
        task: Task | None = None,
        session: Session | None = None,
        retried: int = 0,
        parsed: Mapping[str, Any] | None = None,
    ) -> Iterator[Forwarded]:
        """Send a request as it came in and take the bytes back; see ``AsyncClient.forward``."""
        opened = self._inner.forward(
            body, endpoint=endpoint, task=task, session=session, retried=retried, parsed=parsed
        )
        with self._entered(opened) as answer:
            yield Forwarded(self._portal, answer)

    def close(self) -> None:
        """Close every connection, for good."""
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _streamed(self, opened: AbstractAsyncContextManager[AsyncEvents]) -> Iterator[Events]:
        with self._entered(opened) as inner:
            events = Events(self._portal, inner)
            try:
                yield events
            finally:
                events._close()

    @contextmanager
    def _entered(self, opened: AbstractAsyncContextManager[T]) -> Iterator[T]:
        inside = self._portal.run(opened.__aenter__())
        try:
            yield inside
        finally:
            if not self._portal.closed:  # else it has ended all that was open
                self._portal.run(opened.__aexit__(None, None, None))
