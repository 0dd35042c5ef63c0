"""SGLang's ``bench_serving --output-file``: one object a line, appended.

The keys were read in a result of SGLang 0.5.23. Its ``request_rate`` is a bare ``Infinity``. What served is only known
from ``server_info``, which a real server fills with its launch arguments. Older versions have no TPOT and only the
median of TTFT; the ITL, which they do have, is the time between chunks, and a chunk is not a token.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentroute.bench.importers.material import Material, Record
from agentroute.bench.importers.run import Facts, Run, sharding_of
from agentroute.bench.importers.vllm import load, mean, times
from agentroute.startup.dtypes import kv_type, weights_type

NAME = "sglang bench_serving"
EXPECTS = "backend, total_output_tokens and median_ttft_ms, and no model_id, one JSON object a line"


def detects(material: Material) -> bool:
    """Whether the file holds results of SGLang's ``bench_serving``."""
    record = material.first
    named = record.has("backend", "request_rate", "total_output_tokens", "request_throughput")
    return (
        named and not record.has("model_id") and any(record.has(key) for key in ("dataset_name", "sharegpt_output_len"))
    )


def runs(material: Material) -> Iterator[Run]:
    """The run in each line."""
    for record in material.records:
        completed = record.number("completed")
        rate, loop = load(record)
        notes = []
        if length := record.number("accept_length"):
            notes.append(f"speculative decoding, {length:.2f} tokens accepted a step")
        if record.get("request_rate") == "trace":
            notes.append("requests were sent at the times of a trace")
        yield Run(
            where=record.where,
            isl=mean(record.number("total_input_tokens"), completed),
            osl=mean(record.number("total_output_tokens"), completed),
            clients=record.number("max_concurrency"),
            in_flight=record.number("concurrency"),
            loop=loop,
            offered_per_s=rate,
            requests_per_s=record.number("request_throughput"),
            ttft_ms=times(record, "ttft"),
            tpot_ms=times(record, "tpot"),
            e2e_ms=times(record, "e2e_latency"),
            completed=completed,
            prefix_hit=_prefix_hit(record),
            workload=record.text("dataset_name"),
            facts=_facts(record),
            notes=tuple(notes),
        )


def _prefix_hit(record: Record) -> float | None:
    percent = record.number("cache_report", "cache_hit_rate_pct")
    return percent / 100 if percent is not None else None


def _facts(record: Record) -> Facts:
    """What the server said of itself. With DP attention its ``tp_size`` counts every rank of attention's replicas."""
    info = record.inside("server_info")
    tp, dp = info.count("tp_size"), info.count("dp_size")
    if tp and dp and info.get("enable_dp_attention") is True and tp % dp == 0:
        tp //= dp
    launched = info.text("model_path")
    return Facts(
        model_word=launched,
        engine="sglang" if launched or record.get("backend") in ("sglang", "sglang-native") else None,
        engine_version=info.version("version"),
        sharding=sharding_of(tp=tp, pp=info.count("pp_size"), ep=info.count("ep_size"), attention_dp=dp),
        weights=weights_type(info.text("quantization")),
        kv=kv_type(info.text("kv_cache_dtype")),
    )
