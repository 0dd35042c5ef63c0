"""TensorRT-LLM's KV pool: blocks of 32 or 64 tokens in a share of the memory that is free after loading.

Rules: ``mapping.py``, ``_torch/pyexecutor/_util.py``, ``_torch/pyexecutor/resource_manager.py`` (``KVCacheManager``);
only three logs confirm them, none with more than one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, KvShape, KvType, Unknown
from agentroute.capacity.pool import Pool
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

FREE_FRACTION = 0.9
"""``free_gpu_memory_fraction``: the share of free memory that the KV cache takes."""

BLOCK_TOKENS = 32
"""``tokens_per_block`` of the PyTorch backend; 64 elsewhere."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else decides the pool.

    ``windows`` says whether windowed layers keep their window only. False: they keep everything, as in
    ``KVCacheManager`` without ``max_attention_window``. True: with that option, or in ``KVCacheManagerV2``, which
    derives it from the model. ``None``: nobody said.
    """

    block_tokens: int = BLOCK_TOKENS
    draft: bool = False
    windows: bool | None = None


class Layout(NamedTuple):
    """``token_bytes`` are the bytes of one token per accelerator, on the stage that keeps the most."""

    token_bytes: int
    block_tokens: int

    def pool(self, kv_gib: float) -> Pool:
        """The pool in ``kv_gib`` GiB of KV memory per accelerator."""
        return Pool(max(0, int(kv_gib * GIB / (self.token_bytes * self.block_tokens))), self.block_tokens)

    def pool_of(self, cache_gib: float) -> Pool:
        """The same: there is nothing but KV in it."""
        return self.pool(cache_gib)

    def needed_gib(self, tokens: int) -> float:
        """GiB of KV per accelerator for one sequence of ``tokens`` tokens, in whole blocks."""
        return -(-tokens // self.block_tokens) * self.block_tokens * self.token_bytes / GIB


def layout(
    model: Model | KvShape, sharding: Sharding, kv_type: KvType, options: Options = Options()
) -> Layout | Unknown:
    """The layout on the stage that keeps the most; the pool of one attention replica when there are several.

    With windows of several sizes, each size has a pool of its own and an equal share of the memory
    (``calculate_max_num_blocks_for_vswa``). How many blocks a sequence holds there is in compiled code that was not
    read, nor were the rules of recurrent states, and no log shows either: both have a reason instead of a number.
    """
    shape = model if isinstance(model, KvShape) else KvShape.of(model)
    found = shape.specs(sharding.tp, kv_type, options.draft)
    if isinstance(found, Unknown):
        return found
    if found.most_state_bytes:
        return Unknown("TensorRT-LLM's pool of a model with recurrent states is not known here")
    if not found.all_full and options.windows:
        return Unknown("how many blocks a sequence holds in TensorRT-LLM's pools of windowed layers is not known here")
    if not found.all_full and options.windows is None and len(found) > 1:
        return Unknown("TensorRT-LLM's pools for windows of several sizes are not known here")
    if sharding.dcp > 1:
        return Unknown("TensorRT-LLM's pool under a decode context split is not known here")
    rows, counts = [spec.row_bytes for spec in found], found.counts
    stages: tuple[tuple[int, ...], ...] = (counts,)
    if sharding.pp > 1:
        stages = kv.fullest_stages(counts, kv.trtllm_stages(sum(counts), sharding.pp))
    return Layout(max([kv.dot(rows, stage) for stage in stages]), options.block_tokens)


def token_bytes(model: Model, sharding: Sharding, kv_type: KvType, *, draft: bool = False) -> int | Unknown:
    """Bytes of one token per accelerator, on the stage that keeps the most."""
    found = layout(model, sharding, kv_type, Options(draft=draft))
    return found if isinstance(found, Unknown) else found.token_bytes


def pool(
    model: Model, sharding: Sharding, kv_type: KvType, kv_gib: float, *, block_tokens: int = BLOCK_TOKENS
) -> Pool | Unknown:
    """The pool in ``kv_gib`` GiB of KV memory per accelerator."""
    found = layout(model, sharding, kv_type, Options(block_tokens=block_tokens))
    return found if isinstance(found, Unknown) else found.pool(kv_gib)


def needed_gib(model: Model, sharding: Sharding, kv_type: KvType, tokens: int) -> float | Unknown:
    """GiB of KV per accelerator for one sequence of ``tokens`` tokens, in whole blocks of 32."""
    found = layout(model, sharding, kv_type)
    return found if isinstance(found, Unknown) else found.needed_gib(tokens)
