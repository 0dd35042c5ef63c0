"""inference-perf's ``stage_N_lifecycle_metrics.json`` (or ``.yaml``): one run for each stage. All times are in seconds.

The keys were read in the report generator of kubernetes-sigs/inference-perf (commit 010d12f, newer than 0.7.0) and in
reports of 0.7 and before. ``normalized_time_per_output_token`` includes the TTFT and is not read. Before the fix of its
issue 564, ``time_per_output_token`` was half of what it should be; the check of the three times finds that.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentroute.bench.importers.material import Material, Record
from agentroute.bench.importers.run import Run, Times
from agentroute.bench.importers.vllm import mean
from agentroute.latency.points import Statistic

NAME = "inference-perf"
EXPECTS = "load_summary and successes with latency"

_STATISTICS: dict[Statistic, str] = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}


def detects(material: Material) -> bool:
    """Whether the file is a lifecycle report of inference-perf."""
    return material.first.has("load_summary", "successes")


def runs(material: Material) -> Iterator[Run]:
    """The run of the stage."""
    record = material.first
    load, done = record.inside("load_summary"), record.inside("successes")
    clients = load.number("concurrency")
    whole_run = None
    if load.number("requested_rate") is None:
        whole_run = "it sums up every stage, and stages are different loads; give the stage_N_lifecycle_metrics files"
    yield Run(
        where="",
        isl=done.number("prompt_len", "mean") or done.number("prompt_tokens", "mean"),
        osl=done.number("output_len", "mean") or done.number("output_tokens", "mean"),
        clients=clients,
        loop="closed" if clients else "open",
        offered_per_s=None if clients else load.number("requested_rate"),
        requests_per_s=done.number("throughput", "requests_per_sec"),
        ttft_ms=_times(done, "time_to_first_token"),
        tpot_ms=_times(done, "time_per_output_token"),
        e2e_ms=_times(done, "request_latency"),
        completed=done.number("count"),
        failed=record.number("failures", "count"),
        prefix_hit=_prefix_hit(done),
        wrong=whole_run,
    )


def _times(done: Record, name: str) -> Times:
    found = {statistic: done.number("latency", name, key) for statistic, key in _STATISTICS.items()}
    return {statistic: value * 1_000 for statistic, value in found.items() if value}


def _prefix_hit(done: Record) -> float | None:
    return mean(done.number("prompt_tokens", "cached"), done.number("prompt_tokens", "total"))
