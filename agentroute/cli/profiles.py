"""``agentroute profiles``: the profiles that ship with agentroute, and your own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from agentroute.capacity.kv import Unknown
from agentroute.catalogue import Catalogue, shipped
from agentroute.cli import profiles_from, profiles_import, profiles_plot
from agentroute.cli.options import Json
from agentroute.cli.outlook import outlook_json, print_outlook
from agentroute.cli.output import EXIT_USAGE, print_json, print_table, say
from agentroute.cli.profiles_wanted import Wanted
from agentroute.cli.schema import schema_text
from agentroute.cli.size import OUTPUT, span
from agentroute.compiled import window_tokens
from agentroute.errors import FileError
from agentroute.fleet import Deployment
from agentroute.origin import Provenance
from agentroute.outlook import stand
from agentroute.profile import Profile
from agentroute.reasons import sources

app = typer.Typer(
    no_args_is_help=True, help="List, show, plot and validate profiles; print the schema of a profile file."
)
app.command("from-log")(profiles_from.from_log)
app.command("from-server")(profiles_from.from_server)
app.command("import")(profiles_import.import_)
app.command("plot")(profiles_plot.plot)


@app.command("list")
def list_(
    model: Annotated[str | None, typer.Option("--model", help="Of this model: its name or a hub id.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="On this accelerator, e.g. h200_sxm or h200.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Under this engine, e.g. vllm.")] = None,
    sharding: Annotated[
        str | None, typer.Option("--sharding", help="With these degrees, e.g. tp8, tp8,ep8 or disagg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the shipped profiles, or those of one model, accelerator, engine or split."""
    wanted = Wanted.of(shipped(), model=model, gpu=gpu, engine=engine, sharding=sharding)
    profiles = [profile for name in shipped().profile_names if wanted.takes(profile := shipped().profile(name))]
    if not profiles:
        say(f"no shipped profile is {wanted}; there are {len(shipped().profile_names)} in all")
    if as_json:
        print_json("profiles list", {"profiles": [_summary(profile) for profile in profiles]})
    elif profiles:
        print_table(
            ("profile", "model", "engine", "accelerator", "sharding", "points", "loads"),
            (_row(profile) for profile in profiles),
            right=("points",),
        )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A shipped profile's name, or a profile file.")],
    output: Annotated[int, typer.Option("--output", help="Output tokens of the requests it is judged for.", min=1)] = (
        OUTPUT
    ),
    as_json: Json = False,
) -> None:
    """Show one profile: what it is, what it holds at 8k, 32k and 128k, what was measured, where that comes from."""
    profile = find(shipped(), name)
    deployment = shipped().deployment(profile)
    if as_json:
        data = profile.model_dump(mode="json", exclude_none=True)
        offers = outlook_json(deployment, output)
        print_json("profiles show", {"profile": data, "outlook": offers, "sources": sources(deployment)})
        return
    print_table(("", profile.name), _facts(deployment))
    print_outlook(deployment, output)
    if profile.points:
        typer.echo("\nmeasured (mean):")
        print_table(
            ("isl", "osl", "concurrency", "TTFT ms", "TPOT ms", "E2E ms"),
            (_point(point) for block in profile.measurements for point in block.points),
            right=("isl", "osl", "concurrency", "TTFT ms", "TPOT ms", "E2E ms"),
        )
    typer.echo("\nwhere the numbers come from:")
    for source in sources(deployment):
        typer.echo(f"  {source}")
    for noted in (profile.provenance, _pool_provenance(profile), *(block.provenance for block in profile.measurements)):
        if noted and noted.notes:
            typer.echo(f"  note: {noted.notes}")
    if profile.notes:
        typer.echo(f"  note: {profile.notes}")


@app.command("validate")
def validate(
    files: Annotated[list[Path], typer.Argument(help="Profile files, TOML or JSON.")], as_json: Json = False
) -> None:
    """Check profile files; exit 2 when one of them is wrong."""
    results = []
    for file in files:
        try:
            profile = shipped().load(file)
            results.append({"file": str(file), "ok": True, "name": profile.name, "error": None})
        except FileError as error:
            results.append({"file": str(file), "ok": False, "name": None, "error": str(error)})
    if as_json:
        print_json("profiles validate", {"files": results})
    for result in results:
        if result["ok"] and not as_json:
            typer.echo(f"{result['file']}: ok ({result['name']})")
        elif not result["ok"]:
            say(f"error: {result['error']}")
    if not all(result["ok"] for result in results):
        raise typer.Exit(EXIT_USAGE)


@app.command("schema")
def schema(as_json: Json = False) -> None:
    """Print the JSON Schema of a profile file, for editors; it is JSON with or without --json."""
    typer.echo(schema_text(Profile))


def find(catalogue: Catalogue, name: str) -> Profile:
    """A profile by its file or its shipped name; raises ``ProfileError`` or ``UnknownNameError``."""
    if name.endswith((".toml", ".json")):
        return catalogue.load(Path(name))
    return catalogue.profile(name)


def _row(profile: Profile) -> tuple[str, ...]:
    summary = _summary(profile)
    loads = f"{summary['least_concurrency']}-{summary['most_concurrency']}" if profile.points else "none"
    return (
        profile.name,
        profile.model or "unknown",
        f"{profile.engine.name} {profile.engine.version or '(unknown)'}",
        f"{profile.accelerators or '?'} x {profile.accelerator or 'unknown'}",
        profile.split or "unknown",
        str(len(profile.points)),
        loads,
    )


def _summary(profile: Profile) -> dict[str, Any]:
    loads = [point.concurrency for point in profile.points]
    return {
        "name": profile.name,
        "model": profile.model,
        "engine": profile.engine.name,
        "engine_version": profile.engine.version,
        "accelerator": profile.accelerator,
        "accelerators": profile.accelerators,
        "sharding": profile.split,
        "points": len(profile.points),
        "least_concurrency": min(loads, default=None),
        "most_concurrency": max(loads, default=None),
    }


def _facts(deployment: Deployment) -> Iterator[tuple[str, str]]:
    profile, model, accelerator = deployment.profile, deployment.model, deployment.accelerator
    yield "model", profile.model or "unknown"
    if model and model.parameters:
        total, active = model.parameters.total_b, model.parameters.active_b
        size = f"{total:g} B parameters" + (f", {active:g} B active" if active < total else "")
        yield "size", f"{size} ({model.parameters.provenance.origin})"
    yield "engine", f"{profile.engine.name} {profile.engine.version or '(version unknown)'}"
    yield "weights / KV", f"{profile.precision.weights or 'unknown'} / {profile.precision.kv or 'unknown'}"
    count = profile.accelerators or "unknown number of"
    yield "accelerators", f"{count} x {profile.accelerator or 'unknown'}"
    if accelerator:
        yield "each", f"{accelerator.memory_gib:g} GiB at {accelerator.memory_gb_per_s:,.0f} GB/s"
    yield "sharding", profile.split or "unknown"
    window, origin = window_tokens(deployment)
    yield "window", f"{window:,} tokens ({origin})" if window else "unknown"
    limits = profile.limits
    yield "slots", f"{limits.max_num_seqs:,}" if limits and limits.max_num_seqs else "unknown"
    pool = profile.pool
    yield "KV pool", str(pool) if pool else "unknown"
    holding = stand(deployment).holding
    if not isinstance(holding, Unknown) and holding.weights_gib is not None:
        yield "weights, each", f"{holding.weights_gib:.1f} GiB (derived)"
        if holding.kv_gib is not None:
            yield "left for KV, each", f"{span(holding.kv_gib, '.1f')} GiB ({holding.source})"


def _pool_provenance(profile: Profile) -> Provenance | None:
    return profile.limits.kv_pool.provenance if profile.limits and profile.limits.kv_pool else None


def _point(point: Any) -> tuple[str, ...]:
    cells = [f"{point.isl:,}", f"{point.osl:,}", f"{point.concurrency:,}"]
    for measured in (point.ttft_ms, point.tpot_ms, point.e2e_ms):
        cells.append(f"{measured.mean:,.1f}" if measured and measured.mean is not None else "unknown")
    return tuple(cells)
