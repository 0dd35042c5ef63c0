"""``agentroute config``: look a configuration over, print its schema, make one of what another tool reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from agentroute.cli import config_import
from agentroute.cli.options import CONFIG, Json
from agentroute.cli.output import EXIT_FAILURE, EXIT_USAGE, print_json, say
from agentroute.cli.schema import config_schema
from agentroute.config import Config
from agentroute.errors import AgentrouteError, FileError, counted
from agentroute.router import Router

app = typer.Typer(no_args_is_help=True, help="Check a configuration, print its schema, or make one of another tool's.")
app.command("import")(config_import.import_)


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="The configuration.")] = CONFIG,
    as_json: Json = False,
) -> None:
    """Look a configuration over and tell every mistake with its place; exit 1 where there are some, 2 without a file.

    Nobody is asked: whether the servers are as their profiles say is what `agentroute doctor` finds out.
    """
    config, found = Config.read(file)
    mistakes: list[AgentrouteError] = list(found)
    if config is not None and not mistakes:
        try:
            config.router(Router)
        except AgentrouteError as problem:
            mistakes.append(problem)
    notes = list(_notes(config)) if config is not None else []
    if as_json:
        print_json("config check", {"file": str(file), "mistakes": list(map(_json, mistakes)), "notes": notes})
    for mistake in mistakes:
        say(f"error: {mistake}")
    for note in notes:
        say(f"note: {note}")
    if mistakes:
        raise typer.Exit(EXIT_FAILURE if file.is_file() else EXIT_USAGE)
    if not as_json and config is not None:
        sizes = counted(len(config.deployments), "deployment"), counted(len(config.routes), "route")
        typer.echo(f"{file}: {', '.join(sizes)}, {counted(len(config.keys), 'key')}: no mistake")


@app.command("schema")
def schema(as_json: Json = False) -> None:
    """Print the JSON Schema of agentroute.toml, for editors; it is JSON with or without --json."""
    typer.echo(config_schema())


def _notes(config: Config) -> Iterator[str]:
    """What is no mistake in the file, but lacks where it is read now."""
    wanted = [(f"deployments[{i}].api_key_env", one.api_key_env) for i, one in enumerate(config.deployments)]
    wanted += [(f"keys[{i}].env", key.env) for i, key in enumerate(config.keys)]
    for key, name in wanted:
        if name is not None and not os.environ.get(name):
            yield f"{key}: the environment variable {name} is not set here"
    for key, file in (("tls_cert", config.gateway.tls_cert), ("tls_key", config.gateway.tls_key)):
        if file is not None and not (config.folder / file).is_file():
            yield f"gateway.{key}: there is no file {file!r} here"


def _json(mistake: AgentrouteError) -> dict[str, object]:
    line, key = (mistake.line, mistake.key) if isinstance(mistake, FileError) else (None, None)
    return {"line": line, "key": key, "message": str(mistake)}
