"""``agentroute profiles plot``: TTFT and TPOT over the load, for each prompt length."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from agentroute.catalogue import shipped
from agentroute.cli.chart import Line, chart, letter
from agentroute.cli.options import Json
from agentroute.cli.output import EXIT_USAGE, estimate_json, print_json, say, stdout
from agentroute.errors import NoFeasibleDeployment, UsageError
from agentroute.estimate import Estimate, milliseconds
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.points import Point
from agentroute.router import Router
from agentroute.task import Task

LOADS = 48
"""Loads at which a line is asked for."""
UNMEASURED = ((1_024, 1_024), (8_192, 1_024), (32_768, 1_024))
"""Prompt and answer tokens that are drawn where nothing was measured."""
UNMEASURED_LOADS = (1, 256)
COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue")
ENDINGS = (".png", ".svg")

NO_TERMINAL, WIDEST = 80, 120
"""Columns of a chart in characters: where there is no terminal, and at most."""


@dataclass(frozen=True, slots=True)
class Series:
    """One prompt length at one answer length: what is predicted over the load, and what was measured."""

    isl: int
    osl: int
    loads: tuple[int, ...]
    ttft_ms: tuple[Estimate, ...]
    tpot_ms: tuple[Estimate, ...]
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        measured = f"{len(self.points)} measured" if self.points else "none measured"
        return f"{self.isl:,} tokens in, {self.osl:,} out ({measured})"

    def ttft(self) -> Line:
        """The line of TTFT, in milliseconds."""
        measured = [(p.concurrency, p.mean_ttft_ms()) for p in self.points]
        return _line(self.loads, self.ttft_ms, measured)

    def tpot(self) -> Line:
        """The line of TPOT, in milliseconds."""
        measured = [(p.concurrency, p.mean_tpot_ms()) for p in self.points]
        return _line(self.loads, self.tpot_ms, measured)


def plot(
    name: Annotated[str, typer.Argument(help="A shipped profile's name, or a profile file.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", help="A .png or .svg file to draw to, with matplotlib; default: text in the terminal."
        ),
    ] = None,
    osl: Annotated[
        int | None,
        typer.Option("--osl", help="Answer tokens; default: for each prompt length the most measured.", min=1),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw TTFT and TPOT over the load for each prompt length: the line, its 80 % band, and what was measured."""
    from agentroute.cli.profiles import find

    if output is not None and output.suffix.lower() not in ENDINGS:
        raise UsageError(f"--output must end in {' or '.join(ENDINGS)}, got {str(output)!r}")
    deployment = shipped().deployment(find(shipped(), name))
    drawn = series(deployment, osl)
    if not drawn:
        raise UsageError(f"nothing can be predicted for {deployment.name!r}: it has no measured points and no roofline")
    if as_json:
        print_json("profiles plot", {"profile": deployment.name, "series": [_json(one) for one in drawn]})
    if output is not None:
        _picture(output, deployment.name, drawn)
    elif not as_json:
        _text(deployment.name, drawn)


def series(deployment: Deployment, osl: int | None = None) -> list[Series]:
    """One for each prompt length; at ``osl``, or at the answer length that was measured at the most loads."""
    points = deployment.profile.points
    workloads = _workloads(points, osl) if points else [(i, osl or o) for i, o in UNMEASURED]
    measured = [point.concurrency for point in points] or list(UNMEASURED_LOADS)
    spread = np.geomspace(min(measured), max(measured), LOADS).round().astype(int)
    loads = sorted({*spread.tolist(), *measured})
    router = Router(Fleet([deployment]))
    found = []
    for isl, out in workloads:
        asked = list(_asked(router, isl, out, loads))
        if asked:
            own = tuple(p for p in points if (p.isl, p.osl) == (isl, out))
            n, ttft, tpot = zip(*asked, strict=True)
            found.append(Series(isl, out, n, ttft, tpot, own))
    return found


def _workloads(points: Sequence[Point], osl: int | None) -> list[tuple[int, int]]:
    counted: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for point in points:
        counted[point.isl][point.osl] += 1
    return [(isl, osl or max(outs, key=lambda out: (outs[out], -out))) for isl, outs in sorted(counted.items())]


def _asked(router: Router, isl: int, osl: int, loads: Sequence[int]) -> Iterator[tuple[int, Estimate, Estimate]]:
    for n in loads:
        try:
            decision = router.decide(Task(context_tokens=isl, max_output_tokens=osl, concurrency=n))
        except NoFeasibleDeployment:
            continue
        if decision.ttft_ms is not None and decision.tpot_ms is not None:
            yield n, decision.ttft_ms, decision.tpot_ms


def _line(loads: Sequence[int], times: Sequence[Estimate], measured: Sequence[tuple[int, float | None]]) -> Line:
    return Line(
        x=tuple(float(n) for n in loads),
        mean=tuple(time.mean for time in times),
        low=tuple(time.low for time in times),
        high=tuple(time.high for time in times),
        points=tuple((float(n), value) for n, value in measured if value is not None),
    )


def _text(name: str, drawn: Sequence[Series]) -> None:
    plain = "NO_COLOR" in os.environ

    def paint(text: str, i: int) -> str:
        return text if plain else typer.style(text, fg=COLOURS[i % len(COLOURS)])

    typer.echo(name)
    for i, one in enumerate(drawn):
        typer.echo(f"  {paint(letter(i), i)}  {one.name}")
    typer.echo("  a is predicted, A measured, . the 80 % band of a mean")
    for title, lines in (("TTFT", [one.ttft() for one in drawn]), ("TPOT", [one.tpot() for one in drawn])):
        typer.echo("")
        head = f"{title} over requests in flight"
        for row in chart(lines, title=head, label=milliseconds, width=columns(), paint=paint):
            typer.echo(row)


def columns() -> int:
    """How wide a chart is: the terminal, within what can be read; ``NO_TERMINAL`` in a file or a pipe."""
    return min(stdout().width, WIDEST) if sys.stdout.isatty() else NO_TERMINAL


def _picture(output: Path, name: str, drawn: Sequence[Series]) -> None:
    try:
        from agentroute.cli.picture import draw
    except ImportError:
        _text(name, drawn)
        say(f"error: {output} was not written, since matplotlib is missing: pip install 'agentroute[plot]'")
        raise typer.Exit(EXIT_USAGE) from None
    panels = {"TTFT, ms": [one.ttft() for one in drawn], "TPOT, ms": [one.tpot() for one in drawn]}
    draw(output, name, [one.name for one in drawn], panels)
    say(f"wrote {output}")


def _json(one: Series) -> dict[str, Any]:
    predicted = [
        {
            "concurrency": n,
            **{f"{metric}_ms": estimate_json(time) for metric, time in (("ttft", ttft), ("tpot", tpot))},
        }
        for n, ttft, tpot in zip(one.loads, one.ttft_ms, one.tpot_ms, strict=True)
    ]
    measured = [
        {"concurrency": p.concurrency, "ttft_ms": p.mean_ttft_ms(), "tpot_ms": p.mean_tpot_ms()} for p in one.points
    ]
    return {"isl": one.isl, "osl": one.osl, "predicted": predicted, "measured": measured}
