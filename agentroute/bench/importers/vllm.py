"""``vllm bench serve --save-result``: one object a file, or one a line with ``--append-result``.

The keys were read in results of vLLM 0.33.0 (plain and with ``--save-detailed``), older ones in the copy of the client
that InferenceX keeps. ISL and OSL are not in the file; they are the totals over the completed requests. GPU and
sharding are not either, unless somebody gave them with ``--metadata``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

import numpy as np

from agentroute.bench.importers.material import Material, Record
from agentroute.bench.importers.run import (
    Facts,
    Run,
    Times,
    sharding_of,
)
from agentroute.latency.points import Loop

NAME = "vllm bench serve"
EXPECTS = "mean_ttft_ms, max_concurrency and total_output_tokens in one JSON object"


def detects(material: Material) -> bool:
    """Whether the file holds results of ``vllm bench serve``."""
    record = material.first
    return record.has("model_id", "num_prompts", "total_output_tokens", "request_throughput")


def runs(material: Material) -> Iterator[Run]:
    """The run in each object."""
    for record in material.records:
        completed = record.number("completed")
        rate, loop = load(record)
        notes = []
        if length := record.number("spec_decode_acceptance_length"):
            notes.append(f"speculative decoding, {length:.2f} tokens accepted a step")
        if record.number("rtfx"):
            notes.append("audio was sent")
        yield Run(
            where=record.where,
            isl=mean(record.number("total_input_tokens"), completed),
            osl=mean(record.number("total_output_tokens"), completed),
            clients=record.number("max_concurrency"),
            loop=loop,
            offered_per_s=rate,
            requests_per_s=record.number("request_throughput"),
            ttft_ms=times(record, "ttft"),
            tpot_ms=times(record, "tpot"),
            e2e_ms=times(record, "e2el") or _latencies(record, completed),
            completed=completed,
            failed=record.number("failed"),
            date=record.date("date") or record.date("benchmark_start_time_unix"),
            facts=_facts(record),
            notes=tuple(notes),
        )


def load(record: Record) -> tuple[float | None, Loop | None]:
    """The rate at which requests were sent, and the loop that this and ``max_concurrency`` make."""
    given = record.get("request_rate")
    if given == "trace":
        return None, "open"
    rate = math.inf if given in ("inf", math.inf) else record.number("request_rate")
    if rate is None:
        return None, None
    if rate == math.inf and record.number("max_concurrency") is not None:
        return rate, "closed"
    return rate, "open"


def times(record: Record, metric: str) -> Times:
    """``mean_ttft_ms``, ``median_ttft_ms``, ``p99_ttft_ms`` and the others; 0 stands for what was not measured."""
    found: dict[str, float | None] = {name: record.number(f"{name}_{metric}_ms") for name in ("mean", "p50", "p90")}
    found |= {name: record.number(f"{name}_{metric}_ms") for name in ("p95", "p99")}
    if found["p50"] is None:
        found["p50"] = record.number(f"median_{metric}_ms")
    return {name: value for name, value in found.items() if value}  # type: ignore[misc]


def mean(total: float | None, count: float | None) -> float | None:
    """``total`` over ``count``; ``None`` where either is unknown or nothing was counted."""
    return total / count if total is not None and count else None


def _latencies(record: Record, completed: float | None) -> Times:
    """E2E from the list of every request's latency (seconds), which vLLM 0.33 writes with every result."""
    seconds = record.numbers("latencies")
    if not seconds or len(seconds) != completed or min(seconds) <= 0:
        return {}
    p50, p90, p95, p99 = (float(value) * 1_000 for value in np.percentile(seconds, (50, 90, 95, 99)))
    return {"mean": fmean(seconds) * 1_000, "p50": p50, "p90": p90, "p95": p95, "p99": p99}


def _facts(record: Record) -> Facts:
    """The model, and what ``--metadata KEY=VALUE`` gave under the usual names; ``backend`` names a wire, no engine."""
    texts = {key: record.text(key) for key in ("gpu", "accelerator", "hardware")}
    return Facts(
        model_word=record.text("model_id"),
        engine=record.engine("engine"),
        engine_version=record.version("engine_version") or record.version("vllm_version"),
        accelerator_word=texts["gpu"] or texts["accelerator"] or texts["hardware"],
        sharding=sharding_of(
            tp=record.count("tp") or record.count("tensor_parallel_size"),
            pp=record.count("pp") or record.count("pipeline_parallel_size"),
            ep=record.count("ep"),
            attention_dp=record.count("attention_dp") or record.count("dp") or record.count("data_parallel_size"),
        ),
    )
