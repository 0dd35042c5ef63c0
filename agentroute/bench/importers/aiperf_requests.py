"""AIPerf's ``profile_export.jsonl``: one line a request, with its times, of which the statistics are made here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from agentroute.bench.importers.aiperf import PER_MS
from agentroute.bench.importers.material import Material, Record
from agentroute.bench.importers.run import Run, Times, date_of
from agentroute.errors import counted

NAME = "aiperf (requests)"
EXPECTS = "metadata.request_start_ns and metrics.request_latency, one JSON object a line"


def detects(material: Material) -> bool:
    """Whether the file holds a request a line, as AIPerf writes them."""
    record = material.first
    return record.get("metadata", "request_start_ns") is not None and record.has("metrics")


def runs(material: Material) -> Iterator[Run]:
    """The one run that all lines are."""
    kept = [
        record
        for record in material.records
        if record.get("metadata", "benchmark_phase") in ("profiling", None)
        and record.get("metadata", "was_cancelled") is not True
        and _value(record, "request_latency") is not None
    ]
    starts = [value / 1e9 for record in kept if (value := record.number("metadata", "request_start_ns"))]
    ends = [value / 1e9 for record in kept if (value := record.number("metadata", "request_end_ns"))]
    seconds = max(ends) - min(starts) if len(starts) == len(kept) == len(ends) and kept else 0.0
    turns = sum((record.number("metadata", "turn_index") or 0) > 0 for record in kept)
    yield Run(
        where="",
        isl=_mean(kept, "usage_prompt_tokens") or _mean(kept, "input_sequence_length"),
        osl=_mean(kept, "output_sequence_length"),
        requests_per_s=len(kept) / seconds if seconds > 0 else None,
        ttft_ms=_times(kept, "time_to_first_token"),
        tpot_ms=_times(kept, "inter_token_latency"),
        e2e_ms=_times(kept, "request_latency"),
        completed=len(kept),
        failed=len(material.records) - len(kept),
        date=date_of(min(starts)) if starts else None,
        workload="conversations of several turns" if turns else None,
        prefix_hit=_prefix_hit(kept),
        notes=(f"later turns of a conversation: {turns} of {counted(len(kept), 'request')}",) if turns else (),
    )


def _value(record: Record, name: str) -> float | None:
    value = record.number("metrics", name, "value")
    unit = record.text("metrics", name, "unit")
    if unit == "tokens" or value is None:
        return value
    if unit not in PER_MS:
        record.lose(unit, f"one of {', '.join(PER_MS)}", "metrics", name, "unit")
        return None
    return value * PER_MS[unit]


def _mean(records: Sequence[Record], name: str) -> float | None:
    found = [value for record in records if (value := _value(record, name)) is not None]
    return float(np.mean(found)) if found and len(found) == len(records) else None


def _times(records: Sequence[Record], name: str) -> Times:
    found = [value for record in records if (value := _value(record, name)) is not None]
    if not found or min(found) <= 0:
        return {}
    p50, p90, p95, p99 = (float(value) for value in np.percentile(found, (50, 90, 95, 99)))
    return {"mean": float(np.mean(found)), "p50": p50, "p90": p90, "p95": p95, "p99": p99}


def _prefix_hit(records: Sequence[Record]) -> float | None:
    cached, prompts = _mean(records, "usage_prompt_cache_read_tokens"), _mean(records, "usage_prompt_tokens")
    return cached / prompts if cached is not None and prompts else None
