"""Measured latency as public collections keep it: one row for each load, of many deployments.

Two forms are read. JSON lines: one object a row, with the keys of ``_Row``. A compact table: a line that begins with
``deployment`` names one, and the lines after it are its loads, until the next such line; lines that begin with ``#``
say where the table comes from::

    deployment,key,model,gpu,engine,version,precision,split,date,notes
    isl,osl,n,ttft_ms,tpot_ms,tpot_p50_ms
"""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ConfigDict, ValidationError

from agentroute.errors import FileError, UsageError
from agentroute.latency.points import Measured, Point
from agentroute.origin import Count, Flag, Frozen, Text, Tokens
from agentroute.shape.sharding import Disaggregated, Sharding, Workers


@dataclass(frozen=True, slots=True)
class LatencyRecord:
    """One load at one deployment. ``None``: the source does not say."""

    deployment: str
    """The source's own key of the deployment."""
    model: str
    """The model as its author names it, mostly by its hub id."""
    gpu: str
    """The accelerator."""
    engine: str
    version: str | None
    """The engine's version."""
    precision: str | None
    """Of the weights."""
    split: Sharding | Disaggregated | None
    """``None`` where what the source says is no split that can be."""
    isl: int
    osl: int
    n: int | None
    """Requests in flight."""
    ttft_ms: float
    """The mean."""
    tpot_ms: float
    """The mean."""
    tpot_p50_ms: float | None = None
    date: dt.date | None = None
    notes: str | None = None
    run: int | None = None
    """Where a load is there several times: 1 for the row with the least TPOT, 2 for the next."""

    @property
    def accelerators(self) -> int | None:
        """How many accelerators the deployment takes."""
        return self.split.accelerators if self.split else None

    @property
    def curve(self) -> tuple[str, int, int, int | None]:
        """Rows with an equal curve differ in their concurrency alone."""
        return self.deployment, self.isl, self.osl, self.run

    def point(self) -> Point:
        """As a profile keeps it; raises ``UsageError`` without a concurrency."""
        if self.n is None:
            raise UsageError(f"a row of {self.deployment!r} has no concurrency")
        return Point(
            isl=self.isl,
            osl=self.osl,
            concurrency=self.n,
            ttft_ms=Measured(mean=self.ttft_ms),
            tpot_ms=Measured(mean=self.tpot_ms, p50=self.tpot_p50_ms),
        )


class _Row(Frozen):
    """One JSON line; other keys are passed over."""

    model_config = ConfigDict(extra="ignore")

    deployment: Text
    model: Text
    gpu: Text
    engine: Text
    engine_version: Text | None = None
    weights_precision: Text | None = None
    tp: Count | None = None
    pp: Count | None = None
    ep: int | None = None
    dp: int | None = None
    disaggregated: Flag = False
    isl: Tokens
    osl: Tokens
    concurrency: Count | None = None
    ttft_ms: Measured
    tpot_ms: Measured
    source_date: dt.date | None = None
    notes: Text | None = None


_KEYED = re.compile(r"tp(\d+) adp(\w+) moe_tp(\d+) (?:moe_)?ep(\d+)(?: pp(\d+))?")
_SIDE = re.compile(r"(\d+)x ([^\]]+)")
_PLAIN = re.compile(r"(tp|pp|ep|adp|dcp)(\d+)")
_LOAD = ("isl", "osl", "n", "ttft_ms", "tpot_ms")


def parse(text: str, path: Path) -> list[LatencyRecord]:
    """The rows of ``text`` in either form; rows of one load get a ``run`` each.

    Raises ``FileError`` with the line of a wrong one in ``path``, where the text comes from.
    """
    found = list(_of_json(text, path) if text.lstrip().startswith("{") else _of_table(text, path))
    if not found:
        wanted = "it must hold JSON lines, or a table that names its deployments"
        raise FileError(f"holds no latency points; {wanted}", path=path)
    return _runs(found)


def dump(records: Iterable[LatencyRecord], *, comment: str) -> str:
    """``records`` as a compact table under ``comment``."""
    lines = [f"# {line}" for line in comment.splitlines()]
    by_deployment: dict[tuple[str, ...], list[LatencyRecord]] = defaultdict(list)
    for one in records:
        date = one.date.isoformat() if one.date else ""
        known = (one.model, one.gpu, one.engine, one.version or "", one.precision or "", str(one.split or ""))
        by_deployment[one.deployment, *known, date, one.notes or ""].append(one)
    for words, rows in sorted(by_deployment.items()):
        lines.append(",".join(("deployment", *(f'"{word}"' if "," in word else word for word in words))))
        for one in sorted(rows, key=lambda one: (one.isl, one.osl, one.n or 0, one.tpot_ms)):
            p50 = f",{one.tpot_p50_ms:.10g}" if one.tpot_p50_ms is not None else ""
            lines.append(f"{one.isl},{one.osl},{one.n or ''},{one.ttft_ms:.10g},{one.tpot_ms:.10g}{p50}")
    return "\n".join(lines) + "\n"


def _of_json(text: str, path: Path) -> Iterator[LatencyRecord]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = _Row.model_validate_json(line)
        except ValidationError as problem:
            first = problem.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or None
            raise FileError(first["msg"][:1].lower() + first["msg"][1:], path=path, key=key, line=number) from None
        if row.ttft_ms.mean is None or row.tpot_ms.mean is None:
            raise FileError("ttft_ms and tpot_ms must hold a mean", path=path, line=number)
        yield LatencyRecord(
            deployment=row.deployment,
            model=row.model,
            gpu=row.gpu,
            engine=row.engine,
            version=_word(row.engine_version),
            precision=_word(row.weights_precision),
            split=_split(row),
            isl=row.isl,
            osl=row.osl,
            n=row.concurrency,
            ttft_ms=row.ttft_ms.mean,
            tpot_ms=row.tpot_ms.mean,
            tpot_p50_ms=row.tpot_ms.p50,
            date=row.source_date,
            notes=row.notes,
        )


def _of_table(text: str, path: Path) -> Iterator[LatencyRecord]:
    head: LatencyRecord | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = next(csv.reader([line]))
        try:
            if cells[0] == "deployment":
                _, key, model, gpu, engine, version, precision, split, date, notes = cells
                head = LatencyRecord(
                    key, model, gpu, engine, version or None, precision or None, _written(split), 1, 1, None, 1.0, 1.0,
                    date=dt.date.fromisoformat(date) if date else None, notes=notes or None,
                )  # fmt: skip
                continue
            isl, osl, n, ttft, tpot, *p50 = cells
            load = int(isl), int(osl), int(n) if n else None
            times = float(ttft), float(tpot), float(p50[0]) if p50 else None
        except ValueError as problem:
            raise FileError(f"must be a deployment or {', '.join(_LOAD)}: {problem}", path=path, line=number) from None
        if head is None:
            raise FileError("stands before the first deployment", path=path, line=number)
        if not all(0 < value < float("inf") for value in (*load[:2], load[2] or 1, *times[:2], times[2] or 1.0)):
            raise FileError("must hold numbers above 0", path=path, line=number)
        yield replace(
            head, isl=load[0], osl=load[1], n=load[2], ttft_ms=times[0], tpot_ms=times[1], tpot_p50_ms=times[2]
        )


def _word(value: str | None) -> str | None:
    return None if value in {None, "", "nan", "None"} else value


def _split(row: _Row) -> Sharding | Disaggregated | None:
    """The split that a row's key spells out, else the one of its numbers."""
    try:
        if row.disaggregated:
            sides = [_side(*found) for found in _SIDE.findall(row.deployment)]
            return Disaggregated(prefill=sides[0], decode=sides[1]) if len(sides) == 2 else None
        if found := _KEYED.search(row.deployment):
            return _sharding(*found.groups())
        return Sharding(tp=row.tp or 1, pp=row.pp or 1, ep=row.ep or 1, attention_dp=row.dp or 1)
    except ValidationError:
        return None


def _side(workers: str, words: str) -> Workers:
    found = _KEYED.search(words)
    return Workers(workers=int(workers), sharding=_sharding(*found.groups()) if found else Sharding())


def _sharding(tp: str, adp: str, moe_tp: str, moe_ep: str, pp: str | None = None) -> Sharding:
    """The ranks of attention are those of the experts: tp x adp = moe_tp x moe_ep. Where ``adp`` is not said, the
    experts say it; 0 is 1."""
    ranks, tensor = max(1, int(moe_tp)) * max(1, int(moe_ep)), int(tp)
    replicas = max(1, int(adp)) if adp.isdigit() else max(1, ranks // tensor)
    return Sharding(tp=tensor, pp=int(pp or 1), ep=max(1, int(moe_ep)), attention_dp=replicas)


def _written(text: str) -> Sharding | Disaggregated | None:
    """What ``str`` of a split was."""
    if not text:
        return None
    if text.startswith("P "):
        sides = re.findall(r"(\d+)x\(([^)]*)\)", text)
        prefill, decode = (Workers(workers=int(workers), sharding=_plain(words)) for workers, words in sides)
        return Disaggregated(prefill=prefill, decode=decode)
    return _plain(text)


def _plain(text: str) -> Sharding:
    degrees = {name: int(value) for name, value in _PLAIN.findall(text)}
    return Sharding(
        tp=degrees.get("tp", 1),
        pp=degrees.get("pp", 1),
        ep=degrees.get("ep", 1),
        attention_dp=degrees.get("adp", 1),
        dcp=degrees.get("dcp", 1),
    )


def _runs(records: Sequence[LatencyRecord]) -> list[LatencyRecord]:
    """The rows with a ``run`` each where their load is there several times: the least TPOT first."""
    places: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, one in enumerate(records):
        if one.n is not None:
            places[(*one.curve, one.n)].append(i)
    labelled = list(records)
    for indices in places.values():
        if len(indices) > 1:
            for run, i in enumerate(sorted(indices, key=lambda i: records[i].tpot_ms), 1):
                labelled[i] = replace(records[i], run=run)
    return labelled
