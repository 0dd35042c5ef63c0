"""SGLang's KV pool: one slot per token, a second pool for windowed layers, and slots of state for linear ones.

Rules: SGLang 0.5.23 ``mem_cache/kv_cache_configurator.py``, ``model_executor/pool_configurator.py``,
``mem_cache/memory_pool.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, KvShape, KvType, Unknown
from agentroute.capacity.pool import Scarce
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

SWA_RATIO = 0.8
"""``--swa-full-tokens-ratio``: tokens of windowed layers per token of full ones."""

MAMBA_RATIO = 0.9
"""``--mamba-full-memory-ratio``: memory of states per memory of KV."""

EVICTION_TOKENS = 128
"""``SGLANG_SWA_EVICTION_INTERVAL``: a running sequence frees what left its window after so many tokens."""


HYBRID = ("gemma-4", "gpt-oss", "llama-4", "mimo-v2", "muse-glimmer")
"""How the names of the models begin whose windowed layers get a pool of their own; all other windowed layers keep
everything (SGLang 0.5.23 ``configs/model_config.py::is_hybrid_swa_model``, of the models shipped here)."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else decides the pool.

    ``page_tokens`` ``None``: 64 for sparse latent attention, else 1. ``windows`` ``None``: as SGLang
    treats the model (``HYBRID``); False: windowed layers keep
    everything, as with ``--disable-hybrid-swa-memory`` and for models that SGLang does not know as hybrid (it goes by
    architecture: ``is_hybrid_swa_model`` lists gpt-oss, Llama 4, Gemma 4, MiMo and others, not Gemma 2 or 3).
    ``whole_model_per_stage``: a wrapper class that does not know its stage's layers gets a pool for all of them.
    ``state_slots_per_request`` are slots of state that a running request pins.
    """

    page_tokens: int | None = None
    swa_ratio: float = SWA_RATIO
    mamba_ratio: float = MAMBA_RATIO
    draft: bool = False
    windows: bool | None = None
    whole_model_per_stage: bool = False
    state_slots_per_request: int = 1
    conv_bytes: int = 2
    ssm_bytes: int = 4


class Layout(NamedTuple):
    """Bytes per accelerator: of one token in all full layers, of one in all windowed layers, of one state slot."""

    full_bytes: int
    swa_bytes: int
    state_bytes: int
    page_tokens: int
    span_tokens: int
    options: Options

    @property
    def held_tokens(self) -> int:
        """Tokens that a running sequence holds in windowed layers at most (``compute_swa_request_cap``).

        Its window, what it has not yet freed, and a page at either end.
        """
        return self.span_tokens + EVICTION_TOKENS + 2 * self.page_tokens

    @property
    def cell_bytes(self) -> float:
        """Bytes per accelerator that one token of the pool costs, windowed layers at their ratio."""
        return self.full_bytes + self.options.swa_ratio * self.swa_bytes if self.full_bytes else float(self.swa_bytes)

    def split(self, gib: float) -> tuple[float, float]:
        """``gib`` GiB for KV and states together, as GiB of KV and GiB of states (47.4 % to states by default)."""
        if not self.state_bytes:
            return gib, 0.0
        return gib / (1 + self.options.mamba_ratio), gib * self.options.mamba_ratio / (1 + self.options.mamba_ratio)

    def pool_of(self, cache_gib: float) -> SglangPool:
        """The pools in ``cache_gib`` GiB per accelerator for KV and states together, split as SGLang does."""
        return self.pool(*self.split(cache_gib)) if self.state_bytes else self.pool(cache_gib)

    def pool(self, kv_gib: float, state_gib: float | None = None) -> SglangPool:
        """The pools in ``kv_gib`` GiB of KV per accelerator, and ``state_gib`` GiB of states beside it.

        ``None``: states have the share that SGLang gives them beside so much KV (``mamba_ratio``).
        """
        page, full, windowed, options = self.page_tokens, self.full_bytes, self.swa_bytes, self.options
        cell = full + options.swa_ratio * windowed if full else windowed
        tokens = int(kv_gib * GIB / cell) // page * page if kv_gib > 0.0 else 0
        swa = int(tokens * options.swa_ratio) // page * page if windowed and full else None
        slots = None
        if self.state_bytes:
            states = options.mamba_ratio * kv_gib if state_gib is None else state_gib
            # One slot is a dummy for padded batches.
            slots = max(0, int(states * GIB / self.state_bytes) - 1)
        return SglangPool(self, tokens // page, swa, slots)

    def needed_gib(self, tokens: int) -> float:
        """GiB of KV per accelerator of a pool that holds one sequence of ``tokens`` tokens, states excepted."""
        return -(-tokens // self.page_tokens) * self.page_tokens * self.cell_bytes / GIB


class SglangPool(NamedTuple):
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
        return max(1, -(-tokens // self.layout.page_tokens))

    def concurrency(self, tokens: int) -> float:
        """Sequences of ``tokens`` tokens that fit at once: the least of pages, windows and state slots."""
        fit = self.blocks / self.units(tokens)
        if self.swa_tokens is not None:
            fit = min(fit, self.swa_tokens / min(tokens, self.layout.held_tokens))
        if self.state_slots is not None:
            fit = min(fit, self.state_slots / self.layout.options.state_slots_per_request)
        return fit

    def sequences(self, tokens: int) -> int:
        """Whole sequences of ``tokens`` tokens that fit at once."""
        return int(self.concurrency(tokens))

    def scarcest(self, tokens: int) -> Scarce:
        """What sequences of ``tokens`` tokens run out of first: pages, windowed layers' tokens, or state slots."""
        found = [Scarce(f"KV pages of {self.block_tokens}", self.units(tokens), self.blocks)]
        if self.swa_tokens is not None:
            held = min(tokens, self.layout.held_tokens)
            found.append(Scarce("KV tokens of windowed layers", held, self.swa_tokens))
        if self.state_slots is not None:
            found.append(Scarce("state slots", self.layout.options.state_slots_per_request, self.state_slots))
        return min(found, key=lambda one: one.available / one.needed)

    def longest_tokens(self, limit: int = 1 << 30) -> int:
        """The longest sequence that fits alone, in tokens, at most ``limit``; 0 when none does.

        All of the pages, unless the windowed layers' pool is smaller than what one sequence holds there.
        """
        if not self.sequences(1):
            return 0
        held = self.printed_tokens
        if self.swa_tokens is not None and self.swa_tokens < self.layout.held_tokens:
            held = self.swa_tokens
        return min(held, limit)


def layout(
    model: Model | KvShape, sharding: Sharding, kv_type: KvType, options: Options = Options()
) -> Layout | Unknown:
    """The layout on the fullest stage. ``sharding.tp`` is attention's own: with DP attention, SGLang's tp // dp.

    Layers that share earlier ones' KV are allocated all the same. The smallest pool of all ranks holds for all.
    Chunked layers share the windowed layers' pool, a chunk as the window (``resolve_sliding_window_size``).
    """
    shape = model if isinstance(model, KvShape) else KvShape.of(model)
    found = shape.specs(sharding.tp, kv_type, options.draft, True, options.conv_bytes, options.ssm_bytes)
    if isinstance(found, Unknown):
        return found
    if sharding.dcp > 1:
        return Unknown("SGLang's pool under a decode context split is not known here")
    hybrid = options.windows
    if hybrid is None:
        # Where all layers keep everything there is nothing to treat otherwise.
        hybrid = not found.all_full and shape.name.startswith(HYBRID)
    full, swa, span = [], [], 1
    for spec in found:
        if hybrid and spec.span_tokens is not None:
            full.append(0)
            swa.append(spec.row_bytes)
            span = max(span, spec.span_tokens)
        else:
            full.append(spec.row_bytes)
            swa.append(0)
    keeps_all, counts = any(full), found.counts
    if not keeps_all and not any(swa):
        return Unknown("the model keeps no KV, only states, and SGLang's pool for that is not known here")
    stages: tuple[tuple[int, ...], ...] = (counts,)
    if sharding.pp > 1 and not options.whole_model_per_stage:
        stages = kv.fullest_stages(counts, kv.sglang_stages(sum(counts), sharding.pp))
    share = options.swa_ratio if keeps_all else 1.0
    most, full_bytes, swa_bytes, state_bytes = -1.0, 0, 0, 0
    for stage in stages:
        all_, windowed = kv.dot(full, stage), kv.dot(swa, stage)
        if all_ + share * windowed > most:
            most, full_bytes, swa_bytes = all_ + share * windowed, all_, windowed
    if found.most_state_bytes:
        states = [spec.state_bytes for spec in found]
        state_bytes = max([kv.dot(states, stage) for stage in stages])
    page = options.page_tokens or (64 if shape.sparse else 1)
    return Layout(full_bytes, swa_bytes, state_bytes, page, span, options)


def pool_gib(before_gib: float, after_load_gib: float, mem_fraction_static: float) -> float:
    """GiB per accelerator left for the pools: free after loading, less the share of what was free before it.

    ``avail_after_load - avail_before_load * (1 - mem_fraction_static)``; both are the least of all ranks.
    """
    return after_load_gib - before_gib * (1 - mem_fraction_static)
