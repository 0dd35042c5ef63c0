"""llama.cpp's KV cache: cells times rows, layer by layer.

Rules: ``llama-context.cpp``, ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp``, ``llama-memory-recurrent.cpp``,
``llama-model.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, MIB, KvShape, KvType, Unknown
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


class LlamaPool(NamedTuple):
    """``cells`` cells of one token each for every set; ``swa_cells`` of windowed layers, ``None`` without them.

    ``sizes`` are the bytes of a layer of each kind, KV and state together, ``counts`` so many layers. ``slots`` are the
    sequences that it was made for, ``None``: unknown.
    """

    cells: int
    swa_cells: int | None
    sets: int
    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    slots: int | None = None

    @property
    def block_tokens(self) -> int:
        """A cell holds one token."""
        return 1

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """The bytes of every layer in order."""
        return tuple([self.sizes[group] for group in _order(self.counts)])

    @property
    def bytes(self) -> int:
        """All of the cache, over all devices."""
        return kv.dot(self.sizes, self.counts)

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
        sizes = self.layer_bytes
        parts = kv.llamacpp_stages(len(sizes), shares)
        ends = [0, *(sum(parts[: i + 1]) for i in range(len(parts)))]
        return tuple(sum(sizes[start:end]) / MIB for start, end in pairwise(ends))

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


class Device(NamedTuple):
    """What the layers on one device take: ``cell_bytes`` for each cell of those that keep everything, ``fixed_bytes``
    of states and whole windows, and (cells, bytes of a cell) of the windows, the largest first."""

    cell_bytes: int
    fixed_bytes: int
    windows: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, rows: Sequence[Rows], counts: Sequence[int], sets: int) -> Device:
        """That of ``counts`` layers of each kind."""
        growing = fixed = 0
        windows = []
        for one, count in zip(rows, counts, strict=True):
            fixed += one.state_bytes * count
            row = one.row_bytes * count * sets
            if one.most_cells is None:
                growing += row
            elif row:
                windows.append((one.most_cells, row))
                fixed += one.most_cells * row
        windows.sort(reverse=True)
        return cls(growing, fixed, tuple(windows))

    def cells(self, room: int) -> int:
        """Cells of a set for which there is room: full layers take what windows and states leave.

        When that is less than the largest window, its layers still grow with the cells, and so on.
        """
        growing, room = self.cell_bytes, room - self.fixed_bytes
        for most, row in self.windows:
            if room >= growing * most:
                break
            growing, room = growing + row, room + most * row
        if room < 0:
            return 0
        return min(MOST_CELLS, room // growing) if growing else MOST_CELLS


class Layout(NamedTuple):
    """How a model's cache is laid out over devices: ``devices`` are the layers of each group on each device,
    ``fullest`` what those that may be the fullest take."""

    rows: tuple[Rows, ...]
    counts: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]
    fullest: tuple[Device, ...]
    options: Options

    @property
    def sets(self) -> int:
        """Sets of cells."""
        return 1 if self.options.unified else self.options.sequences

    def of_context(self, n_ctx: int) -> LlamaPool:
        """The cache of a context of ``n_ctx`` tokens (without ``unified``: of each sequence)."""
        return self._of_cells(round_up(n_ctx, self.options.pad_tokens))

    def _of_cells(self, cells: int) -> LlamaPool:
        sets, sizes, window = self.sets, [], None
        for rows in self.rows:
            held, most = cells, rows.most_cells
            if most is not None:
                window = held = most if most < cells else cells
            sizes.append(held * sets * rows.row_bytes + rows.state_bytes)
        return LlamaPool(cells, window, sets, tuple(sizes), self.counts, self.options.sequences)

    def pool(self, kv_gib: float) -> LlamaPool:
        """The cache of the largest context that fits into ``kv_gib`` GiB on every device, states included.

        llama.cpp is told a context and not a memory, so this is the best that can be asked of it.
        """
        room, pad = int(kv_gib * GIB), self.options.pad_tokens
        fullest = self.fullest
        cells = fullest[0].cells(room) if len(fullest) == 1 else min([device.cells(room) for device in fullest])
        return self._of_cells(cells // pad * pad)

    def pool_of(self, cache_gib: float) -> LlamaPool:
        """The same: states are counted in it."""
        return self.pool(cache_gib)

    def needed_gib(self, tokens: int) -> float:
        """GiB on the fullest device of a cache whose sequences can have ``tokens`` tokens, states included."""
        sizes = self.of_context(tokens).sizes
        return max([kv.dot(sizes, device) for device in self.devices]) / GIB


def round_up(tokens: int, step: int) -> int:
    """``tokens`` rounded up to a multiple of ``step``."""
    return -(-tokens // step) * step


@lru_cache(maxsize=1_024)
def _order(counts: tuple[int, ...]) -> tuple[int, ...]:
    return kv.sequence(counts)


def layout(
    model: Model | KvShape, sharding: Sharding, kv_type: KvType, options: Options = Options()
) -> Layout | Unknown:
    """The layout over the devices of ``sharding``; of one server when there are several attention replicas.

    llama.cpp splits by layer, so ``tp`` and ``pp`` both only say how many devices there are: with a split by rows
    (``--split-mode row``) the cache follows its layer, too.
    """
    shape = model if isinstance(model, KvShape) else KvShape.of(model)
    if shape.compressed:
        return kv.NO_COMPRESSED_RULE
    if sharding.dcp > 1:
        return Unknown("llama.cpp has no decode context split")
    rows, count = _all_rows(shape, kv_type, options), sharding.tp * sharding.pp
    if isinstance(rows, Unknown):
        return rows
    counts = shape.counts
    devices: tuple[tuple[int, ...], ...] = (counts,)
    fullest = devices
    if count > 1:
        if options.shares and len(options.shares) == count:
            parts = kv.llamacpp_stages(shape.layer_count, options.shares)
        else:
            parts = kv.llamacpp_even_stages(shape.layer_count, count)
        devices, fullest = kv.stage_counts(counts, parts), kv.fullest_stages(counts, parts)
    sets = 1 if options.unified else options.sequences
    return Layout(rows, counts, devices, tuple([Device.of(rows, one, sets) for one in fullest]), options)


@lru_cache(maxsize=256)
def _all_rows(shape: KvShape, k_type: KvType, options: Options) -> tuple[Rows, ...] | Unknown:
    found = []
    for group in shape.layers:
        rows = _rows(group, k_type, options)
        if isinstance(rows, Unknown):
            return rows
        found.append(rows)
    return tuple(found)


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
