"""How fast the roofline and the ceilings are found. Run by ``make bench``."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from functools import partial
from itertools import product

from timing import line, per_call

from agentroute.capacity.holding import Serving, hold
from agentroute.capacity.kv import Unknown
from agentroute.catalogue import shipped
from agentroute.ceilings import Ceiling, Stand, binding, ceilings
from agentroute.latency.rates import Workload
from agentroute.latency.roofline import Roofline
from agentroute.shape.sharding import Sharding

DEPLOYMENTS = (
    ("llama-3.1-70b", "h100_sxm", Sharding(tp=4)),
    ("llama-3.1-70b", "h100_sxm", Sharding(pp=8)),
    ("deepseek-v3", "h200_sxm", Sharding(attention_dp=16, ep=16)),
    ("deepseek-v3.2", "h200_sxm", Sharding(tp=8)),
    ("gemma-3n-e4b", "l4", Sharding()),
)
SIZE = ("size", "deepseek-v3", "--accelerator", "h200_sxm", "--count", "16", "--context", "128000",
        "--concurrency", "64", "--weights", "fp8")  # fmt: skip


SLOS: dict[str, dict[str, float]] = {
    "": {},
    "_with_slo": {"tpot_ms": 50.0},
    "_with_slo_on_ttft": {"ttft_ms": 2_000.0},
    "_with_all_slos": {"ttft_ms": 2_000.0, "tpot_ms": 50.0, "e2e_ms": 60_000.0},
}


def read(stand: Stand, workload: Workload) -> tuple[Ceiling | None, Ceiling | None]:
    """All ceilings, and what a person reads of them: the binding one and the next, with their numbers."""
    found = ceilings(stand, workload)
    return found.binding, found.next


def stands() -> list[Stand]:
    """Deployments of many kinds."""
    found = []
    for name, kind, split in DEPLOYMENTS:
        model, accelerator, serving = shipped().model(name), shipped().accelerator(kind), Serving(weights="fp8")
        made = Roofline.of(model, accelerator, split, quantisation=serving.quantisation(model))
        found.append(Stand(model, accelerator, split, hold(model, accelerator, split, serving), made))
    return found


def main() -> None:
    """One line for each function, and one for the command."""
    every, sizes = stands(), random.Random(7)
    made = [stand.roofline for stand in every if not isinstance(stand.roofline, Unknown)] * 40
    loads = [(sizes.randint(1, 512), sizes.randint(200, 100_000)) for _ in made]
    per_call("roofline.decode", [partial(one.decode, n, tokens) for one, (n, tokens) in zip(made, loads, strict=True)])
    per_call("roofline.prefill", [partial(one.prefill, t, n=n) for one, (n, t) in zip(made, loads, strict=True)])
    for asked, (name, slos) in product((read, binding), SLOS.items()):
        calls = [
            partial(asked, every[i % len(every)], Workload(tokens, 1_000, n, **slos))
            for i, (n, tokens) in enumerate(loads)
        ]
        per_call(("ceilings" if asked is read else "binding") + name, calls)
    line("agentroute size", 5, seconds=round(min(_command() for _ in range(5)), 3))


def _command() -> float:
    """Wall time of the command in a fresh interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "agentroute.cli", *SIZE], check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
