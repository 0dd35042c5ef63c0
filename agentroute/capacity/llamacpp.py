"""llama.cpp's KV cache: cells times rows, layer by layer.

Rules: ``llama-context.cpp``, ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp``, ``llama-memory-recurrent.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, MIB, KvType, Unknown
from agentroute.shape.model import Gqa, Linear, Mla, Model, NoAttention


@dataclass(frozen=True, slots=True)
class Options:
    """What else decides the cache.

    ``sequences`` is ``--parallel``; ``unified`` one set of cells for all of them (``--kv-unified``), else each has
    its own; ``batch_tokens`` is ``--ubatch-size``; ``pad_tokens`` what n_ctx is rounded up to (32 or 256 by build);
    ``windows`` False: windowed layers keep everything (``--swa-full``, builds before May 2025); ``latent`` False:
    latent attention is kept as plain heads (builds before MLA GGUF files).
    """

    sequences: int = 1
    unified: bool = True
    batch_tokens: int = 512
    pad_tokens: int = 32
    windows: bool = True
    latent: bool = True


@dataclass(frozen=True, slots=True)
class LlamaPool:
    """``cells`` cells of one token each for every set; ``swa_cells`` of windowed layers, ``None`` without them.

    ``layer_bytes`` are the bytes of every layer in order, KV and state together.
    """

    cells: int
    swa_cells: int | None
    sets: int
    layer_bytes: tuple[int, ...]

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

    def sequences(self, tokens: int) -> int:
        """Sequences of ``tokens`` tokens that fit at once."""
        return self.cells // max(1, tokens) * self.sets

    def longest_tokens(self, limit: int = 1 << 30) -> int:
        """The longest sequence that fits, in tokens, at most ``limit``."""
        return min(self.cells, limit)


def round_up(tokens: int, step: int) -> int:
    """``tokens`` rounded up to a multiple of ``step``."""
    return -(-tokens // step) * step


def pool(
    model: Model,
    n_ctx: int,
    k_type: KvType,
    v_type: KvType | None = None,
    options: Options = Options(),
) -> LlamaPool | Unknown:
    """The cache of a context of ``n_ctx`` tokens (without ``unified``: of each sequence), over all devices."""
    if model.name.startswith(kv.COMPRESSED):
        return kv.NO_COMPRESSED_RULE
    cells = round_up(n_ctx, options.pad_tokens)
    sets = 1 if options.unified else options.sequences
    swa_cells, sizes = None, []
    order = kv.sequence([group.count for group in model.layers])
    for group in model.layers:
        attention = group.attention
        if isinstance(attention, NoAttention) or group.shares_kv:
            sizes.append(0)
            continue
        if isinstance(attention, Linear):
            # A state is kept in 32 bits for every sequence, whatever the context.
            state = kv.state_bytes(attention, 1, conv_bytes=4, ssm_bytes=4)
            if isinstance(state, Unknown):
                return state
            sizes.append(state * options.sequences)
            continue
        here = cells
        if isinstance(attention, Mla):
            plain = attention if options.latent else _as_heads(attention)
            if isinstance(plain, Unknown):
                return plain
            attention = plain
        elif attention.chunk_tokens and options.windows:
            return Unknown("llama.cpp's cells for chunked attention are not known here")
        elif attention.window_tokens and options.windows:
            # A sequence holds its window, and all of them one batch in flight (llama-kv-cache-iswa.cpp).
            wanted = attention.window_tokens * (options.sequences if options.unified else 1) + options.batch_tokens
            here = swa_cells = min(cells, round_up(wanted, 256))
        sizes.append(here * sets * kv.row_bytes(attention, k_type, 1, v_type))
    return LlamaPool(cells, swa_cells, sets, tuple(sizes[group] for group in order))


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
