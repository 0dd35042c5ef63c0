"""A scripted server for many connections at once: good answers, and every way in which one goes wrong.

It listens on 127.0.0.1 in a thread of its own, answers what it was asked for (the last message's words), and counts
connections and requests.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Self

from tenacity import retry, stop_after_delay, wait_fixed


@dataclass(frozen=True, slots=True)
class Question:
    """One request: a chat, or a text that is to go on."""

    headers: dict[str, str]
    body: dict[str, Any]
    number: int
    """How many there were before it."""

    @property
    def text(self) -> str:
        text: str = self.body["messages"][-1]["content"] if "messages" in self.body else self.body["prompt"]
        return text

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


Fault = Callable[["Question", "Connection"], Awaitable[None]]
"""Answers one request; the connection is kept unless it is closed."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return chunk(b"data: " + data.encode() + b"\n\n")


def delta(text: str | None, reason: str | None = None) -> bytes:
    content = {"role": "assistant"} if text is None else {"content": text} if text else {}
    return event({"choices": [{"index": 0, "delta": content, "finish_reason": reason}]})


USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
END = chunk(b"")


def whole(text: str) -> list[bytes]:
    """A good stream, in pieces."""
    half = len(text) // 2
    return [
        HEAD, delta(None), delta(text[:half]), delta(text[half:]), delta("", "stop"),
        event({"choices": [], "usage": USAGE}), event("[DONE]"), END,
    ]  # fmt: skip


def answer(status: int, body: bytes, content_type: str = "application/json", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-type: {content_type}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def completion(text: str) -> bytes:
    message = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": USAGE}
    return json.dumps(message).encode()


async def good(asked: Question, out: Connection) -> None:
    """What a server should do."""
    if not asked.streams:
        out.write(answer(200, completion(asked.text)))
        return
    for piece in whole(asked.text):
        out.write(piece)
        await out.drain()
        await asyncio.sleep(0)


def reset(out: Connection) -> None:
    """Drop the connection with an RST."""
    connection = out.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    out.transport.abort()


async def reset_in_header(asked: Question, out: Connection) -> None:
    out.write(HEAD[:25])
    await out.drain()
    await asyncio.sleep(0.01)
    reset(out)


async def reset_before_content(asked: Question, out: Connection) -> None:
    out.write((HEAD + delta(None)) if asked.streams else answer(200, completion(asked.text))[:-10])
    await out.drain()
    await asyncio.sleep(0.01)
    reset(out)


async def reset_after_content(asked: Question, out: Connection) -> None:
    out.write(HEAD + delta(None) + delta("be"))
    await out.drain()
    await asyncio.sleep(0.02)
    reset(out)


async def reset_after_the_end(asked: Question, out: Connection) -> None:
    """The model has said why it stopped; usage and [DONE] never come."""
    out.write(b"".join(whole(asked.text)[:5]))
    await out.drain()
    await asyncio.sleep(0.02)
    reset(out)


async def drips_the_header(asked: Question, out: Connection) -> None:
    for byte in HEAD * 20:
        out.write(bytes([byte]))
        await out.drain()
        await asyncio.sleep(0.02)


async def drips_comments(asked: Question, out: Connection) -> None:
    """A stream that lives and brings nothing."""
    out.write(
        HEAD if asked.streams else b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n"
    )
    for _ in range(500):
        out.write(chunk(b": ping\n\n") if asked.streams else b" ")
        await out.drain()
        await asyncio.sleep(0.02)


async def drips_words(asked: Question, out: Connection) -> None:
    """An answer that goes on and on."""
    out.write(HEAD + delta(None))
    for _ in range(500):
        out.write(delta("word "))
        await out.drain()
        await asyncio.sleep(0.02)


async def silent(asked: Question, out: Connection) -> None:
    await asyncio.sleep(30.0)


def says(data: bytes, *, closes: bool = False) -> Fault:
    async def fault(asked: Question, out: Connection) -> None:
        out.write(data)
        await out.drain()
        if closes:
            out.close()

    return fault


def error_in_stream(code: int, message: str) -> Fault:
    """A 200 that holds an error."""
    error = {"error": {"message": message, "code": code}}

    async def fault(asked: Question, out: Connection) -> None:
        if asked.streams:
            out.write(HEAD + event(error) + event("[DONE]") + END)
        else:
            out.write(answer(200, json.dumps(error).encode()))

    return fault


async def engine_dies(asked: Question, out: Connection) -> None:
    """As vLLM's does: one event says so to everybody; then its front answers 503."""
    if asked.number < 50:
        await error_in_stream(500, "EngineCore encountered an issue. See stack trace for the root cause.")(asked, out)
    else:
        out.write(answer(503, b'{"error":{"message":"EngineDead","code":503}}'))


async def half_a_character(asked: Question, out: Connection) -> None:
    """The answer ends within a character, and so does the connection."""
    text = json.dumps({"choices": [{"message": {"content": "\u00e9"}}]}, ensure_ascii=False).encode()
    cut = text[: text.index(b"\xc3") + 1]
    out.write(HEAD + chunk(b"data: " + cut) if asked.streams else answer(200, text)[: -(len(text) - len(cut))])
    await out.drain()
    out.close()


async def characters_in_two_pieces(asked: Question, out: Connection) -> None:
    """Good, but every byte comes alone."""
    if not asked.streams:
        return await good(asked, out)
    out.write(HEAD)
    stream = b"".join(
        piece[piece.index(b"\r\n") + 2 : -2] for piece in [delta(None), delta(asked.text), delta("", "stop")]
    )
    for byte in stream + b"data: [DONE]\n\n":
        out.write(chunk(bytes([byte])))
    out.write(END)


async def endless_line(asked: Question, out: Connection) -> None:
    """10 MB without a line's end."""
    out.write(
        HEAD if asked.streams else b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 10000000\r\n\r\n"
    )
    piece = b"data: " + b"x" * 262_138 if asked.streams else b"x" * 250_000
    for _ in range(40):
        out.write(chunk(piece) if asked.streams else piece)
        await out.drain()


@cache
def _bomb() -> bytes:
    return gzip.compress(gzip.compress(b"\0" * 200_000_000, 9), 9)


async def gzip_bomb(asked: Question, out: Connection) -> None:
    kind = "text/event-stream" if asked.streams else "application/json"
    out.write(answer(200, _bomb(), kind, "content-encoding: gzip"))


async def done_twice(asked: Question, out: Connection) -> None:
    if not asked.streams:
        return await good(asked, out)
    out.write(b"".join(whole(asked.text)[:-1]) + event("[DONE]") + event("[DONE]") + END)


async def never_done(asked: Question, out: Connection) -> None:
    """A whole answer without a last word."""
    if not asked.streams:
        return await good(asked, out)
    out.write(b"".join(whole(asked.text)[:-2]) + END)


async def never_done_and_open(asked: Question, out: Connection) -> None:
    """The same, and the connection stays open."""
    if not asked.streams:
        return await good(asked, out)
    out.write(b"".join(whole(asked.text)[:-2]))
    await out.drain()
    await asyncio.sleep(30.0)


async def ends_too_soon(asked: Question, out: Connection) -> None:
    """Neither a reason to stop, nor a last word, nor content."""
    out.write(HEAD + delta(None) + END if asked.streams else answer(200, b""))


class Connection(asyncio.Protocol):
    """One connection: its requests are answered one after the other; what is under way ends with it."""

    def __init__(self, server: FaultServer) -> None:
        self._server = server
        self._buffer = b""
        self._answering: asyncio.Task[None] | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._flowing.set()
        if self._answering is not None:
            self._answering.cancel()

    def pause_writing(self) -> None:
        self._flowing.clear()

    def resume_writing(self) -> None:
        self._flowing.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._answering is None:
            self._next()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the other side has read enough."""
        await self._flowing.wait()

    def close(self) -> None:
        self.transport.close()

    def _next(self) -> None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        _, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers["content-length"])
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        asked = self._server.note(headers, rest[:length])
        self._answering = asyncio.get_running_loop().create_task(self._answer(asked))

    async def _answer(self, asked: Question) -> None:
        try:
            await self._server.fault(asked, self)
        finally:
            self._answering = None
        if not self.transport.is_closing():
            self._next()


class FaultServer:
    """Answers every chat request by ``fault``, until it is changed."""

    def __init__(self, fault: Fault = good) -> None:
        self.fault = fault
        self.asked: Counter[str] = Counter()
        """How often each text was asked for."""
        self.retries: list[str | None] = []
        """What each request said of how often it was sent before."""
        self.bodies: list[bytes] | None = None
        """What each request brought, where somebody wants to know."""
        self.connections: set[Connection] = set()
        """Those that are open."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(5.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        self._loop.close()

    def note(self, headers: dict[str, str], body: bytes) -> Question:
        """A request came in."""
        asked = Question(headers, json.loads(body), self.asked.total())
        if self.bodies is not None:
            self.bodies.append(body)
        self.asked[asked.text] += 1
        self.retries.append(headers.get("x-stainless-retry-count"))
        return asked

    async def _start(self) -> None:
        self._server = await self._loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=1024)
        self._port: int = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0.01)


@retry(stop=stop_after_delay(3.0), wait=wait_fixed(0.01), reraise=True)
def closed(*servers: FaultServer) -> None:
    """Wait until no connection to any of them is open."""
    assert [len(server.connections) for server in servers] == [0] * len(servers)
