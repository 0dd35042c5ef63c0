"""A chat server that costs next to nothing, in a process of its own: ``python loopback.py`` prints its port.

The model's name says what it answers: ``s64`` a stream of 64 pieces all at once, ``p64-20`` one of 64 pieces 20 ms
apart; without ``stream`` every model answers in one piece.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys

_MODEL = re.compile(rb'"model":\s*"([sp])(\d+)(?:-(\d+))?"')
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(value: object) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    data = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _piece(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return _event({
        "id": "chatcmpl-8c1f0a2b", "object": "chat.completion.chunk", "created": 1764460800, "model": "s",
        "choices": [choice],
    })  # fmt: skip


PIECE = _piece({"content": " hello"})
FIRST = _HEAD + _piece({"role": "assistant", "content": ""})
_USAGE = {"prompt_tokens": 12, "completion_tokens": 64, "total_tokens": 76}
LAST = (
    _piece({}, "stop")
    + _event({
        "id": "chatcmpl-8c1f0a2b", "object": "chat.completion.chunk", "created": 1764460800, "model": "s",
        "choices": [], "usage": _USAGE,
    })
    + _event(b"[DONE]")
    + b"0\r\n\r\n"
)  # fmt: skip
_MESSAGE = {"role": "assistant", "content": "hello " * 20}
_BODY = json.dumps({
    "id": "chatcmpl-8c1f0a2b", "object": "chat.completion", "created": 1764460800, "model": "s",
    "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}], "usage": _USAGE,
}).encode()  # fmt: skip
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)


class Connection(asyncio.Protocol):
    """One connection, kept alive."""

    open = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._buffer = transport, b""
        Connection.open += 1

    def connection_lost(self, error: Exception | None) -> None:
        Connection.open -= 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET"):
            self._buffer = rest
            said = str(Connection.open).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
            return
        found = re.search(rb"(?i)content-length: *(\d+)", head)
        length = int(found[1]) if found else 0
        if len(rest) < length:
            return
        body, self._buffer = rest[:length], rest[length:]
        if re.search(rb'"stream":\s*true', body) is None:
            self._transport.write(WHOLE)
            return
        kind, count, pace = _MODEL.search(body).groups()  # type: ignore[union-attr]
        if kind == b"s":
            self._transport.write(FIRST + PIECE * int(count) + LAST)
        else:
            self._transport.write(FIRST)
            loop = asyncio.get_running_loop()
            loop.call_later(int(pace) / 1_000, self._paced, int(count), int(pace) / 1_000, loop.time())

    def _paced(self, left: int, pace_s: float, since: float) -> None:
        if self._transport.is_closing():
            return
        if not left:
            self._transport.write(LAST)
            return
        self._transport.write(PIECE)
        loop = asyncio.get_running_loop()
        loop.call_at(since + 2 * pace_s, self._paced, left - 1, pace_s, since + pace_s)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=2_048)
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.freeze()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the one who started it goes


if __name__ == "__main__":
    asyncio.run(main())
