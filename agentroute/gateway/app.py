"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from agentroute.answers import ErrorAnswer, of_error, refusal
from agentroute.client import AsyncClient
from agentroute.config import Config
from agentroute.ended import Observer
from agentroute.errors import AgentrouteError, RefusedError
from agentroute.gateway import page
from agentroute.gateway.asked import Reader, unknown
from agentroute.gateway.catalogue import Served
from agentroute.gateway.dry import decided
from agentroute.gateway.fleet import FleetView
from agentroute.gateway.intake import Receive, Scope, Send, body_of
from agentroute.gateway.keys import Caller, Keys
from agentroute.gateway.metrics import CONTENT_TYPE, Metrics
from agentroute.gateway.openapi import document
from agentroute.gateway.proxy import BUG, LOG, Means, Proxy, log_bug
from agentroute.gateway.records import Records
from agentroute.patience import Timeout
from agentroute.payload import EndpointName, endpoint_of
from agentroute.router import Router
from agentroute.tables import GatewayConfig
from agentroute.watch import AsyncWatcher

App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS: dict[EndpointName, str] = {name: endpoint_of(name).path for name in get_args(EndpointName)}
"""What is sent on."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A router with its gateway: who may come in, what is called, what is watched."""

    router: Router
    keys: Keys
    settings: GatewayConfig
    client: AsyncClient
    watch: AsyncWatcher
    served: Served
    records: Records
    reader: Reader
    view: FleetView

    @classmethod
    def of(
        cls,
        router: Router,
        *,
        keys: Keys | None = None,
        settings: GatewayConfig | None = None,
        timeout: Timeout | None = None,
        observers: Sequence[Observer] = (),
    ) -> Gateway:
        """A gateway before ``router``; without ``keys`` anybody may come in. ``observers`` are told of every call."""
        served, records, watch = Served(router), Records(Metrics()), AsyncWatcher(router)
        client = AsyncClient(router, timeout=timeout, observers=(records, *observers))
        return cls(
            router,
            keys or Keys(()),
            settings or GatewayConfig.model_validate({}),
            client,
            watch,
            served,
            records,
            Reader(router, served, client.counting),
            FleetView(router, watch, served),
        )

    @classmethod
    def from_config(cls, config: Config, router: Router, *, observers: Sequence[Observer] = ()) -> Gateway:
        """The gateway that a configuration describes; raises ``UsageError`` for a key that is not set."""
        return cls.of(router, keys=Keys(config.keys), settings=config.gateway, observers=observers)

    def check(self, config: Config) -> None:
        """Raise ``UsageError`` where another configuration has a key that is not set; nothing changes."""
        self.keys.check(config.keys)

    def changed(self, config: Config) -> None:
        """Go by the keys of another configuration: the router goes by it already.

        Where to listen, TLS, the limits of bodies and what is recorded stay as they are. Raises ``UsageError`` for a
        key that is not set; the keys stay as they are then.
        """
        guarded_before = self.keys.required
        self.keys.replace(config.keys)
        if guarded_before and not self.keys.required:
            LOG.warning("no [[keys]] are set any more, so whoever reaches this address can use the fleet")

    def app(self) -> App:
        """The ASGI application."""
        means = Means(self.client, self.reader, self.keys, self.records, self.settings.max_body_bytes)
        proxies = {path: Proxy(means, endpoint) for endpoint, path in PATHS.items()}
        app = Starlette(
            routes=[
                *(Path(path, proxy, methods=["POST"]) for path, proxy in proxies.items()),
                Path("/v1/models", self._models),
                Path("/v1/models/{model:path}", self._model),
                Path("/v1/agentroute/decide", self._decide, methods=["POST"]),
                Path("/v1/agentroute/fleet", self._fleet),
                Path("/health", _health),
                Path("/ready", self._ready),
                Path("/metrics", self._metrics),
                Path("/openapi.json", self._openapi),
                *(Path(path, page.serve) for path in page.FILES),
            ],
            exception_handlers={
                RefusedError: _refused,  # type: ignore[dict-item]
                AgentrouteError: _error,  # type: ignore[dict-item]
                HTTPException: _http,  # type: ignore[dict-item]
                Exception: _bug,
            },
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False
        return guarded(fronted(app, proxies))

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        asking = asyncio.create_task(self.served.keep_asking())
        try:
            async with self.client, self.watch:
                yield
        finally:
            asking.cancel()

    def _caller(self, request: Request, *, admin: bool = False) -> Caller:
        caller = self.keys.caller(request.scope["headers"])
        if admin and not caller.admin:
            said = "this key may not see what other keys do; give it admin = true"
            raise RefusedError(refusal(403, said, kind="permission_error", code="not_admin"))
        return caller

    async def _models(self, request: Request) -> Response:
        names = self.served.names(self._caller(request))
        return JSONResponse({"object": "list", "data": [_model_json(name) for name in names]})

    async def _model(self, request: Request) -> Response:
        names, model = list(self.served.names(self._caller(request))), request.path_params["model"]
        return JSONResponse(_model_json(model)) if model in names else told(unknown(model, names))

    async def _decide(self, request: Request) -> Response:
        caller = self._caller(request)
        body = await body_of(request.scope, request.receive, self.settings.max_body_bytes)
        endpoint = request.query_params.get("endpoint", "chat")
        known = next((one for one in PATHS if one == endpoint), None)
        if known is None:
            raise RefusedError(refusal(400, f"endpoint must be one of {', '.join(PATHS)}", code="unknown_endpoint"))
        asked = await self.reader.read_aside(body, request.scope["headers"], caller, known)
        return JSONResponse(decided(self.router, asked, caller, self.served.visible(caller)))

    async def _fleet(self, request: Request) -> Response:
        caller = self._caller(request)
        whole = {**self.view.of(caller), "decisions": list(self.records.last(caller)), "at": time.time()}
        return JSONResponse(whole, headers={"cache-control": "no-store"})

    async def _ready(self, request: Request) -> Response:
        up, ready = self.view.up(), self.view.up() > 0
        return JSONResponse({"ready": ready, "endpoints_up": up}, status_code=200 if ready else 503)

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(document, PATHS, keyed=self.keys.required))

    async def _metrics(self, request: Request) -> Response:
        self._caller(request, admin=True)
        return Response(self.records.metrics.text(self.view.gauges()), media_type=CONTENT_TYPE)


def fronted(app: App, proxies: Mapping[str, App]) -> App:
    """The same, but what is sent on by a path goes there at once: it has no use for what Starlette does on the way."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        there = proxies.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (there or app)(scope, receive, send)

    return call


def guarded(app: App) -> App:
    """The same, but what it fails with is logged without its words, which may hold a prompt; it was answered."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception as error:
            log_bug(error)

    return call


def told(answer: ErrorAnswer) -> Response:
    """An error as a response."""
    return Response(answer.body, status_code=answer.status, headers=dict(answer.headers))


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _refused(request: Request, error: RefusedError) -> Response:
    return told(error.answer)


async def _error(request: Request, error: AgentrouteError) -> Response:
    return told(of_error(error))


async def _http(request: Request, error: HTTPException) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    answer = told(refusal(error.status_code, f"{request.method} is not answered at this path", code=code))
    answer.headers.update(error.headers or {})
    return answer


async def _bug(request: Request, error: Exception) -> Response:
    return told(BUG)


def _model_json(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentroute"}
