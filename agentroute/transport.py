"""How bytes reach a server: base URLs, keys, bounded bodies, and what a broken way means."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentroute.errors import BackendError, FailureKind, UsageError, shown
from agentroute.patience import Timeout
from agentroute.wire import Answer, Request

MAX_ANSWER_BYTES = 64 << 20
"""No whole answer, and no stream, may be larger."""
MAX_ERROR_BYTES = 64 << 10
"""As much of an error's body is read."""

# uvicorn and llama.cpp close an idle connection after 5 s; one that is used again just then breaks the request.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=2.0)
HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "agentroute"}
_HEADERS = tuple((name.encode(), value.encode()) for name, value in HEADERS.items())
Headers = list[tuple[bytes, bytes]]


class Body(httpx.ByteStream):
    """A request's body, which a transport of our own takes as it is."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.content = content


def silence(timeout: Timeout) -> httpx.Timeout:
    """Waits for httpx where nothing else counts the seconds; a write that stalls is a silence, too."""
    return httpx.Timeout(timeout.read_s, connect=timeout.connect_s)


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: a server's root URL, and the key it asks for."""

    root: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, api_key_env: str | None) -> Target:
        """A target from a base URL, with or without ``/v1``, and the environment variable that holds the key.

        Raises ``UsageError`` when the URL is none or the variable is not set.
        """
        return cls(_root(url), _key(api_key_env) if api_key_env else None)

    @property
    def shown(self) -> str:
        """The root without a user's name and password."""
        url = httpx.URL(self.root)
        return str(url.copy_with(userinfo=b"")) if url.userinfo else self.root

    def request(self, client: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
        """The HTTP request; raises ``UsageError`` when the body cannot be written as JSON."""
        content = None if request.body is None else encode(request.body)
        return client.build_request(
            "POST" if content is not None else "GET",
            self.url(request.path),
            headers=self.headers(content is not None, keep_alive=request.keep_alive),
            content=content,
        )

    def url(self, path: str) -> httpx.URL:
        """The whole address."""
        return _url(self.root + path)

    def headers(self, has_body: bool, *, keep_alive: bool = True, tried: int = 0) -> Headers:
        """The headers of a request to it, which was sent ``tried`` times before."""
        headers = [*_HEADERS]
        if self.key:
            headers.append((b"authorization", b"Bearer " + self.key.encode()))
        if not keep_alive:
            headers.append((b"connection", b"close"))
        if has_body:
            headers.append((b"content-type", b"application/json"))
        if tried:
            headers.append((b"x-stainless-retry-count", b"%d" % tried))
        return headers

    def hide(self, text: str) -> str:
        """``text`` without the key, or the head of it where the text was cut, should a server have echoed it."""
        if not self.key:
            return text
        text = text.replace(self.key, "***")
        body = text.removesuffix("...")
        for length in range(len(self.key) - 1, 3, -1):
            if body.endswith(self.key[:length]):
                return body[:-length] + "***"
        return text


@lru_cache(maxsize=4_096)
def _url(address: str) -> httpx.URL:
    return httpx.URL(address)


@lru_cache(maxsize=4_096)
def _root(url: str) -> str:
    """The root of a base URL; parsing one takes as long as a third of a decision."""
    try:
        _ = urlsplit(url).port  # stricter than httpx: half a bracket, a port that is none
        parsed = httpx.URL(url.strip())
        host = parsed.host  # read only now from what stands there: xn-- may stand for no letters
    except (httpx.InvalidURL, ValueError):
        raise UsageError(f"{url!r} is not a URL; give one such as http://127.0.0.1:8000/v1") from None
    if parsed.scheme not in ("http", "https") or not host:
        raise UsageError(f"{url!r} is not an http(s) URL; give one such as http://127.0.0.1:8000/v1")
    # As it is written: %2F is no /, and %3F begins no query.
    path = parsed.raw_path.decode("ascii").partition("?")[0].rstrip("/").removesuffix("/v1").rstrip("/")
    return str(parsed.copy_with(path=path or "/", query=None, fragment=None)).rstrip("/")


def encode(body: Mapping[str, Any]) -> bytes:
    """A body as JSON; raises ``UsageError`` for what JSON has no words for (NaN, bytes, a half character)."""
    try:
        return _JSON.encode(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"messages and body must be JSON: {error}") from None


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@contextmanager
def environment() -> Iterator[None]:
    """Around the making of an httpx client, which reads proxies and certificates from the environment."""
    try:
        yield
    except (OSError, ValueError, ImportError, ssl.SSLError, httpx.InvalidURL) as error:
        raise UsageError(f"the proxy or certificate settings in the environment are wrong: {error}") from error


@contextmanager
def failures(timeout: Timeout) -> Iterator[None]:
    """Around the use of an httpx client: its exceptions become ``BackendError``."""
    try:
        yield
    except httpx.TransportError as error:
        raise broken(error, timeout) from error


def chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    """The bytes of an answer as they come, past what httpx does for each piece and nobody needs here."""
    _refuse_encoding(response)
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return aiter(response.stream)


def _refuse_encoding(response: httpx.Response) -> None:
    """Nobody asked for a compressed answer; a small one may unpack to more than there is memory."""
    for name, value in response.headers.raw:
        if name.lower() == b"content-encoding" and value.strip().lower() not in (b"identity", b""):
            raise BackendError(
                FailureKind.UNAVAILABLE,
                f"answered in the encoding {shown(value.decode('latin-1'))} though plain bytes were asked for",
                status=response.status_code,
            )


def read(response: httpx.Response) -> Answer:
    """A whole answer, bounded."""
    body = bytearray()
    _refuse_encoding(response)
    for chunk in response.iter_raw():
        if not _keep(body, chunk, response.status_code):
            break
    return Answer(response.status_code, _headers(response), bytes(body))


async def aread(response: httpx.Response) -> Answer:
    """A whole answer, bounded."""
    body = bytearray()
    async for chunk in chunks(response):
        if not _keep(body, chunk, response.status_code):
            break
    return Answer(response.status_code, _headers(response), bytes(body))


def send(client: httpx.Client, request: httpx.Request) -> Answer:
    """Send a request and read the whole answer."""
    response = client.send(request, stream=True)
    try:
        return read(response)
    finally:
        response.close()


async def asend(send: Callable[[httpx.Request], Awaitable[httpx.Response]], request: httpx.Request) -> Answer:
    """Send a request and read the whole answer."""
    response = await send(request)
    try:
        return await aread(response)
    finally:
        await response.aclose()


def _keep(body: bytearray, chunk: bytes, status: int) -> bool:
    """Add a chunk; false when an error's body is long enough. Raises when a good one is too long."""
    body += chunk
    if status == 200 and len(body) > MAX_ANSWER_BYTES:
        raise BackendError(
            FailureKind.INTERRUPTED, f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB", status=status
        )
    if status != 200 and len(body) >= MAX_ERROR_BYTES:
        del body[MAX_ERROR_BYTES:]
        return False
    return True


def _headers(response: httpx.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers.raw}


def broken(error: httpx.TransportError, timeout: Timeout) -> BackendError:
    """What an exception of httpx means."""
    if (cause := type(error.__cause__)).__module__.startswith("aiohttp"):
        error = _OF_AIOHTTP.get(cause.__name__, httpx.ReadError)(_without_address(error.__cause__) or cause.__name__)
    if isinstance(error, httpx.ConnectTimeout):
        return BackendError(FailureKind.UNAVAILABLE, f"accepted no connection within {timeout.connect_s:g} s")
    if isinstance(error, httpx.TimeoutException):
        return BackendError(FailureKind.TIMEOUT, f"was silent for {timeout.read_s:g} s")
    said = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ProxyError | httpx.UnsupportedProtocol):
        return BackendError(FailureKind.UNAVAILABLE, f"cannot be reached: {said}")
    if isinstance(error, httpx.RemoteProtocolError) and not re.search("disconnected|closed", said):
        return BackendError(FailureKind.UNAVAILABLE, f"does not speak HTTP: {said}")
    return BackendError(FailureKind.INTERRUPTED, f"the connection broke: {said}")


def _without_address(cause: BaseException | None) -> str:
    """What an exception of aiohttp says, but for the server's address: callers of the gateway hear of it."""
    inner = getattr(cause, "os_error", None) or getattr(cause, "certificate_error", None)
    if isinstance(inner, ssl.SSLError):
        return str(inner)
    if isinstance(inner, OSError) and inner.errno:
        said = os.strerror(inner.errno) if inner.errno > 0 else inner.strerror  # below 0: of a name's resolution
        return f"[Errno {inner.errno}] {said}"
    message = getattr(cause, "message", None)  # of an answer that is none; its str ends in the URL
    # Of a head that is none there is a drawing below, with a ^ where it goes wrong.
    return " ".join(message.rstrip(" ^").split()) if isinstance(message, str) else str(cause)


_OF_AIOHTTP: dict[str, type[httpx.TransportError]] = {
    "ClientConnectorError": httpx.ConnectError,
    "ClientConnectorDNSError": httpx.ConnectError,
    "ClientConnectorCertificateError": httpx.ConnectError,
    "ClientConnectorSSLError": httpx.ConnectError,
    "ClientProxyConnectionError": httpx.ConnectError,
    "ClientHttpProxyError": httpx.ProxyError,
    "ConnectionTimeoutError": httpx.ConnectTimeout,
    "SocketTimeoutError": httpx.ReadTimeout,
    "ServerTimeoutError": httpx.ReadTimeout,
    "ClientResponseError": httpx.RemoteProtocolError,
    "InvalidURL": httpx.UnsupportedProtocol,
}
"""What else may break is a connection that was there."""


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"the environment variable {variable} is not set; it must hold the server's API key")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the environment variable {variable} holds characters that no API key has")
    return key
