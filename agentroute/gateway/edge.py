"""The gateway's edge: uvicorn's HTTP protocol, with limits on a request's head, and errors in the API's own shape.

uvicorn reads a head of any size, waits for its end for ever, and answers what it cannot read with a plain text. Here

- a head of more than ``MAX_HEAD`` bytes is answered with 431, one that is not whole in ``HEAD_S`` with 408, and what is
  no HTTP/1 with 400 (or 505); the connection is closed. Of what was sent before that, the answers come first.
- who connects and says nothing, leaves out the rest of a body that is answered already, or takes nothing of its answer
  for ``TAKE_S``, is let go of in silence.
- HTTP/1.0, which knows no chunks, gets an answer of unknown length as it is, up to the end of the connection.
- what follows a body (trailers) is no header: whoever guards headers in front need not look there.
- an upgrade that is offered (Java's HTTP client asks for h2c with every first request) is not taken, and the request
  answered like any other; uvicorn drops the bodies of such.

Who closes his side after a request is taken to have gone, as somebody who breaks off an answer looks just the same.
"""

from __future__ import annotations

import logging
from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agentroute.answers import ErrorAnswer, refusal
from agentroute.gateway.gone import CALLER, Caller

MAX_HEAD = 64 * 1024
"""Bytes of a request's first line and headers. Assumed: no proxy in front lets more through."""
HEAD_S = 20.0
"""A head must be whole after so many seconds. Assumed."""
REST_S = 60.0
"""So long may the rest of a body take that nobody waits for: it was answered already. Assumed."""
TAKE_S = 60.0
"""Of an answer that waits to be taken some must be taken in so many seconds. Assumed."""
LINGER_S = 1.0
"""So long after an error a connection is closed: at once, the other side might lose the answer to what it still sends.
Assumed."""

LOG = logging.getLogger("agentroute.gateway")

TOO_LARGE = refusal(
    431, f"the request's head is larger than the {MAX_HEAD:,} bytes that are taken", code="head_too_large"
)
LATE = refusal(408, f"the request's head did not come within {HEAD_S:g} s", code="head_timeout")
MALFORMED = refusal(400, "this is not an HTTP/1.1 request", code="malformed_request")
NO_HOST = refusal(400, "the request must have one host header", code="malformed_request")
OTHER_VERSION = refusal(505, "only HTTP/1.1 and HTTP/1.0 are spoken here", code="http_version")


class Edge(HttpToolsProtocol):
    """One connection. Nothing is counted or timed of a request that comes whole."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        self._active: RequestResponseCycle | None = None  # the one that is answered; self.cycle is the newest
        self._refused: ErrorAnswer | None = None  # why nothing more is read
        self._in_head, self._in_body, self._ended = False, False, False
        self._head_bytes = self._came = 0
        self._timer: TimerHandle | None = self.loop.call_later(HEAD_S, self._overdue)
        self._taking: TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: whatever is answered is told, also with others behind it."""
        self._cancel_timer()
        if self._taking is not None:
            self._taking.cancel()
        super().connection_lost(exc)
        if self._active is not None:
            _leave(self._active)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._refused is not None:
            return
        self._unset_keepalive_if_required()
        self._ended, self._came = False, len(data)
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as offered:
            self._stay(data[offered.args[0] :])
            return
        except HttpParserError:  # of the callbacks below, too
            self._refuse(self._refused or MALFORMED)
            return
        trailers = self._in_body and self.headers
        if (
            self._in_head or trailers
        ) and not self._ended:  # all of it belongs to this head, or to what follows its body
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._refuse(TOO_LARGE)
                return
        self._watch()

    # What the parser calls, and what is called when an answer is complete

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._in_head = False
        self._cancel_timer()
        parser = self.parser
        if parser.should_upgrade() and parser.get_method() != b"CONNECT":
            return
        version = parser.get_http_version()
        if refused := _wrong(version, self.url, self.headers, self._head_bytes + self._came):
            self._refused = refused
            raise ValueError(refused.error["code"])
        if self.url[:1] not in b"/*":
            self.url = _with_path(self.url)
        idle = not self._answering()
        super().on_headers_complete()
        self.headers = []  # for trailers: those of the scope are whole, and nobody has looked at them yet
        self._in_body, self._head_bytes = True, 0
        _scope(self.cycle)[CALLER] = Caller(self.flow)
        if idle:
            self._active = self.cycle
        if version == "1.0" or self.expect_100_continue:
            self.cycle.send = _Plainly(self.cycle, version)  # type: ignore[method-assign]

    def on_message_complete(self) -> None:
        """A request is whole."""
        if self.parser.should_upgrade():
            return
        self._ended, self._in_body = True, False
        self._cancel_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request is answered."""
        if self.pipeline:
            self._active = self.pipeline[-1][0]
        super().on_response_complete()
        owed = self._refused is not None or self._in_head or self._in_body
        if not owed or self._answering() or self.transport.is_closing():
            return
        if self._refused is not None:
            self._tell(self._refused)
        else:
            self._watch()

    # What is owed

    def _answering(self) -> bool:
        return self._active is not None and not self._active.response_complete

    def _watch(self) -> None:
        """See to it that a connection which is not answered at this moment ends at some time."""
        if self._timer is not None or self._answering():
            return
        if self._in_head or self._in_body:
            self._timer = self.loop.call_later(HEAD_S if self._in_head else REST_S, self._overdue)
        elif self.timeout_keep_alive_task is None:
            idle = self.timeout_keep_alive_handler
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, idle)

    def _overdue(self) -> None:
        self._timer = None
        if self._in_head:
            self._refuse(LATE)
        else:
            self.transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_writing(self) -> None:
        """More waits to be taken than should."""
        super().pause_writing()
        self._taking = self.loop.call_later(TAKE_S, self._taken, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Most of it was taken."""
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _taken(self, waited: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < waited:
            self._taking = self.loop.call_later(TAKE_S, self._taken, left)
        else:
            self.transport.abort()  # it would be closed only when all is taken

    # What is not taken

    def _stay(self, rest: bytes) -> None:
        """Read a request that offers another protocol once more, without the offer, and go on."""
        kept = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"http2-settings")]
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        head += [name + b": " + value for name, value in kept]
        self.parser = HttpRequestParser(self)
        self.data_received(b"\r\n".join([*head, b"", rest]))

    def _refuse(self, answer: ErrorAnswer) -> None:
        """Read nothing more, and tell why once what came before is answered."""
        self._refused = answer
        self._cancel_timer()
        LOG.info("turned away before it was read: %s", answer.error["code"])
        broken = self.cycle if self._in_body else None
        if broken is not None and self.pipeline and self.pipeline[0][0] is broken:
            self.pipeline.popleft()  # behind others, and not begun
        elif broken is not None and broken.response_started:
            self.transport.close()
            return
        elif broken is not None:
            _leave(broken)
            self._active = None
        if not self._answering():
            self._tell(answer)

    def _tell(self, answer: ErrorAnswer) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
        headers += [(b"content-length", b"%d" % len(answer.body)), (b"connection", b"close")]
        first = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}".encode()
        lines = [first, *(b": ".join(pair) for pair in [*self.server_state.default_headers, *headers])]
        self.transport.write(b"\r\n".join([*lines, b"", answer.body]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


class _Plainly:
    """How a cycle sends to who speaks HTTP/1.0, or waits to be told to go on with the body."""

    def __init__(self, cycle: RequestResponseCycle, version: str) -> None:
        self._cycle, self._send, self._old = cycle, cycle.send, version == "1.0"
        if self._old:
            cycle.waiting_for_100_continue = False

    async def __call__(self, message: Any) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if self._old or (cycle.waiting_for_100_continue and cycle.more_body):  # then nobody knows if the body comes
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            self._unsized = self._old and not any(name.lower() == b"content-length" for name, _ in headers)
            if self._unsized:
                cycle.chunked_encoding = False
        elif self._unsized:
            cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


def _leave(cycle: RequestResponseCycle) -> None:
    """Tell who answers that the caller is gone."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()
    _scope(cycle)[CALLER].leave()


def _scope(cycle: RequestResponseCycle) -> dict[str, Any]:
    """What is known of a request, to which more may be added than ASGI says."""
    return cycle.scope  # type: ignore[return-value]


def _wrong(version: str, url: bytes, headers: list[tuple[bytes, bytes]], came: int) -> ErrorAnswer | None:
    """What is wrong with a head that can be read; ``came``: the bytes that it stands in."""
    if version not in ("1.1", "1.0"):
        return OTHER_VERSION
    if came > MAX_HEAD and len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD:
        return TOO_LARGE
    hosts = [name for name, _ in headers].count(b"host")
    # https://www.rfc-editor.org/rfc/rfc9112#section-3.2
    return NO_HOST if hosts > 1 or (not hosts and version == "1.1") else None


def _with_path(target: bytes) -> bytes:
    """A target in absolute form with a path, if it has none: http://host is http://host/."""
    scheme, sep, rest = target.partition(b"://")
    if not sep or b"/" in rest.partition(b"?")[0]:
        return target
    host, mark, query = rest.partition(b"?")
    return scheme + sep + host + b"/" + mark + query
