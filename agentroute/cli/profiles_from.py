"""``agentroute profiles from-log`` and ``from-server``: a profile of what an engine says of itself."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from agentroute import origin
from agentroute.cli.init import discover, profile_of, shipped_model, short_name
from agentroute.cli.options import Json
from agentroute.cli.output import print_json, say
from agentroute.errors import FileError, UsageError, shown
from agentroute.profile import Engine, Profile
from agentroute.startup.devices import ACCELERATORS
from agentroute.startup.facts import Started
from agentroute.startup.log import read
from agentroute.toml import dumps

MAX_BYTES = 64 * 1024 * 1024
"""The largest log that is read: a start takes well below 1 MiB, but its log may go on for days."""

STDIN = Path("-")

Name = Annotated[str | None, typer.Option("--name", help="The profile's name; default: from the model.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; default: stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]


def from_log(
    file: Annotated[Path, typer.Argument(help="A start-up log, or a file with the command line; - is stdin.")],
    name: Name = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a profile of what the start-up log of vLLM, SGLang, llama.cpp or TensorRT-LLM says.

    What the log does not say stays unknown. Which line said what is told on stderr.
    """
    text = text_of(file)
    try:
        started = read(text)
    except UsageError as error:
        raise FileError(str(error), path=file) from None
    profile = profile_of_log(started, file, name)
    facts = [
        {"name": fact, "value": model_id(found.value) if fact == "model" else found.value, "line": found.line}
        for fact, found in started.facts()
    ]
    say(f"{file}: {started.engine} {started.version.value if started.version else '(version unknown)'}")
    for fact in facts:
        say(f"  line {fact['line']}: {fact['name']} = {fact['value']}")
    notes = (*started.pool_notes, *started.remarks, *_gaps(started, profile))
    more = {"read": facts, "unknown": started.unknown()}
    say(f"  unknown: {', '.join(started.unknown()) or 'nothing'}")
    _write("profiles from-log", profile, output, notes, force=force, as_json=as_json, more=more)


def from_server(
    url: Annotated[str, typer.Argument(metavar="URL", help="The base URL of a running server.")],
    name: Name = None,
    output: Output = None,
    force: Force = False,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable with the server's key.")] = None,
    as_json: Json = False,
) -> None:
    """Write a profile of what a running server says of itself; what it does not say stays unknown."""
    wire, discovery = discover(url, api_key_env)
    profile = profile_of(name_of(name, discovery.models[0]), url, discovery)
    say(f"{url}: {discovery.engine} over the {wire} wire, model {discovery.models[0]}")
    _write("profiles from-server", profile, output, discovery.notes, force=force, as_json=as_json, more={})


def text_of(file: Path) -> str:
    """The text of a log of at most ``MAX_BYTES``: UTF-8 with a few wrong bytes, or UTF-16; raises ``FileError``."""
    if file == STDIN:
        raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        try:
            with file.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
        except OSError as problem:
            raise FileError(f"cannot be read: {(problem.strerror or 'unreadable').lower()}", path=file) from None
    if len(raw) > MAX_BYTES:
        raise FileError(f"is larger than {MAX_BYTES // 2**20} MiB; cut it after the start of the server", path=file)
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # what PowerShell's > writes
        return raw.decode("utf-16", errors="replace")
    if b"\0" in raw:
        raise FileError("is not a text file; give the log that the server printed", path=file)
    return raw.decode("utf-8-sig", errors="replace")


def profile_of_log(started: Started, file: Path, name: str | None) -> Profile:
    """A profile of what a start-up log said; the rest is unknown."""
    version = started.version.value if started.version else None
    model = model_id(started.model.value) if started.model else None
    where = "standard input" if file == STDIN else file.name.encode("utf-8", "replace").decode()
    reported = origin.Provenance(
        origin="reported",
        source=f"start-up log of {started.engine}{f' {version}' if version else ''} ({where})",
        engine_version=version,
    )
    return Profile(
        format=1,
        name=name_of(name, model or started.engine),
        model=shipped_model(model) if model else None,
        accelerator=ACCELERATORS.get(started.device.value) if started.device else None,
        engine=Engine(name=started.engine, version=version),
        precision=started.precision(),
        sharding=started.sharding(),
        limits=started.limits(reported),
    )


def model_id(given: str) -> str:
    """What an engine was given as its model, as a hub id or the last part of a path; never a whole path or URL.

    ``org/name`` stays; a folder of the hub's cache, ``.../models--org--name/...``, is that id, too.
    """
    if cached := re.search(r"models--([\w.-]+?)--([\w.-]+)", given):
        return f"{cached[1]}/{cached[2]}"
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", given, re.ASCII) and not given.endswith(".gguf"):
        return given
    return short_name(re.split(r"[?#]", given)[0].replace("\\", "/").rstrip("/").removesuffix(".gguf"))


def name_of(given: str | None, model: str) -> str:
    """The profile's name: the one that was given, else a short one from the model; raises ``UsageError``."""
    try:
        return short_name(model) if given is None else TypeAdapter(origin.Name).validate_python(given)
    except ValidationError:
        raise UsageError(
            "--name must begin with a letter or digit, then letters, digits and . _ / @ : + -, and have at most 200 of "
            f"them, got {shown(given)}"
        ) from None


def _gaps(started: Started, profile: Profile) -> Sequence[str]:
    """What the log said but the profile cannot refer to."""
    gaps = []
    if started.model and profile.model is None:
        gaps.append("the catalogue has no model of that name; write the one it is into `model`")
    if started.device and profile.accelerator is None:
        gaps.append("the catalogue has no accelerator of that name; write the one it is into `accelerator`")
    return gaps


def _write(
    command: str,
    profile: Profile,
    output: Path | None,
    notes: Sequence[str],
    *,
    force: bool,
    as_json: bool,
    more: Mapping[str, Any],
) -> None:
    """The profile to its file, or to stdout; what a person should know to stderr."""
    for note in notes:
        say(f"  note: {note}")
    if output is not None:
        if output.exists() and not force:
            raise UsageError(f"{output} is there already; give --force to write over it, or another --output")
        source = profile.limits.provenance.source if profile.limits else f"words of {profile.engine.name}"
        profile.save(output, comment=f"From the {source.removeprefix('the ')}.")
        say(f"wrote {output}")
    if as_json:
        data = profile.model_dump(mode="json", exclude_none=True)
        print_json(command, {"profile": data, "file": str(output) if output else None, "notes": list(notes), **more})
    elif output is None:
        typer.echo(dumps(profile.model_dump(exclude_none=True, exclude_defaults=True)), nl=False)
