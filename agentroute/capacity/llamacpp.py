"""llama.cpp's KV cache: cells times rows, layer by layer.

Rules: ``llama-context.cpp``, ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp``, ``llama-memory-recurrent.cpp``,
``llama-model.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, MIB, KvType, Unknown
from agentroute.capacity.pool import Scarce, kv_blocks
from agentroute.shape.model import Gqa, Layers, Linear, Mla, Model, NoAttention
from agentroute.shape.sharding import Sharding

MOST_CELLS = 1 << 30
"""Cells where memory sets no limit, because no layer keeps more than its window or its state."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else decides the cache.

    ``sequences`` is ``--parallel``: the cache is made for so many, and never holds more; ``unified`` one set of cells
    for all of them (``--kv-unified``), else each has its own; ``batch_tokens`` is ``--ubatch-size``; ``pad_tokens``
    what n_ctx is rounded up to (32 or 256 by build); ``windows`` False: windowed layers keep everything
    (``--swa-full``, builds before May 2025); ``latent`` False: latent attention is kept as plain heads (builds before
    MLA GGUF files); ``v_type`` is ``--cache-type-v``, ``None``: as K; ``shares`` is ``--tensor-split``, ``None``:
    even.
    """

    sequences: int = 1
    unified: bool = True
    batch_tokens: int = 512
    pad_tokens: int = 32
    windows: bool = True
    latent: bool = True
    v_type: KvType | None = None
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class LlamaPool:
    """``cells`` cells of one token each for every set; ``swa_cells`` of windowed layers, ``None`` without them.

    ``layer_bytes`` are the bytes of every layer in order, KV and state together. ``slots`` are the sequences that it
    was made for, ``None``: unknown.
    """

    cells: int
    swa_cells: int | None
    sets: int
    layer_bytes: tuple[int, ...]
    slots: int | None = None

    block_tokens = 1

    @property
    def bytes(self) -> int:
        """All of the cache, over all devices."""
        return sum(self.layer_bytes)

    @property
    def mib(self) -> float:
        """All of the cache in MiB, as the log prints it over all devices."""
        return self.bytes / MIB

    @property
    def gib(self) -> float:
        """All of the cache in GiB."""
        return self.bytes / GIB

    @property
    def blocks(self) -> int:
        """Cells of all sets."""
        return self.cells * self.sets

    def device_mib(self, shares: Sequence[float]) -> tuple[float, ...]:
        """MiB on each device of a layer split; the cache follows its layer."""
        parts = kv.llamacpp_stages(len(self.layer_bytes), shares)
        ends = [0, *(sum(parts[: i + 1]) for i in range(len(parts)))]
        return tuple(sum(self.layer_bytes[start:end]) / MIB for start, end in pairwise(ends))

    def units(self, tokens: int) -> int:
        """Cells that one sequence of ``tokens`` tokens takes."""
        return tokens

    def concurrency(self, tokens: int) -> float:
        """Sequences of ``tokens`` tokens whose cells fit at once; how many the server runs is another limit.

        One set of cells is shared, so there it may be a fraction; else every sequence has a set to itself.
        """
        fit = self.cells / max(1, tokens)
        return self.sets if self.sets > 1 and fit >= 1 else fit

    def sequences(self, tokens: int) -> int:
        """Whole sequences of ``tokens`` tokens that fit at once."""
        return int(self.concurrency(tokens))

    def scarcest(self, tokens: int) -> Scarce:
        """Cells, one for each token."""
        return Scarce(kv_blocks(1), self.units(tokens), self.blocks)

    def longest_tokens(self, limit: int = 1 << 30) -> int:
        """The longest sequence that fits, in tokens, at most ``limit``."""
        return min(self.cells, limit)


@dataclass(frozen=True, slots=True)
class Rows:
    """What ``count`` alike layers keep: a row in every cell of a set, in at most ``most_cells`` of them, or a state.

    ``state_bytes`` are those of all sequences.
    """

    count: int
    row_bytes: int = 0
    most_cells: int | None = None
    state_bytes: int = 0

    def layer_bytes(self, cells: int, sets: int) -> int:
        """Bytes of one of these layers."""
        held = cells if self.most_cells is None else min(cells, self.most_cells)
        return held * sets * self.row_bytes + self.state_bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model's cache is laid out over devices: ``devices`` are the layers of each group on each device."""

    rows: tuple[Rows, ...]
    devices: tuple[tuple[int, ...], ...]
    options: Options

    @property
    def sets(self) -> int:
        """Sets of cells."""
        return 1 if self.options.unified else self.options.sequences

    def of_context(self, n_ctx: int) -> LlamaPool:
        """The cache of a context of ``n_ctx`` tokens (without ``unified``: of each sequence)."""
        return self._of_cells(round_up(n_ctx, self.options.pad_tokens))

    def _of_cells(self, cells: int) -> LlamaPool:
        sets = self.sets
        sizes = [rows.layer_bytes(cells, sets) for rows in self.rows]
        windows = [min(cells, rows.most_cells) for rows in self.rows if rows.most_cells is not None]
        order = _order(tuple([rows.count for rows in self.rows]))
        per_layer = tuple([sizes[group] for group in order])
        return LlamaPool(cells, windows[-1] if windows else None, sets, per_layer, self.options.sequences)

    def pool(self, kv_gib: float) -> LlamaPool:
        """The cache of the largest context that fits into ``kv_gib`` GiB on every device, states included.

        llama.cpp is told a context and not a memory, so this is the best that can be asked of it.
        """
        room, sets = int(kv_gib * GIB), self.sets
        cells = min([self._cells(device, room, sets) for device in set(self.devices)])
        return self._of_cells(cells // self.options.pad_tokens * self.options.pad_tokens)

    def pool_of(self, cache_gib: float) -> LlamaPool:
        """The same: states are counted in it."""
        return self.pool(cache_gib)

    def _cells(self, device: tuple[int, ...], room: int, sets: int) -> int:
        """Cells of a set for which ``device`` has room: full layers take what windows and states leave.

        When that is less than the largest window, its layers still grow with the cells, and so on.
        """
        growing, windows = 0, []
        for rows, count in zip(self.rows, device, strict=True):
            room -= rows.state_bytes * count
            row = rows.row_bytes * count * sets
            if rows.most_cells is None:
                growing += row
            elif row:
                windows.append((rows.most_cells, row))
                room -= rows.most_cells * row
        for most, row in sorted(windows, reverse=True):
            if room >= growing * most:
                break
            growing, room = growing + row, room + most * row
        if room < 0:
            return 0
        return min(MOST_CELLS, room // growing) if growing else MOST_CELLS

    def needed_gib(self, tokens: int) -> float:
        """GiB on the fullest device of a cache whose sequences can have ``tokens`` tokens, states included."""
        sizes = [rows.layer_bytes(round_up(tokens, self.options.pad_tokens), self.sets) for rows in self.rows]
        return max(kv.dot(sizes, device) for device in self.devices) / GIB


def round_up(tokens: int, step: int) -> int:
    """``tokens`` rounded up to a multiple of ``step``."""
    return -(-tokens // step) * step


@lru_cache(maxsize=1_024)
def _order(counts: tuple[int, ...]) -> tuple[int, ...]:
    return kv.sequence(counts)


def layout(model: Model, sharding: Sharding, kv_type: KvType, options: Options = Options()) -> Layout | Unknown:
    """The layout over the devices of ``sharding``; of one server when there are several attention replicas.

    llama.cpp splits by layer, so ``tp`` and ``pp`` both only say how many devices there are: with a split by rows
    (``--split-mode row``) the cache follows its layer, too.
    """
    if model.name.startswith(kv.COMPRESSED):
        return kv.NO_COMPRESSED_RULE
    if sharding.dcp > 1:
        return Unknown("llama.cpp has no decode context split")
    found = []
    for group in model.layers:
        rows = _rows(group, kv_type, options)
        if isinstance(rows, Unknown):
            return rows
        found.append(rows)
    counts, count = tuple([rows.count for rows in found]), sharding.tp * sharding.pp
    devices: tuple[tuple[int, ...], ...] = (counts,)
    if count > 1:
        shares = options.shares if options.shares and len(options.shares) == count else (1.0,) * count
        devices = kv.stage_counts(counts, kv.llamacpp_stages(sum(counts), shares))
    return Layout(tuple(found), devices, options)


def _rows(group: Layers, k_type: KvType, options: Options) -> Rows | Unknown:
    attention, v_type = group.attention, options.v_type
    if isinstance(attention, NoAttention) or group.shares_kv:
        return Rows(group.count)
    if isinstance(attention, Linear):
        # A state is kept in 32 bits for every sequence, whatever the context.
        state = kv.state_bytes(attention, 1, conv_bytes=4, ssm_bytes=4)
        return state if isinstance(state, Unknown) else Rows(group.count, 0, None, state * options.sequences)
    if isinstance(attention, Mla):
        plain = attention if options.latent else _as_heads(attention)
        return plain if isinstance(plain, Unknown) else Rows(group.count, kv.row_bytes(plain, k_type, 1, v_type))
    row = kv.row_bytes(attention, k_type, 1, v_type)
    # A chunk is a window to the cache (LLAMA_SWA_TYPE_CHUNKED).
    span = attention.window_tokens or attention.chunk_tokens
    if span is None or not options.windows:
        return Rows(group.count, row)
    # A sequence holds its window, and all of them one batch in flight (llama-kv-cache-iswa.cpp).
    wanted = span * (options.sequences if options.unified else 1) + options.batch_tokens
    return Rows(group.count, row, round_up(wanted, 256))


def pool(
    model: Model,
    n_ctx: int,
    k_type: KvType,
    v_type: KvType | None = None,
    options: Options = Options(),
) -> LlamaPool | Unknown:
    """The cache of a context of ``n_ctx`` tokens (without ``unified``: of each sequence), over all devices."""
    if v_type is not None:
        options = replace(options, v_type=v_type)
    found = layout(model, Sharding(), k_type, options)
    return found if isinstance(found, Unknown) else found.of_context(n_ctx)


def _as_heads(attention: Mla) -> Gqa | Unknown:
    """Latent attention kept as plain heads: keys with their rotary part, values without."""
    if attention.heads is None or attention.qk_nope_head_dim is None or attention.v_head_dim is None:
        return Unknown("the sizes of the latent attention's heads are not in the model's shape")
    return Gqa(
        kind="gqa",
        kv_heads=attention.heads,
        head_dim=attention.qk_nope_head_dim + attention.qk_rope_head_dim,
        v_head_dim=attention.v_head_dim,
    )
