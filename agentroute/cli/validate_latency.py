"""``agentroute validate latency``: leave measured loads out, predict them, and say how far off that is."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from agentroute.capacity.kv import Unknown
from agentroute.capacity.weights import scheme
from agentroute.catalogue import shipped
from agentroute.cli.options import Json
from agentroute.cli.output import EXIT_FAILURE, percent, print_json, print_table, say
from agentroute.errors import FileError, UnknownNameError, UsageError, counted, shown
from agentroute.files import read_text
from agentroute.latency.accuracy import METRICS, Order, Prediction, errors, orders, predictions, slo_wrong
from agentroute.latency.closed_loop import ClosedLoop
from agentroute.latency.curve import Curve
from agentroute.latency.holdout import WAYS, Fold, LeaveOut, folds, knees
from agentroute.latency.physics import Shape
from agentroute.latency.records import LatencyRecord, parse
from agentroute.profile import WeightsType
from agentroute.serving import loop_of
from agentroute.shape.model import Model
from agentroute.startup.names import printable

HEAD = "deployment,key,model,gpu,engine,version,precision,split,date,notes"
LOAD = "isl,osl,n,ttft_ms,tpot_ms[,tpot_p50_ms]"
"""The two kinds of line of a table of points (``latency.records``)."""

CHECKPOINTS: dict[str, WeightsType] = {"openai/gpt-oss-120b": "mxfp4"}
"""How the only checkpoint of a model is kept, whatever a source calls it (its model card)."""

_WORDS: dict[str | None, WeightsType] = {None: "bf16", "bf16": "bf16", "fp8": "fp8", "fp4": "nvfp4", "int4": "int4"}
"""A record's word for its weights as a profile calls it. Where it says nothing: 16 bits, assumed."""


def latency(
    file: Annotated[Path, typer.Argument(help="Points: JSON lines or a table.", metavar="POINTS.jsonl")],
    leave_out: Annotated[str, typer.Option("--leave-out", help="one, edge, lone, anchors:3 or deployment.")] = "one",
    only: Annotated[
        str | None, typer.Option("--only", help="Only deployments whose key or notes contain this.", metavar="TEXT")
    ] = None,
    as_json: Json = False,
) -> None:
    """Leave measured loads out, predict them from the others, and print how far off that is.

    Exit 1 where there is nothing to leave out, or nothing could be predicted.
    """
    how = _way(leave_out)
    records = read(file)
    if only is not None:
        records = [one for one in records if only in one.deployment or only in (one.notes or "")]
        if not records:
            raise UsageError(f"--only must be part of a deployment's key or notes, got {shown(only)}, which is in none")
    rooflines = Rooflines()
    work = [fold for fold in folds(records, how) if fold.asked]
    with_knee = knees(records)
    made = list(predictions(work, rooflines.curve, Progress(len(work)).done))
    ordered, ordered_apart = orders(made, "tpot")
    whole = figures(made, with_knee, ordered)
    counts = {
        "rows": len(records),
        "without_concurrency": sum(one.n is None for one in records),
        "of_several_runs": sum(one.run is not None for one in records),
        "asked": sum(len(fold.asked) for fold in work),
        "predicted": len(made),
        "knee_curves": len(with_knee),
        "without_roofline": dict(rooflines.missing(records)),
        "too_fast": rooflines.too_fast(records),
    }
    by_deployment: dict[str, list[Prediction]] = defaultdict(list)
    for one in made:
        by_deployment[one.row.deployment].append(one)
    apart = {
        name: figures(own, with_knee, ordered_apart.get(name, Order(0, 0)))
        for name, own in sorted(by_deployment.items())
    }
    if as_json:
        print_json("validate latency", {"leave_out": how, "counts": counts, "summary": whole, "deployments": apart})
    elif made:
        _print(how, counts, whole, apart)
    if not made:
        say(f"error: {printable(str(file))}: {_nothing(how, counts, len({one.deployment for one in records}))}")
        raise typer.Exit(EXIT_FAILURE)


def read(file: Path) -> list[LatencyRecord]:
    """The rows of a file of points; raises ``FileError`` with the line of a wrong one, and what it should be."""
    text = read_text(file, FileError)
    try:
        return parse(text, file)
    except csv.Error:
        raise FileError("is no table of latency points: it holds a cell that is too long", path=file) from None
    except FileError as problem:
        if problem.line is None:
            raise
        line = text.splitlines()[problem.line - 1]
        is_json = text.lstrip().startswith("{")
        said = _row_of_json(problem, line) if is_json else _row_of_table(problem, line, text)
        raise FileError(said, path=file, key=problem.key, line=problem.line) from None


def _row_of_json(problem: FileError, line: str) -> str:
    """What is wrong with a JSON line, in the words of a file's other errors."""
    said = str(problem).partition(f":{problem.line}: ")[2].removeprefix(f"{problem.key}: ")
    said = said.replace("input should be", "must be").replace("field required", "is missing; it must be given")
    if said.startswith("invalid JSON"):
        return f"must be one JSON object a line, got {shown(line)}"
    return said.removeprefix("value error, ")


def _row_of_table(problem: FileError, line: str, text: str) -> str:
    """What a line of a table should be."""
    first = next(one for one in text.splitlines() if one.strip() and not one.startswith("#"))
    if not first.startswith("deployment,"):
        return (
            f"must be a line that names a deployment ({HEAD}) before the lines of its loads ({LOAD}), got {shown(line)}"
        )
    if line.startswith("deployment"):
        return f"must name a deployment as {HEAD}, got {shown(line)}"
    return f"must be a load as {LOAD}, with numbers above 0, got {shown(line)}"


def _nothing(how: LeaveOut, counts: dict[str, Any], deployments: int) -> str:
    """Why nothing was predicted."""
    if not counts["asked"]:
        of = f"{counted(counts['rows'], 'row')} of {counted(deployments, 'deployment')}"
        return f"there is nothing to leave out in {of}; --leave-out {how} leaves out {WAYS[how]}"
    why = "; ".join(counts["without_roofline"]) or "too little is left to go by"
    return f"none of {counted(counts['asked'], 'load')} could be predicted: {why}"


def _way(text: str) -> LeaveOut:
    for way in WAYS:
        if way == text:
            return way
    raise UsageError(f"--leave-out must be one of {', '.join(WAYS)}, got {text!r}")


class Rooflines:
    """The rooflines of the deployments that points come from, by the shipped models and accelerators."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], ClosedLoop | Unknown] = {}
        self._shapes: dict[int, Shape] = {}
        self._curves: dict[int, Curve] = {}

    def curve(self, fold: Fold) -> Curve | None:
        """The curve of what a fold knows; of nothing: its roofline's."""
        of = (fold.known or fold.asked)[0]
        found = self._of(of)
        if not fold.known:
            if isinstance(found, ClosedLoop) and id(found) not in self._curves:
                self._curves[id(found)] = found.curve()
            return self._curves.get(id(found))
        if isinstance(found, ClosedLoop) and id(found) not in self._shapes:
            self._shapes[id(found)] = found.shape()
        shape = None if isinstance(found, Unknown) else self._shapes[id(found)]
        return Curve.fit((one.point() for one in fold.known), shape)

    def missing(self, records: Sequence[LatencyRecord]) -> Counter[str]:
        """By reason the deployments that have none."""
        reasons = {one.deployment: found.reason for one in records if isinstance(found := self._of(one), Unknown)}
        return Counter(reasons.values())

    def too_fast(self, records: Sequence[LatencyRecord]) -> list[dict[str, Any]]:
        """Rows that are faster than their accelerators can be, and of the least time what part they took."""
        found = []
        for one in records:
            loop = self._of(one)
            if one.n is None or isinstance(loop, Unknown):
                continue
            load = np.array([(one.isl, one.osl, one.n)], dtype=np.float64)
            share = np.exp(-loop.bounds.faster(load, np.array([one.ttft_ms]), np.array([one.tpot_ms])))[:, 0]
            if share.min() < 1.0:
                named = {"deployment": one.deployment, "isl": one.isl, "osl": one.osl, "n": one.n}
                found.append({**named, "ttft": float(share[0]), "tpot": float(share[1])})
        return found

    def _of(self, record: LatencyRecord) -> ClosedLoop | Unknown:
        key = record.model, record.gpu, record.precision, record.split
        if key not in self._found:
            self._found[key] = self._derived(record)
        return self._found[key]

    def _derived(self, record: LatencyRecord) -> ClosedLoop | Unknown:
        if record.split is None:
            return Unknown("the split is not known")
        try:
            model, accelerator = _model(record.model), shipped().accelerator(record.gpu)
        except UnknownNameError as problem:
            return Unknown(str(problem))
        word = CHECKPOINTS.get(record.model) or _WORDS.get(record.precision)
        weights = scheme(word, model) if word else None
        if weights is None:
            return Unknown(f"weights in {record.precision!r} are not known")
        return loop_of(model, accelerator, record.split, weights)


@cache
def _model(name: str) -> Model:
    return shipped().model(name)


def figures(
    made: Sequence[Prediction], with_knee: set[tuple[str, int, int, int | None]], ordered: Order
) -> dict[str, Any]:
    """Errors by metric, those of TTFT over curves with a knee apart, and how well deployments are put into order."""
    knee = [one for one in made if one.row.curve in with_knee]
    smooth = [one for one in made if one.row.curve not in with_knee]
    return {
        **{metric: errors(smooth if metric == "ttft" else made, metric) for metric in METRICS},
        "ttft_knee": errors(knee, "ttft"),
        "pairs": ordered.pairs,
        "pairs_right": ordered.share,
        "rank_correlation": ordered.correlation,
        "slo_wrong": slo_wrong(made),
    }


class Progress:
    """How far it is, on stderr."""

    def __init__(self, of: int) -> None:
        self._of, self._so_far, self._every = of, 0, max(1, of // 10)

    def done(self) -> None:
        """One more."""
        self._so_far += 1
        if self._so_far % self._every == 0 or self._so_far == self._of:
            say(f"{self._so_far:,} of {counted(self._of, 'fit')}")


def _print(how: LeaveOut, counts: dict[str, Any], whole: dict[str, Any], apart: dict[str, dict[str, Any]]) -> None:
    typer.echo(
        f"{counted(counts['rows'], 'row')}; without a concurrency, and left out: {counts['without_concurrency']}; "
        f"runs of one load, each fitted apart: {counts['of_several_runs']}"
    )
    typer.echo(f"left out: {WAYS[how]}: {counted(counts['asked'], 'load')}, {counts['predicted']:,} predicted")
    for reason, count in counts["without_roofline"].items():
        typer.echo(f"without a roofline: {counted(count, 'deployment')}: {reason}")
    for one in counts["too_fast"]:
        metric = min(("ttft", "tpot"), key=lambda name: one[name])
        typer.echo(
            f"suspicious: {metric.upper()} at isl {one['isl']:,}, osl {one['osl']:,}, n {one['n']:,} is "
            f"{percent(one[metric])} of the least that the accelerators need: {one['deployment']}"
        )
    columns = ("metric", "n", "mean", "median", "p90", "in band")
    names = {"tpot": "TPOT", "ttft": "TTFT", "ttft_knee": "TTFT, curves with a knee", "e2e": "E2E"}
    print_table(columns, ((name, *_cells(whole[key])) for key, name in names.items()), right=columns[1:])
    pairs = f"{percent(whole['pairs_right'])} of {counted(whole['pairs'], 'pair')}" if whole["pairs"] else "no pairs"
    typer.echo(f"deployments of one model in the right order (TPOT more than 15 % apart): {pairs}")
    typer.echo(f"SLO decisions that would have been wrong: {percent(whole['slo_wrong'])}\n")
    titles = ("deployment", "n", "TPOT mean", "TPOT median", "TTFT mean", "E2E mean", "order")
    rows = (
        (name, f"{own['tpot']['n']}", percent(own["tpot"]["mean"]), percent(own["tpot"]["median"]),
         percent(own["ttft"]["mean"]), percent(own["e2e"]["mean"]), percent(own["pairs_right"]))
        for name, own in apart.items()
    )  # fmt: skip
    print_table(titles, rows, right=titles[1:])


def _cells(of: dict[str, Any]) -> tuple[str, ...]:
    return f"{of['n']:,}", *(percent(of[key]) for key in ("mean", "median", "p90", "coverage"))
