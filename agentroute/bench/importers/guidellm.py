"""GuideLLM's ``benchmarks.json`` and ``benchmarks.csv``: one run for each strategy that was benchmarked.

The keys were read in results of GuideLLM 0.8.1. Of its two times per token, ``time_per_output_token_ms`` includes the
TTFT; the TPOT of everybody else is ``inter_token_latency_ms``. ``request_latency`` is in seconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from agentroute.bench.importers.material import Material, Record, number
from agentroute.bench.importers.run import Facts, Run, Times
from agentroute.latency.points import Loop, Statistic

NAME = "guidellm"
EXPECTS = "metadata.guidellm_version and benchmarks with metrics"

_PERCENTILES: tuple[Statistic, ...] = ("p50", "p90", "p95", "p99")
_CSV_PLACES: dict[Statistic, int] = {"p90": 7, "p95": 8, "p99": 9}
"""Where they stand in the eleven numbers of a cell: five up to p10, then p25, p75, p90, p95, p99 and the most; the
median has a column of its own."""


def detects(material: Material) -> bool:
    """Whether the file is a report of GuideLLM, as JSON or as CSV."""
    benchmarks = material.first.records("benchmarks")
    if benchmarks and benchmarks[0].get("metrics", "time_per_output_token_ms") is not None:
        return True
    return material.head[:1] == ("Run Info",) and len(material.rows) > 3


def runs(material: Material) -> Iterator[Run]:
    """The run of each benchmark."""
    if material.rows:
        yield from _csv_runs(material)
        return
    for record in material.first.records("benchmarks"):
        metrics, strategy = record.inside("metrics"), record.inside("config", "strategy")
        kind = strategy.text("type_")
        offered, loop = _load(kind, strategy.number("rate"))
        totals = metrics.inside("request_totals")
        if not totals.data:
            totals = record.inside("scheduler_metrics", "requests_made")
        yield Run(
            where=record.where,
            isl=_mean(metrics, "prompt_token_count"),
            osl=_mean(metrics, "output_token_count"),
            clients=strategy.number("streams") or strategy.number("max_concurrency") or _alone(kind),
            in_flight=_mean(metrics, "request_concurrency"),
            loop=loop,
            offered_per_s=offered,
            requests_per_s=_rate(totals.number("successful"), record.number("duration"))
            or _mean(metrics, "requests_per_second"),
            ttft_ms=_times(metrics, "time_to_first_token_ms"),
            tpot_ms=_times(metrics, "inter_token_latency_ms"),
            e2e_ms=_times(metrics, "request_latency", per_ms=1_000.0),
            completed=totals.number("successful"),
            failed=totals.number("errored"),
            prefix_hit=_prefix_hit(record),
            date=record.date("start_time"),
            workload=kind,
            facts=Facts(model_word=record.text("config", "backend", "model")),
            notes=tuple(_warnings(record)),
        )


def _load(kind: str | None, rate: float | None) -> tuple[float | None, Loop | None]:
    """What the strategy offers: ``concurrent`` and ``synchronous`` are closed loops, ``throughput`` sends all at once,
    the others keep a rate."""
    match kind:
        case "concurrent" | "synchronous":
            return None, "closed"
        case "throughput":
            return math.inf, "open"
        case None:
            return None, None
        case _:
            return rate, "open"


def _alone(kind: str | None) -> float | None:
    return 1.0 if kind == "synchronous" else None


def _rate(completed: float | None, seconds: float | None) -> float | None:
    return completed / seconds if completed and seconds else None


def _mean(metrics: Record, name: str) -> float | None:
    return metrics.number(name, "successful", "mean")


def _times(metrics: Record, name: str, *, per_ms: float = 1.0) -> Times:
    found = metrics.inside(name, "successful")
    values: dict[Statistic, float | None] = {"mean": found.number("mean")}
    values |= {percentile: found.number("percentiles", percentile) for percentile in _PERCENTILES}
    return {statistic: value * per_ms for statistic, value in values.items() if value}


def _prefix_hit(record: Record) -> float | None:
    """Cached over all prompt tokens, where the requests that were kept say so."""
    kept = [request.inside("input_metrics") for request in record.records("requests", "successful")]
    pairs = [(one.number("cached_tokens"), one.number("total_tokens")) for one in kept]
    known = [(cached, total) for cached, total in pairs if cached is not None and total]
    whole = sum(total for _, total in known)
    return sum(cached for cached, _ in known) / whole if known and len(known) == len(pairs) else None


def _warnings(record: Record) -> Iterator[str]:
    for warning in record.records("warnings"):
        if (code := warning.text("code")) is not None and re.fullmatch(r"\w{1,60}", code, re.ASCII):
            yield f"the tool itself warns of {code}"


def _csv_runs(material: Material) -> Iterator[Run]:
    """A row is a benchmark; three rows of heads name group, quantity and statistic of each column."""
    heads = list(zip(*material.rows[:3], strict=False))
    for i, row in enumerate(material.rows[3:], start=4):
        names = [" ".join(part.strip() for part in head if part.strip()) for head in heads]
        cells = Record({name: _cell(cell) for name, cell in zip(names, row, strict=False)}, f"row {i}", material.lost)
        kind, _, streams = str(cells.get("Benchmark Strategy") or "").partition("@")
        stated = number(_cell(streams))
        offered, loop = _load(kind or None, stated)
        completed = cells.number("Request Counts Successful")
        yield Run(
            where=cells.where,
            isl=cells.number("Token Metrics Successful Input Tokens Mean"),
            osl=cells.number("Token Metrics Successful Output Tokens Mean"),
            clients=(stated if kind == "concurrent" else None) or _alone(kind),
            in_flight=cells.number("Server Throughput Successful Concurrency Mean"),
            loop=loop,
            offered_per_s=offered,
            requests_per_s=_rate(completed, cells.number("Timings Duration Sec")),
            ttft_ms=_csv_times(cells, "Time to First Token Successful ms"),
            tpot_ms=_csv_times(cells, "Inter Token Latency Successful ms"),
            e2e_ms=_csv_times(cells, "Request Latency Successful Sec", per_ms=1_000.0),
            completed=completed,
            failed=cells.number("Request Counts Errored"),
            date=cells.date("Timings Start Time"),
            workload=kind or None,
            facts=Facts(model_word=_object(cells, "Run Info Backend").text("model")),
        )


def _csv_times(cells: Record, name: str, *, per_ms: float = 1.0) -> Times:
    values: dict[Statistic, float | None] = {
        "mean": cells.number(f"{name} Mean"),
        "p50": cells.number(f"{name} Median"),
    }
    listed = _inside(cells, f"{name} Percentiles")
    if isinstance(listed, list) and len(listed) == 11:
        for percentile, place in _CSV_PLACES.items():
            values[percentile] = number(listed[place])
            if values[percentile] is None:
                cells.lose(listed[place], "a finite number", f"{name} Percentiles[{place}]")
    else:
        cells.lose(listed, "a list of eleven numbers", f"{name} Percentiles")
    return {statistic: value * per_ms for statistic, value in values.items() if value}


def _cell(text: str) -> float | str:
    """A number, or the text of a cell that is none, which is told once it is asked for as one."""
    try:
        found = number(float(text))
    except ValueError:
        found = None
    return text.strip() if found is None else found


def _inside(cells: Record, name: str) -> Any:
    """The JSON in a cell; ``None`` where there is none."""
    if (text := cells.text(name)) is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        cells.lose(text, "JSON", name)
        return None


def _object(cells: Record, name: str) -> Record:
    return Record({name: _inside(cells, name)}, cells.where, cells.lost).inside(name)
