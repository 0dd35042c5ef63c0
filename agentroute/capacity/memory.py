"""Memory that is left for the KV cache beside the weights and what the engine takes for itself: a band.

Every engine measures at start what its activations, graphs and buffers take, so nobody can know it exactly before. How
each of them divides the memory is in vLLM 0.33 ``v1/worker/gpu_worker.py``, SGLang 0.5.23
``mem_cache/kv_cache_configurator.py`` and TensorRT-LLM ``_torch/pyexecutor/_util.py``; llama.cpp allocates what it is
asked for.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from agentroute.capacity.kv import GIB
from agentroute.estimate import Estimate

Engine = Literal["vllm", "sglang", "trtllm", "llamacpp"]
"""The engines whose rules are known."""

ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "trtllm", "llamacpp")


def minor_version(text: str | None) -> tuple[int, int] | None:
    """An engine's version as (major, minor): ``v0.19.1`` is (0, 19). ``None`` when it is not known to the minor."""
    found = re.match(r"v?(\d+)\.(\d+)(?![\dx])", text or "")
    return (int(found[1]), int(found[2])) if found else None


WEIGHTS_BAND = 0.03
"""How far off the counted weights may be, as a fraction: 80 % of the logs of ``agentroute validate kv`` agree within
about that."""


class Budget(NamedTuple):
    """How an engine divides an accelerator's memory: GiB are for KV after

    ``share x (memory - context) - weights - engine`` (``of_free`` False), or
    ``share x (memory - context - weights - engine)`` (``of_free`` True). Every part is (low, high).
    """

    share: tuple[float, float]
    context_gib: tuple[float, float]
    engine_gib: tuple[float, float]
    engine_share: float = 0.0
    activations: tuple[float, float] = (0.0, 0.0)
    of_free: bool = False


BUDGETS: dict[Engine, Budget] = {
    # --gpu-memory-utilization is a share of the whole memory, 0.9 unless told otherwise. What logs show beside weights
    # and KV: 1.7 GiB (32B, tp2), 2.4-3.3 (8B), 3.0 (32B, pp2), 7.5 (GLM-5.1 on 96 GB, tp8), 8.9 (70B on H200, tp8,
    # with 131,072 tokens in a step).
    "vllm": Budget((0.9, 0.9), (0.0, 0.0), (1.0, 2.5), engine_share=0.06, activations=(1.0, 4.0)),
    # --mem-fraction-static is set from the GPU's memory at start; logs show 0.82-0.92, mostly 0.87. Activations must
    # find room in what it leaves.
    "sglang": Budget((0.82, 0.90), (0.4, 1.5), (0.0, 2.5)),
    # free_gpu_memory_fraction is a share of what is free after loading and a trial run, 0.9 unless told otherwise.
    "trtllm": Budget((0.9, 0.9), (0.5, 1.5), (0.5, 3.0), activations=(1.0, 4.0), of_free=True),
    # Nothing is kept back, but the compute buffers of one micro-batch.
    "llamacpp": Budget((1.0, 1.0), (0.3, 1.0), (0.3, 2.0)),
}
"""By engine; assumed from the few logs that show enough (vLLM: 8, SGLang: 13, TensorRT-LLM: 1)."""


def left_for_kv(
    engine: Engine,
    memory_gib: float,
    weights_gib: float,
    *,
    hidden_size: int,
    batched_tokens: int,
    utilisation: float | None = None,
) -> Estimate:
    """GiB per accelerator that ``engine`` keeps KV in; below zero where the weights alone do not fit.

    ``utilisation`` is what the engine was told (vLLM's gpu_memory_utilization, SGLang's mem_fraction_static,
    TensorRT-LLM's free_gpu_memory_fraction); ``None``: its default. ``batched_tokens`` are the tokens of one step.
    """
    (low_share, high_share), (least, most), own, engine_share, activations, of_free = BUDGETS[engine]
    if utilisation is not None:
        low_share = high_share = utilisation
    activation = batched_tokens * hidden_size * 2 / GIB
    most_own, least_own = (
        own[1] + engine_share * memory_gib + activation * activations[1],
        own[0] + activation * activations[0],
    )
    heavy, light = weights_gib * (1 + WEIGHTS_BAND), weights_gib * (1 - WEIGHTS_BAND)
    if of_free:
        low = low_share * (memory_gib - most - heavy - most_own)
        high = high_share * (memory_gib - least - light - least_own)
    else:
        low = low_share * (memory_gib - most) - heavy - most_own
        high = high_share * (memory_gib - least) - light - least_own
    return Estimate((low + high) / 2, low, high, "derived")


def usable_gib(engine: Engine, memory_gib: float, utilisation: float | None = None) -> float:
    """The most that weights, KV and the engine together may take on one accelerator, in GiB."""
    budget = BUDGETS[engine]
    if budget.of_free:
        return memory_gib - budget.context_gib[0]
    return (utilisation if utilisation is not None else budget.share[1]) * (memory_gib - budget.context_gib[0])
