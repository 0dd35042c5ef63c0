"""``agentroute status``: every endpoint of a configuration, live."""

from __future__ import annotations

import datetime as dt
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from agentroute.adapters.base import Discovery
from agentroute.cli.doctor import Asked, Heard, ask_all
from agentroute.cli.init import model_of
from agentroute.cli.options import CONFIG, Json, milliseconds
from agentroute.cli.output import EXIT_FAILURE, print_json, say
from agentroute.cli.status_table import lines, print_json_line, status_json
from agentroute.errors import UsageError, counted
from agentroute.pulse import Vital
from agentroute.router import Router
from agentroute.standing import Predictor, Standing, standings
from agentroute.startup.names import printable
from agentroute.watch import Endpoint, Watcher

LEAST_S = 0.1
_CLEAR = "\x1b[H\x1b[J"


def status(
    config: Annotated[Path, typer.Option("--config", help="The deployments.")] = CONFIG,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option("--interval", help="With --watch: how often it is shown, e.g. 2s.")] = "2s",
    context: Annotated[int, typer.Option("--context", min=1, help="Prompt tokens that TTFT is predicted for.")] = 1_000,
    output: Annotated[int, typer.Option("--output", min=1, help="... and output tokens.")] = 200,
    as_json: Json = False,
) -> None:
    """Show every endpoint: is it up, what it is, what it does, and how fast it is against what was predicted.

    TTFT is predicted for one more request of the mean size that the server counts, or of --context and --output where
    it counts none; what was seen is the server's own mean, since it started or, with --watch, of the last minute. The
    breakers are those of this command: a router that runs has its own, ask it with router.doctor().

    Exit 1 where an endpoint is not up. With --watch, Ctrl-C ends it with exit 0; --json prints one line each time.
    """
    every_s = (milliseconds(interval, "--interval") or 0.0) / 1_000.0
    if every_s < LEAST_S:
        raise UsageError(f"--interval must be at least {LEAST_S * 1_000:.0f}ms, got {interval!r}")
    if not config.exists():
        raise UsageError(f"there is no {printable(config)}; write one with: agentroute init http://HOST:PORT")
    router = Router.from_config(config)
    urls = sum(len(deployment.urls) for deployment in router.fleet.deployments)
    say(f"asking {counted(urls, 'endpoint')} of {printable(config)}")
    if watch:
        with suppress(KeyboardInterrupt):
            _keep_showing(Board(router, (context, output)), every_s, as_json=as_json)
        return
    board = Board(router, (context, output))
    board.look()
    shown = board.standings()
    if as_json:
        print_json("status", status_json(shown))
    else:
        typer.echo("\n".join(lines(shown)))
    if any(one.state != "up" for one in shown):
        raise typer.Exit(EXIT_FAILURE)


class Board:
    """The endpoints of a router's fleet, and what they said."""

    def __init__(self, router: Router, size: tuple[int, int]) -> None:
        self.router = router
        deployments = router.fleet.deployments
        self.endpoints: dict[Endpoint, Asked] = {
            (one.name, url): (url, one.api_key_env, one.adapter) for one in deployments for url in one.urls
        }
        self._heard: dict[Asked, tuple[Heard, str | None]] = {}
        self._predict = Predictor(deployments, size)
        self._listen(set(self.endpoints.values()), {})
        wires = {asked[0]: heard.wire for asked, (heard, _) in self._heard.items() if heard.said}
        self.watcher = Watcher(router, wires=wires)

    def look(self) -> None:
        """Ask every endpoint once, and again where nobody answered: once may be a restart."""
        self.watcher.look()
        if any(vital.failures for vital in self.watcher.vitals.values()):
            self.watcher.look()

    def standings(self) -> list[Standing]:
        """How every endpoint stands. One that is up and was not heard of, or has restarted since, is asked again."""
        vitals = self.watcher.vitals
        news = {asked for endpoint, asked in self.endpoints.items() if self._is_news(asked, vitals[endpoint])}
        self._listen(news, {self.endpoints[endpoint]: vital for endpoint, vital in vitals.items()})
        heard: dict[Endpoint, tuple[Discovery, str | None]] = {}
        for (name, url), asked in self.endpoints.items():
            said = self._heard[asked][0].said
            if said is not None:
                served = next(d.served_model for d in self.router.fleet.deployments if d.name == name)
                heard[name, url] = (said, model_of(said, served))
        return standings(self.router, vitals, heard, self._predict)

    def _is_news(self, asked: Asked, vital: Vital) -> bool:
        heard, process = self._heard[asked]
        if not vital.up or vital.trouble == "mixed":
            return False
        return heard.said is None or (process is not None and vital.load.process not in (None, process))

    def _listen(self, news: set[Asked], vitals: dict[Asked, Vital]) -> None:
        for asked, heard in ask_all(news).items():
            process = vitals[asked].load.process if asked in vitals else heard.load.process
            self._heard[asked] = heard, process


def _keep_showing(board: Board, every_s: float, *, as_json: bool) -> None:
    """A new table in place of the last one on a terminal, after it elsewhere."""
    board.look()
    with board.watcher:
        while True:
            shown = board.standings()
            if as_json:
                print_json_line("status", status_json(shown))
            else:
                at = dt.datetime.now().strftime("%H:%M:%S")
                start = _CLEAR if sys.stdout.isatty() else ""
                sys.stdout.write(start + "\n".join([at, *lines(shown)]) + "\n" + ("" if start else "\n"))
                sys.stdout.flush()
            time.sleep(every_s)
