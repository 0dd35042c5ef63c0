"""``trtllm-bench ... --report_json``: one run a file, and the only format that carries the sharding with it.

The keys were read in TensorRT-LLM's ``tensorrt_llm/bench/dataclasses/reporting.py``. It does not say whether attention
is replicated (attention DP); ``tp_size`` is taken as the tensor split of attention, and the run says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentroute.bench.importers.material import Material, Record
from agentroute.bench.importers.run import Facts, Run, Times, sharding_of
from agentroute.latency.points import Statistic
from agentroute.startup.dtypes import kv_type, weights_type

NAME = "trtllm-bench"
EXPECTS = "engine, world_info, request_info and performance"

_STATISTICS: dict[Statistic, str] = {"mean": "average", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
ATTENTION = "the file does not say whether attention was replicated; if it was, give --tp 1 and --attention-dp"


def detects(material: Material) -> bool:
    """Whether the file is a report of ``trtllm-bench``."""
    return material.first.has("world_info", "request_info", "performance")


def runs(material: Material) -> Iterator[Run]:
    """The run of the report."""
    record = material.first
    world, requests = record.inside("world_info"), record.inside("request_info")
    performance, streaming = record.inside("performance"), record.inside("streaming_metrics")
    tp, pp, ranks = world.count("tp_size"), world.count("pp_size"), world.count("world_size")
    notes = [ATTENTION] if tp and tp > 1 else []
    if record.has("decoding_stats"):
        notes.append("speculative decoding")
    wrong = None
    if tp and ranks and ranks != tp * (pp or 1):
        wrong = (
            f"world_size is {ranks}, but tp_size x pp_size is {tp * (pp or 1)}; expert ranks are the same GPUs again"
        )
    yield Run(
        where="",
        isl=requests.number("avg_input_length"),
        osl=requests.number("avg_output_length"),
        in_flight=requests.number("avg_num_concurrent_requests"),
        requests_per_s=performance.number("request_throughput_req_s"),
        ttft_ms=_times(streaming, "ttft_percentiles", streaming.number("avg_ttft_ms")),
        tpot_ms=_times(streaming, "tpot_percentiles", streaming.number("avg_tpot_ms")),
        e2e_ms=_times(performance, "request_latency_percentiles_ms", performance.number("avg_request_latency_ms")),
        completed=requests.number("num_requests"),
        facts=_facts(record, tp, pp, world.count("ep_size")),
        notes=tuple(notes),
        wrong=wrong,
    )


def _times(record: Record, name: str, mean: float | None) -> Times:
    found = {statistic: record.number(name, key) for statistic, key in _STATISTICS.items()} | {"mean": mean}
    return {statistic: value for statistic, value in found.items() if value}


def _facts(record: Record, tp: int | None, pp: int | None, ep: int | None) -> Facts:
    engine = record.inside("engine")
    return Facts(
        model_word=engine.text("model"),
        engine="trtllm",
        engine_version=engine.version("version"),
        accelerator_word=record.text("machine", "name"),
        sharding=sharding_of(tp=tp, pp=pp, ep=ep),
        attention_unsaid=True,
        weights=weights_type(engine.text("quantization") or engine.text("dtype")),
        kv=kv_type(engine.text("kv_cache_dtype")),
    )
