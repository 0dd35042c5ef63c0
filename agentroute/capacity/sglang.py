"""SGLang's KV pool: one slot per token, a second pool for windowed layers, and slots of state for linear ones.

Rules: SGLang 0.5.23 ``mem_cache/kv_cache_configurator.py``, ``model_executor/pool_configurator.py``,
``mem_cache/memory_pool.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, KvType, Unknown
from agentroute.shape.model import Mla, Model
from agentroute.shape.sharding import Sharding

SWA_RATIO = 0.8
"""``--swa-full-tokens-ratio``: tokens of windowed layers per token of full ones."""

MAMBA_RATIO = 0.9
"""``--mamba-full-memory-ratio``: memory of states per memory of KV."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else decides the pool.

    ``page_tokens`` ``None``: 64 for sparse latent attention, else 1. ``whole_model_per_stage``: a wrapper class that
    does not know its stage's layers gets a pool for all of them. ``state_slots_per_request`` are slots of state that
    a running request pins.
    """

    page_tokens: int | None = None
    swa_ratio: float = SWA_RATIO
    mamba_ratio: float = MAMBA_RATIO
    draft: bool = False
    whole_model_per_stage: bool = False
    state_slots_per_request: int = 1
    conv_bytes: int = 2
    ssm_bytes: int = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes per accelerator: of one token in all full layers, of one in all windowed layers, of one state slot."""

    full_bytes: int
    swa_bytes: int
    state_bytes: int
    page_tokens: int
    span_tokens: int
    options: Options

    @property
    def cell_bytes(self) -> float:
        """Bytes per accelerator that one token of the pool costs, windowed layers at their ratio."""
        return self.full_bytes + self.options.swa_ratio * self.swa_bytes if self.full_bytes else float(self.swa_bytes)

    def split(self, gib: float) -> tuple[float, float]:
        """``gib`` GiB for KV and states together, as GiB of KV and GiB of states (47.4 % to states by default)."""
        if not self.state_bytes:
            return gib, 0.0
        return gib / (1 + self.options.mamba_ratio), gib * self.options.mamba_ratio / (1 + self.options.mamba_ratio)

    def pool(self, kv_gib: float, state_gib: float = 0.0) -> SglangPool:
        """The pool in ``kv_gib`` GiB of KV and ``state_gib`` GiB of states per accelerator."""
        tokens = int(max(0.0, kv_gib) * GIB / self.cell_bytes) // self.page_tokens * self.page_tokens
        # One slot is a dummy for padded batches.
        slots = max(0, int(state_gib * GIB / self.state_bytes) - 1) if self.state_bytes else None
        swa = None
        if self.swa_bytes and self.full_bytes:
            swa = int(tokens * self.options.swa_ratio) // self.page_tokens * self.page_tokens
        return SglangPool(self, tokens // self.page_tokens, swa, slots)

    def needed_gib(self, tokens: int) -> float:
        """GiB of KV per accelerator of a pool that holds one sequence of ``tokens`` tokens, states excepted."""
        return -(-tokens // self.page_tokens) * self.page_tokens * self.cell_bytes / GIB


@dataclass(frozen=True, slots=True)
class SglangPool:
    """``blocks`` pages; ``swa_tokens`` tokens for windowed layers and ``state_slots`` states, ``None``: none needed."""

    layout: Layout
    blocks: int
    swa_tokens: int | None
    state_slots: int | None

    @property
    def block_tokens(self) -> int:
        """Tokens of one page."""
        return self.layout.page_tokens

    @property
    def printed_tokens(self) -> int:
        """``max_total_num_tokens`` as the log prints it."""
        return self.blocks * self.block_tokens

    def units(self, tokens: int) -> int:
        """Pages that one sequence of ``tokens`` tokens takes."""
        return max(1, -(-tokens // self.block_tokens))

    def concurrency(self, tokens: int) -> float:
        """Sequences of ``tokens`` tokens that fit at once: the least of pages, windows and state slots."""
        fit = self.blocks / self.units(tokens)
        if self.swa_tokens is not None:
            # Tokens behind the window are freed, so a sequence holds at most its window there.
            fit = min(fit, self.swa_tokens / min(tokens, self.layout.span_tokens))
        if self.state_slots is not None:
            fit = min(fit, self.state_slots / self.layout.options.state_slots_per_request)
        return fit

    def sequences(self, tokens: int) -> int:
        """Whole sequences of ``tokens`` tokens that fit at once."""
        return int(self.concurrency(tokens))

    def longest_tokens(self, limit: int = 1 << 30) -> int:
        """The longest sequence that fits alone, in tokens, at most ``limit``."""
        return min(self.printed_tokens, limit) if self.sequences(1) else 0


def layout(model: Model, sharding: Sharding, kv_type: KvType, options: Options = Options()) -> Layout | Unknown:
    """The layout on the fullest stage. ``sharding.tp`` is attention's own: with DP attention, SGLang's tp // dp.

    Layers that share earlier ones' KV are allocated all the same. The smallest pool of all ranks holds for all.
    """
    found = kv.specs(
        model,
        sharding.tp,
        kv_type,
        draft=options.draft,
        shared_too=True,
        conv_bytes=options.conv_bytes,
        ssm_bytes=options.ssm_bytes,
    )
    if isinstance(found, Unknown):
        return found
    if any(spec.kind == "chunked" for spec in found):
        return Unknown("SGLang's pool of chunked attention is not known here")
    if not any(spec.row_bytes for spec in found):
        return Unknown("the model keeps no KV, only states, and such a pool's rule is unknown")
    order, start, best = kv.sequence([spec.count for spec in found]), 0, (0, 0, 0)
    pp = 1 if options.whole_model_per_stage else sharding.pp
    for part in kv.sglang_stages(len(order), pp):
        here = [found[kind] for kind in order[start : start + part]]
        start += part
        full = sum(spec.row_bytes for spec in here if spec.kind == "full")
        swa = sum(spec.row_bytes for spec in here if spec.kind == "sliding")
        best = max(best, (full, swa, sum(spec.state_bytes for spec in here)), key=lambda stage: stage[0] + stage[1])
    sparse = any(isinstance(group.attention, Mla) and group.attention.index for group in model.layers)
    span = max((spec.span_tokens or 0 for spec in found), default=0)
    return Layout(*best, options.page_tokens or (64 if sparse else 1), span or 1, options)


def pool_gib(before_gib: float, after_load_gib: float, mem_fraction_static: float) -> float:
    """GiB per accelerator left for the pools: free after loading, less the share of what was free before it.

    ``avail_after_load - avail_before_load * (1 - mem_fraction_static)``; both are the least of all ranks.
    """
    return after_load_gib - before_gib * (1 - mem_fraction_static)
