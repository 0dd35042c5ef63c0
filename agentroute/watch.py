"""Keeping a router informed of what its servers are doing: every endpoint is asked again and again.

The load is asked for with jitter and told with its age; a server that does not answer is asked less and less often.
What the answers say when they are put in a row (who is down, who died, who stands behind a load balancer) is told to
the router as well (``agentroute.pulse``), which then sends nothing there, and tells it in ``Router.doctor``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Self

import httpx

from agentroute.adapters import adapter
from agentroute.adapters.base import Adapter, Load
from agentroute.adapters.prometheus import MAX_BYTES
from agentroute.errors import BackendError, FailureKind, UsageError
from agentroute.fleet import Fleet
from agentroute.patience import Timeout
from agentroute.portal import Portal
from agentroute.probe import aconverse
from agentroute.pulse import Pulse, Vital, wait_s
from agentroute.router import Router
from agentroute.transport import HEADERS, LIMITS, Target, environment, failures, silence
from agentroute.wire import Answer, Request

INTERVAL_S = 1.0
"""A report counts whole for two of these (``state.load``). Assumed."""
TIMEOUT_S = 5.0
"""For a whole reading. llama.cpp answers between two batches, vLLM between two turns of a busy event loop. Assumed."""
AT_ONCE = 64
"""Readings under way at the same time, at most."""

_Key = tuple[str, str | None, str]
"""An address, the variable of its key, and how it is asked."""
Endpoint = tuple[str, str]
"""A deployment's name and the base URL of one of its endpoints."""


@dataclass(slots=True)
class _Watched:
    """One address, with every deployment that has it."""

    url: str
    api_key_env: str | None
    wire: Adapter
    deployments: list[str] = field(default_factory=list)
    pulse: Pulse = field(default_factory=Pulse)


class AsyncWatcher:
    """Watches the endpoints of a router's deployments: ``async with AsyncWatcher(router): ...``.

    Those that it has at each moment: where the router goes by another fleet, so does this within ``interval_s``, and
    what was read of the servers that stay is kept.
    ``interval_s`` lies between two readings of an endpoint, ``timeout_s`` is the most that one may take. ``wires`` are
    adapters by URL, where a deployment's own is not the one to ask with. Raises ``UsageError`` for times that are none.
    """

    def __init__(
        self,
        router: Router,
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        wires: Mapping[str, str] = MappingProxyType({}),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        for name, value in (("interval_s", interval_s), ("timeout_s", timeout_s)):
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 < value < math.inf:
                raise UsageError(f"{name} must be a finite number of seconds above 0, got {value!r}")
        self._router, self._interval_s, self._timeout_s, self._transport = router, interval_s, timeout_s, transport
        self._patience = Timeout(connect_s=timeout_s, read_s=timeout_s)
        self._fleet, self._wires = router.fleet, wires
        self._watched = _watched(router.fleet, wires, {})
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._client: httpx.AsyncClient | None = None

    @property
    def vitals(self) -> dict[Endpoint, Vital]:
        """How every endpoint is, by the readings so far."""
        return {(name, one.url): one.pulse.vital for one in self._watched.values() for name in one.deployments}

    async def look(self) -> None:
        """Read every endpoint once, now."""
        self._renew()
        async with self._opened() as client:
            places = asyncio.Semaphore(AT_ONCE)

            async def one_by_one(one: _Watched) -> None:
                async with places:
                    await self._read(one, client)

            await asyncio.gather(*(one_by_one(one) for one in self._watched.values()))

    async def __aenter__(self) -> Self:
        self._client = self._opened()
        self._following = asyncio.create_task(self._follow(self._client))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        following, self._following = self._following, None
        tasks = [*self._tasks.values(), *([following] if following else ())]
        self._tasks = {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _opened(self) -> httpx.AsyncClient:
        with environment():
            return httpx.AsyncClient(
                timeout=silence(self._patience), limits=LIMITS, headers=HEADERS, transport=self._transport
            )

    def _renew(self) -> None:
        """Watch the fleet that the router has now; one that cannot be watched is said, and the one before stays."""
        if (fleet := self._router.fleet) is self._fleet:
            return
        self._fleet = fleet
        try:
            self._watched = _watched(fleet, self._wires, self._watched)
        except UsageError as problem:
            logging.getLogger("agentroute").warning("the fleet as it is now is not watched: %s", problem)

    async def _follow(self, client: httpx.AsyncClient) -> None:
        """Have a task for every address, as long as it is one of the fleet."""
        while True:
            self._renew()
            for key in self._tasks.keys() - self._watched.keys():
                self._tasks.pop(key).cancel()
            for key in self._watched.keys() - self._tasks.keys():
                self._tasks[key] = asyncio.create_task(self._keep_reading(self._watched[key], client))
            await asyncio.sleep(self._interval_s)

    async def _keep_reading(self, one: _Watched, client: httpx.AsyncClient) -> None:
        await asyncio.sleep(self._interval_s * random.random())
        while True:
            await self._read(one, client)
            await asyncio.sleep(wait_s(one.pulse.vital, self._interval_s, random.random()))

    async def _read(self, one: _Watched, client: httpx.AsyncClient) -> None:
        """One reading, and what the router is told of it; its age counts from when it was asked for."""
        asked_at = self._router.clock()
        try:
            load = await self._asked(one, client)
        except BackendError as error:
            report = one.pulse.missed(error, asked_at)
        else:
            report = one.pulse.read(load, asked_at)
        if report is not None:
            for name in one.deployments:
                self._router.observe(name, report, url=one.url)

    async def _asked(self, one: _Watched, client: httpx.AsyncClient) -> Load:
        try:
            target = Target.of(one.url, one.api_key_env)
        except UsageError as error:
            raise BackendError(FailureKind.AUTH, str(error)) from None

        async def ask(request: Request) -> Answer:
            with failures(self._patience):
                return await _answer(client, target.request(client, request))

        try:
            async with asyncio.timeout(self._timeout_s):
                return await aconverse(one.wire.load(), ask)
        except TimeoutError:
            raise BackendError(FailureKind.TIMEOUT, f"did not answer within {self._timeout_s:g} s") from None
        except BackendError as error:
            raise BackendError(error.kind, target.hide(error.detail), status=error.status) from None


class Watcher:
    """The same from a thread of its own: ``with Watcher(router): ...``."""

    def __init__(
        self,
        router: Router,
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        wires: Mapping[str, str] = MappingProxyType({}),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._watcher = AsyncWatcher(
            router, interval_s=interval_s, timeout_s=timeout_s, wires=wires, transport=transport
        )
        self._portal: Portal | None = None

    @property
    def vitals(self) -> dict[Endpoint, Vital]:
        """How every endpoint is, by the readings so far."""
        return self._watcher.vitals

    def look(self) -> None:
        """Read every endpoint once, now."""
        asyncio.run(self._watcher.look())

    def __enter__(self) -> Self:
        portal = Portal(partial(self._watcher.__aexit__, None, None, None))
        portal.run(self._watcher.__aenter__())
        self._portal = portal
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()


def _watched(fleet: Fleet, wires: Mapping[str, str], before: Mapping[_Key, _Watched]) -> dict[_Key, _Watched]:
    """Every address once, however many deployments have it; one that was there ``before`` is the same one."""
    names: dict[_Key, list[str]] = {}
    for deployment in fleet.deployments:
        for url in dict.fromkeys(deployment.urls):
            key = (url, deployment.api_key_env, wires.get(url, deployment.adapter))
            names.setdefault(key, []).append(deployment.name)
    found = {key: before.get(key) or _Watched(key[0], key[1], adapter(key[2])) for key in names}
    for key, one in found.items():
        one.deployments = names[key]
    return found


async def _answer(client: httpx.AsyncClient, request: httpx.Request) -> Answer:
    """An answer of at most a little over ``MAX_BYTES``, as it came: nobody was asked to compress it."""
    response = await client.send(request, stream=True)
    try:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BYTES:
                break
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status_code, headers, bytes(body))
    finally:
        await response.aclose()
