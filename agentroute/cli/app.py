"""The commands, and the one place where their errors are reported.

A command is imported when it is asked for, so that none waits for what only another one needs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import agentroute
from agentroute.cli.output import EXIT_FAILURE, EXIT_USAGE, report, say
from agentroute.errors import AgentrouteError

COMMANDS = (
    "recommend",
    "explain",
    "spread",
    "run",
    "serve",
    "size",
    "init",
    "config",
    "profiles",
    "doctor",
    "status",
    "measure",
    "validate",
    "demo",
)
"""In the order of the help. ``agentroute.cli.NAME`` holds a function of that name, or ``app``, a group of commands."""


class Group(TyperGroup):
    """Commands whose errors are reported in one place."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was asked for; a wrong name is answered with the closest one."""
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, imported now; ``None`` when there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"agentroute.cli.{cmd_name}")
        holder = typer.Typer()
        if hasattr(module, "app"):
            holder.add_typer(module.app, name=cmd_name)
        else:
            holder.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_group(holder).commands[cmd_name]

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
