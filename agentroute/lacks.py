"""Which servers lack an endpoint: as their runtime does, or as they have said lately. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentroute.adapters import adapter
from agentroute.adapters.base import Endpoint
from agentroute.adapters.endpoints import CHATS
from agentroute.adapters.failures import lacks_route
from agentroute.errors import BackendError, UnknownNameError

if TYPE_CHECKING:
    from agentroute.fleet import Fleet
    from agentroute.router import Router

BELIEVED_S = 300.0
"""So long a server that said it has no such route is not asked for it again: it may be started anew with another flag,
as llama.cpp is with ``--embeddings``. Assumed."""


class Lacks:
    """The deployments of a router, of those that it has at each moment, that are better not asked for an endpoint."""

    def __init__(self, router: Router, clock: Callable[[], float] = time.monotonic) -> None:
        self._router, self._clock = router, clock
        self._by_runtime: dict[str, tuple[Fleet, frozenset[str]]] = {}
        self._until: dict[tuple[str, str, tuple[str, ...]], float] = {}
        """Under another address it is another server."""

    def of(self, endpoint: Endpoint) -> frozenset[str]:
        """Names of those that lack it; none where all do: their own word is better than ours."""
        if endpoint is CHATS:
            return frozenset()
        fleet = self._router.fleet
        of, known = self._by_runtime.get(endpoint.name, (None, frozenset[str]()))
        if of is not fleet:
            known = frozenset(d.name for d in fleet.deployments if not _has(d.adapter, endpoint))
            self._by_runtime[endpoint.name] = fleet, known
        if self._until:
            now = self._clock()
            known |= {d.name for d in fleet.deployments if now < self._until.get((endpoint.name, d.name, d.urls), now)}
        return known if len(known) < len(fleet.deployments) else frozenset()

    def failed(self, endpoint: Endpoint, deployment: str, error: BackendError) -> None:
        """A request there failed; learn from it where the server says that it has no such route."""
        if endpoint is CHATS or not lacks_route(error):
            return
        now = self._clock()
        self._until = {key: until for key, until in self._until.items() if now < until}
        for one in self._router.fleet.deployments:
            if one.name == deployment:
                self._until[endpoint.name, deployment, one.urls] = now + BELIEVED_S


def _has(name: str, endpoint: Endpoint) -> bool:
    try:
        return adapter(name).has(endpoint)
    except UnknownNameError:
        return True  # the call itself says what is wrong
