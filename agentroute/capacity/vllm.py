"""vLLM's KV pool: groups of layers that share one pool of equal pages.

Rules: vLLM 0.33 ``v1/core/kv_cache_utils.py``, ``v1/kv_cache_interface.py``, ``platforms/interface.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, Kind, KvType, Spec, Unknown
from agentroute.shape.model import Mla, Model
from agentroute.shape.sharding import Sharding

TokenRule = Literal["blocks_per_group", "concurrency"]
"""How the start-up log counts tokens. ``blocks_per_group`` (to about 0.19): blocks // groups x block;
``concurrency`` (from about 0.20): concurrency at max_model_len x max_model_len."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else decides the pool. ``None`` for ``block_tokens``: 16, or 64 for latent attention.

    ``batched_tokens`` is ``--max-num-batched-tokens`` (the engine's default is 2,048, on GPUs of 70 GiB and more
    8,192); ``hybrid`` False charges windowed layers their full length (the V0 engine, some connectors, a disabled
    hybrid manager); ``align`` is the state cache's mode with prefix caching; ``partition`` is
    ``VLLM_PP_LAYER_PARTITION``; ``whole_model_check`` is the admission check of 0.15, which charged all layers of the
    model to one stage.
    """

    block_tokens: int | None = None
    batched_tokens: int = 8_192
    hybrid: bool = True
    align: bool = True
    draft: bool = False
    speculative_tokens: int = 0
    conv_bytes: int = 2
    ssm_bytes: int = 4
    partition: tuple[int, ...] | None = None
    whole_model_check: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """``groups`` groups of layers of one kind; ``extra_blocks`` are state pages beyond the first."""

    kind: Kind
    groups: int
    block_tokens: int
    span_tokens: int = 0
    extra_blocks: int = 0

    def units(self, tokens: int, batched_tokens: int) -> int:
        """Blocks that one sequence of ``tokens`` tokens takes in one of these groups.

        Windowed layers hold their window and the batch in flight (``SlidingWindowSpec.max_memory_usage_bytes``).
        """
        match self.kind:
            case "full":
                return -(-tokens // self.block_tokens)
            case "sliding":
                return -(-min(self.span_tokens - 1 + batched_tokens, tokens) // self.block_tokens) + 1
            case "chunked":
                return -(-min(self.span_tokens + batched_tokens, tokens) // self.block_tokens)
            case "state":
                return 1 + self.extra_blocks


@dataclass(frozen=True, slots=True)
class Layout:
    """How a sharded model's cache is laid out: everything but the memory it is given.

    ``block_bytes`` is one block of all layers of a group on the fullest stage, per accelerator. ``dcp`` ranks share
    one sequence's tokens, so a block holds ``dcp`` times as many. ``check_bytes`` are the (row bytes, group) pairs
    that the admission check sums.
    """

    groups: tuple[Group, ...]
    block_bytes: int
    batched_tokens: int
    check: tuple[tuple[int, Group], ...]

    @property
    def block_tokens(self) -> int:
        """Tokens of the smallest block."""
        return min(group.block_tokens for group in self.groups if group.kind != "state" or len(self.groups) == 1)

    def units(self, tokens: int) -> int:
        """Blocks of the pool that one sequence of ``tokens`` tokens takes."""
        return sum(group.groups * group.units(tokens, self.batched_tokens) for group in self.groups)

    def pool(self, kv_gib: float) -> VllmPool:
        """The pool in ``kv_gib`` GiB of KV memory per accelerator (the least of all ranks)."""
        return VllmPool(self, max(0, int(kv_gib * GIB / self.block_bytes)))

    def needed_gib(self, tokens: int) -> float:
        """GiB per accelerator for one sequence of ``tokens`` tokens, as the admission check counts it."""
        return sum(bytes_ * group.units(tokens, self.batched_tokens) for bytes_, group in self.check) / GIB


@dataclass(frozen=True, slots=True)
class VllmPool:
    """``blocks`` blocks of one layout, shared by all of its groups."""

    layout: Layout
    blocks: int

    def units(self, tokens: int) -> int:
        """Blocks that one sequence of ``tokens`` tokens takes."""
        return self.layout.units(tokens)

    def concurrency(self, tokens: int) -> float:
        """Sequences of ``tokens`` tokens that fit at once, as the log prints it: a fraction."""
        return self.blocks / self.units(tokens)

    def sequences(self, tokens: int) -> int:
        """Whole sequences of ``tokens`` tokens that fit at once."""
        return self.blocks // self.units(tokens)

    def printed_tokens(self, rule: TokenRule, max_model_len: int | None = None) -> int | Unknown:
        """The number of tokens that the start-up log prints under ``rule``."""
        if rule == "blocks_per_group":
            return self.blocks // sum(group.groups for group in self.layout.groups) * self.layout.block_tokens
        if max_model_len is None:
            return Unknown("the newer count of tokens depends on max_model_len, which is unknown")
        return int(self.concurrency(max_model_len) * max_model_len)

    def longest_tokens(self, limit: int = 1 << 30) -> int:
        """The longest sequence that fits alone, in tokens, at most ``limit``; 0 when none does."""
        return longest(self.layout.units, self.blocks, limit)


def longest(units: Callable[[int], float], blocks: float, limit: int) -> int:
    """The largest number of tokens, at most ``limit``, whose ``units`` do not exceed ``blocks``."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if units(middle) <= blocks else (low, middle - 1)
    return low


def layout(model: Model, sharding: Sharding, kv_type: KvType, options: Options = Options()) -> Layout | Unknown:
    """The layout of ``model``'s cache; the pool of one attention replica when there are several."""
    found = kv.specs(
        model,
        sharding.tp,
        kv_type,
        draft=options.draft,
        conv_bytes=options.conv_bytes,
        ssm_bytes=options.ssm_bytes,
        speculative_tokens=options.speculative_tokens,
    )
    if isinstance(found, Unknown):
        return found
    if not any(spec.row_bytes for spec in found):
        return Unknown("the model keeps no KV, only states, and such a pool's rule is unknown")
    if not options.hybrid:
        found = tuple(s if s.kind == "state" else replace(s, kind="full", span_tokens=None) for s in found)
    latent = any(isinstance(group.attention, Mla) for group in model.layers)
    block = options.block_tokens or (64 if latent else 16)
    if all(spec.kind == "full" for spec in found) or len(found) == 1:
        return _uniform(found, block, sharding, options)
    return _hybrid(found, block, 64 if latent else 16, sharding, options)


def _uniform(found: tuple[Spec, ...], block: int, sharding: Sharding, options: Options) -> Layout:
    """One group, whose layers may keep rows of different sizes (``UniformTypeKVCacheSpecs``)."""
    group = Group(found[0].kind, 1, block * sharding.dcp, found[0].span_tokens or 0)
    stages = _stages([spec.count for spec in found], sharding.pp, options.partition)
    rows = [sum(spec.row_bytes * n for spec, n in zip(found, stage, strict=True)) for stage in stages]
    whole = sum(spec.row_bytes * spec.count for spec in found)
    check = whole if options.whole_model_check else max(rows)
    return Layout((group,), max(rows) * block, options.batched_tokens, ((check * block, group),))


def _hybrid(found: tuple[Spec, ...], block: int, kernel: int, sharding: Sharding, options: Options) -> Layout | Unknown:
    """Groups of equally many layers with one page size (``_get_kv_cache_groups_uniform_page_size``).

    A state decides the attention block: enough tokens of attention to be as large as one state, rounded up to the
    kernel's step (``_align_hybrid_block_size``). A smaller page gets more tokens until it is as large as the largest.
    """
    row = max(spec.row_bytes for spec in found)
    state = max(spec.state_bytes for spec in found)
    if state:
        block = max(block, -(-state // (row * kernel)) * kernel)
    page = row * block
    least, most = min(s.count for s in found), max(s.count for s in found)
    size = most if most < least * 1.5 else least
    groups, check = [], []
    for spec in found:
        if spec.row_bytes and row % spec.row_bytes:
            return Unknown(f"pages of {spec.row_bytes} and {row} bytes a token cannot be made alike")
        tokens = block * (row // spec.row_bytes) if spec.row_bytes else block
        extra = (1 if options.align else 0) + options.speculative_tokens
        # A state is never spread over the ranks of a decode context split.
        dcp = 1 if spec.kind == "state" else sharding.dcp
        group = Group(spec.kind, -(-spec.count // size), tokens * dcp, spec.span_tokens or 0, extra)
        groups.append(group)
        check.append((page * spec.count, group))
    fullest = size
    if sharding.pp > 1:
        counts, dealt = [spec.count for spec in found], [group.groups for group in groups]
        fullest = _fullest(counts, dealt, sharding.pp, options.partition)
        if not options.whole_model_check:
            check = [(page * fullest * group.groups, group) for group in groups]
    return Layout(tuple(groups), page * fullest, options.batched_tokens, tuple(check))


def _parts(layers: int, pp: int, partition: tuple[int, ...] | None) -> tuple[int, ...]:
    return partition if partition and sum(partition) == layers else kv.vllm_stages(layers, pp)


def _stages(counts: Sequence[int], pp: int, partition: tuple[int, ...] | None) -> list[list[int]]:
    """How many layers of each kind stand on each stage."""
    if pp == 1:
        return [list(counts)]
    order, start, stages = kv.sequence(counts), 0, []
    for part in _parts(len(order), pp, partition):
        here = order[start : start + part]
        stages.append([here.count(kind) for kind in range(len(counts))])
        start += part
    return stages


def _fullest(counts: Sequence[int], groups: Sequence[int], pp: int, partition: tuple[int, ...] | None) -> int:
    """Layers of the fullest group on the fullest stage; a kind's layers are dealt to its groups in turn."""
    dealt, start, most = [0] * len(counts), 0, 1
    order = kv.sequence(counts)
    for part in _parts(len(order), pp, partition):
        here: dict[tuple[int, int], int] = {}
        for kind in order[start : start + part]:
            key = (kind, dealt[kind] % groups[kind])
            dealt[kind] += 1
            here[key] = here.get(key, 0) + 1
        most, start = max([most, *here.values()]), start + part
    return most
