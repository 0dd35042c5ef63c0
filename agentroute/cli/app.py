"""The commands, and the one place where their errors are reported.

A command imports what only it needs when it runs, so that ``--help`` does not wait for an HTTP client.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import agentroute
from agentroute.cli import demo, explain, init, profiles, recommend, run, validate
from agentroute.cli.output import EXIT_FAILURE, EXIT_USAGE, report, say
from agentroute.errors import AgentrouteError


class Group(TyperGroup):
    """Commands whose errors are reported in one place."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an agentroute error becomes one sentence on stderr and its exit code."""
        try:
            return super().invoke(ctx)
        except AgentrouteError as error:
            raise typer.Exit(report(error)) from None
        except BrokenPipeError:
            # Whoever read the output has gone; nothing is left to be said to them.
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
            raise typer.Exit(EXIT_FAILURE) from None
        except OSError as error:
            say(f"error: {error.filename or 'the system'}: {(error.strerror or str(error)).lower()}")
            raise typer.Exit(EXIT_USAGE) from None


app = typer.Typer(
    cls=Group,
    name="agentroute",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which model on which backend should take an agent's task, will it hold, and how fast.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("recommend")(recommend.recommend)
app.command("explain")(explain.explain)
app.command("run")(run.run)
app.command("init")(init.init)
app.command("demo")(demo.demo)
app.add_typer(profiles.app, name="profiles")
app.add_typer(validate.app, name="validate")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentroute {agentroute.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Which model on which backend should take an agent's task, will it hold, and how fast."""
