"""Asking a server what it is, without a router: the drivers of an adapter's conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx

from agentroute.adapters.base import Adapter, Conversation, Discovery, Load
from agentroute.adapters.which import which
from agentroute.errors import BackendError
from agentroute.patience import Timeout
from agentroute.transport import HEADERS, LIMITS, Target, environment, failures, send, silence
from agentroute.wire import Answer, Request

R = TypeVar("R")


def converse(talk: Conversation[R], ask: Callable[[Request], Answer]) -> R:
    """Drive a conversation to its result: every request it yields is asked, and the answer sent back."""
    try:
        request = next(talk)
        while True:
            request = talk.send(ask(request))
    except StopIteration as stop:
        result: R = stop.value
        return result
    finally:
        talk.close()


async def aconverse(talk: Conversation[R], ask: Callable[[Request], Awaitable[Answer]]) -> R:
    """The same with an asynchronous ``ask``."""
    try:
        request = next(talk)
        while True:
            request = talk.send(await ask(request))
    except StopIteration as stop:
        result: R = stop.value
        return result
    finally:
        talk.close()


def probe(
    url: str,
    adapter: Adapter,
    *,
    api_key_env: str | None = None,
    timeout: Timeout | None = None,
    transport: httpx.BaseTransport | None = None,
) -> Discovery:
    """What the server at ``url`` says of itself.

    Raises ``UsageError`` for a URL that is none or a key that is not set, ``BackendError`` when the server is down,
    slow, or does not answer as the adapter expects.
    """
    return _asked(adapter.discover(), Target.of(url, api_key_env), timeout or Timeout(), transport)


def probe_wire(
    url: str,
    *,
    api_key_env: str | None = None,
    timeout: Timeout | None = None,
    transport: httpx.BaseTransport | None = None,
) -> str:
    """The name of the adapter that speaks the wire of the server at ``url``; raises as ``probe`` does."""
    return _asked(which(), Target.of(url, api_key_env), timeout or Timeout(), transport)


def probe_load(
    url: str,
    adapter: Adapter,
    *,
    api_key_env: str | None = None,
    timeout: Timeout | None = None,
    transport: httpx.BaseTransport | None = None,
) -> Load:
    """What the server at ``url`` says that it is doing now; raises as ``probe`` does."""
    return _asked(adapter.load(), Target.of(url, api_key_env), timeout or Timeout(), transport)


def _asked(talk: Conversation[R], target: Target, timeout: Timeout, transport: httpx.BaseTransport | None) -> R:
    with environment():
        client = httpx.Client(timeout=silence(timeout), limits=LIMITS, headers=HEADERS, transport=transport)
    with client:

        def ask(request: Request) -> Answer:
            with failures(timeout):
                return send(client, target.request(client, request))

        try:
            return converse(talk, ask)
        except BackendError as error:
            raise BackendError(
                error.kind,
                target.hide(error.detail),
                url=target.shown,
                status=error.status,
                retry_after_s=error.retry_after_s,
            ) from error.__cause__  # not the error itself: its words may hold the key
