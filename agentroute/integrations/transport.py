"""A transport for httpx or httpx2 that routes: for all that is built on the OpenAI SDK, or lets its client be set.

::

    import httpx2
    from openai import OpenAI
    from agentroute import Router
    from agentroute.integrations.transport import BASE_URL, routing_transport

    transport = routing_transport(Router.from_config("agentroute.toml"), httpx=httpx2)
    client = OpenAI(base_url=BASE_URL, api_key="none", http_client=httpx2.Client(transport=transport))
    client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "Hello"}])

Routed is a POST to ``base_url`` for chats, completions, responses or embeddings whose model is ``auto`` or
``auto:ROUTE``. All else goes to the inner transport, untouched; at ``BASE_URL``, where nobody is, there is a list of
models (``auto`` and the routes), and an error for the rest. Hints are taken from the body's metadata, which comes
before headers, which come before ``with agentroute.hint(...)``. What the caller sends as a key reaches no server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from types import ModuleType
from typing import Any, get_args
from weakref import WeakKeyDictionary

from agentroute.answers import ErrorAnswer, decision_headers, of_error, refusal
from agentroute.client import AsyncClient, Client
from agentroute.errors import AgentrouteError, UsageError, shown
from agentroute.fleet import check_url
from agentroute.forwarded import AsyncForwarded, following
from agentroute.hints import Hint, current, from_headers, from_metadata, route_of, task_of
from agentroute.payload import EndpointName, endpoint_of, read_body
from agentroute.portal import Portal
from agentroute.router import Router
from agentroute.transport import encode

BASE_URL = "http://agentroute.invalid/v1"
"""Where nobody is: a name that never resolves (RFC 2606), so that nothing leaves where the transport is forgotten."""
ENDPOINTS: dict[str, EndpointName] = {
    endpoint_of(name).path.removeprefix("/v1"): name for name in get_args(EndpointName)
}
_HOP = {"connection", "content-length", "keep-alive", "set-cookie", "transfer-encoding", "x-should-retry"}
"""Headers that are between agentroute and a server alone."""


def routing_transport(
    router: Router | Client | AsyncClient,
    *,
    inner: Any = None,
    base_url: str = BASE_URL,
    httpx: ModuleType | None = None,
) -> Any:
    """A transport for ``httpx.Client(transport=...)`` and for ``httpx.AsyncClient(transport=...)`` alike.

    ``httpx`` is the module whose client it is for: ``httpx`` (when not given) or ``httpx2``, which the OpenAI SDK uses
    from 3.0 on; the two must not be mixed. ``inner`` takes all that is not routed: the module's own when not given.
    With another ``base_url``, such as a provider's, other models there are still that provider's. Who gives a client
    closes it; with a router, clients are made (one for each event loop) and closed with the transport. Raises
    ``UsageError``.
    """
    module = import_module("httpx") if httpx is None else httpx
    if not hasattr(module, "AsyncBaseTransport"):
        raise UsageError(f"httpx must be the module httpx or httpx2, got {module!r:.80}")
    if not isinstance(router, Router | Client | AsyncClient):
        raise UsageError(f"router must be a Router, a Client or an AsyncClient, got {type(router).__name__}")
    try:
        check_url(base_url)
    except ValueError as problem:
        raise UsageError(f"base_url {problem}") from None
    routing = Routing(router, module, base_url)

    class RoutingTransport(module.BaseTransport, module.AsyncBaseTransport):  # type: ignore[name-defined, misc]
        """Routes what is asked for ``auto``; the rest goes through it."""

        def __init__(self) -> None:
            self._inner = self._ainner = inner

        def handle_request(self, request: Any) -> Any:
            if routing.endpoint(request) and (asked := routing.asked(request, request.read())):
                return routing.answer(asked)
            if routing.is_nowhere(request):
                return routing.at_nowhere(request)
            if self._inner is None:
                self._inner = module.HTTPTransport()
            return self._inner.handle_request(request)

        async def handle_async_request(self, request: Any) -> Any:
            if routing.endpoint(request) and (asked := routing.asked(request, await request.aread())):
                return await routing.aanswer(asked)
            if routing.is_nowhere(request):
                return routing.at_nowhere(request)
            if self._ainner is None:
                self._ainner = module.AsyncHTTPTransport()
            return await self._ainner.handle_async_request(request)

        def close(self) -> None:
            routing.close()
            if self._inner is not None:
                self._inner.close()

        async def aclose(self) -> None:
            await routing.aclose()
            if self._ainner is not None:
                await self._ainner.aclose()

    return RoutingTransport()


class Asked:
    """A request that is to be routed: what it says, and what is said of it."""

    def __init__(self, request: Any, endpoint: EndpointName, body: bytes, parsed: Mapping[str, Any]) -> None:
        self.request, self.endpoint, self.body, self.parsed = request, endpoint, body, parsed
        self.around: Hint = current()
        timeout = request.extensions.get("timeout") or {}
        self.read_s: float | None = timeout.get("read")
        """So long the caller lets every read take."""


class Routing:
    """What the transport of either module does."""

    def __init__(self, given: Router | Client | AsyncClient, httpx: ModuleType, base_url: str) -> None:
        self._given, self._httpx = given, httpx
        self._base = httpx.URL(base_url.rstrip("/"))
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()
        self._own: Client | None = None
        self._router = given if isinstance(given, Router) else given.router
        self._nowhere = httpx.URL(BASE_URL).host
        self._stream, self._astream = _streams(httpx)

    def endpoint(self, request: Any) -> EndpointName | None:
        """The endpoint that a request is for; ``None``: not one of ours."""
        url, base = request.url, self._base
        if request.method != "POST" or (url.scheme, url.host, url.port) != (base.scheme, base.host, base.port):
            return None
        root = base.path.rstrip("/")
        return ENDPOINTS.get(url.path.removeprefix(root)) if url.path.startswith(root) else None

    def asked(self, request: Any, body: bytes) -> Asked | None:
        """The request, where its model is ``auto``."""
        endpoint = self.endpoint(request)
        try:
            parsed = read_body(body)
        except UsageError:
            return None
        if endpoint is None or route_of(parsed.get("model")) is None:
            return None
        return Asked(request, endpoint, body, parsed)

    def is_nowhere(self, request: Any) -> bool:
        """Whether it is for ``BASE_URL``, where an inner transport would find nobody."""
        return bool(request.url.host == self._nowhere)

    def at_nowhere(self, request: Any) -> Any:
        """The answer to what is not routed there."""
        if request.method == "GET" and request.url.path.endswith("/models"):
            routes = ["auto", *(f"auto:{name}" for name in self._router.routes if name != "default")]
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "agentroute"} for name in routes]
            return self._httpx.Response(200, json={"object": "list", "data": models}, request=request)
        if self.endpoint(request):
            said = f"{request.url.path} is routed for the model auto or auto:ROUTE alone, {_model(request)}"
        else:
            said = f"{request.method} {request.url.path} is not routed; {', '.join(ENDPOINTS)} at {BASE_URL} are"
        return self._failed(request, refusal(404, said, code="model_not_found"))

    async def aanswer(self, asked: Asked) -> Any:
        """The answer to a request, from the client of this loop."""
        return await self._answer(asked, self._async_client(), None)

    def answer(self, asked: Asked) -> Any:
        """The same, for threads without a loop."""
        client = self._client()
        return client._portal.run(self._answer(asked, client._inner, client._portal))

    async def aclose(self) -> None:
        """Close the client that was made for this loop."""
        if (made := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await made.aclose()

    def close(self) -> None:
        """Close the client that was made."""
        if self._own is not None:
            self._own.close()

    async def _answer(self, asked: Asked, client: AsyncClient, portal: Portal | None) -> Any:
        stack = AsyncExitStack()
        try:
            try:
                async with self._in_time(asked):
                    back = await stack.enter_async_context(self._sent(asked, client))
                    if asked.parsed.get("stream") is not True:
                        content = b"".join([chunk async for chunk in back])
                        await stack.aclose()
                        return self._response(asked, back, content=content)
            except AgentrouteError as error:
                return self._failed(asked.request, of_error(error))
        except BaseException:
            await stack.aclose()
            raise
        chunks = self._chunks(asked, back)
        stream = self._astream(chunks, stack) if portal is None else self._stream(chunks, stack, portal)
        return self._response(asked, back, stream=stream)

    def _sent(self, asked: Asked, client: AsyncClient) -> Any:
        said, metadata = from_metadata(asked.parsed)
        hint = said.over(from_headers(asked.request.headers.multi_items())).over(asked.around)
        route = route_of(asked.parsed["model"])
        body, parsed = asked.body, asked.parsed
        if metadata is not parsed.get("metadata"):
            parsed = {**parsed, "metadata": metadata}
            if metadata is None:
                del parsed["metadata"]
            body = encode(parsed)
        if route != "default" or hint.route is None:
            hint = Hint(route=route).over(hint)
        task = task_of(
            parsed,
            hint,
            endpoint=asked.endpoint,
            counting=client.counting,
            route=client.router.routes.get(hint.route or "default"),
        )
        return client.forward(body, endpoint=asked.endpoint, task=task, retried=hint.retried, parsed=parsed)

    def _in_time(self, asked: Asked) -> _Within:
        return _Within(asked.read_s, lambda: self._late(asked))

    def _late(self, asked: Asked) -> Exception:
        said = f"no answer within the client's own read timeout of {asked.read_s:g} s"
        late: Exception = self._httpx.ReadTimeout(said, request=asked.request)
        return late

    async def _chunks(self, asked: Asked, back: AsyncForwarded) -> AsyncIterator[bytes]:
        """The bytes of a stream; where it breaks, its last event says so, or the connection is seen to break."""
        between, chunks = True, aiter(back)
        while True:
            try:
                async with self._in_time(asked):
                    chunk = await anext(chunks, None)
            except AgentrouteError as error:
                answer = of_error(error)
                if not between:
                    raise self._httpx.ReadError(str(answer.error["message"]), request=asked.request) from error
                yield answer.event
                return
            if chunk is None:
                return
            between = chunk.endswith((b"\n\n", b"\r\n\r\n"))
            yield chunk

    def _response(self, asked: Asked, back: AsyncForwarded, **content: Any) -> Any:
        kept = {name: value for name, value in back.headers.items() if name.lower() not in _HOP}
        told = {**kept, **decision_headers(back.decision)}
        headers = [(name.encode(), value.encode()) for name, value in told.items()]  # httpx takes only ASCII as text
        return self._httpx.Response(back.status, headers=headers, request=asked.request, **content)

    def _failed(self, request: Any, answer: ErrorAnswer) -> Any:
        return self._httpx.Response(answer.status, headers=dict(answer.headers), content=answer.body, request=request)

    def _client(self) -> Client:
        if isinstance(self._given, Client):
            return self._given
        if self._own is None:
            self._own = Client(**_like(self._given))
        return self._own

    def _async_client(self) -> AsyncClient:
        if isinstance(self._given, AsyncClient):
            return self._given
        loop = asyncio.get_running_loop()
        if (client := self._clients.get(loop)) is None:
            client = self._clients[loop] = AsyncClient(**_like(self._given))
        return client


def _model(request: Any) -> str:
    """What a body that was read names as its model instead."""
    try:
        model = read_body(request.content).get("model")
    except UsageError as problem:
        return str(problem)
    return "and none was named" if model is None else f"got {shown(model)}"


def _like(given: Router | Client | AsyncClient) -> dict[str, Any]:
    if isinstance(given, Router):
        return {"router": given}
    return {"router": given.router, "timeout": given.timeout, "retry": given.retry}


class _Within:
    """A time limit for a block, which ends in an error of the module's own."""

    def __init__(self, seconds: float | None, late: Callable[[], Exception]) -> None:
        self._timeout, self._late = asyncio.timeout(seconds), late

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError:
            raise self._late() from None


def _streams(httpx: ModuleType) -> tuple[type[Any], type[Any]]:
    """A stream of each kind, for a response's."""

    class SyncStream(httpx.SyncByteStream):  # type: ignore[name-defined, misc]
        def __init__(self, chunks: AsyncIterator[bytes], stack: AsyncExitStack, portal: Portal) -> None:
            self._chunks, self._stack, self._portal = chunks, stack, portal

        def __iter__(self) -> Iterator[bytes]:
            while (chunk := self._portal.run(following(self._chunks))) is not None:
                yield chunk

        def close(self) -> None:
            if not self._portal.closed:  # else it has ended all that was open
                self._portal.run(_end(self._chunks, self._stack))

    class AsyncStream(httpx.AsyncByteStream):  # type: ignore[name-defined, misc]
        def __init__(self, chunks: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
            self._chunks, self._stack = chunks, stack

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self._chunks

        async def aclose(self) -> None:
            await _end(self._chunks, self._stack)

    return SyncStream, AsyncStream


async def _end(chunks: Any, stack: AsyncExitStack) -> None:
    await chunks.aclose()
    await stack.aclose()
