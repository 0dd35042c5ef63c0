"""One JSON line for each hot path, in thread CPU time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import numpy as np

BATCH = 20
BATCHES = 200
WARM_UP = 20


def line(bench: str, n: int, **figures: object) -> None:
    """One result."""
    print(json.dumps({"bench": bench, "n": n, **figures}), flush=True)


def per_call(bench: str, calls: Sequence[Callable[[], object]], *, batch: int = BATCH) -> None:
    """Times ``calls`` one after another, over and over, and prints the median and the 99th percentile of one.

    Calls are timed in batches, because reading the clock costs as much as the quickest of them. ``floor_us`` is what
    the machine made of forty small numpy operations in between: 21.6 us on a quiet machine of the kind that this was
    written on, twice that when others use it.
    """
    a, b = np.arange(17.0), np.ones(17)
    taken, floors = [], []
    for number in range(BATCHES + WARM_UP):
        here = [calls[(number * batch + i) % len(calls)] for i in range(batch)]
        start = time.thread_time_ns()
        for call in here:
            call()
        between = time.thread_time_ns()
        for _ in range(40):
            np.add(a, b)
        floors.append((time.thread_time_ns() - between) / 1_000)
        taken.append((between - start) / batch / 1_000)
    ordered, floor = sorted(taken[WARM_UP:]), sorted(floors[WARM_UP:])
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    figures = {"p50_us": round(p50, 2), "p99_us": round(p99, 2), "per_s": round(1e6 / p50)}
    line(bench, len(calls), **figures, floor_us=round(floor[len(floor) // 2], 1))
