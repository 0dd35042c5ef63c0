"""vLLM's KV pool: groups of layers that share one pool of equal pages.

Rules: vLLM 0.33 ``v1/core/kv_cache_utils.py``, ``v1/kv_cache_interface.py``, ``platforms/interface.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, Kind, KvShape, KvType, Spec, Specs, Unknown
from agentroute.capacity.pool import NULL_BLOCKS, Scarce, kv_blocks
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

CONCURRENCY_SINCE = (0, 20)
"""The vLLM version from which the log's tokens are counted by ``concurrency``; about, by the logs."""

TokenRule = Literal["blocks_per_group", "concurrency"]
"""How the start-up log counts tokens. ``blocks_per_group`` (to about 0.19): blocks // groups x block;
``concurrency`` (from about 0.20): concurrency at max_model_len x max_model_len."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else decides the pool. ``None`` for ``block_tokens``: 16, or 64 for latent attention.

    ``batched_tokens`` is ``--max-num-batched-tokens`` (the engine's default is 2,048, on GPUs of 70 GiB and more
    8,192); ``batches_in_flight`` how many such steps a windowed layer keeps beside its window: logs to 0.2x agree with
    1, 0.33 counts 2 with asynchronous scheduling and with a layer split ``pp`` or one more (``max_in_flight_tokens``);
    ``hybrid`` False charges windowed layers their full length (the V0 engine, some connectors, a disabled hybrid
    manager); ``align`` is the state cache's mode with prefix caching; ``partition`` is ``VLLM_PP_LAYER_PARTITION``;
    ``whole_model_check`` is the admission check of 0.15, which charged all layers of the model to one stage.
    """

    block_tokens: int | None = None
    batched_tokens: int = 8_192
    batches_in_flight: int = 1
    hybrid: bool = True
    align: bool = True
    draft: bool = False
    speculative_tokens: int = 0
    conv_bytes: int = 2
    ssm_bytes: int = 4
    partition: tuple[int, ...] | None = None
    whole_model_check: bool = False


class Group(NamedTuple):
    """``groups`` groups of layers of one kind.

    A windowed sequence holds at most ``held_tokens``: its window and the batch in flight, or its chunk and the batch.
    ``fixed_blocks`` are blocks beside what its tokens fill: one for a window that may begin inside a block, and the
    pages of a state.
    """

    kind: Kind
    groups: int
    block_tokens: int
    held_tokens: int | None = None
    fixed_blocks: int = 0

    def units(self, tokens: int) -> int:
        """Blocks that one sequence of ``tokens`` tokens takes in one of these groups."""
        if self.kind == "full":
            return -(-tokens // self.block_tokens)
        if self.held_tokens is None:
            return self.fixed_blocks
        return -(-min(self.held_tokens, tokens) // self.block_tokens) + self.fixed_blocks


class Layout(NamedTuple):
    """How a sharded model's cache is laid out: everything but the memory it is given.

    ``block_bytes`` is one block of all layers of a group on the fullest stage, per accelerator. ``dcp`` ranks share
    one sequence's tokens, so a block holds ``dcp`` times as many. ``check`` are the (bytes of a block, group) pairs
    that the admission check sums.
    """

    groups: tuple[Group, ...]
    block_bytes: int
    check: tuple[tuple[int, Group], ...]

    @property
    def block_tokens(self) -> int:
        """Tokens of the smallest block; 1 where only states are kept, which hold any length."""
        if len(self.groups) == 1 and self.groups[0].kind != "state":
            return self.groups[0].block_tokens
        least = 0
        for group in self.groups:
            if group.kind != "state" and not 0 < least <= group.block_tokens:
                least = group.block_tokens
        return least or 1

    def units(self, tokens: int) -> int:
        """Blocks of the pool that one sequence of ``tokens`` tokens takes."""
        total = 0
        # ``Group.units``, without the call.
        for kind, groups, block_tokens, held, fixed in self.groups:
            if kind == "full":
                total += groups * -(-tokens // block_tokens)
            elif held is None:
                total += groups * fixed
            else:
                total += groups * (-(-(held if held < tokens else tokens) // block_tokens) + fixed)
        return total

    def pool(self, kv_gib: float) -> VllmPool:
        """The pool in ``kv_gib`` GiB of KV memory per accelerator (the least of all ranks), states included."""
        blocks = int(kv_gib * GIB / self.block_bytes)
        return VllmPool(self, blocks if blocks > 0 else 0)

    def of_printed(self, tokens: int, rule: TokenRule, max_model_len: int | None = None) -> VllmPool:
        """The pool of which the log prints ``tokens`` under ``rule``: ``printed_tokens`` the other way round."""
        if rule == "blocks_per_group" or max_model_len is None:
            return VllmPool(self, tokens // self.block_tokens * sum(group.groups for group in self.groups))
        return VllmPool(self, int(tokens / max_model_len * self.units(max_model_len)))

    def pool_of(self, cache_gib: float) -> VllmPool:
        """The same as ``pool``: KV and states share one pool of pages."""
        blocks = int(cache_gib * GIB / self.block_bytes)
        return VllmPool(self, blocks if blocks > 0 else 0)

    def needed_gib(self, tokens: int) -> float:
        """GiB per accelerator for one sequence of ``tokens`` tokens, as the admission check counts it."""
        return sum(bytes_ * group.units(tokens) for bytes_, group in self.check) / GIB


class VllmPool(NamedTuple):
    """``allocated`` blocks of one layout, shared by all of its groups."""

    layout: Layout
    allocated: int

    @property
    def blocks(self) -> int:
        """Blocks that sequences can have: all but ``NULL_BLOCKS``."""
        return self.allocated - NULL_BLOCKS if self.allocated > NULL_BLOCKS else 0

    @property
    def block_tokens(self) -> int:
        """Tokens of the smallest block."""
        return self.layout.block_tokens

    def units(self, tokens: int) -> int:
        """Blocks that one sequence of ``tokens`` tokens takes."""
        return self.layout.units(tokens)

    def concurrency(self, tokens: int) -> float:
        """Sequences of ``tokens`` tokens that fit at once, as the log prints it: a fraction of all blocks."""
        return self.allocated / self.layout.units(tokens)

    def sequences(self, tokens: int) -> int:
        """Whole sequences of ``tokens`` tokens that fit at once."""
        return self.blocks // self.layout.units(tokens)

    def scarcest(self, tokens: int) -> Scarce:
        """Blocks, of which all groups share one pool."""
        layout = self.layout
        return Scarce(kv_blocks(layout.block_tokens), layout.units(tokens), self.blocks)

    def printed_tokens(self, rule: TokenRule, max_model_len: int | None = None) -> int | Unknown:
        """The number of tokens that the start-up log prints under ``rule``."""
        if rule == "blocks_per_group" and any(group.kind != "state" for group in self.layout.groups):
            return self.allocated // sum(group.groups for group in self.layout.groups) * self.layout.block_tokens
        if max_model_len is None:
            return Unknown("the count of tokens depends on max_model_len, which is unknown")
        return int(self.concurrency(max_model_len) * max_model_len)

    def longest_tokens(self, limit: int = 1 << 30) -> int:
        """The longest sequence that fits alone, in tokens, at most ``limit``; 0 when none does.

        Beyond the widest window only full layers grow, so what the others leave is theirs; before it, and where their
        blocks differ, it is searched for.
        """
        fixed, growing, widest, sizes = 0, 0, 0, set()
        for group in self.layout.groups:
            if group.kind == "full":
                growing += group.groups
                sizes.add(group.block_tokens)
            else:
                held = group.held_tokens or 0
                widest, fixed = max(widest, held), fixed + group.groups * group.units(held)
        left = self.blocks - fixed
        if left >= 0 and not growing:
            return limit
        if len(sizes) > 1:
            return longest(self.layout.units, self.blocks, limit)
        found = left // growing * sizes.pop() if left >= 0 else 0
        if found >= widest:
            return min(found, limit)
        return longest(self.layout.units, self.blocks, min(widest, limit))


def longest(units: Callable[[int], float], blocks: float, limit: int) -> int:
    """The largest number of tokens, at most ``limit``, whose ``units`` do not exceed ``blocks``; else 0."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if units(middle) <= blocks else (low, middle - 1)
    return low


def layout(
    model: Model | KvShape, sharding: Sharding, kv_type: KvType, options: Options = Options()
) -> Layout | Unknown:
    """The layout of ``model``'s cache; the pool of one attention replica when there are several."""
    shape = model if isinstance(model, KvShape) else KvShape.of(model)
    found = shape.specs(
        sharding.tp,
        kv_type,
        options.draft,
        False,
        options.conv_bytes,
        options.ssm_bytes,
        options.speculative_tokens,
    )
    if isinstance(found, Unknown):
        return found
    if not options.hybrid:
        found = Specs([s if s.kind == "state" else replace(s, kind="full", span_tokens=None) for s in found])
    if sharding.dcp > 1 and (reason := _refused_dcp(shape, sharding, found)):
        return Unknown(reason)
    kernel = 64 if shape.latent else 16
    if found.all_full or len(found) == 1:
        return _uniform(found, options.block_tokens or kernel, sharding, options)
    return _hybrid(found, options.block_tokens or kernel, kernel, sharding, options)


def _refused_dcp(shape: KvShape, sharding: Sharding, found: Specs) -> str | None:
    """Why vLLM refuses a decode context split (``ModelConfig.verify_with_parallel_config``); ``None``: it does not.

    Only ranks that would hold copies of the same heads can share a sequence's tokens.
    """
    if any(spec.kind == "sliding" for spec in found):
        return "vLLM refuses a decode context split of layers with a sliding window"
    for _, heads in shape.heads:
        if heads is not None:
            copies = max(1, sharding.tp // heads)
            if sharding.dcp > copies:
                return (
                    f"vLLM refuses dcp {sharding.dcp}: tp {sharding.tp} keeps each of {heads} KV heads {copies} times"
                )
    return None


def _group(spec: Spec, groups: int, block_tokens: int, options: Options) -> Group:
    """How many blocks a sequence takes: ``SlidingWindowSpec``, ``ChunkedLocalAttentionSpec`` and ``MambaSpec``."""
    batch, span = options.batched_tokens * options.batches_in_flight, spec.span_tokens or 0
    match spec.kind:
        case "full":
            return Group("full", groups, block_tokens)
        case "sliding":
            return Group("sliding", groups, block_tokens, span - 1 + batch, 1)
        case "chunked":
            return Group("chunked", groups, block_tokens, span + batch)
        case "state":
            return Group("state", groups, block_tokens, None, (2 if options.align else 1) + options.speculative_tokens)


def _uniform(found: Specs, block: int, sharding: Sharding, options: Options) -> Layout:
    """One group, whose layers may keep rows or states of different sizes (``UniformTypeKVCacheSpecs``)."""
    group = _group(found[0], 1, block * sharding.dcp, options)
    counts = found.counts
    if len(found) == 1:
        size = found[0].state_bytes or found[0].row_bytes * block
        whole = fullest = size * counts[0]
        if sharding.pp > 1:
            fullest = size * max(_parts(counts[0], sharding.pp, options.partition))
        return Layout((group,), fullest, ((whole if options.whole_model_check else fullest, group),))
    sizes = [spec.state_bytes or spec.row_bytes * block for spec in found]
    whole = fullest = kv.dot(sizes, counts)
    if sharding.pp > 1:
        fullest = 0
        for stage in kv.fullest_stages(counts, _parts(sum(counts), sharding.pp, options.partition)):
            size = kv.dot(sizes, stage)
            if size > fullest:
                fullest = size
    return Layout((group,), fullest, ((whole if options.whole_model_check else fullest, group),))


def _hybrid(found: Specs, block: int, kernel: int, sharding: Sharding, options: Options) -> Layout | Unknown:
    """Groups of equally many layers with one page size (``_get_kv_cache_groups_uniform_page_size``).

    A state decides the attention block: enough tokens of attention to be as large as one state, rounded up to the
    kernel's step (``_align_hybrid_block_size``). A smaller page gets more tokens until it is as large as the largest.
    """
    row, state, counts = found.most_row_bytes, found.most_state_bytes, found.counts
    least, most = min(counts), max(counts)
    if not row:
        return Unknown("vLLM's pages for states of several sizes, without KV, are not known here")
    if state:
        block = max(block, -(-state // (row * kernel)) * kernel)
    page = row * block
    size = most if most < least * 1.5 else least
    groups, check = [], []
    for spec in found:
        if spec.row_bytes and row % spec.row_bytes:
            return Unknown(f"pages of {spec.row_bytes} and {row} bytes a token cannot be made alike")
        tokens = block * (row // spec.row_bytes) if spec.row_bytes else block
        # A state is never spread over the ranks of a decode context split.
        dcp = 1 if spec.kind == "state" else sharding.dcp
        group = _group(spec, -(-spec.count // size), tokens * dcp, options)
        groups.append(group)
        check.append((page * spec.count, group))
    fullest = size
    if sharding.pp > 1:
        parts = _parts(sum(counts), sharding.pp, options.partition)
        fullest = _fullest(counts, tuple([group.groups for group in groups]), parts)
        if not options.whole_model_check:
            check = [(page * fullest * group.groups, group) for group in groups]
    return Layout(tuple(groups), page * fullest, tuple(check))


def _parts(layers: int, pp: int, partition: tuple[int, ...] | None) -> tuple[int, ...]:
    return partition if partition and sum(partition) == layers else kv.vllm_stages(layers, pp)


@lru_cache(maxsize=1_024)
def _fullest(counts: tuple[int, ...], groups: tuple[int, ...], parts: tuple[int, ...]) -> int:
    """Layers of the fullest group on the fullest stage; a kind's layers are dealt to its groups in turn."""
    dealt, start, most = [0] * len(counts), 0, 1
    order = kv.sequence(counts)
    for part in parts:
        here: dict[tuple[int, int], int] = {}
        for kind in order[start : start + part]:
            key = (kind, dealt[kind] % groups[kind])
            dealt[kind] += 1
            here[key] = here.get(key, 0) + 1
        most, start = max([most, *here.values()]), start + part
    return most
