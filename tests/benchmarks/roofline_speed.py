"""How many times a second a roofline is evaluated: one JSON line for each deployment and function, in CPU time.

Run by hand: ``python tests/benchmarks/roofline_speed.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from agentroute.capacity.kv import Unknown
from agentroute.catalogue import shipped
from agentroute.latency.roofline import Roofline
from agentroute.shape.sharding import Sharding

CALLS = 4_000
BLOCKS = 10

DEPLOYMENTS: tuple[tuple[str, str, Sharding], ...] = (
    ("llama-3.1-70b", "h100_sxm", Sharding(tp=4)),
    ("llama-3.1-70b", "h100_sxm", Sharding(pp=8)),
    ("deepseek-v3", "h200_sxm", Sharding(attention_dp=16, ep=16)),
    ("deepseek-v3.2", "h200_sxm", Sharding(tp=8)),
    ("gemma-3n-e4b", "l4", Sharding()),
)


def quietest_us(call: Callable[[float], object]) -> float:
    """CPU time of one call in microseconds, in the quietest of some blocks; others use the machine, too."""
    blocks = []
    for _ in range(BLOCKS):
        start = time.thread_time_ns()
        for i in range(CALLS // BLOCKS):
            call(1.0 + i)
        blocks.append((time.thread_time_ns() - start) / (CALLS // BLOCKS) / 1_000)
    return min(blocks)


def main() -> None:
    """One line for each function of each deployment; the counting is done once and timed apart."""
    for name, chip, sharding in DEPLOYMENTS:
        model, accelerator = shipped().model(name), shipped().accelerator(chip)
        roofline = Roofline.of(model, accelerator, sharding)
        if isinstance(roofline, Unknown):
            raise SystemExit(roofline.reason)
        for function, call in (
            ("decode", lambda n, of=roofline: of.decode(n, 8_000)),
            ("prefill", lambda n, of=roofline: of.prefill(8_000, 1_000, n)),
            ("of", lambda n, on=(model, accelerator, sharding): Roofline.of(*on)),
        ):
            us = quietest_us(call)
            figures = {"us": round(us, 2), "per_s": round(1e6 / us)}
            print(json.dumps({"bench": f"roofline_{function}", "deployment": f"{name} {chip} {sharding}", **figures}))


if __name__ == "__main__":
    main()
