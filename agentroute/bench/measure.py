"""Measuring a running server: a short closed-loop latency curve, one point a load."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agentroute.client import Client, Reply
from agentroute.errors import AgentrouteError, BackendError, FailureKind
from agentroute.latency.points import Measured, Point
from agentroute.task import Task

_WORDS = (
    "river",
    "stone",
    "window",
    "paper",
    "garden",
    "engine",
    "copper",
    "winter",
    "music",
    "letter",
    "market",
    "bridge",
)


@dataclass(frozen=True, slots=True)
class Load:
    """What to send: ``concurrency`` requests of about ``isl`` prompt tokens at once, ``osl`` answer tokens each."""

    isl: int
    osl: int
    concurrency: int


def measure(
    client: Client, loads: Sequence[Load], *, seed: int = 0, progress: Callable[[Load], None] = lambda load: None
) -> list[Point]:
    """A point for each load, at the prompt length that the server counted.

    ``client`` routes over exactly the server to be measured. Prompts are random words, so that no prefix cache helps,
    and greedy. Raises ``BackendError`` when a request fails, or when the server does not count its tokens.
    """
    words = random.Random(seed)
    bursts = []
    for load in loads:
        progress(load)
        bursts.append((load, _burst(client, load, words)))
    # Random words differ by a token or two; loads that were asked for as equal stay equal.
    counted: dict[int, list[int]] = {}
    for load, replies in bursts:
        counted.setdefault(load.isl, []).extend(_tokens(reply)[0] for reply in replies)
    return [_point(round(fmean(counted[load.isl])), load, replies) for load, replies in bursts]


def _burst(client: Client, load: Load, words: random.Random) -> list[Reply]:
    prompts = [_prompt(load.isl, words) for _ in range(load.concurrency)]
    threads = ThreadPoolExecutor(load.concurrency)
    try:
        return list(threads.map(lambda prompt: _ask(client, load, prompt), prompts))
    finally:
        # After Ctrl-C nobody waits for answers; closing the client ends them.
        threads.shutdown(wait=False, cancel_futures=True)


def _ask(client: Client, load: Load, prompt: str) -> Reply:
    task = Task(context_tokens=load.isl, max_output_tokens=load.osl)
    body: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
    with client.stream([{"role": "user", "content": prompt}], task=task, body=body) as events:
        for _ in events:
            pass
        reply = events.reply
    if reply is None:
        raise AgentrouteError("the stream ended without a reply")
    return reply


def _prompt(tokens: int, words: random.Random) -> str:
    """About ``tokens`` tokens with the chat template: one word is little more than one token."""
    chosen: Iterator[str] = (words.choice(_WORDS) for _ in itertools.count())
    return " ".join(itertools.islice(chosen, max(1, tokens - 40)))


def _tokens(reply: Reply) -> tuple[int, int]:
    prompt, answer = reply.usage.prompt_tokens, reply.usage.completion_tokens
    if prompt is None or answer is None:
        detail = "it does not report its token usage, so nothing can be measured"
        raise BackendError(FailureKind.BAD_REQUEST, detail, deployment=reply.decision.deployment)
    return prompt, answer


def _point(isl: int, load: Load, replies: Sequence[Reply]) -> Point:
    osl = round(fmean(_tokens(reply)[1] for reply in replies))
    ttft_ms = fmean(reply.seen.ttft_s or reply.seen.e2e_s for reply in replies) * 1_000
    e2e_ms = fmean(reply.seen.e2e_s for reply in replies) * 1_000
    return Point(
        isl=isl,
        osl=osl,
        concurrency=load.concurrency,
        ttft_ms=Measured(mean=round(ttft_ms, 2)),
        tpot_ms=Measured(mean=round((e2e_ms - ttft_ms) / (osl - 1), 3)) if osl > 1 and e2e_ms > ttft_ms else None,
        e2e_ms=Measured(mean=round(e2e_ms, 2)),
    )
