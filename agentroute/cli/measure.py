"""``agentroute measure``: a latency curve of a running server, into a profile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentroute.adapters import adapter as adapter_named
from agentroute.adapters.base import Discovery
from agentroute.catalogue import shipped
from agentroute.cli import EXIT_INTERRUPTED
from agentroute.cli.init import Known, discover, heard_from, model_id, notes_of, profile_of
from agentroute.cli.options import Json, milliseconds
from agentroute.cli.output import say
from agentroute.cli.profiles_from import Force, Name, Output, name_of, write
from agentroute.errors import UsageError, counted, shown
from agentroute.estimate import milliseconds as as_time
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.points import Measurement, Point
from agentroute.profile import Profile
from agentroute.startup.names import printable

if TYPE_CHECKING:
    from agentroute.bench.plan import Grid
    from agentroute.bench.send import Round
    from agentroute.bench.walk import Walk

UNKNOWN_N, MOST_N = 16, 64
"""The greatest concurrency by default: the server's slots, at most ``MOST_N``; ``UNKNOWN_N`` where it tells none."""

LEAST_ISL, MOST_ISL, UNKNOWN_ISL = 128, 8_192, 2_048
"""Prompt lengths by default: from ``LEAST_ISL`` to what the window holds, at most ``MOST_ISL``; without a known window
to ``UNKNOWN_ISL``."""

WINDOW_SHARE = 0.95
"""As much of the window is filled by default: random words are a token or two more or less than planned."""

Degree = Annotated[int | None, typer.Option(min=1, help="Split degree, where the server does not tell it.")]


def measure(
    url: Annotated[str, typer.Argument(metavar="URL", help="The base URL of a running server.")],
    adapter: Annotated[str | None, typer.Option(help="The server's wire; default: what it says of itself.")] = None,
    isl: Annotated[str | None, typer.Option(help="Prompt lengths such as 512,2048; default: by the window.")] = None,
    osl: Annotated[str, typer.Option(help="Answer lengths, in tokens, such as 64 or 64,512.")] = "64",
    concurrency: Annotated[
        str | None, typer.Option(help="Requests at once, such as 1-16; default: up to the slots.")
    ] = None,
    budget: Annotated[
        str, typer.Option(help="How long it may take, such as 10m; the first load is measured in any case.")
    ] = "10m",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens sent and received at most, those of the warm-up included.")
    ] = None,
    noise: Annotated[str, typer.Option(help="Repeat until the standard error of each mean is below this.")] = "5%",
    name: Name = None,
    output: Output = None,
    force: Force = False,
    into: Annotated[Path | None, typer.Option(help="A profile to add the points to; default: a new one.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="What it runs on, such as h100_sxm.")] = None,
    accelerator_count: Annotated[int | None, typer.Option(min=1, help="How many accelerators it takes.")] = None,
    tp: Degree = None,
    pp: Degree = None,
    ep: Degree = None,
    attention_dp: Degree = None,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable with the server's key.")] = None,
    as_json: Json = False,
) -> None:
    """Measure TTFT and TPOT of a running server over prompt length and concurrency, and write a profile.

    Nothing else should use the server meanwhile. Ctrl-C ends it early: what was measured by then is written.
    """
    if adapter is not None:
        adapter = adapter_named(adapter).name
    from agentroute.bench.prompts import Prompts
    from agentroute.bench.result import measurement
    from agentroute.bench.result import notes_of as found_notes
    from agentroute.bench.walk import Budget, Walk
    from agentroute.bench.watch import Watch
    from agentroute.client import Client, Retry
    from agentroute.router import Router

    isls = lengths(isl, "--isl") if isl is not None else None
    osls, ns = lengths(osl, "--osl"), span(concurrency) if concurrency is not None else None
    budget_ms, target = milliseconds(budget, "--budget"), fraction(noise)
    if accelerator is not None:
        shipped().accelerator(accelerator)
    if into is not None and any((name, accelerator, accelerator_count, tp, pp, ep, attention_dp)):
        raise UsageError("--into adds points to a profile and changes nothing else; edit the profile for the rest")
    if name is not None:
        name_of(name, "model")
    target_file = output or into
    if target_file is not None and target_file.suffix.lower() == ".json":
        raise UsageError(
            f"a profile is written as TOML; give --output a file that ends in .toml, not {printable(target_file)}"
        )
    if output is not None and output.exists() and not force:
        raise UsageError(f"{printable(output)} is there already; give --force to write over it, or another --output")
    if target_file is not None:
        folder = target_file.absolute().parent
        if target_file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"{printable(target_file)} cannot be written to; give another --output")
    base = Profile.load(into) if into is not None else None
    with _interruptible():
        own, discovery = discover(url, api_key_env)
    wire = adapter or own
    degrees = {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp}
    known = Known(accelerator, accelerator_count, {key: value for key, value in degrees.items() if value is not None})
    profile = base or profile_of(name_of(name, model_id(discovery.models[0])), url, discovery, known)
    grid = grid_of(discovery, isls, osls, ns)
    say(f"{printable(url)}: {heard_from(wire, discovery)}")

    alone = Deployment(
        name="measured",
        profile=Profile(format=1, name="measured", engine=profile.engine),
        urls=(url,),
        adapter=wire,
        served_model=discovery.models[0],
        api_key_env=api_key_env,
    )
    with (
        Client(Router(Fleet([alone])), retry=Retry(attempts=1)) as client,
        Watch(url, wire, api_key_env=api_key_env) as watch,
    ):
        allowed = Budget(budget_ms / 1_000 if budget_ms else None, max_tokens)
        walk = Walk(client, wire, grid, Prompts(), allowed, target, watch=watch, progress=_progress)
        with _interruptible():
            say(f"measuring {_asked(grid)}, for {budget}{f' and {max_tokens:,} tokens' if max_tokens else ''}")
            walk.run()
    block = measurement(walk, printable(url), engine_version=discovery.engine_version)
    if walk.stopped:
        say(f"ended early: {walk.stopped}; what was measured is kept")
    for missing in walk.missing():
        say(f"  {missing}")
    notes = [*_differences(profile, discovery), *found_notes(walk)]
    if base is None:
        notes = [*notes_of(discovery), *notes]
    whole, replaced = with_points(profile, block)
    if replaced:
        notes.append(f"the new points take the place of {counted(replaced, 'point')} of the same loads")
    more = {
        "measured": [point.model_dump(mode="json", exclude_none=True) for point in block.points],
        "tokens": walk.tokens,
        "stopped": walk.stopped,
        "missing": walk.missing(),
    }
    write("measure", whole, target_file, notes, force=force or into is not None, as_json=as_json, more=more)
    if walk.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def lengths(text: str, option: str) -> tuple[int, ...]:
    """``512,2048`` as ascending numbers of tokens, each at least 1 (an answer: 2); raises ``UsageError``."""
    least = 2 if option == "--osl" else 1
    if re.fullmatch(r"\d{1,9}(\s*,\s*\d{1,9})*", text.strip(), re.ASCII):
        found = tuple(sorted({int(part) for part in text.split(",")}))
        if found[0] >= least:
            return found
    raise UsageError(f"{option} must be numbers of tokens of at least {least}, such as 512,2048, got {shown(text)}")


def span(text: str) -> tuple[int, int]:
    """``1-16`` or ``8`` as the least and the greatest; raises ``UsageError``."""
    found = re.fullmatch(r"(\d{1,5})(?:\s*-\s*(\d{1,5}))?", text.strip(), re.ASCII)
    if found is None or not 1 <= int(found[1]) <= int(found[2] or found[1]):
        raise UsageError(f"--concurrency must be numbers of requests such as 1-16, got {shown(text)}")
    return int(found[1]), int(found[2] or found[1])


def fraction(text: str) -> float:
    """``5%`` as 0.05; raises ``UsageError``."""
    found = re.fullmatch(r"(\d{1,2}(?:\.\d{1,6})?)\s*%", text.strip(), re.ASCII)
    if found is None or float(found[1]) <= 0:
        raise UsageError(f"--noise must be a share above 0% and below 100%, such as 5%, got {shown(text)}")
    return float(found[1]) / 100.0


def grid_of(
    discovery: Discovery, isls: tuple[int, ...] | None, osls: tuple[int, ...], ns: tuple[int, int] | None
) -> Grid:
    """The loads to measure: those that were asked for, else what the server says that it holds."""
    from agentroute.bench.plan import Grid

    engines, window = discovery.engines or 1, discovery.max_model_len
    slots = discovery.max_num_seqs * engines if discovery.max_num_seqs else None
    if isls is None:
        most = min(MOST_ISL, int((window - max(osls)) * WINDOW_SHARE)) if window else UNKNOWN_ISL
        most = max(1, most)
        least = min(LEAST_ISL, max(1, most // 4))
        isls = tuple(sorted({least, round((least * most) ** 0.5), most}))
    least_n, most_n = ns or (1, min(slots or UNKNOWN_N, MOST_N))
    pool = discovery.kv_pool.tokens * engines if discovery.kv_pool else None
    return Grid(isls, osls, least_n, most_n, slots=slots, window=window, pool_tokens=pool)


def with_points(profile: Profile, block: Measurement) -> tuple[Profile, int]:
    """The profile with a block more, and how many of its points the block took the place of."""
    new = {point.load for point in block.points}
    kept: list[Measurement] = []
    replaced = 0
    for old in profile.measurements:
        rest: tuple[Point, ...] = tuple(point for point in old.points if point.load not in new)
        replaced += len(old.points) - len(rest)
        if rest:
            kept.append(old.model_copy(update={"points": rest}))
    return profile.model_copy(update={"measurements": (*kept, block)}), replaced


@contextmanager
def _interruptible() -> Iterator[None]:
    """Says so where Ctrl-C comes before there is anything to write."""
    try:
        yield
    except KeyboardInterrupt:
        say("nothing was measured: it was interrupted before the first load was done")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _differences(profile: Profile, discovery: Discovery) -> list[str]:
    """Where the server is not what the profile says."""
    said: Mapping[str, tuple[Any, Any]] = {
        "engine": (profile.engine.name, discovery.engine),
        "engine version": (profile.engine.version, discovery.engine_version),
    }
    return [
        f"the profile's {what} is {mine}, the server's {told}"
        for what, (mine, told) in said.items()
        if mine is not None and told is not None and mine != told
    ]


def _progress(walk: Walk, last: Round) -> None:
    """One line a round."""
    load = last.load
    head = f"  isl {load.isl}, osl {load.osl}, {load.concurrency} at once: "
    if last.failures:
        say(f"{head}failed, {last.failures[0].kind.replace('_', ' ')}: {last.failures[0].detail}")
        return
    seen = walk.known().get(load)
    if seen is None or last is not walk.rounds[load][-1]:
        say(f"{head}cut off by the budget")
        return
    noise = f"+-{seen.noise:.0%}" if seen.rounds > 1 else "once"
    times = f"TTFT {as_time(seen.ttft.mean)}, TPOT {as_time(seen.tpot.mean)}"
    say(f"{head}{times} ({noise}, round {seen.rounds}, {last.seconds:.1f} s)")


def _asked(grid: Grid) -> str:
    """The loads of a grid in a few words: ``isl 128, 512, osl 64, 1-16 at once``."""
    isls, osls = (", ".join(map(str, values)) for values in (grid.isls, grid.osls))
    at_once = f"{grid.least_n}-{grid.most_n}" if grid.least_n < grid.most_n else f"{grid.most_n}"
    return f"isl {isls}, osl {osls}, {at_once} at once"
