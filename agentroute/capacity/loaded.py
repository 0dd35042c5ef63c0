"""What one record says of how its model was split and quantised, and the weights that follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from agentroute.capacity import kv, weights
from agentroute.capacity.kv import Unknown
from agentroute.capacity.records import Record
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

ROOM_BAND = 0.05
"""How far counted weights may be above the room for them: as far as they are met elsewhere."""


FEWER_BITS = 0.6
"""Weights below this share of what they weigh in 16 bits are quantised: in 8 bits they weigh half."""


SYSTEM_MEMORY = re.compile(r"\bGB10\b|\bDGX Spark\b|\bThor\b|\bOrin\b")
"""Accelerators on which SGLang measures the system's memory, not its own (``get_available_gpu_memory``, 0.5.6)."""


def sharding(record: Record) -> Sharding:
    """The split of one attention replica and how many there are."""
    return Sharding(tp=record.attention_tp, pp=record.pp, attention_dp=record.dp, dcp=record.dcp)


def quantisation(record: Record, model: Model) -> weights.Quantisation | Unknown:
    """How the weights of ``record`` are kept."""
    word = (record.weights_quant or "bf16").rstrip("?")
    name = weights.scheme(word, model)
    return Unknown(f"the weights' quantisation {word!r} is not known") if name is None else weights.QUANTISATIONS[name]


@dataclass(frozen=True, slots=True)
class Weighed:
    """GiB of weights per accelerator; ``rule`` names what the log left open and its own figure chose."""

    gib: float
    rule: str | None = None


def weigh(record: Record, model: Model) -> Weighed | Unknown:
    """The weights of ``record``; a reason where they could not have fitted as it says.

    What was kept of a log often lacks its tensor split. Where the recorded one cannot have been, the one that agrees
    with the logged weights is taken, if it is one alone. Likewise where experts may have been kept twice.
    """
    if record.engine == "sglang" and SYSTEM_MEMORY.search(record.gpu or ""):
        return Unknown(
            "on this accelerator SGLang prints how much less of the system's memory is available, "
            "of which loading takes more than the weights"
        )
    found, parts = quantisation(record, model), weights.Parts.of(model)
    if isinstance(found, Unknown):
        return found
    if isinstance(parts, Unknown):
        return parts
    split = sharding(record)
    size, room, logged = _split_gib(record, parts, found, split), _room_gib(record), record.model_load_gib_per_gpu
    if logged and _may_keep_experts_twice(record, found):
        twice = _split_gib(record, parts, replace(found, experts=2 * found.experts), split)
        if abs(twice - logged) <= ROOM_BAND * logged < abs(size - logged):
            return Weighed(twice, "experts kept twice")
    if record.weights_quant is None and logged and logged < FEWER_BITS * size:
        return Unknown(f"in 16 bits they weigh {size:.0f} GiB: they are kept in fewer, and the log does not say how")
    if room is None or size <= room * (1 + ROOM_BAND):
        return Weighed(size)
    others = [split.model_copy(update={"tp": split.tp * more}) for more in (2, 4, 8, 16)]
    sizes = {other: _split_gib(record, parts, found, other) for other in others}
    agreeing = [one for one, gib in sizes.items() if logged and abs(gib - logged) <= ROOM_BAND * logged]
    if len(agreeing) == 1:
        return Weighed(sizes[agreeing[0]], f"weights over {agreeing[0]}")
    return Unknown(
        f"at the recorded split and quantisation, weights take {size:.0f} GiB of the {room:.0f} GiB that were free: "
        "the log does not show one of the two"
    )


def _may_keep_experts_twice(record: Record, kept: weights.Quantisation) -> bool:
    """Whether SGLang may have kept whole experts both as loaded and in the order that aiter's kernels want.

    SGLang 0.4.8 and 0.4.9, ``layers/moe/ep_moe/layer.py``, fp8 in blocks and SGLANG_USE_AITER: ``EPMoE.__init__`` holds
    on to the weights as created (``w13_weight_fp8``), ``process_weights_after_loading`` replaces them by shuffled
    copies. 0.4.7 does not shuffle, 0.4.10 shuffles the held tensors. Logs seldom show the version or the variable.
    """
    return record.engine == "sglang" and record.ep and record.on_amd and kept.experts == 1.0


def _split_gib(record: Record, parts: weights.Parts, kept: weights.Quantisation, split: Sharding) -> float:
    size = parts.gib(
        split,
        kept,
        stages=kv.sglang_stages if record.engine == "sglang" else kv.vllm_stages,
        dense_over_replicas=record.engine == "sglang",
        draft=record.draft_tokens > 0,
    )
    converted = record.engine == "vllm" and re.search(r"\bMI3(00|08|25)", record.gpu or "")
    return size + (parts.left_by_conversion_gib(split, kept) if converted else 0.0)


def _room_gib(record: Record) -> float | None:
    """GiB that weights could have taken: free before loading, or what the engine may use beside KV."""
    free, load, kv_gib = record.avail_after_load_gib, record.model_load_gib_per_gpu, record.kv_memory_gib_per_gpu
    if record.avail_before_gib is not None:
        return record.avail_before_gib
    if free is not None and load is not None:
        return free + load
    if record.gpu_mem_gib is None or record.gpu_memory_utilization is None or kv_gib is None:
        return None
    return record.gpu_mem_gib * record.gpu_memory_utilization - kv_gib
