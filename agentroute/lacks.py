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
    from agentroute.router import Router

BELIEVED_S = 300.0
"""So long a server that said it has no such route is not asked for it again: it may be started anew with another flag,
as llama.cpp is with ``--embeddings``. Assumed."""


class Lacks:
    """The deployments of a router that are better not asked for an endpoint."""

    def __init__(self, router: Router, clock: Callable[[], float] = time.monotonic) -> None:
        self._deployments, self._clock = router.fleet.deployments, clock
        self._by_runtime: dict[str, frozenset[str]] = {}
        self._until: dict[tuple[str, str], float] = {}

    def of(self, endpoint: Endpoint) -> frozenset[str]:
        """Names of those that lack it; none where all do: their own word is better than ours."""
        if endpoint is CHATS:
            return frozenset()
        known = self._by_runtime.get(endpoint.name)
        if known is None:
            known = frozenset(d.name for d in self._deployments if not _has(d.adapter, endpoint))
            self._by_runtime[endpoint.name] = known
        if self._until:
            now = self._clock()
            known |= {name for (of, name), until in self._until.items() if of == endpoint.name and now < until}
        return known if len(known) < len(self._deployments) else frozenset()

    def failed(self, endpoint: Endpoint, deployment: str, error: BackendError) -> None:
        """A request there failed; learn from it where the server says that it has no such route."""
        if endpoint is not CHATS and lacks_route(error):
            self._until[endpoint.name, deployment] = self._clock() + BELIEVED_S


def _has(name: str, endpoint: Endpoint) -> bool:
    try:
        return adapter(name).has(endpoint)
    except UnknownNameError:
        return True  # the call itself says what is wrong
