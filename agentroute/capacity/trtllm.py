"""TensorRT-LLM's KV pool: blocks of 32 or 64 tokens in a share of the memory that is free after loading.

Rules: ``mapping.py``, ``_torch/pyexecutor/_util.py``; only three logs confirm them, none with more than one GPU.
"""

from __future__ import annotations

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, KvType, Unknown
from agentroute.capacity.pool import Pool
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

FREE_FRACTION = 0.9
"""``free_gpu_memory_fraction``: the share of free memory that the KV cache takes."""

BLOCK_TOKENS = 32
"""``tokens_per_block`` of the PyTorch backend; 64 elsewhere."""


def token_bytes(model: Model, sharding: Sharding, kv_type: KvType, *, draft: bool = False) -> int | Unknown:
    """Bytes of one token per accelerator, on the stage that keeps the most."""
    found = kv.specs(model, sharding.tp, kv_type, draft=draft)
    if isinstance(found, Unknown):
        return found
    if any(spec.kind == "state" for spec in found):
        return Unknown("TensorRT-LLM's pool of a model with recurrent states is not known here")
    if sum(1 for spec in found if spec.kind != "full") and len(found) > 1:
        return Unknown("TensorRT-LLM's pools for windows of several sizes are not known here")
    order, start, most = kv.sequence([spec.count for spec in found]), 0, 0
    for part in kv.trtllm_stages(len(order), sharding.pp):
        most = max(most, sum(found[kind].row_bytes for kind in order[start : start + part]))
        start += part
    return most


def pool(
    model: Model, sharding: Sharding, kv_type: KvType, kv_gib: float, *, block_tokens: int = BLOCK_TOKENS
) -> Pool | Unknown:
    """The pool in ``kv_gib`` GiB of KV memory per accelerator."""
    size = token_bytes(model, sharding, kv_type)
    return size if isinstance(size, Unknown) else Pool(int(kv_gib * GIB / (size * block_tokens)), block_tokens)


def needed_gib(model: Model, sharding: Sharding, kv_type: KvType, tokens: int) -> float | Unknown:
    """GiB of KV per accelerator for one sequence of ``tokens`` tokens, in whole blocks of 32."""
    size = token_bytes(model, sharding, kv_type)
    if isinstance(size, Unknown):
        return size
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS * size / GIB
