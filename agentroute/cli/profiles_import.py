"""``agentroute profiles import``: a profile of what people's benchmark tools have measured already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import ValidationError

from agentroute.bench.importers import Results, load
from agentroute.bench.importers.assemble import Import, assemble
from agentroute.bench.importers.checks import said as said_of
from agentroute.bench.importers.deployment import Given
from agentroute.bench.importers.run import Facts, engine_of, version_of
from agentroute.catalogue import shipped
from agentroute.cli.init import model_id, shipped_model
from agentroute.cli.options import Json
from agentroute.cli.output import print_json, say
from agentroute.cli.profiles_from import Force, Name, Output, name_of
from agentroute.errors import UsageError, counted, shown
from agentroute.latency.points import Measurement, Point
from agentroute.profile import Engine, EngineName, Precision, Profile
from agentroute.toml import dumps

MAX_FILES = 1_000
"""The most files of one call."""

MAX_LINES = 30
"""The most notes, and the most runs left out, that are said one by one."""

Degree = Annotated[int | None, typer.Option(min=1, help="Split degree, where the files do not say it.")]


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Result files of benchmark tools.")],
    accelerator: Annotated[str | None, typer.Option(help="What it ran on, such as h100_sxm.")] = None,
    tp: Degree = None,
    pp: Degree = None,
    ep: Degree = None,
    attention_dp: Degree = None,
    model: Annotated[str | None, typer.Option(help="The model: a shipped name or its hub id.")] = None,
    engine: Annotated[str | None, typer.Option(help=f"What served it: {', '.join(get_args(EngineName))}.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="The engine's exact version.")] = None,
    name: Name = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", help="A profile to add the points to, in place; it keeps its first comment."),
    ] = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make a profile of what a benchmark has measured, or add its points to one.

    The format is found out: vLLM's and SGLang's benchmarks, GuideLLM, AIPerf, genai-perf, inference-perf, trtllm-bench,
    llama-bench, llama-batched-bench, InferenceX, or a plain CSV. All files of a call are of one deployment. What they
    do not say is given with options; where they hold several deployments, the same options choose one.
    """
    if len(files) > MAX_FILES:
        raise UsageError(f"at most {MAX_FILES:,} files are read at once, got {len(files):,}")
    degrees = {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp}
    base = shipped().load(into) if into else None
    given = _given(
        base, accelerator, model, engine, engine_version, {k: v for k, v in degrees.items() if v is not None}
    )
    results = [load(file) for file in files]
    found = assemble(results, given, _named)
    if base is None:
        profile, notes = _new(found, name), list(found.notes)
    else:
        profile, notes = _added(base, found, name)
    for one in results:
        say(f"{one.path}: {one.tool}, {counted(len(one.judged), 'usable run')}")
    _say("left out", found.left_out)
    _say("note", (*notes, *_flags(found.measurements)))
    if unknown := _unknown(profile, found.facts):
        say(f"  unknown: {'; '.join(unknown)}")
    target = output or into
    if target is not None:
        if target.suffix.lower() == ".json":
            raise UsageError(f"a profile is written as TOML; give --output a file that ends in .toml, not {target}")
        if target.exists() and not force and target != into:
            raise UsageError(f"{target} is there already; give --force to write over it, or another --output")
        profile.save(target, comment=_comment(into, results))
        say(f"wrote {target}")
    if as_json:
        print_json("profiles import", _json(profile, target, results, found, notes, unknown))
    elif target is None:
        text = dumps(profile.model_dump(exclude_none=True, exclude_defaults=True), inline=frozenset({"points"}))
        typer.echo(text, nl=False)


def _json(
    profile: Profile,
    target: Path | None,
    results: Sequence[Results],
    found: Import,
    notes: Sequence[str],
    unknown: Sequence[str],
) -> dict[str, Any]:
    """All that is said on stderr, and the profile."""
    read = [
        {"file": str(one.path), "format": one.tool, "runs": len(one.judged), "refused": len(one.refused)}
        for one in results
    ]
    return {
        "profile": profile.model_dump(mode="json", exclude_none=True),
        "file": str(target) if target else None,
        "read": read,
        "notes": [*notes, *_flags(found.measurements)],
        "left_out": list(found.left_out),
        "unknown": list(unknown),
    }


def _given(
    base: Profile | None,
    accelerator: str | None,
    model: str | None,
    engine: str | None,
    engine_version: str | None,
    degrees: dict[str, int],
) -> Given:
    """The options, checked; beside a profile that is added to, what it knows."""
    if accelerator is not None:
        accelerator = shipped().accelerator(accelerator).name
    if model is not None:
        model = shipped().model(model).name
    served = engine_of(engine)
    if engine is not None and served is None:
        raise UsageError(f"--engine must be one of {', '.join(get_args(EngineName))}, got {shown(engine)}")
    version = version_of(engine_version)
    if engine_version is not None and version is None:
        raise UsageError(f"--engine-version must be a version such as 0.19.0, got {shown(engine_version)}")
    facts = Facts(model=model, engine=served, engine_version=version, accelerator=accelerator)
    if base is None:
        return Given(facts, degrees)
    for key, own in (("model", base.model), ("accelerator", base.accelerator), ("engine", base.engine.name)):
        if (asked := getattr(facts, key)) is not None and own is not None and asked != own:
            raise UsageError(f"--{key} is {asked}, but the profile's is {own}")
    if degrees and base.sharding and any(getattr(base.sharding, key) != n for key, n in degrees.items()):
        raise UsageError(f"the sharding given is not that of the profile ({base.sharding})")
    if base.sharding:
        degrees = {key: n for key in ("tp", "pp", "ep", "attention_dp") if (n := getattr(base.sharding, key))}
    facts = replace(
        facts,
        model=facts.model or base.model,
        accelerator=facts.accelerator or base.accelerator,
        engine=facts.engine or (base.engine.name if base.engine.name != "other" else None),
    )
    return Given(facts, degrees)


def _named(said: str) -> str | None:
    """The shipped model that a file's word for its model means: a hub id, ``org--name``, a path that ends in one."""
    whole = model_id(said)
    short = whole.rsplit("/", 1)[-1]
    for name in (whole, short, short.replace("--", "/", 1)):
        if (known := shipped_model(name)) is not None:
            return known
    return None


def _new(found: Import, name: str | None) -> Profile:
    """A profile of the imported runs alone."""
    facts = found.facts
    if facts.engine is None:
        raise UsageError(
            "the files do not say which engine served; give --engine, and --engine-version where you know it"
        )
    said = facts.model or (model_id(facts.model_word) if facts.model_word else facts.engine)
    try:
        return Profile(
            format=1,
            name=name_of(name, said),
            model=facts.model,
            accelerator=facts.accelerator,
            engine=Engine(name=facts.engine, version=facts.engine_version),
            precision=Precision(weights=facts.weights, kv=facts.kv),
            sharding=facts.sharding,
            disaggregated=facts.disaggregated,
            measurements=found.measurements,
        )
    except ValidationError as problem:
        raise UsageError(f"the runs do not make a profile: {said_of(problem)}") from None


def _added(base: Profile, found: Import, name: str | None) -> tuple[Profile, list[str]]:
    """``base`` with the imported points; those that it has already are skipped."""
    notes = list(found.notes)
    split = found.facts.sharding
    if (split or found.facts.disaggregated) and (base.sharding or base.disaggregated):
        same = split == base.sharding if split else found.facts.disaggregated == base.disaggregated
        if not same:
            raise UsageError(
                f"the runs are of {split or found.facts.disaggregated}, but the profile is of {base.split}"
            )
    if base.engine.version and found.facts.engine_version and found.facts.engine_version != base.engine.version:
        notes.append(f"measured on {found.facts.engine_version}, but the profile's engine is {base.engine.version}")
    have = {point.load: point for point in base.points}
    blocks, again = [], 0
    for block in found.measurements:
        fresh = [point for point in block.points if point.load not in have]
        for point in block.points:
            again += _known(point, have.get(point.load))
        if fresh:
            blocks.append(block.model_copy(update={"points": tuple(fresh)}))
    if again:
        notes.append(f"left out, since the profile has them already: {counted(again, 'point')}")
    for what, before, now in (
        ("model", base.model, found.facts.model),
        ("accelerator", base.accelerator, found.facts.accelerator),
        ("sharding", base.split, split or found.facts.disaggregated),
        ("engine version", base.engine.version, found.facts.engine_version),
    ):
        if before is None and now is not None:
            notes.append(f"the profile did not say its {what}; it is that of the added runs now, {now}")
    data: dict[str, Any] = {"measurements": (*base.measurements, *blocks)}
    if name is not None:
        data["name"] = name_of(name, base.name)
    if base.sharding is None and base.disaggregated is None:
        data |= {"sharding": split, "disaggregated": found.facts.disaggregated}
    data |= {
        "model": base.model or found.facts.model,
        "accelerator": base.accelerator or found.facts.accelerator,
        "engine": Engine(name=base.engine.name, version=base.engine.version or found.facts.engine_version),
    }
    try:
        return Profile.model_validate(base.model_copy(update=data).model_dump(exclude_none=True)), notes
    except ValidationError as problem:
        raise UsageError(f"the runs do not fit the profile: {said_of(problem)}") from None


def _known(point: Point, before: Point | None) -> int:
    """1 where the profile has this point, 0 where it has none of this load; raises where it has another."""
    if before is None:
        return 0
    if before != point:
        isl, osl, n = point.load
        raise UsageError(
            f"the profile has another point of {isl} + {osl} tokens at concurrency {n}; remove one of them, or import "
            "into a new profile"
        )
    return 1


def _flags(measurements: Sequence[Measurement]) -> list[str]:
    """What was noted of the points themselves; it stands in the profile, too."""
    return [block.provenance.notes for block in measurements if block.provenance.notes]


def _unknown(profile: Profile, facts: Facts) -> list[str]:
    """What neither the files nor the options say, and the option that says it."""
    gaps = (
        ("model", profile.model, facts.model_word, "--model"),
        ("accelerator", profile.accelerator, facts.accelerator_word, "--accelerator"),
        ("sharding", profile.split, None, "--tp, --pp, --ep, --attention-dp"),
        ("engine version", profile.engine.version, None, "--engine-version"),
    )
    return [
        f"{what}{f' (not clear from {shown(word)})' if word else ''}, give {option}"
        for what, known, word, option in gaps
        if known is None
    ]


def _comment(into: Path | None, results: Sequence[Results]) -> str:
    """The first lines of the file: its own where it was there, else what it was made of."""
    if into is None:
        tools = ", ".join(dict.fromkeys(one.tool for one in results))
        return f"From {counted(len(results), 'result file')} of {tools}."
    kept = []
    for line in into.read_text(encoding="utf-8-sig").splitlines():
        if not line.startswith("#"):
            break
        kept.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(kept)


def _say(what: str, lines: Sequence[str]) -> None:
    """Lines on stderr, as many as a person reads; ``--json`` has them all."""
    for line in lines[:MAX_LINES]:
        say(f"  {what}: {line}")
    if len(lines) > MAX_LINES:
        say(f"  {what}: {len(lines) - MAX_LINES} more; --json lists them")
