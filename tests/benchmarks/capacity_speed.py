"""How fast the KV rules are: one JSON line for each function, in thread CPU time. Run as a script.

Calls are timed in batches of 20, because reading the clock costs as much as the quickest of them. ``floor_us`` is what
the machine made of forty small numpy operations in between, as in ``speed.py``: 21.6 us on a quiet machine of the kind
that this was written on, twice that when others use it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from itertools import product

import numpy as np

from agentroute.capacity import llamacpp, sglang, trtllm, vllm
from agentroute.capacity.kv import Unknown
from agentroute.capacity.pool import KvLayout, KvPool
from agentroute.catalogue import shipped
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

BATCH = 20
BATCHES = 500
WARM_UP = 50

SPLITS = [Sharding(tp=tp, pp=pp) for tp, pp in product((1, 2, 4, 8), (1, 2, 4))]
Cases = list[tuple[Model, Sharding]]


def per_call(bench: str, calls: list[Callable[[], object]]) -> None:
    """Times ``calls`` one after another, over and over, and prints the median and the 99th percentile of one."""
    a, b = np.arange(17.0), np.ones(17)
    taken, floors = [], []
    for batch in range(BATCHES + WARM_UP):
        here = [calls[(batch * BATCH + i) % len(calls)] for i in range(BATCH)]
        start = time.thread_time_ns()
        for call in here:
            call()
        between = time.thread_time_ns()
        for _ in range(40):
            np.add(a, b)
        floors.append((time.thread_time_ns() - between) / 1_000)
        taken.append((between - start) / BATCH / 1_000)
    ordered, floor = sorted(taken[WARM_UP:]), sorted(floors[WARM_UP:])
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    figures = {"n": len(calls), "p50_us": round(p50, 2), "p99_us": round(p99, 2), "per_s": round(1e6 / p50)}
    print(json.dumps({"bench": bench, **figures, "floor_us": round(floor[len(floor) // 2], 1)}), flush=True)


def cases() -> Cases:
    """Every shipped model under some split, in an order that no branch predictor likes."""
    found = [(shipped().model(name), split) for name in shipped().model_names for split in SPLITS]
    random.Random(7).shuffle(found)
    return found


def layouts(engine: str, every: Cases) -> list[KvLayout]:
    """Times one engine's layouts; those that are known."""

    def lay_out(model: Model, split: Sharding) -> KvLayout | Unknown:
        match engine:
            case "vllm":
                return vllm.layout(model, split, "bf16")
            case "sglang":
                return sglang.layout(model, split, "bf16")
            case "trtllm":
                return trtllm.layout(model, split, "bf16")
        return llamacpp.layout(model, split, "fp16")

    known = [case for case in every if not isinstance(lay_out(*case), Unknown)]
    per_call(f"{engine}.layout", [lambda case=case: lay_out(*case) for case in known])  # type: ignore[misc]
    return [layout for case in known if not isinstance(layout := lay_out(*case), Unknown)]


def questions(engine: str, found: list[KvLayout]) -> None:
    """Times what a layout and its pool answer."""
    sizes = random.Random(7)
    asked: list[tuple[KvPool, int]] = [(one.pool_of(sizes.uniform(5, 100)), sizes.randint(1, 131_072)) for one in found]
    gib = sizes.uniform(5, 100)
    per_call(f"{engine}.pool_of", [lambda one=one: one.pool_of(gib) for one in found])  # type: ignore[misc]
    per_call(f"{engine}.needed_gib", [lambda one=one: one.needed_gib(30_000) for one in found])  # type: ignore[misc]
    per_call(f"{engine}.units", [lambda ask=ask: ask[0].units(ask[1]) for ask in asked])  # type: ignore[misc]
    per_call(f"{engine}.concurrency", [lambda ask=ask: ask[0].concurrency(ask[1]) for ask in asked])  # type: ignore[misc]
    per_call(f"{engine}.longest_tokens", [lambda ask=ask: ask[0].longest_tokens() for ask in asked])  # type: ignore[misc]


if __name__ == "__main__":
    every = cases()
    for engine in ("vllm", "sglang", "trtllm", "llamacpp"):
        questions(engine, layouts(engine, every))
