"""How fast weights are counted: one JSON line, in thread CPU time. Imported or run."""

from __future__ import annotations

import json
import time

from agentroute.capacity import kv, weights
from agentroute.capacity.kv import Unknown
from agentroute.catalogue import shipped
from agentroute.shape.sharding import Sharding

MODELS = ("llama-3.1-70b", "deepseek-v3", "gemma-4-31b", "qwen3.5-397b-a17b")
SPLITS = (Sharding(tp=8), Sharding(tp=4, pp=2), Sharding(tp=2, attention_dp=4), Sharding(pp=8))


def bench_weights(rounds: int = 200) -> dict[str, float | int | str]:
    """Microseconds of one count of weights per accelerator, over models of every kind, splits and schemes."""
    compiled = []
    models = [shipped().model(name) for name in MODELS]
    taken_apart = time.thread_time_ns()
    for model in models:
        parts = weights.Parts.of(model)
        assert not isinstance(parts, Unknown), parts.reason
        compiled.append(parts)
    taken_apart = time.thread_time_ns() - taken_apart
    schemes = [weights.QUANTISATIONS[name] for name in ("bf16", "fp8", "nvfp4")]
    taken = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        for parts in compiled:
            for split in SPLITS:
                for scheme in schemes:
                    parts.gib(split, scheme, stages=kv.vllm_stages)
        taken.append((time.thread_time_ns() - start) / (len(compiled) * len(SPLITS) * len(schemes)) / 1_000)
    taken.sort()
    median = taken[len(taken) // 2]
    return {
        "bench": "weights",
        "n": rounds * len(compiled) * len(SPLITS) * len(schemes),
        "p50_us": round(median, 2),
        "quietest_us": round(taken[0], 2),
        "per_second": round(1e6 / median),
        "take_apart_us": round(taken_apart / len(MODELS) / 1_000, 1),
    }


if __name__ == "__main__":
    print(json.dumps(bench_weights()))
