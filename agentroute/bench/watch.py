"""Asking a server what it is doing while it is measured."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import httpx

from agentroute.adapters import adapter
from agentroute.errors import BackendError
from agentroute.patience import Timeout
from agentroute.probe import converse
from agentroute.transport import HEADERS, LIMITS, Target, environment, failures, send, silence
from agentroute.wire import Answer, Request

_PATIENCE = Timeout(connect_s=2.0, read_s=10.0)


class Watch:
    """How many requests a server has, those that wait included, by its own account. Close it, or use it in a block.

    Raises ``UsageError`` for a URL that is none or a key that is not set.
    """

    def __init__(
        self, url: str, wire: str, *, api_key_env: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._adapter, self._target = adapter(wire), Target.of(url, api_key_env)
        with environment():
            self._client = httpx.Client(timeout=silence(_PATIENCE), limits=LIMITS, headers=HEADERS, transport=transport)

    def __call__(self) -> int | None:
        """Running and waiting; ``None`` when the server does not say, or not now."""

        def ask(request: Request) -> Answer:
            with failures(_PATIENCE):
                return send(self._client, self._target.request(self._client, request))

        try:
            load = converse(self._adapter.load(), ask)
        except BackendError:
            return None
        return None if load.running is None else load.running + (load.waiting or 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
