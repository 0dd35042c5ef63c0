"""Which deployments the name of a model stands for, and the names that a caller may use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress

from agentroute.adapters import adapter
from agentroute.errors import AgentrouteError
from agentroute.fleet import Deployment
from agentroute.gateway.keys import Caller
from agentroute.probe import probe
from agentroute.router import Router

AGAIN_S = 30.0
"""A server that has not said yet which model it serves is asked again after so long. Assumed."""


class Served:
    """The model ids of a router's deployments: as the configuration says, else the first that the server lists."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._listed: dict[tuple[str, ...], str] = {}
        """By the addresses of a deployment, the model that its server lists."""

    @property
    def _ids(self) -> dict[str, str | None]:
        return {d.name: d.served_model or self._listed.get(d.urls) for d in self._router.fleet.deployments}

    def deployments(self, model: str) -> frozenset[str]:
        """The deployments that serve a model; none: nobody does, or nobody has said so yet."""
        return frozenset(name for name, served in self._ids.items() if served == model)

    def id_of(self, deployment: str) -> str | None:
        """The id of the model that a deployment serves; ``None``: not known yet."""
        return self._ids.get(deployment)

    def names(self, caller: Caller) -> Iterator[str]:
        """What a caller may give as ``model``: its routes, and the models that they may choose."""
        usable = [route for name, route in self._router.routes.items() if caller.may(name)]
        for route in usable:
            yield "auto" if route.name == "default" else f"auto:{route.name}"
        seen = self.visible(caller)
        yield from dict.fromkeys(served for name, served in self._ids.items() if served and name in seen)

    def visible(self, caller: Caller) -> frozenset[str]:
        """The deployments that a caller may know of: those that its routes, and their fallbacks, may choose."""
        if caller.admin or caller.routes is None:
            return frozenset(deployment.name for deployment in self._router.fleet.deployments)
        return self.reached(caller.routes)

    def reached(self, chosen: Iterable[str]) -> frozenset[str]:
        """The deployments that routes, and their fallbacks, may choose."""
        everything = frozenset(deployment.name for deployment in self._router.fleet.deployments)
        names, todo = set[str](), list(chosen)
        while todo:
            if (name := todo.pop()) in self._router.routes and name not in names:
                names.add(name)
                todo += self._router.routes[name].fallbacks
        routes = [self._router.routes[name] for name in names]
        return frozenset().union(*((everything if r.allow is None else r.allow) - r.deny for r in routes))

    async def keep_asking(self) -> None:
        """Ask the servers that the configuration names no model of, again and again until they have said it."""
        while True:
            for one in self._router.fleet.deployments:
                if one.urls and one.served_model is None and one.urls not in self._listed:
                    with suppress(AgentrouteError):
                        await self._ask(one)
            await asyncio.sleep(AGAIN_S)

    async def _ask(self, one: Deployment) -> None:
        said = await asyncio.to_thread(probe, one.urls[0], adapter(one.adapter), api_key_env=one.api_key_env)
        if said.models:
            self._listed[one.urls] = said.models[0]
