"""``agentroute profiles from-log`` and ``from-server``: a profile of what an engine says of itself."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from agentroute import origin
from agentroute.catalogue import shipped
from agentroute.cli.init import Known, discover, heard_from, model_id, notes_of, profile_of, shipped_model, short_name
from agentroute.cli.options import Json
from agentroute.cli.output import print_json, say
from agentroute.errors import FileError, UsageError, shown
from agentroute.profile import Engine, Profile
from agentroute.shape.sharding import Sharding
from agentroute.startup.devices import ACCELERATORS
from agentroute.startup.facts import DEGREES, Started
from agentroute.startup.log import read
from agentroute.startup.names import printable
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
    accelerator: Annotated[str | None, typer.Option(help="What it ran on, such as h100_sxm.")] = None,
    accelerator_count: Annotated[int | None, typer.Option(min=1, help="How many accelerators it takes.")] = None,
    as_json: Json = False,
) -> None:
    """Write a profile of what the start-up log of vLLM, SGLang, llama.cpp or TensorRT-LLM says.

    What the log does not say stays unknown. Which line said what is told on stderr. What is given as an option comes
    before what the log says.
    """
    if accelerator is not None:
        shipped().accelerator(accelerator)
    text = text_of(file)
    try:
        started = read(text)
    except UsageError as error:
        raise FileError(str(error), path=_shown(file)) from None
    known = Known(accelerator, accelerator_count)
    profile = profile_of_log(started, file, name, known)
    facts = [
        {"name": fact, "value": model_id(found.value) if fact == "model" else found.value, "line": found.line}
        for fact, found in started.facts()
    ]
    say(f"{_shown(file)}: {started.engine} {started.version.value if started.version else '(version unknown)'}")
    for fact in facts:
        say(f"  line {fact['line']}: {fact['name']} = {fact['value']}")
    notes = (*started.pool_notes, *started.remarks, *_overruled(started, known), *_gaps(started, profile))
    more = {"read": facts, "unknown": started.unknown()}
    say(f"  unknown: {', '.join(started.unknown()) or 'nothing'}")
    write("profiles from-log", profile, output, notes, force=force, as_json=as_json, more=more)


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
    profile = profile_of(name_of(name, model_id(discovery.models[0])), url, discovery)
    say(f"{printable(url)}: {heard_from(wire, discovery)}")
    write("profiles from-server", profile, output, notes_of(discovery), force=force, as_json=as_json, more={})


def text_of(file: Path) -> str:
    """The text of a log of at most ``MAX_BYTES``: UTF-8 with a few wrong bytes, or UTF-16; raises ``FileError``."""
    if file == STDIN:
        raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        try:
            with file.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
        except OSError as problem:
            raise FileError(
                f"cannot be read: {(problem.strerror or 'unreadable').lower()}", path=_shown(file)
            ) from None
    if len(raw) > MAX_BYTES:
        raise FileError(
            f"is larger than {MAX_BYTES // 2**20} MiB; cut it after the start of the server", path=_shown(file)
        )
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # what PowerShell's > writes
        return raw.decode("utf-16", errors="replace")
    if b"\0" in raw:
        raise FileError("is not a text file; give the log that the server printed", path=_shown(file))
    return raw.decode("utf-8-sig", errors="replace")


def _shown(file: Path) -> Path:
    """The path as a terminal may show it."""
    return Path(printable(file))


def profile_of_log(started: Started, file: Path, name: str | None, known: Known | None = None) -> Profile:
    """A profile of what a start-up log or a command line said, and of what the caller knows; the rest is unknown."""
    known = known or Known()
    version = started.version.value if started.version else None
    model = model_id(started.model.value) if started.model else None
    where = "standard input" if file == STDIN else printable(file.name)
    reported = origin.Provenance(
        origin="reported",
        source=f"{started.told_by} of {started.engine}{f' {version}' if version else ''} ({where})",
        engine_version=version,
    )
    return Profile(
        format=1,
        name=name_of(name, model or started.engine),
        model=shipped_model(model) if model else None,
        accelerator=known.accelerator or _accelerator(started),
        accelerator_count=known.accelerator_count,
        engine=Engine(name=started.engine, version=version),
        precision=started.precision(),
        sharding=_sharding(started, known.accelerator_count),
        provenance=known.beside(reported, started.notes()),
        limits=started.limits(reported),
    )


def _accelerator(started: Started) -> str | None:
    """The shipped accelerator of the name that the log says."""
    return ACCELERATORS.get(started.device.value) if started.device else None


def _sharding(started: Started, count: int | None) -> Sharding | None:
    """The split that the log says, unless it does not take ``count`` accelerators; one accelerator is not split."""
    sharding = started.sharding()
    if sharding is None and count == 1 and all(found.value == 1 for name, found in started.facts() if name in DEGREES):
        return Sharding()
    return sharding if sharding is None or count in (None, sharding.accelerators) else None


def _overruled(started: Started, known: Known) -> list[str]:
    """Where the caller knows it differently from the log."""
    accelerator, sharding, count = _accelerator(started), started.sharding(), known.accelerator_count
    notes = []
    if known.accelerator and accelerator not in (None, known.accelerator):
        notes.append(f"--accelerator {known.accelerator} is written down, though the log says {accelerator}")
    if count and sharding and sharding.accelerators != count:
        notes.append(
            f"--accelerator-count {count} is written down, though the log says {sharding}, which takes "
            f"{sharding.accelerators}; the sharding stays unknown"
        )
    return notes


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


def write(
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
            raise UsageError(f"{_shown(output)} is there already; give --force to write over it, or another --output")
        source = profile.provenance.source if profile.provenance else f"words of {profile.engine.name}"
        try:
            profile.save(output, comment=f"From the {source.removeprefix('the ')}.")
        except OSError as problem:
            raise FileError(f"cannot be written: {(problem.strerror or '').lower()}", path=_shown(output)) from None
        say(f"wrote {_shown(output)}")
    if as_json:
        data = profile.model_dump(mode="json", exclude_none=True)
        print_json(command, {"profile": data, "file": str(output) if output else None, "notes": list(notes), **more})
    elif output is None:
        typer.echo(dumps(profile.model_dump(exclude_none=True, exclude_defaults=True)), nl=False)
