"""AIPerf's and genai-perf's exports: ``profile_export_aiperf.json`` and ``.csv``, ``profile_export_genai_perf.json``.

The keys and units were read in exports of AIPerf 0.13.0; genai-perf writes the same flat layout without a schema
version. Every metric names its unit, which is obeyed. AIPerf's ``profile_export.jsonl``, one line a request, is in
``aiperf_requests``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agentroute.bench.importers.material import Material, Record, number
from agentroute.bench.importers.run import Facts, Run, Times
from agentroute.latency.points import Loop, Statistic

NAME = "aiperf"
EXPECTS = "request_latency and input_sequence_length, each with unit and avg"

PER_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1_000.0, "sec": 1_000.0, "seconds": 1_000.0}
_STATISTICS: dict[Statistic, str] = {"mean": "avg", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
_TITLE = re.compile(r"(.+?)(?: \(([^()]*)\))?")


def detects(material: Material) -> bool:
    """Whether the file is an export of AIPerf or genai-perf, as JSON or as CSV."""
    if material.rows:
        titles = {row[0].strip() for row in material.rows[:200] if row}
        return material.head[:2] == ("Metric", "avg") and any(title.startswith("Request Latency") for title in titles)
    record = material.first
    return all(record.get(name, "unit") is not None for name in ("request_latency", "input_sequence_length"))


def runs(material: Material) -> Iterator[Run]:
    """The run of the export."""
    record = _of_csv(material) if material.rows else material.first
    ours, theirs = record.number("input_sequence_length", "avg"), record.number("usage_prompt_tokens", "avg")
    notes = []
    if ours and theirs and abs(theirs / ours - 1) > 0.05:
        notes.append(
            f"the server counted {theirs:.1f} prompt tokens where the tool counted {ours:.1f}; the server is believed"
        )
    clients, offered, loop = _load(record)
    completed, percent = record.number("request_count", "avg"), record.number("request_error_rate", "avg")
    cached = record.number("overall_usage_prompt_cache_read_pct", "avg")
    if record.get("was_cancelled") is True:
        notes.append("the run was cancelled")
    run = Run(
        where="",
        isl=theirs or ours,
        osl=record.number("output_sequence_length", "avg"),
        clients=clients,
        in_flight=record.number("effective_concurrency", "avg"),
        loop=loop,
        offered_per_s=offered,
        requests_per_s=record.number("request_throughput", "avg"),
        completed=completed,
        failed=_failed(completed, percent),
        prefix_hit=cached / 100 if cached is not None else None,
        date=record.date("start_time"),
        facts=Facts(model_word=_model(record)),
        notes=tuple(notes),
    )
    try:
        yield replace(
            run,
            ttft_ms=_times(record, "time_to_first_token"),
            tpot_ms=_times(record, "inter_token_latency"),
            e2e_ms=_times(record, "request_latency"),
        )
    except ValueError as problem:
        yield replace(run, wrong=str(problem))


def _times(record: Record, name: str) -> Times:
    """A metric in milliseconds; raises ``ValueError`` for a unit that is none of time."""
    metric = record.inside(name)
    if not metric.data:
        return {}
    per_ms = PER_MS.get((metric.text("unit") or "").lower())
    if per_ms is None:
        raise ValueError(f"the unit of {name} is none of {', '.join(PER_MS)}")
    found = {statistic: metric.number(key) for statistic, key in _STATISTICS.items()}
    return {statistic: value * per_ms for statistic, value in found.items() if value}


def _load(record: Record) -> tuple[float | None, float | None, Loop | None]:
    """Clients, requests offered a second and the loop, from where this version of the tool keeps its settings."""
    settings = record.inside("input_config")
    places = [
        *(phase for phase in settings.records("phases") if phase.get("kind") in ("profiling", None)),
        settings.inside("perf_analyzer", "stimulus"),
        settings.inside("loadgen"),
        settings,
    ]
    for place in places:
        clients = place.number("concurrency")
        rate = place.number("request_rate") or place.number("rate")
        if rate:
            return clients, rate, "open"
        if clients:
            return clients, None, "closed"
    command = record.text("run_info", "cli_command") or record.text("input_config", "cli_command") or ""
    if found := re.search(r"--request-rate[ =]'?([\d.]{1,12})", command):
        return None, _float(found[1]), "open"
    if found := re.search(r"--concurrency[ =]'?(\d{1,7})", command):
        return float(found[1]), None, "closed"
    return None, None, None


def _float(digits: str) -> float | None:
    try:
        return number(float(digits))
    except ValueError:
        return None


def _model(record: Record) -> str | None:
    settings = record.inside("input_config")
    items = settings.records("models", "items")
    if items and (name := items[0].text("name")):
        return name
    for key in ("model_names", "model"):
        if isinstance(names := settings.get(key), list) and names:
            return Record({key: names[0]}, lost=record.lost, inside_of=("input_config",)).text(key)
    return None


def _failed(completed: float | None, percent: float | None) -> float | None:
    """Failed requests, of the share that AIPerf gives in percent of all."""
    if completed is None or percent is None or not 0 <= percent < 100:
        return None
    return float(math.floor(completed * percent / (100 - percent) + 0.5))


def _of_csv(material: Material) -> Record:
    """The tables of the CSV in the layout of the JSON: ``Request Latency (ms)`` is ``request_latency`` in ms."""
    metrics: dict[str, Any] = {}
    head: tuple[str, ...] = ()
    for row in material.rows:
        if row[0].strip() == "Metric":
            head = tuple(cell.strip() for cell in row)
            continue
        if head[:1] != ("Metric",) or (title := _TITLE.fullmatch(row[0].strip())) is None:
            continue
        named = {"avg" if name == "Value" else name: _cell(cell) for name, cell in zip(head, row, strict=False)}
        key = re.sub(r"[ -]", "_", title[1].strip().lower())
        key = {"overall_usage_prompt_cache_read_%": "overall_usage_prompt_cache_read_pct"}.get(key, key)
        metrics[key] = {**named, "unit": title[2]}
    return Record(metrics, lost=material.lost)


def _cell(text: str) -> float | str:
    """A number, or the text of a cell that is none, which is told once it is asked for."""
    found = _float(text)
    return text.strip() if found is None else found
