"""The clients: choose, call, settle.

Nothing is retried and nothing is sent twice: a failure is classified, and the caller decides. Only a full pool is
waited for, since nothing has been sent by then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx
from tenacity import AsyncRetrying, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from agentroute.call import Call, Reply, Seen, prepare
from agentroute.errors import BackendError, FailureKind, PoolFull, UsageError
from agentroute.probe import aconverse, converse
from agentroute.task import Task
from agentroute.transport import (
    HEADERS,
    LIMITS,
    Timeout,
    aread,
    asend,
    environment,
    failures,
    read,
    send,
)
from agentroute.wire import Answer, Event, Request

if TYPE_CHECKING:
    from agentroute.decision import Decision
    from agentroute.lease import Lease
    from agentroute.router import Router

__all__ = ["AsyncClient", "AsyncEvents", "Client", "Events", "Reply", "Seen", "Timeout"]

Messages = Sequence[Mapping[str, Any]]

_DRAIN = 4
"""Chunks that are read after the end of a stream, so that its connection can be used again."""


class Client:
    """Chooses a deployment for every chat, calls it and settles; usable from several threads.

    ``timeout`` is how long to wait, ``transport`` httpx's own, for tests. Proxies and certificates come from the
    environment; redirects are not followed. Close it, or use it as a context manager.
    """

    def __init__(
        self, router: Router, *, timeout: Timeout | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.router, self.timeout = router, timeout or Timeout()
        self._transport = transport
        self._client: httpx.Client | None = None
        self._closed = False
        self._models: dict[str, str] = {}
        self._lock = threading.Lock()

    def chat(self, messages: Messages, *, task: Task | None = None, body: Mapping[str, Any] | None = None) -> Reply:
        """Ask and wait for the whole answer.

        ``body`` holds further request fields (``tools``, ``temperature``, ...), passed through untouched. Without a
        ``task``, one is made from the messages. Raises ``NoFeasibleDeployment``, ``PoolFull`` (after
        ``timeout.queue_s``), ``BackendError`` or ``UsageError``.
        """
        task, fields = prepare(messages, task, body)
        with self._call(task, streaming=False) as call, call.located():
            request = self._http_request(call, call.request(self._model(call), messages, fields))
            call.sent()
            with failures(self.timeout):
                answer = send(self._http(), request)
            return call.answered(answer)

    @contextmanager
    def stream(
        self, messages: Messages, *, task: Task | None = None, body: Mapping[str, Any] | None = None
    ) -> Iterator[Events]:
        """Ask and take the answer as it comes. Leaving the block cancels what is left of it, and settles.

        Arguments and errors as for ``chat``; errors inside the stream are raised while iterating.
        """
        task, fields = prepare(messages, task, body)
        with self._call(task, streaming=True) as call:
            with call.located():
                request = self._http_request(call, call.request(self._model(call), messages, fields))
                call.sent()
                with failures(self.timeout):
                    response = self._http().send(request, stream=True)
            try:
                with call.located():
                    if not _is_stream(response):
                        with failures(self.timeout):
                            answer = read(response)
                        raise call.not_a_stream(answer)
                yield Events(call, response, self.timeout)
            finally:
                response.close()

    def close(self) -> None:
        """Close every connection, for good."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _call(self, task: Task, *, streaming: bool) -> Iterator[Call]:
        asked_at = time.perf_counter()

        def acquire() -> Lease:
            return self.router.acquire(task, waited_s=time.perf_counter() - asked_at)

        waiting = Retrying(
            retry=retry_if_exception_type(PoolFull),
            wait=_WAIT,
            stop=stop_after_delay(self.timeout.queue_s),
            reraise=True,
        )
        with waiting(acquire) as lease:
            call = Call(lease, streaming=streaming, asked_at=asked_at)
            try:
                yield call
            finally:
                call.settle()

    def _http(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                with _making(self._closed):
                    self._client = httpx.Client(
                        timeout=self.timeout.for_httpx(), limits=LIMITS, headers=HEADERS, transport=self._transport
                    )
            return self._client

    def _http_request(self, call: Call, request: Request) -> httpx.Request:
        return call.target.request(self._http(), request)

    def _model(self, call: Call) -> str:
        name = call.deployment.name
        known = call.deployment.served_model or self._models.get(name)
        if known is None:

            def ask(request: Request) -> Answer:
                with failures(self.timeout):
                    return send(self._http(), self._http_request(call, request))

            known = self._models[name] = _first(converse(call.adapter.discover(), ask).models)
        return known


class AsyncClient:
    """The asynchronous twin of ``Client``: the same methods, to be awaited."""

    def __init__(
        self, router: Router, *, timeout: Timeout | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.router, self.timeout = router, timeout or Timeout()
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._closed = False
        self._models: dict[str, str] = {}

    async def chat(
        self, messages: Messages, *, task: Task | None = None, body: Mapping[str, Any] | None = None
    ) -> Reply:
        """Ask and wait for the whole answer; see ``Client.chat``. Cancelling it closes the connection at once."""
        task, fields = prepare(messages, task, body)
        async with self._call(task, streaming=False) as call:
            with call.located():
                request = self._http_request(call, call.request(await self._model(call), messages, fields))
                call.sent()
                with failures(self.timeout):
                    answer = await asend(self._http(), request)
                return call.answered(answer)

    @asynccontextmanager
    async def stream(
        self, messages: Messages, *, task: Task | None = None, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[AsyncEvents]:
        """Ask and take the answer as it comes; see ``Client.stream``."""
        task, fields = prepare(messages, task, body)
        async with self._call(task, streaming=True) as call:
            with call.located():
                request = self._http_request(call, call.request(await self._model(call), messages, fields))
                call.sent()
                with failures(self.timeout):
                    response = await self._http().send(request, stream=True)
            try:
                with call.located():
                    if not _is_stream(response):
                        with failures(self.timeout):
                            answer = await aread(response)
                        raise call.not_a_stream(answer)
                yield AsyncEvents(call, response, self.timeout)
            finally:
                await response.aclose()

    async def aclose(self) -> None:
        """Close every connection, for good."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @asynccontextmanager
    async def _call(self, task: Task, *, streaming: bool) -> AsyncIterator[Call]:
        asked_at = time.perf_counter()

        async def acquire() -> Lease:
            return self.router.acquire(task, waited_s=time.perf_counter() - asked_at)

        waiting = AsyncRetrying(
            retry=retry_if_exception_type(PoolFull),
            wait=_WAIT,
            stop=stop_after_delay(self.timeout.queue_s),
            reraise=True,
        )
        lease: Lease = await waiting(acquire)
        with lease:
            call = Call(lease, streaming=streaming, asked_at=asked_at)
            try:
                yield call
            finally:
                call.settle()

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            with _making(self._closed):
                self._client = httpx.AsyncClient(
                    timeout=self.timeout.for_httpx(), limits=LIMITS, headers=HEADERS, transport=self._transport
                )
        return self._client

    def _http_request(self, call: Call, request: Request) -> httpx.Request:
        return call.target.request(self._http(), request)

    async def _model(self, call: Call) -> str:
        name = call.deployment.name
        known = call.deployment.served_model or self._models.get(name)
        if known is None:

            async def ask(request: Request) -> Answer:
                with failures(self.timeout):
                    return await asend(self._http(), self._http_request(call, request))

            known = self._models[name] = _first((await aconverse(call.adapter.discover(), ask)).models)
        return known


class _Stream:
    """What a stream knows of its call, whichever way its bytes come."""

    def __init__(self, call: Call, timeout: Timeout) -> None:
        self._call, self._timeout = call, timeout

    @property
    def decision(self) -> Decision:
        """Why this deployment was chosen."""
        return self._call.lease.decision

    @property
    def reply(self) -> Reply | None:
        """The whole answer; ``None`` until the last event has been received."""
        return self._call.reply


class Events(_Stream):
    """The events of a stream, once; then ``reply`` holds the whole answer."""

    def __init__(self, call: Call, response: httpx.Response, timeout: Timeout) -> None:
        super().__init__(call, timeout)
        self._chunks = response.iter_bytes()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while not self._call.ready:
            self._read_on()
        return self._call.ready.popleft()

    def _read_on(self) -> None:
        call = self._call
        if call.reply is not None:
            if not call.closed:
                with suppress(httpx.HTTPError):
                    for _ in range(_DRAIN):
                        next(self._chunks, None)
            raise StopIteration
        with call.located(), failures(self._timeout):
            call.check()
            call.feed(next(self._chunks, None))


class AsyncEvents(_Stream):
    """The asynchronous twin of ``Events``."""

    def __init__(self, call: Call, response: httpx.Response, timeout: Timeout) -> None:
        super().__init__(call, timeout)
        self._chunks = response.aiter_bytes()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._call.ready:
            await self._read_on()
        return self._call.ready.popleft()

    async def _read_on(self) -> None:
        call = self._call
        if call.reply is not None:
            if not call.closed:
                with suppress(httpx.HTTPError):
                    for _ in range(_DRAIN):
                        await anext(self._chunks, None)
            raise StopAsyncIteration
        with call.located(), failures(self._timeout):
            call.check()
            call.feed(await anext(self._chunks, None))


_WAIT = wait_random_exponential(multiplier=0.02, max=0.25)


@contextmanager
def _making(closed: bool) -> Iterator[None]:
    if closed:
        raise UsageError("the client is closed; make a new one")
    with environment():
        yield


def _is_stream(response: httpx.Response) -> bool:
    """Whether to read events: a 200 that does not call itself JSON or HTML."""
    kind = response.headers.get("content-type", "").lower()
    return response.status_code == 200 and not kind.startswith(("application/json", "text/html"))


def _first(models: Sequence[str]) -> str:
    if not models:
        raise BackendError(FailureKind.NOT_FOUND, "the server lists no model; set served_model")
    return models[0]
