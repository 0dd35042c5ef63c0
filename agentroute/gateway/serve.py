"""Serving the gateway with uvicorn: until it is told to stop, then until its requests have ended."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import ssl
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import uvicorn

from agentroute.config import Config
from agentroute.errors import UsageError
from agentroute.gateway.app import Gateway
from agentroute.gateway.edge import Edge
from agentroute.tables import GatewayConfig

BACKLOG = 2_048
KEEP_ALIVE_S = 75
"""Longer than the clients' pools keep a connection, so that they close it first. Assumed."""


def server(
    gateway: Gateway, *, host: str, port: int, beside: Path = Path(), started: Callable[[int], None] | None = None
) -> uvicorn.Server:
    """A server that is ready to run; ``started`` is called with the port that it listens on.

    On SIGTERM or SIGINT it takes no more connections, lets what is in flight end for ``drain_s``, and cancels the rest.
    ``beside`` is the folder that the paths of the TLS files are relative to. Raises ``UsageError`` for such a file that
    cannot be used.
    """
    settings = gateway.settings
    cert, key = _tls(settings, beside)
    config = uvicorn.Config(
        gateway.app(),
        host=host,
        port=port,
        backlog=BACKLOG,
        http=Edge,
        ws="none",
        proxy_headers=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    return _Server(config, started)


def at_start_alone(began: Config, now: Config) -> list[str]:
    """The keys in which a configuration differs from that of the start, and that are read at the start alone.

    A socket, a certificate, a file of records and an exporter are opened once: they could fail where the rest of the
    new configuration applies already.
    """
    return [
        f"{table}.{key}"
        for table, was, is_ in (("gateway", began.gateway, now.gateway), ("telemetry", began.telemetry, now.telemetry))
        for key in type(was).model_fields
        if getattr(was, key) != getattr(is_, key)
    ]


def _tls(settings: GatewayConfig, beside: Path) -> tuple[Path | None, Path | None]:
    """The files of the certificate and of its key."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None, None
    cert, key = beside / settings.tls_cert, beside / settings.tls_key
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")  # else it asks a terminal
    except (OSError, ValueError) as problem:
        said = f"gateway.tls_cert {cert} and tls_key {key} must be PEM files of a certificate and its key"
        raise UsageError(f"{said}: {getattr(problem, 'strerror', None) or problem}") from None
    return cert, key


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: Callable[[int], None] | None) -> None:
        super().__init__(config)
        self._told = started

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self._told is not None and self.started:
            self._told(self.servers[0].sockets[0].getsockname()[1])


def log_to_stderr(level: int = logging.INFO) -> None:
    """Write one line for each request, and what goes wrong, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name, at in (("agentroute.gateway", level), ("agentroute.reload", level), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(at)


def run(server: uvicorn.Server) -> None:
    """Serve until told to stop, in uvloop's event loop where that is installed (the extra ``gateway`` brings it).

    Raises ``KeyboardInterrupt`` where that is before it serves.
    """

    def told(signum: int, frame: FrameType | None) -> None:
        if not server.should_exit:  # else it is uvicorn's, which raises once more what it has ended by
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, told)
    # What is there now stays: to look through all of it for garbage holds every request up for a tenth of a second.
    gc.collect()
    gc.freeze()
    made = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=made) as runner:
        runner.run(server.serve())
