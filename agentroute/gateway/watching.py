"""The watcher of a gateway: a new one whenever the fleet is another."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from agentroute.pulse import Vital
from agentroute.router import Router
from agentroute.watch import AsyncWatcher, Endpoint


class Watch:
    """Watches the deployments that a router has at each moment: ``async with Watch(router): ...``."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._watcher = AsyncWatcher(router)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    @property
    def vitals(self) -> dict[Endpoint, Vital]:
        """How every endpoint is, by the readings so far."""
        return self._watcher.vitals

    def changed(self) -> None:
        """Say, from any thread, that the router goes by another fleet."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._changed.set)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._watcher.__aenter__()
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop = None
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await self._watcher.__aexit__(kind, error, trace)

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            old, new = self._watcher, AsyncWatcher(self._router)
            await new.__aenter__()
            self._watcher = new
            await old.__aexit__(None, None, None)
