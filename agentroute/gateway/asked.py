"""What a caller asks for: the body, the headers and the key made into one task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from agentroute.answers import ErrorAnswer, of_error, refusal
from agentroute.counting import Counting
from agentroute.errors import RefusedError, UnknownNameError, UsageError
from agentroute.gateway.catalogue import Served
from agentroute.gateway.fields import check
from agentroute.gateway.keys import Caller
from agentroute.hints import from_headers, from_metadata, route_of, task_of
from agentroute.payload import EndpointName, read_body
from agentroute.router import Router
from agentroute.task import Task
from agentroute.transport import encode

LARGE = 64 * 1024
"""Bytes of a body that is read beside the event loop: of nothing but tiny parts, one of 64 KiB takes up to 50 ms, and
one of 32 MiB half a minute. A thread takes turns with the loop every 5 ms: it is of no use to much less. Measured."""

_ASIDE = ThreadPoolExecutor(1, thread_name_prefix="agentroute-read")
"""One for all: several would take the loop's turns."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that may be sent on."""

    task: Task
    body: bytes
    """What is sent on; as it came where no hint had to be taken out."""
    parsed: Mapping[str, Any]
    """What it says."""
    model: str
    """What the caller named as the model."""
    streaming: bool
    retried: int


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes tasks of requests, by a router's routes and what its servers serve."""

    router: Router
    served: Served
    counting: Counting

    async def read_aside(
        self, body: bytes, headers: Iterable[tuple[bytes, bytes]], caller: Caller, endpoint: EndpointName = "chat"
    ) -> Asked:
        """The same as ``read``; meanwhile others are answered, where the body is large."""
        if len(body) <= LARGE:
            return self.read(body, headers, caller, endpoint)
        return await asyncio.get_running_loop().run_in_executor(_ASIDE, self.read, body, headers, caller, endpoint)

    def read(
        self, body: bytes, headers: Iterable[tuple[bytes, bytes]], caller: Caller, endpoint: EndpointName = "chat"
    ) -> Asked:
        """What is asked for; raises ``UsageError`` for what makes no sense, ``RefusedError`` for what one may not."""
        parsed = _parsed(body)
        check(endpoint, parsed)
        said, metadata = from_metadata(parsed)
        sent = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        hint = said.over(from_headers(sent))
        model = parsed.get("model")
        if not isinstance(model, str) or not model:
            raise RefusedError(refusal(400, "model must be auto, auto:ROUTE or a model's id", code="model_missing"))
        named = route_of(model)
        if named not in (None, "default"):  # a hint's own route is for who asks for the default one
            hint = replace(hint, route=named)
        route = self._route(hint.route or ("default" if named else self._open_to(model, caller)), model, caller)
        task = task_of(parsed, hint, endpoint=endpoint, counting=self.counting, route=self.router.routes[route])
        if named is None:
            task = replace(task, allow=self._serving(model, caller))
        wire = parsed
        if metadata is not parsed.get("metadata"):
            rest = {key: value for key, value in parsed.items() if key != "metadata"}
            wire = rest if metadata is None else {**rest, "metadata": metadata}
        if self.router.routes[route].priority is not None:
            wire = _without_priority(wire)
        if wire is not parsed:
            parsed, body = wire, encode(wire)
        most = caller.max_context_tokens
        if most is not None and task.context_tokens > most:
            text = f"this key may send {most:,} prompt tokens at most; these are up to {task.context_tokens:,}"
            raise RefusedError(refusal(400, text, code="context_length_exceeded"))
        return Asked(_apart(task, caller), body, parsed, model, parsed.get("stream") is True, hint.retried)

    def _route(self, route: str, model: str, caller: Caller) -> str:
        if not caller.may(route):
            allowed = ", ".join(sorted(caller.routes or ()))
            text = f"this key may not use the route {route!r}; it may use: {allowed}"
            raise RefusedError(refusal(403, text, kind="permission_error", code="route_not_allowed"))
        if route not in self.router.routes:
            if route_of(model) == route:
                raise RefusedError(unknown(model, self.served.names(caller)))
            raise UnknownNameError("route", route, filter(caller.may, self.router.routes))  # of a hint
        return route

    def _open_to(self, model: str, caller: Caller) -> str:
        """The route of who names a model and no route: the default one, else the first of his that may choose it."""
        mine = () if caller.may("default") else filter(caller.may, self.router.routes)
        serving = self.served.deployments(model)
        return next((name for name in mine if serving & self.served.reached({name})), "default")

    def _serving(self, model: str, caller: Caller) -> frozenset[str]:
        found = self.served.deployments(model) & self.served.visible(caller)
        if not found:
            raise RefusedError(unknown(model, self.served.names(caller)))
        return found


def unknown(model: str, names: Iterable[str]) -> ErrorAnswer:
    """The answer to a model that does not exist."""
    return of_error(UnknownNameError("model", model, names))


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        return read_body(body, strictly=True)
    except UsageError as problem:
        raise RefusedError(refusal(400, str(problem), code="invalid_json")) from None


def _without_priority(body: dict[str, Any]) -> dict[str, Any]:
    """A body that tells its server no priority of its own: the route has one, of which the server is told."""
    nvext, hints = body.get("nvext"), "agent_hints"
    inner = nvext.get(hints) if isinstance(nvext, dict) else None
    if isinstance(nvext, dict) and isinstance(inner, dict) and "priority" in inner:
        body = {**body, "nvext": {**nvext, hints: {key: inner[key] for key in inner if key != "priority"}}}
    return {key: body[key] for key in body if key != "priority"} if "priority" in body else body


def _apart(task: Task, caller: Caller) -> Task:
    """The task with its conversations under the caller's name: nobody joins a conversation of another key."""
    if caller.name is None or (task.session_id is None and task.parent_session_id is None):
        return task
    # No name of a key holds a bar, so that no two keys and conversations come to the same.
    own, parent = (f"{caller.name}|{id_}" if id_ else None for id_ in (task.session_id, task.parent_session_id))
    return replace(task, session_id=own, parent_session_id=parent)
