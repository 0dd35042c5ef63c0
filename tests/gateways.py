"""Gateways that are served for real: uvicorn on a port of 127.0.0.1, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx
from tenacity import retry, stop_after_delay, wait_fixed

from agentroute.ended import Observer
from agentroute.fleet import Deployment, Fleet
from agentroute.gateway.app import Gateway
from agentroute.gateway.keys import ANYBODY, Keys
from agentroute.gateway.serve import server
from agentroute.patience import Timeout
from agentroute.route import Route
from agentroute.router import Router
from agentroute.tables import GatewayConfig, KeyConfig

HELLO: dict[str, Any] = {
    "model": "auto",
    "messages": [{"role": "user", "content": "Say hello"}],
    "max_tokens": 6,
    "temperature": 0,
}


class Served:
    """A gateway in front of some deployments, and a client of it."""

    def __init__(
        self,
        *deployments: Deployment,
        routes: tuple[Route, ...] = (),
        keys: dict[str, dict[str, Any]] | None = None,
        timeout: Timeout | None = None,
        router: Router | None = None,
        observers: Sequence[Observer] = (),
        **settings: Any,
    ) -> None:
        """``keys``: by name what a key may do; its secret is ``sk-NAME``. ``router``: instead of the deployments."""
        self.router = router or Router(Fleet(deployments), routes=routes)
        declared = [KeyConfig.model_validate({"name": n, "env": n.upper(), **may}) for n, may in (keys or {}).items()]
        kept = Keys(declared, {name.upper(): f"sk-{name}" for name in keys or {}})
        self.gateway = Gateway.of(
            self.router,
            keys=kept,
            settings=GatewayConfig.model_validate(settings),
            timeout=timeout,
            observers=observers,
        )
        self._ready = threading.Event()
        self.port = 0
        self.server = server(self.gateway, host="127.0.0.1", port=0, started=self._started)
        self._thread = threading.Thread(target=self.server.run, daemon=True)

    def _started(self, port: int) -> None:
        self.port = port
        self._ready.set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20.0)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30.0, trust_env=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.stop()
        self._thread.join(30.0)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        """What SIGTERM does; a thread gets no signals."""
        self.server.should_exit = True

    def chat(self, key: str | None = None, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        """One chat."""
        own = dict(headers or {}) | ({"authorization": f"Bearer sk-{key}"} if key else {})
        return self.client.post("/v1/chat/completions", json=HELLO | body, headers=own)

    def get(self, path: str, key: str | None = None) -> httpx.Response:
        """One GET."""
        return self.client.get(path, headers={"authorization": f"Bearer sk-{key}"} if key else {})

    @retry(stop=stop_after_delay(10.0), wait=wait_fixed(0.02), reraise=True)
    def ended(self, count: int = 1) -> list[dict[str, Any]]:
        """The records of the requests, newest first, once there are so many."""
        found = list(self.gateway.records.last(ANYBODY))
        assert len(found) >= count
        return found
