"""Servers that misbehave, and ways to a good one: a forward proxy, a path prefix, TLS from a private authority.

They listen on 127.0.0.1, one thread for each connection, and remember what they were asked.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from agentroute.fleet import Deployment, Fleet
from agentroute.origin import Provenance
from agentroute.profile import Engine, KvPool, Limits, Profile
from agentroute.router import Router
from agentroute.task import Task


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came in."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


Behaviour = Callable[[socket.socket, Asked], None]

HELLO = [{"role": "user", "content": "Say hello"}]
SHORT = {"max_tokens": 6, "temperature": 0}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                "required": ["city"],
            },
        },
    }
]
CHUNK = '{"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
WHOLE = '{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}'
"""A chat, the fields that keep its answer short, tools for it; and what a server writes: a piece of a stream, the head
of one, an answer."""


class Server:
    """Reads one request from every connection, hands it to ``behave``, and closes."""

    def __init__(self, behave: Behaviour, *, tls: ssl.SSLContext | None = None) -> None:
        self.behave, self.tls = behave, tls
        self.asked: list[Asked] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(connection)
            self._start(lambda connection=connection: self._serve(connection))  # type: ignore[misc]

    def _serve(self, plain: socket.socket) -> None:
        connection = plain
        try:
            if self.tls:
                connection = self.tls.wrap_socket(plain, server_side=True)
            asked = read_request(connection)
            if asked is not None:
                self.asked.append(asked)
                self.behave(connection, asked)
        except OSError:
            pass
        finally:
            self._open.discard(plain)
            connection.close()
            plain.close()


def read_request(connection: socket.socket) -> Asked | None:
    """A whole request, or ``None`` when the other side went away first."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65_536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65_536)
    return Asked(method, target, headers, body)


def answers(
    body: str, *, status: int = 200, content_type: str = "application/json", headers: Mapping[str, str] | None = None
) -> Behaviour:
    """Always the same answer."""
    data = body.encode()
    lines = [f"HTTP/1.1 {status} X", f"content-type: {content_type}", f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return says("\r\n".join([*lines, "connection: close", "", ""]).encode() + data)


def says(data: bytes) -> Behaviour:
    """Always the same bytes, HTTP or not, and then the end."""

    def behave(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(data)

    return behave


def streams(events: Sequence[str], *, whole: bool = True) -> Behaviour:
    """A stream of these ``data``; if not ``whole``, the connection breaks after them."""
    out = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    for event in events:
        data = f"data: {event}\n\n".encode()
        out += f"{len(data):x}\r\n".encode() + data + b"\r\n"
    return says(out + (b"0\r\n\r\n" if whole else b""))


def silent(connection: socket.socket, asked: Asked) -> None:
    """Never answers; ends when the other side does."""
    connection.recv(1)


def silent_after(data: bytes) -> Behaviour:
    """Says something and then no more."""

    def behave(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(data)
        connection.recv(1)

    return behave


def forwards(upstream: str, rewrite: Callable[[str], str] = lambda target: target) -> Behaviour:
    """Passes every request on to ``upstream``, its target rewritten, and the answer back."""
    port = urlsplit(upstream).port

    def behave(connection: socket.socket, asked: Asked) -> None:
        headers = {**asked.headers, "connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection(("127.0.0.1", port or 80)) as way:
            way.sendall(f"{asked.method} {rewrite(asked.target)} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + asked.body)
            while piece := way.recv(65_536):
                connection.sendall(piece)

    return behave


class Slow:
    """A server that answers chats with ``whole`` when it is told to, and sees who goes away."""

    def __init__(self, whole: str) -> None:
        self._whole = whole
        self.asked, self.answer, self.left = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, connection: socket.socket, asked: Asked) -> None:
        if asked.method != "POST":
            answers("{}", status=404)(connection, asked)
            return
        self.asked.set()
        connection.settimeout(0.05)
        while not self.answer.is_set():
            try:
                connection.recv(1)
            except TimeoutError:
                continue
            self.left.set()
            return
        answers(self._whole)(connection, asked)


def free_port() -> int:
    """A port that nobody listens on, and that nobody is given who asks for any: a server may be slow to listen."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):  # hypothesis seeds the other one
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("a hundred ports are taken")


def deployment(
    url: str | None,
    *,
    name: str = "here",
    adapter: str = "llamacpp",
    pool_tokens: int | None = None,
    served_model: str | None = "smollm2-135m",
    api_key_env: str | None = None,
) -> Deployment:
    """A deployment of one endpoint, with a KV pool of so many tokens, or an unknown one."""
    source = Provenance(origin="reported", source="the test's own server")
    pool = KvPool(tokens=pool_tokens, block_tokens=1) if pool_tokens else None
    limits = Limits(kv_pool=pool, provenance=source) if pool else None
    return Deployment(
        name=name,
        profile=Profile(format=1, name="test", engine=Engine(name="llamacpp"), limits=limits),
        urls=(url,) if url else (),
        adapter=adapter,
        served_model=served_model,
        api_key_env=api_key_env,
    )


def until(true: Callable[[], bool], most_s: float = 10.0) -> None:
    """Wait until something has come about."""
    deadline = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)


def router(*deployments: Deployment) -> Router:
    """A router over them."""
    return Router(Fleet(deployments))


def free_tokens(routed: Router) -> int:
    """What is not held of the only deployment's KV pool."""
    headroom = routed.decide(Task(context_tokens=1, max_output_tokens=1)).candidates[0].headroom
    assert headroom is not None
    return headroom.free
