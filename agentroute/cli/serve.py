"""``agentroute serve``: the gateway."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from agentroute.cli.options import CONFIG
from agentroute.cli.output import EXIT_FAILURE, say
from agentroute.config import Config
from agentroute.errors import UsageError
from agentroute.reload import Reloading
from agentroute.startup.names import printable


def serve(
    config: Annotated[Path, typer.Option("--config", help="The deployments, routes and keys.")] = CONFIG,
    host: Annotated[
        str | None, typer.Option("--host", help="The address to listen on; default: the file's, else 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="The port; default: the file's, else 4200; 0: any.")
    ] = None,
) -> None:
    """Serve the OpenAI API in front of the fleet: point any client at it, with model auto or auto:ROUTE.

    The fleet and its last decisions are shown at /. Deployments, routes and keys follow the file while it runs; a file
    with a mistake is refused and said, and so is what takes a restart. On SIGTERM or Ctrl-C it lets the requests in
    flight end.
    Needs the extra gateway: pip install 'agentroute[gateway]'.
    """
    for package in ("starlette", "uvicorn", "httptools"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"serving needs the package {package}; install it with: pip install 'agentroute[gateway]'")
    if not config.exists():
        raise UsageError(f"there is no {printable(config)}; write one with: agentroute init http://HOST:PORT")
    from agentroute.gateway import serve as serving
    from agentroute.gateway.app import Gateway
    from agentroute.gateway.proxy import LOG
    from agentroute.telemetry.switched import switched_on

    def changed(now: Config) -> None:
        gateway.changed(now)
        if kept := serving.at_start_alone(read, now):
            said = "until agentroute serve is started again, it goes by the old %s"
            LOG.warning(said, ", ".join(kept))

    live = Reloading(config, before_change=lambda now: gateway.check(now), on_change=changed)
    read = live.config
    with switched_on(read.telemetry, config.parent) as observers:
        gateway = Gateway.from_config(read, live.router, observers=observers)
        host = host or read.gateway.host
        if not gateway.keys.required and host not in ("127.0.0.1", "::1", "localhost"):
            say("warning: no [[keys]] are set, so whoever reaches this address can use the fleet")
        scheme = "https" if read.gateway.tls_cert else "http"
        shown = f"[{host}]" if ":" in host else host

        def started(at: int) -> None:
            say(f"serving on {scheme}://{shown}:{at}/v1; the fleet is shown at {scheme}://{shown}:{at}/")

        serving.log_to_stderr()
        chosen = read.gateway.port if port is None else port
        server = serving.server(gateway, host=host, port=chosen, beside=config.parent, started=started)
        try:
            with live:
                serving.run(server)
        except KeyboardInterrupt:
            pass
        except SystemExit:  # uvicorn's, which has said why it cannot listen
            raise typer.Exit(EXIT_FAILURE) from None
