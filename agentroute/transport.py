"""How bytes reach a server: base URLs, keys, timeouts, bounded bodies, and what a broken way means."""

from __future__ import annotations

import json
import math
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentroute.errors import BackendError, FailureKind, UsageError
from agentroute.wire import Answer, Request

MAX_ANSWER_BYTES = 64 << 20
"""No whole answer, and no stream, may be larger."""
MAX_ERROR_BYTES = 64 << 10
"""As much of an error's body is read."""

# uvicorn and llama.cpp close an idle connection after 5 s; one that is used again just then breaks the request.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=2.0)
HEADERS = {"accept-encoding": "identity", "user-agent": "agentroute"}


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long to wait, in seconds. Raises ``UsageError`` for a negative or endless wait."""

    connect_s: float = 5.0
    """Until a server accepts a connection."""
    read_s: float = 600.0
    """The longest silence of a server: the whole generation of an answer that is not streamed."""
    queue_s: float = 300.0
    """Until a pool that is full has room; 0: do not wait."""

    def __post_init__(self) -> None:
        for name, least in (("connect_s", "above 0"), ("read_s", "above 0"), ("queue_s", "0 or more")):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            good = number and math.isfinite(value) and (value > 0 or least != "above 0")
            if not good or value < 0:
                raise UsageError(f"{name} must be a finite number of seconds, {least}, got {value!r}")

    def for_httpx(self) -> httpx.Timeout:
        """The same for httpx; a write that stalls is a silence, too."""
        return httpx.Timeout(self.read_s, connect=self.connect_s)


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
        try:
            _ = urlsplit(url).port  # stricter than httpx: half a bracket, a port that is none
            parsed = httpx.URL(url.strip())
        except (httpx.InvalidURL, ValueError):
            raise UsageError(f"{url!r} is not a URL; give one such as http://127.0.0.1:8000/v1") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"{url!r} is not an http(s) URL; give one such as http://127.0.0.1:8000/v1")
        path = parsed.path.rstrip("/").removesuffix("/v1").rstrip("/")
        root = str(parsed.copy_with(path=path or "/", query=None, fragment=None)).rstrip("/")
        return cls(root, _key(api_key_env) if api_key_env else None)

    @property
    def shown(self) -> str:
        """The root without a user's name and password."""
        url = httpx.URL(self.root)
        return str(url.copy_with(userinfo=b"")) if url.userinfo else self.root

    def request(self, client: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
        """The HTTP request; raises ``UsageError`` when the body cannot be written as JSON."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        if not request.keep_alive:
            headers["connection"] = "close"
        if request.body is None:
            return client.build_request("GET", self.root + request.path, headers=headers)
        headers["content-type"] = "application/json"
        return client.build_request("POST", self.root + request.path, headers=headers, content=encode(request.body))

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


def encode(body: Mapping[str, Any]) -> bytes:
    """A body as JSON; raises ``UsageError`` for what JSON has no words for (NaN, bytes, a half character)."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"messages and body must be JSON: {error}") from None


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
        raise _broken(error, timeout) from error
    except httpx.DecodingError as error:
        raise BackendError(FailureKind.INTERRUPTED, f"the answer cannot be decoded: {error}") from error


def read(response: httpx.Response) -> Answer:
    """A whole answer, bounded."""
    body = bytearray()
    for chunk in response.iter_bytes():
        if not _keep(body, chunk, response.status_code):
            break
    return Answer(response.status_code, _headers(response), bytes(body))


async def aread(response: httpx.Response) -> Answer:
    """A whole answer, bounded."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
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


async def asend(client: httpx.AsyncClient, request: httpx.Request) -> Answer:
    """Send a request and read the whole answer."""
    response = await client.send(request, stream=True)
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
    return {name.lower(): value for name, value in response.headers.items()}


def _broken(error: httpx.TransportError, timeout: Timeout) -> BackendError:
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


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"the environment variable {variable} is not set; it must hold the server's API key")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the environment variable {variable} holds characters that no API key has")
    return key
