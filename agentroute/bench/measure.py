"""A first idea of a running server's latency: one burst a load. ``bench.walk`` measures in earnest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean
from typing import Any

from agentroute.bench.plan import Load
from agentroute.bench.prompts import Lengths, Prompts
from agentroute.bench.send import Sample, ask, sample_of
from agentroute.client import Client
from agentroute.errors import AgentrouteError
from agentroute.latency.points import Measured, Point

_BODY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}

_LENGTHS = Lengths(template=40.0, per_word=1.0)
"""Near enough without asking: the points hold what the server counted."""


def measure(
    client: Client, loads: Sequence[Load], *, seed: int = 0, progress: Callable[[Load], None] = lambda load: None
) -> list[Point]:
    """A point for each load, at the prompt length that the server counted.

    ``client`` routes over exactly the server to be measured. Prompts are random words, so that no prefix cache helps,
    and greedy. Raises ``BackendError`` when a request fails, or when the server does not count its tokens.
    """
    prompts = Prompts(seed)
    bursts = []
    for load in loads:
        progress(load)
        bursts.append((load, _burst(client, load, prompts)))
    # Random words differ by a token or two; loads that were asked for as equal stay equal.
    counted: dict[int, list[int]] = {}
    for load, samples in bursts:
        counted.setdefault(load.isl, []).extend(sample.isl for sample in samples)
    return [_point(round(fmean(counted[load.isl])), load, samples) for load, samples in bursts]


def _burst(client: Client, load: Load, prompts: Prompts) -> list[Sample]:
    texts = [prompts.make(_LENGTHS.words(load.isl)) for _ in range(load.concurrency)]
    threads = ThreadPoolExecutor(load.concurrency)
    try:
        return list(threads.map(lambda text: _sample(client, load, text), texts))
    finally:
        # After Ctrl-C nobody waits for answers; closing the client ends them.
        threads.shutdown(wait=False, cancel_futures=True)


def _sample(client: Client, load: Load, text: str) -> Sample:
    reply = ask(client, text, load, osl=load.osl, body=_BODY)
    if reply is None:
        raise AgentrouteError("the stream ended without a reply")
    return sample_of(reply)


def _point(isl: int, load: Load, samples: Sequence[Sample]) -> Point:
    osl = round(fmean(sample.osl for sample in samples))
    ttft_ms = fmean(sample.ttft_ms for sample in samples)
    e2e_ms = fmean(sample.e2e_ms for sample in samples)
    return Point(
        isl=isl,
        osl=osl,
        concurrency=load.concurrency,
        ttft_ms=Measured(mean=round(ttft_ms, 2)),
        tpot_ms=Measured(mean=round((e2e_ms - ttft_ms) / (osl - 1), 3)) if osl > 1 and e2e_ms > ttft_ms else None,
        e2e_ms=Measured(mean=round(e2e_ms, 2)),
    )
