"""A model's weights in bytes under one quantisation, ready to be split."""

from __future__ import annotations

from collections.abc import Callable
from operator import mul
from typing import NamedTuple

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, MIB
from agentroute.shape.sharding import Sharding

LARGE_BYTES, STEP_BYTES = 10 * MIB, 2 * MIB
"""A tensor of 10 MiB or more takes whole 2 MiB (PyTorch ``CUDACachingAllocator``: kMinLargeAlloc, kRoundLarge)."""


class LayerBytes(NamedTuple):
    """One layer of a group in bytes, under some quantisation: tensors over attention's ranks, and over those of dense
    parts; (bytes, KV heads, bytes of each KV head that a rank holds) of tensors with heads; routed experts; the rest.
    """

    tensor: tuple[float, ...]
    dense: tuple[float, ...]
    heads: tuple[tuple[float, int, float], ...]
    routed: float
    always: float

    def on(self, tp: int, dense_ranks: int, ranks: int) -> float:
        """Bytes on one accelerator, where tensors are split over so many, and experts over ``ranks``."""
        tensor, dense, heads, routed, total = self
        if dense_ranks == tp:
            tensor, dense = tensor + dense, ()
        for size in tensor:
            size /= tp
            total += size if size < LARGE_BYTES else -(-size // STEP_BYTES) * STEP_BYTES
        for size in dense:
            size /= dense_ranks
            total += size if size < LARGE_BYTES else -(-size // STEP_BYTES) * STEP_BYTES
        for size, kv_heads, head in heads:
            size = size / tp + head * (kv_heads / tp if kv_heads > tp else 1)
            total += size if size < LARGE_BYTES else -(-size // STEP_BYTES) * STEP_BYTES
        return total + routed / ranks


class InBytes(NamedTuple):
    """A model's weights in bytes, under one quantisation: those of a layer of each group, and so on as in ``Parts``.

    ``split`` is what else stands on the first stage over the tensor ranks, ``always`` what every rank keeps whole.
    """

    groups: tuple[LayerBytes, ...]
    counts: tuple[int, ...]
    draft: tuple[tuple[int, LayerBytes], ...]
    joint: float
    output: tuple[bool, bool]
    table: float
    split: float
    always: float

    def gib(
        self,
        sharding: Sharding,
        stages: Callable[[int, int], tuple[int, ...]] = kv.vllm_stages,
        dense_over_replicas: bool = False,
        draft: bool = False,
    ) -> float:
        """As ``Parts.gib``."""
        tp, pp = sharding.tp, sharding.pp
        ranks = tp * sharding.attention_dp
        dense = ranks if dense_over_replicas else tp
        table = self.table / tp
        first, last = table + self.split / tp, 0.0
        if draft:
            for count, kept in self.draft:
                last += count * (kept.on(tp, dense, ranks) + self.joint)
        # A tied output layer is the embedding itself, unless it stands on another stage.
        if self.output[0 if pp > 1 else 1]:
            last += table
        if pp == 1:
            for kept, count in zip(self.groups, self.counts, strict=True):
                first += kept.on(tp, dense, ranks) * count
            return (first + last + self.always) / GIB
        sizes = [kept.on(tp, dense, ranks) for kept in self.groups]
        here, there, between = kv.ends_and_between(self.counts, stages(sum(self.counts), pp))
        most: float = first + sum(map(mul, sizes, here))
        end = last + sum(map(mul, sizes, there))
        if end > most:
            most = end
        for stage in between:
            size = sum(map(mul, sizes, stage))
            if size > most:
                most = size
        return (most + self.always) / GIB


def allocated(size: float) -> float:
    """Bytes that a tensor of ``size`` bytes takes."""
    return size if size < LARGE_BYTES else -(-size // STEP_BYTES) * STEP_BYTES
