"""One request to one server and its answer: the I/O of a ``Call``."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import httpx

from agentroute.adapters.base import Served
from agentroute.alarm import Alarm
from agentroute.call import Call
from agentroute.counting import Counting
from agentroute.ended import Observer
from agentroute.errand import Errand
from agentroute.errors import BackendError, FailureKind, UsageError, shown
from agentroute.lacks import Lacks
from agentroute.patience import Patience, Timeout, patience, surely_s
from agentroute.pools import Pool, Pools, Wire
from agentroute.probe import aconverse
from agentroute.route import deadline_of
from agentroute.transport import MAX_ERROR_BYTES, aread, asend, broken, chunks, encode, failures
from agentroute.tries import Budget, Retry
from agentroute.wire import Answer, Request

if TYPE_CHECKING:
    from agentroute.fleet import Deployment
    from agentroute.lease import Lease
    from agentroute.profile import Profile
    from agentroute.router import Router

_DRAIN, _DRAIN_S = 4, 0.25
"""Chunks that are read after the end of a stream, so that its connection can be used again, and for how long."""


@dataclass(slots=True)
class Means:
    """What every call of a client needs."""

    router: Router
    pools: Pools
    timeout: Timeout
    retry: Retry
    budget: Budget
    counting: Counting
    lacks: Lacks
    models: dict[tuple[str, str], str] = field(default_factory=dict)
    """By deployment and address, the model that its server lists."""
    observers: tuple[Observer, ...] = ()
    """Are told of every call that ends."""
    _served: dict[str, tuple[Profile, Served]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        router: Router,
        timeout: Timeout,
        retry: Retry,
        transport: httpx.AsyncBaseTransport | Wire,
        observers: Iterable[Observer],
    ) -> Means:
        """The means of a new client; raises ``UsageError`` for what is not what it must be."""
        from agentroute.router import Router

        if not isinstance(router, Router):
            said = "router must be a Router, such as Router.from_config('agentroute.toml')"
            raise UsageError(f"{said}, got {shown(router)}")
        for name, given, kind in (("timeout", timeout, Timeout), ("retry", retry, Retry)):
            if not isinstance(given, kind):
                raise UsageError(f"{name} must be a {kind.__name__}, got {shown(given)}")
        told = tuple(observers) if isinstance(observers, Iterable) else (observers,)
        for observer in told:
            if not callable(observer):
                raise UsageError(f"observers must be a list of functions of an Ended, got {shown(observer)}")
        pools, budget = Pools(timeout, transport), Budget(retry.share)
        return cls(router, pools, timeout, retry, budget, Counting(router), Lacks(router), observers=told)

    def served(self, deployment: Deployment) -> Served:
        """What is known of it as a place for requests, worked out once."""
        known = self._served.get(deployment.name)
        if known is None or known[0] is not deployment.profile:
            known = self._served[deployment.name] = deployment.profile, Served.of(deployment.profile)
        return known[1]

    @property
    def replicated(self) -> bool:
        """Whether there is more than one server."""
        deployments = self.router.fleet.deployments
        return len(deployments) > 1 or any(len(one.urls) > 1 for one in deployments)


class Passage:
    """A request on its way over one connection. ``close`` it, whatever happened; it settles the lease.

    Raises ``UsageError`` when the deployment cannot be called.
    """

    def __init__(self, means: Means, errand: Errand, lease: Lease, *, asked_at: float, tried: int) -> None:
        self._means, self._errand, self._tried = means, errand, errand.retried + tried
        self.began_at = time.perf_counter()
        self.call = Call(lease, streaming=errand.streaming, waited_s=self.began_at - asked_at, endpoint=errand.endpoint)
        # Of the task as it was placed: on a fallback that one's deadline holds.
        waited_s, deadline = self.began_at - asked_at, deadline_of(self.call.decision.task, means.router.routes)
        self._left_s = means.timeout.total_s - waited_s
        self._due_s = deadline.value - waited_s if deadline is not None and deadline.hard else math.inf
        self._pool: Pool | None = None
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._ended = False
        """Whether all of it was read, and the connection can be used again."""
        self._alarm: Alarm | None = None
        self.answer: Answer | None = None
        """The answer as it came, where it was in one piece."""
        self.raw: deque[bytes] | None = deque() if errand.original is not None else None
        """The bytes of the stream that were not handed on yet; ``None``: nobody wants them."""
        self.on_close: Callable[[Passage], None] | None = None
        """Is told, once, after it was closed."""

    async def open(self) -> None:
        """Send it, and wait for the first content of a stream, or for the whole answer.

        Raises ``BackendError``; nothing was handed out by then.
        """
        call = self.call
        try:
            await self._send()
        except BackendError as error:
            raise call.located(error) from error.__cause__
        except httpx.TransportError as error:
            raise call.located(broken(error, self._means.timeout)) from error
        while self._chunks is not None and not call.began and call.reply is None:
            await self.read_on()

    async def read_on(self) -> None:
        """Take in the next bytes of the stream."""
        call = self.call
        try:
            call.check()
            await self._read()
            if not call.ready:
                call.check()
        except BackendError as error:
            raise call.located(error) from error.__cause__

    async def _send(self) -> None:
        call, means = self.call, self._means
        model = call.deployment.served_model or await self._model()
        request, content = self._errand.request(call.adapter, model, means.served(call.deployment))
        pool = self._pool = means.pools.take(call.target.root)
        outgoing = means.pools.request(
            call.target, request.path, content, keep_alive=request.keep_alive, tried=self._tried
        )
        alarm = self._alarm = Alarm(self._patience, surely_s(means.timeout, self._left_s), self._due_s)
        call.sent()
        with alarm:
            response = self._response = await pool.send(outgoing)
        if call.streaming and _is_stream(response):
            self._chunks = chunks(response)
            return
        with alarm:
            answer = self.answer = await aread(response)
        self._ended = len(answer.body) < MAX_ERROR_BYTES or answer.status == 200
        if call.streaming:
            raise call.not_a_stream(answer)
        self._errand.answered(call.answered(answer), means.counting)

    def _patience(self) -> Patience:
        call, timeout = self.call, self._means.timeout
        if not call.endpoint.limits:  # what is predicted is one prompt and its answer; embeddings may be of thousands
            timeout = replace(timeout, times=0.0)
        return patience(call.decision, timeout, streaming=call.streaming, left_s=self._left_s)

    async def _read(self) -> None:
        call, alarm, source = self.call, self._alarm, self._chunks
        assert alarm is not None and source is not None
        try:
            with alarm:
                chunk = await anext(source, None)
        except BackendError as error:
            call.broke(error)
        except httpx.TransportError as error:
            try:
                call.broke(broken(error, self._means.timeout))
            except BackendError as failed:
                raise failed from error
        else:
            self._ended = chunk is None
            if chunk and self.raw is not None:
                self.raw.append(chunk)
            if call.feed(chunk):
                alarm.progress(begun=call.began, ended=call.is_ended)
            else:
                alarm.heard()
        if call.reply is not None:
            self._errand.answered(call.reply, self._means.counting)

    async def drain(self) -> None:
        """Read past the end, so that the connection can be used again."""
        if self.call.closed or self._chunks is None or self._alarm is None:
            return
        source, self._chunks = self._chunks, None
        self._alarm.shorten(_DRAIN_S)
        with suppress(httpx.HTTPError, BackendError), self._alarm:
            for _ in range(_DRAIN):
                chunk = await anext(source, None)
                if chunk is None:
                    self._ended = True
                    return
                if self.raw is not None:
                    self.raw.append(chunk)

    async def close(self) -> None:
        """Let go of the connection, which cancels what is left of the answer, and settle."""
        response, self._response = self._response, None
        pool, self._pool = self._pool, None
        try:
            if self._alarm is not None:
                self._alarm.close()
            if response is not None:
                if not self._ended:
                    await _cut(response)
                with suppress(httpx.HTTPError):
                    await response.aclose()
        finally:
            if pool is not None:
                self._means.pools.give(pool)
            self.call.ready.clear()
            self.call.settle()
            told, self.on_close = self.on_close, None
            if told is not None:
                told(self)

    @property
    def head(self) -> httpx.Response | None:
        """The answer's status and headers, once there are some."""
        return self._response

    async def _model(self) -> str:
        call, means = self.call, self._means
        key = call.deployment.name, call.target.root
        known = means.models.get(key)
        if known is None:
            pool = means.pools.take(call.target.root)

            async def ask(request: Request) -> Answer:
                alarm = Alarm(self._patience, surely_s(means.timeout, self._left_s), self._due_s)
                content = None if request.body is None else encode(request.body)
                outgoing = means.pools.request(call.target, request.path, content, keep_alive=request.keep_alive)
                try:
                    with failures(means.timeout), alarm:
                        return await asend(pool.send, outgoing)
                finally:
                    alarm.close()

            try:
                models = (await aconverse(call.adapter.discover(), ask)).models
            finally:
                means.pools.give(pool)
            if not models:
                raise BackendError(FailureKind.NOT_FOUND, "the server lists no model; set served_model")
            known = means.models[key] = models[0]
        return known


async def _cut(response: httpx.Response) -> None:
    """Close the connection under an answer that is not read to its end.

    httpcore 1.0.9 does so itself, but forgets a connection whose closing was cancelled, as a timer or a caller may.
    """
    connection = response.extensions.get("network_stream")
    if connection is not None:
        with suppress(Exception):
            await connection.aclose()


def _is_stream(response: httpx.Response) -> bool:
    """Whether to read events: a 200 that does not call itself JSON or HTML."""
    kind = response.headers.get("content-type", "").lower()
    return response.status_code == 200 and not kind.startswith(("application/json", "text/html"))
