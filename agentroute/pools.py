"""Connections: many small pools for each server instead of one large, or aiohttp's."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Literal
from urllib.request import getproxies

import httpx

from agentroute.errors import UsageError, shown
from agentroute.fast import AiohttpTransport
from agentroute.patience import Timeout
from agentroute.transport import LIMITS, Body, Target, environment

EACH = 4
"""Requests that share one httpx pool. A pool looks at all its connections for each of its requests: with 64 at once one
pool made 82 requests/s, 32 pools 1,413 (measured)."""

Send = Callable[[httpx.Request], Awaitable[httpx.Response]]
Wire = Literal["auto", "aiohttp", "httpx"]
"""auto: aiohttp where the extra ``fast`` is installed and the environment names no proxy, else httpx."""


class Pool:
    """One transport, or one httpx client where proxies are to be looked up, and how many requests are using it."""

    __slots__ = ("_way", "key", "send", "used")

    def __init__(self, way: httpx.AsyncClient | httpx.AsyncBaseTransport, key: str) -> None:
        self._way, self.key, self.used = way, key, 0
        self.send: Send = _streamed(way) if isinstance(way, httpx.AsyncClient) else way.handle_async_request
        """Send a request; the answer is there once its headers are."""

    async def aclose(self) -> None:
        """Close its connections."""
        await self._way.aclose()


class Pools:
    """Transports by server: the first with a free place is taken, so that connections are kept warm."""

    def __init__(self, timeout: Timeout, transport: httpx.AsyncBaseTransport | Wire) -> None:
        self._transport = transport
        self._fast = not isinstance(transport, httpx.AsyncBaseTransport) and _is_fast(transport)
        self._own = isinstance(transport, httpx.AsyncBaseTransport)
        """Whether the transport is the caller's own."""
        self._each = None if self._fast or self._own else EACH
        # The rest of the waits is counted by an ``Alarm``.
        self._connect_s = timeout.connect_s
        self._waits = {"timeout": httpx.Timeout(None, connect=timeout.connect_s).as_dict()}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that the connections belong to."""
        self._all: list[Pool] = []
        self._free: dict[str, list[Pool]] = {}
        """By server, or by scheme where one pool serves all, those with a free place."""
        self._contexts: dict[bool, ssl.SSLContext] = {}

    def take(self, root: str) -> Pool:
        """A pool with a free place, to be given back.

        Raises ``UsageError`` once closed, in another event loop than at first, or for a wrong environment.
        """
        if self._closed:
            raise UsageError("the client is closed; make a new one")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError("the client was used in another event loop, as its connections are; make one in each")
        key = root if self._each else root.partition(":")[0]
        free = self._free.setdefault(key, [])
        if not free:
            with environment():
                made = Pool(self._make(root), key)
            self._all.append(made)
            free.append(made)
        pool = free[-1]
        pool.used += 1
        if pool.used == self._each:
            free.pop()
        return pool

    def give(self, pool: Pool) -> None:
        """Give a place back."""
        if pool.used == self._each:
            self._free[pool.key].append(pool)
        pool.used -= 1

    async def aclose(self) -> None:
        """Close every connection, for good."""
        self._closed = True
        made, self._all = self._all, []
        for pool in made:
            await pool.aclose()

    def request(
        self, target: Target, path: str, content: bytes | None, *, keep_alive: bool = True, tried: int = 0
    ) -> httpx.Request:
        """A request to a target, a GET without ``content``, that was sent ``tried`` times before."""
        url, waits = target.url(path), self._waits
        if self._own or content is None:
            method = "GET" if content is None else "POST"
            headers = target.headers(content is not None, keep_alive=keep_alive, tried=tried)
            return httpx.Request(method, url, headers=headers, content=content, extensions=waits)
        # Of a stream httpx takes the headers as they are; to find out what a body is takes 20 us.
        sent = _sent(target, url.netloc, keep_alive, tried)
        if not self._fast:  # aiohttp says itself how long a body is
            sent = httpx.Headers([*sent.raw, (b"content-length", b"%d" % len(content))])
        return httpx.Request("POST", url, headers=sent, stream=Body(content), extensions=waits)

    def _make(self, root: str) -> httpx.AsyncClient | httpx.AsyncBaseTransport:
        transport = self._transport
        if isinstance(transport, httpx.AsyncBaseTransport):
            return transport
        context = self._context(root)
        if self._fast:
            keep_s = LIMITS.keepalive_expiry or 2.0
            return AiohttpTransport(context, connect_s=self._connect_s, keep_s=keep_s, proxies=_proxies())
        if _proxies() or "@" in root:  # a client finds the proxy for an address, and takes a name out of one
            return httpx.AsyncClient(limits=LIMITS, verify=context)
        return httpx.AsyncHTTPTransport(limits=LIMITS, verify=context)

    def _context(self, root: str) -> ssl.SSLContext:
        """Certificates are read once, and only where they are needed: that takes 50 ms."""
        named = any(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        plain = root.startswith("http:") and not named and not _proxies()
        if plain not in self._contexts:
            # A bare context trusts nobody, should anything ask it to.
            self._contexts[plain] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else httpx.create_ssl_context()
        return self._contexts[plain]


@lru_cache(maxsize=256)
def _sent(target: Target, host: bytes, keep_alive: bool, tried: int) -> httpx.Headers:
    """The headers of a request with a body, but for its length. A request copies them."""
    return httpx.Headers([(b"host", host), *target.headers(True, keep_alive=keep_alive, tried=tried)])


def _proxies() -> dict[str, str]:
    """By scheme; ``no_proxy`` alone names none."""
    return {scheme: url for scheme, url in getproxies().items() if scheme != "no"}


def _streamed(client: httpx.AsyncClient) -> Send:
    async def send(request: httpx.Request) -> httpx.Response:
        return await client.send(request, stream=True)

    return send


def _is_fast(wire: str) -> bool:
    if not isinstance(wire, str) or wire not in ("auto", "aiohttp", "httpx"):
        raise UsageError(
            f"transport must be 'auto', 'aiohttp', 'httpx' or an async transport of httpx, got {shown(wire)}"
        )
    installed = find_spec("aiohttp") is not None
    if wire == "aiohttp" and not installed:
        raise UsageError("transport='aiohttp' needs the extra 'fast': pip install 'agentroute[fast]'")
    return installed and (wire == "aiohttp" or (wire == "auto" and not _proxies()))
