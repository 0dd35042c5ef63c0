"""What comes over the wire and is no plain request: too large, too slow, malformed, of another version or protocol."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from gateways import HELLO, Served
from servers import Asked, Server, Slow, answers, deployment, streams
from uvicorn import Config
from uvicorn.server import ServerState

from agentroute.gateway import edge, gone
from agentroute.gateway.edge import Edge

WHOLE = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
)
EVENTS = [json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in ("Hel", "lo")] + ["[DONE]"]

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
BODY = json.dumps(HELLO).encode()
SIZED = b"content-length: %d\r\n" % len(BODY)
CHAT = POST + SIZED + b"\r\n" + BODY
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNK = b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Server(answers(WHOLE)) as upstream, Served(deployment(upstream.url, adapter="openai")) as one:
        assert one.chat().status_code == 200
        yield one


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Where nothing worse may stand than that somebody was turned away."""
    with caplog.at_level(logging.INFO):
        yield caplog
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


class Wire:
    """A connection to a gateway."""

    def __init__(self, served: Served, tls: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", served.port))
        self.socket = tls.wrap_socket(plain, server_hostname="127.0.0.1") if tls else plain
        self.socket.settimeout(10.0)
        self.heard = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer that says its length."""
        while b"\r\n\r\n" not in self.heard:
            self._hear()
        head, _, self.heard = self.heard.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", 0))
        while len(self.heard) < size:
            self._hear()
        body, self.heard = self.heard[:size], self.heard[size:]
        return int(first.split()[1]), headers, body

    def _hear(self) -> None:
        piece = self.socket.recv(65_536)
        assert piece, f"it was closed after {self.heard!r}"
        self.heard += piece

    def rest(self) -> bytes:
        """All that comes until the other side closes."""
        while piece := self.socket.recv(65_536):
            self.heard += piece
        return self.heard

    def dribble(self, data: bytes, every_s: float = 0.05) -> bytes:
        """Say it byte by byte until the other side closes, and what it says."""
        self.socket.settimeout(every_s)
        for i in range(len(data)):
            try:
                self.say(data[i : i + 1])
                piece = self.socket.recv(65_536)
            except TimeoutError:
                continue
            if not piece:
                return self.heard
            self.heard += piece
        raise AssertionError("all of it was taken")


def error(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """Status and code of an error in the API's shape, after which the connection is closed."""
    status, headers, body = answer
    told = json.loads(body)["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert (headers["content-type"], headers["connection"]) == ("application/json", "close")
    return status, told["code"]


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET /health HTTP/1.2\r\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: x\n\n",
        b"GET /hea\x00lth HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /v1/models/\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\x00c\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nhost: x:443\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        POST + SIZED + SIZED + b"\r\n" + BODY,
        POST + SIZED + b"content-length: 3\r\n\r\n" + BODY,
        POST + SIZED + CHUNKED + b"\r\n" + CHUNK,
        POST + CHUNKED + CHUNKED + b"\r\n" + CHUNK,
        POST + b"transfer-encoding: identity\r\n\r\n" + BODY,
        POST + b"content-length: -3\r\n\r\n",
        POST + b"content-length: +3\r\n\r\nabc",
        POST + b"content-length: 99999999999999999999999999\r\n\r\nabc",
        POST + CHUNKED + b"\r\nZZ\r\n",
        POST + CHUNKED + b"\r\n5\r\nabcdefgh\r\n",
    ],
)
def test_what_is_no_request_is_answered_in_the_shape_of_the_api(
    served: Served, log: pytest.LogCaptureFixture, said: bytes
) -> None:
    with Wire(served) as wire:
        wire.say(said)
        assert error(wire.answer()) == (400, "malformed_request")
        assert wire.rest() == b""


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/0.9"])
def test_another_version_is_said_not_to_be_spoken(served: Served, version: bytes) -> None:
    with Wire(served) as wire:
        wire.say(HEALTH.replace(b"HTTP/1.1", version))
        assert error(wire.answer()) == (505, "http_version")


@pytest.mark.parametrize(
    "said",
    [
        b"\r\n\r\n" + HEALTH,
        HEALTH.replace(b"/health", b"http://x/health"),
        HEALTH.replace(b"/health", b"http://x"),
        HEALTH.replace(b"/health", b"http://x?a=/b"),
        HEALTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 3\r\n\r\nabc"),
        CHAT.replace(b"POST /", b"POST http://x/"),
        CHAT.replace(b"\r\n\r\n", b"\r\nx-agentroute-session-id: \xff\xfe\r\nx-request-id: \xff\r\n\r\n"),
        POST + CHUNKED + b"\r\n" + CHUNK,
        POST + CHUNKED + b"\r\n" + CHUNK.replace(b"\r\n", b";a=b\r\n", 1),
        POST + CHUNKED + b"\r\n" + CHUNK.removesuffix(b"\r\n") + b"authorization: x\r\n\r\n",
        POST + SIZED + H2C + b"\r\n" + BODY,
        POST + CHUNKED + H2C + b"\r\n" + CHUNK,
        HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"),
    ],
)
def test_what_is_unusual_is_answered_and_the_connection_goes_on(
    served: Served, log: pytest.LogCaptureFixture, said: bytes
) -> None:
    with Wire(served) as wire:
        for data in (said, said[:30], said[30:], HEALTH):
            wire.say(data)
        for _ in range(3):
            assert wire.answer()[0] == 200


@pytest.mark.parametrize(
    "said", [b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n", HEALTH.removesuffix(b"\r\n") + b"a: %b\r\n\r\n"]
)
def test_a_head_is_no_larger_than_is_taken(served: Served, log: pytest.LogCaptureFixture, said: bytes) -> None:
    with Wire(served) as wire:
        wire.say(said % (b"a" * (edge.MAX_HEAD - 200)))
        assert wire.answer()[0] in (200, 404)
        wire.say(said % (b"a" * edge.MAX_HEAD))
        assert error(wire.answer()) == (431, "head_too_large")
        assert wire.rest() == b""


def test_many_headers_are_too_large_as_well(served: Served, log: pytest.LogCaptureFixture) -> None:
    with Wire(served) as wire:
        wire.say(HEALTH.removesuffix(b"\r\n") + b"a: b\r\n" * 20_000)
        assert error(wire.answer()) == (431, "head_too_large")


def test_a_head_without_an_end_is_refused_while_it_comes(served: Served, log: pytest.LogCaptureFixture) -> None:
    with Wire(served) as wire:
        wire.say(CHAT + HEALTH.removesuffix(b"\r\n"))
        assert wire.answer()[0] == 200
        for _ in range(20):
            wire.say(b"a: " + b"b" * 5_000 + b"\r\n")
        assert error(wire.answer()) == (431, "head_too_large")


def test_trailers_are_no_headers() -> None:
    unguarded = POST + CHUNKED + b"\r\n" + CHUNK.removesuffix(b"\r\n")
    with Served(deployment(None), keys={"a": {}}) as one, Wire(one) as wire:
        wire.say(unguarded + b"authorization: Bearer sk-a\r\n\r\n")
        assert wire.answer()[0] == 401


def test_trailers_have_an_end(served: Served, log: pytest.LogCaptureFixture) -> None:
    with Wire(served) as wire:
        wire.say(POST + CHUNKED + b"\r\n" + CHUNK.removesuffix(b"\r\n"))
        with suppress(ConnectionError):
            for _ in range(40):
                wire.say(b"a: b\r\n" * 1_000)
        assert error(wire.answer()) == (431, "head_too_large")


def test_a_large_body_is_not_taken_for_the_head_behind_it(served: Served) -> None:
    large = json.dumps(HELLO | {"user": "x" * 3 * edge.MAX_HEAD}).encode()
    with Wire(served) as wire:
        wire.say(POST + b"content-length: %d\r\n\r\n" % len(large) + large + HEALTH[:20])
        wire.say(HEALTH[20:])
        assert [wire.answer()[0] for _ in range(2)] == [200, 200]


@contextmanager
def hurried(
    tmp_path: Path, loop: str, tls: bool, url: str | None = None, **limits: float
) -> Iterator[tuple[Served, ssl.SSLContext | None]]:
    """A gateway with short limits, in one kind of event loop, with TLS or without."""
    settings: dict[str, Any] = {}
    context = None
    if tls:
        authority = trustme.CA()
        leaf = authority.issue_cert("127.0.0.1")
        leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        settings = {"tls_cert": str(tmp_path / "both.pem"), "tls_key": str(tmp_path / "both.pem")}
    one = Served(deployment(url, adapter="openai"), **settings)
    one.server.config.loop = loop
    with pytest.MonkeyPatch.context() as patch, one:
        for name, value in limits.items():
            patch.setattr(edge, name, value)
        yield one, context


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_who_is_slow_is_let_go_of(tmp_path: Path, log: pytest.LogCaptureFixture, loop: str, tls: bool) -> None:
    with hurried(tmp_path, loop, tls, HEAD_S=0.4, REST_S=0.4, LINGER_S=0.1) as (served, context):
        with Wire(served, context) as wire:
            said = wire.dribble(HEALTH.replace(b"host", b"host-of-many-letters"))
            assert said.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "head_timeout"
        with Wire(served, context) as wire:  # the second request of a connection, too
            wire.say(HEALTH + HEALTH[:9])
            assert wire.answer()[0] == 200
            assert error(wire.answer()) == (408, "head_timeout")
        with Wire(served, context) as wire:  # says nothing
            assert wire.rest() == b""
        with Wire(served, context) as wire:  # what it still owes, nobody waits for
            wire.say(HEALTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 300\r\n\r\n"))
            assert wire.answer()[0] == 200
            assert wire.dribble(b"a" * 100) == b""


@pytest.mark.parametrize(
    "said", [HEALTH, HEALTH + b"\r\n", HEALTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 3\r\n\r\nabc")]
)
def test_an_idle_connection_is_closed_in_silence(tmp_path: Path, said: bytes) -> None:
    with hurried(tmp_path, "asyncio", False) as (served, _):
        served.server.config.timeout_keep_alive = 0.3  # type: ignore[assignment]
        with Wire(served) as wire:
            for piece in (said[:-1], said[-1:]):
                wire.say(piece)
                time.sleep(0.1)
            assert wire.answer()[0] == 200
            began = time.monotonic()
            assert wire.rest() == b""
            assert time.monotonic() - began < 5.0


@contextmanager
def slow() -> Iterator[tuple[Slow, Served]]:
    waits = Slow(WHOLE)
    with Server(waits) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        yield waits, served
        waits.answer.set()


def test_pipelined_requests_are_answered_in_their_order(served: Served, log: pytest.LogCaptureFixture) -> None:
    with Wire(served) as wire:
        wire.say(CHAT + HEALTH + CHAT + HEALTH)
        bodies = [json.loads(wire.answer()[2]) for _ in range(4)]
    assert ["choices" in body for body in bodies] == [True, False, True, False]


@pytest.mark.parametrize("broken", [b"\x00\r\n\r\n", POST + CHUNKED + b"\r\nZZ\r\n", b"GET /health HTTP/2.0\r\n\r\n"])
@pytest.mark.parametrize("between", [b"", HEALTH])
def test_what_was_asked_before_a_broken_request_is_answered_first(
    log: pytest.LogCaptureFixture, broken: bytes, between: bytes
) -> None:
    with slow() as (waits, served), Wire(served) as wire:
        wire.say(CHAT)
        assert waits.asked.wait(10.0)
        wire.say(between + broken)
        wire.say(b"and more")
        time.sleep(0.1)
        waits.answer.set()
        for _ in range(1 + bool(between)):
            assert wire.answer()[0] == 200
        assert error(wire.answer())[0] in (400, 505)
        assert wire.rest() == b""


def test_half_a_head_is_not_late_while_the_one_before_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "HEAD_S", 0.2)
    with slow() as (waits, served), Wire(served) as wire:
        wire.say(CHAT + HEALTH[:9])
        assert waits.asked.wait(10.0)
        time.sleep(0.5)
        waits.answer.set()
        assert wire.answer()[0] == 200
        wire.say(HEALTH[9:])
        assert wire.answer()[0] == 200


def test_a_body_that_breaks_is_no_request(log: pytest.LogCaptureFixture) -> None:
    with slow() as (waits, served), Wire(served) as wire:
        wire.say(POST + CHUNKED + b"\r\n2\r\n{ \r\n")
        time.sleep(0.1)
        wire.say(b"ZZ\r\n")
        assert error(wire.answer()) == (400, "malformed_request")
        assert served.ended()[0]["outcome"] == "cancelled"
        assert not waits.asked.is_set()


def test_who_goes_away_takes_the_request_along(log: pytest.LogCaptureFixture) -> None:
    with slow() as (waits, served):
        with Wire(served) as wire:
            wire.say(CHAT)
            assert waits.asked.wait(10.0)
        assert waits.left.wait(10.0)
        assert served.ended()[0]["outcome"] == "cancelled"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("behind", [b"", HEALTH, HEALTH[:9]], ids=["alone", "another behind", "half another behind"])
def test_it_is_noticed_at_once_that_somebody_goes_away(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, behind: bytes, loop: str
) -> None:
    monkeypatch.setattr(gone, "LOOK_AFTER_S", 60.0)  # nobody looks
    waits = Slow(WHOLE)
    with Server(waits) as upstream:
        served = Served(deployment(upstream.url, adapter="openai"))
        served.server.config.loop = loop
        with served:
            with Wire(served) as wire:
                wire.say(CHAT + behind)
                assert waits.asked.wait(10.0)
            assert waits.left.wait(10.0)
            assert served.ended()[0]["outcome"] == "cancelled"
        waits.answer.set()


def test_who_goes_away_takes_the_first_of_several_along(log: pytest.LogCaptureFixture) -> None:
    left = threading.Event()

    def streams_on(connection: socket.socket, asked: Asked) -> None:
        if asked.method == "POST":
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            try:
                while True:
                    connection.sendall(f"data: {EVENTS[0]}\n\n".encode())
                    time.sleep(0.01)
            except OSError:
                left.set()

    body = json.dumps(HELLO | {"stream": True}).encode()
    with Server(streams_on) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        with Wire(served) as wire:
            wire.say(POST + b"content-length: %d\r\n\r\n" % len(body) + body + HEALTH)
            assert wire.answer()[0] == 200
        assert left.wait(10.0)
        assert served.ended()[0]["outcome"] == "cancelled"


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_only_who_knows_chunks_gets_them(log: pytest.LogCaptureFixture, loop: str, version: bytes) -> None:
    body = json.dumps(HELLO | {"stream": True}).encode()
    asked = POST + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body
    with Server(streams(EVENTS)) as upstream:
        served = Served(deployment(upstream.url, adapter="openai"))
        served.server.config.loop = loop
        with served, Wire(served) as wire:
            wire.say(asked.replace(b"HTTP/1.1", version))
            head, _, said = wire.rest().partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert (b"transfer-encoding: chunked" in head) is (version == b"HTTP/1.1")
    events = "".join(f"data: {event}\n\n" for event in EVENTS).encode()
    assert (said == events) is (version == b"HTTP/1.0")


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_an_old_client_gets_what_has_a_length_as_it_is(served: Served, method: bytes) -> None:
    with Wire(served) as wire:
        wire.say(method + b" /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        head, _, body = wire.rest().partition(b"\r\n\r\n")
    assert b"content-length: 15" in head
    assert len(body) == (15 if method == b"GET" else 0)


@pytest.mark.parametrize(("path", "said"), [(b"/v1/chat/completions", [100, 200]), (b"/nowhere", [404])])
def test_who_asks_whether_to_go_on_is_told(served: Served, path: bytes, said: list[int]) -> None:
    with Wire(served) as wire:
        wire.say(b"POST " + path + b" HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n" + SIZED + b"\r\n")
        told = [wire.answer()]
        if told[0][0] == 100:
            wire.say(BODY)
            told.append(wire.answer())
            wire.say(HEALTH)
            assert wire.answer()[0] == 200
        else:  # who knows whether the body comes now
            assert told[0][1]["connection"] == "close"
            assert wire.rest() == b""
    assert [status for status, _, _ in told] == said


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_who_takes_nothing_of_its_answer_is_let_go_of(tmp_path: Path, log: pytest.LogCaptureFixture, loop: str) -> None:
    """With TLS asyncio closes such a connection itself, 30 s after its end."""
    large = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 16_000_000}}]})
    with (
        Server(answers(large)) as upstream,
        hurried(tmp_path, loop, False, upstream.url, TAKE_S=0.5) as (served, _),
        Wire(served) as wire,
    ):
        wire.say(CHAT)
        taken = len(wire.socket.recv(100))
        time.sleep(2.0)
        with suppress(ConnectionError):
            while piece := wire.socket.recv(1_000_000):
                taken += len(piece)
    assert taken < len(large)


class Buffer(asyncio.Transport):
    """A transport of which some bytes wait to be taken."""

    left, aborted = 0, False

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.aborted = True


class Later:
    """A loop that does nothing by itself."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def call_later(self, after_s: float, call: Callable[..., None], *given: Any) -> asyncio.TimerHandle:
        self.due.append((after_s, call, given))
        return asyncio.TimerHandle(0.0, call, given, self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False


async def nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("nothing was asked")


@pytest.mark.parametrize(
    ("left", "let_go_of"),
    [((999, 500, 1), [False, False, False]), ((1_000,), [True]), ((400, 400), [False, True])],
)
def test_who_takes_its_answer_slowly_gets_all_of_it(left: tuple[int, ...], let_go_of: list[bool]) -> None:
    loop, buffer, seen = Later(), Buffer(), []
    one = Edge(Config(nothing, log_config=None), ServerState(), {}, _loop=loop)  # type: ignore[arg-type]
    one.connection_made(buffer)
    buffer.left = 1_000
    one.pause_writing()
    for buffer.left in left:
        after_s, call, given = loop.due.pop()
        assert after_s == edge.TAKE_S
        call(*given)
        seen.append(buffer.aborted)
    assert seen == let_go_of


def test_half_a_head_does_not_hold_up_the_end(served: Served) -> None:
    with Served(deployment(None)) as one, Wire(one) as half, Wire(one) as broken:
        half.say(HEALTH[:9])
        broken.say(b"\x00\r\n\r\n")
        assert error(broken.answer())[0] == 400
        began = time.monotonic()
        one.stop()
        assert half.rest() == b""
        assert time.monotonic() - began < 5.0
