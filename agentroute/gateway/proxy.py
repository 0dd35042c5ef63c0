"""One request through the gateway: let in, placed, called, and its bytes handed on as they come."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agentroute.answers import ErrorAnswer, decision_headers, header, of_error, refusal
from agentroute.client import AsyncClient
from agentroute.errors import AgentrouteError, NoFeasibleDeployment, RefusedError
from agentroute.gateway.asked import Asked, Reader
from agentroute.gateway.gone import until_gone
from agentroute.gateway.intake import Receive, Scope, Send, body_of
from agentroute.gateway.keys import Keys
from agentroute.gateway.records import Record, Records
from agentroute.payload import EndpointName

SEND_S = 60.0
"""A caller that takes nothing of its answer for so long is let go of: its request holds KV memory. Assumed."""

BUG = refusal(500, "agentroute failed", kind="server_error", code="internal_error")
"""The answer to what nobody foresaw."""
LOG = logging.getLogger("agentroute.gateway")
_ID = re.compile(rb"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class Means:
    """What every request needs."""

    client: AsyncClient
    reader: Reader
    keys: Keys
    records: Records
    max_body_bytes: int


@dataclass(slots=True)
class Way:
    """The way back to the caller."""

    send: Send
    id: str
    begun: bool = False
    """Whether the status was sent."""
    headers: dict[str, str] = field(default_factory=dict)
    since: float | None = None
    """Since when a piece waits to be taken, by the loop's clock."""

    async def begin(self, status: int, headers: dict[str, str]) -> None:
        """Send status and headers."""
        listed = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        listed.append((b"x-request-id", self.id.encode()))
        self.begun = True
        await self.send({"type": "http.response.start", "status": status, "headers": listed})

    async def pieces(self, answer: AsyncIterable[bytes]) -> None:
        """Send the pieces of an answer as they come; raises ``TimeoutError`` where one is not taken for ``SEND_S``."""
        send, time = self.send, asyncio.get_running_loop().time
        async with self._taken():
            async for data in answer:
                self.since = time()
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self.since = None

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[None]:
        """One timer for all pieces: one for each takes as long as handing it on."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle
        async with asyncio.timeout(None) as limit:

            def look() -> None:
                nonlocal timer
                now = loop.time()
                due = (now if self.since is None else self.since) + SEND_S
                if due <= now:
                    limit.reschedule(now)
                else:
                    timer = loop.call_at(due, look)

            timer = loop.call_later(SEND_S, look)
            try:
                yield
            finally:
                timer.cancel()

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send an answer in one piece."""
        await self.begin(status, {**headers, "content-length": str(len(body))})
        await self.end(body)

    async def fail(self, answer: ErrorAnswer) -> None:
        """Send an error: as an answer, or as the last event of a stream that has begun."""
        if self.begun:
            await self.end(answer.event)
            return
        # The rest of a body that was not read must not be taken for the next request.
        closing = {"connection": "close"} if answer.status in (408, 413) else {}
        await self.whole(answer.status, {**answer.headers, **closing}, answer.body)


class Proxy:
    """An ASGI application that sends one kind of request on."""

    def __init__(self, means: Means, endpoint: EndpointName) -> None:
        self._means, self._endpoint = means, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began, way = time.perf_counter(), Way(send, request_id(scope["headers"]))
        record = Record(id=way.id, at=time.time(), endpoint=self._endpoint)
        self._means.records.begin(record)
        try:
            await self._answer(scope, receive, way, record)
        except RefusedError as refused:
            await _failed(way, record, refused.answer)
        except AgentrouteError as error:
            await _failed(way, record, of_error(error))
        except ConnectionAbortedError:
            record.outcome = "cancelled"
        except TimeoutError:
            record.outcome = "not_taken"
        except asyncio.CancelledError:
            record.outcome = "shut_down"
            raise
        except Exception as error:
            log_bug(error)
            await _failed(way, record, BUG)
        finally:
            record.took_ms = (time.perf_counter() - began) * 1_000.0
            self._means.records.ended(record)
            LOG.info(
                "%s %s key=%s route=%s deployment=%s %s in %.0f ms",
                record.id, record.endpoint, record.key, record.route, record.deployment, record.outcome, record.took_ms,
            )  # fmt: skip

    async def _answer(self, scope: Scope, receive: Receive, way: Way, record: Record) -> None:
        means, headers = self._means, scope["headers"]
        caller = means.keys.caller(headers)
        record.key = caller.name
        with means.keys.in_flight(caller):
            body = await body_of(scope, receive, means.max_body_bytes)
            asked = await means.reader.read_aside(body, headers, caller, self._endpoint)
            record.model = asked.model
            try:
                async with until_gone(scope, receive):
                    last = await self._pass_on(asked, way, record)
            except NoFeasibleDeployment as error:
                raise RefusedError(of_error(error, visible=means.reader.served.visible(caller))) from None
        # Only now: whoever has the last byte may go at once, and would be taken for one who broke off.
        await way.end(last) if way.begun else await way.whole(200, way.headers, last)
        record.status, record.outcome = 200, "ok"

    async def _pass_on(self, asked: Asked, way: Way, record: Record) -> bytes:
        """Call, and hand on what comes; what is left to be sent at the end."""
        async with self._means.client.forward(
            asked.body, endpoint=self._endpoint, task=asked.task, retried=asked.retried, parsed=asked.parsed
        ) as answer:
            told = decision_headers(answer.decision)
            _decided(record, told)
            way.headers = {"content-type": header(answer.headers.get("content-type", "application/json")), **told}
            if not asked.streaming:
                body = b"".join([chunk async for chunk in answer])
            else:
                body = b""
                await way.begin(200, {**way.headers, "cache-control": "no-store"})
                await way.pieces(answer)
            return body


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's ``x-request-id`` where it is a plain word, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return value.decode()
    return uuid.uuid4().hex


def log_bug(error: Exception) -> None:
    """Log where an unexpected error came from; not its words, which may hold a prompt."""
    where = "".join(traceback.format_tb(error.__traceback__))
    LOG.error("unexpected %s at\n%s", type(error).__name__, where)


async def _failed(way: Way, record: Record, answer: ErrorAnswer) -> None:
    record.status, record.outcome = answer.status, str(answer.error["code"] or "bad_request")
    if record.reason is None:
        record.reason = record.outcome
    await way.fail(answer)


def _decided(record: Record, told: Mapping[str, str]) -> None:
    """Note why, as the headers tell it: working it out a second time would take as long as deciding."""
    predicted = told.get("x-agentroute-predicted-ttft-ms")
    record.reason, record.ttft_predicted_ms = (
        told["x-agentroute-reason"],
        None if predicted is None else float(predicted),
    )
