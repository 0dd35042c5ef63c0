"""What one step of a sharded deployment reads, multiplies and sends: counted from the model's shape.

Everything is per accelerator and over all layers of the model: with a layer split a token passes the stages one after
the other, so what counts for its time is the sum over the stages. An expert's weights are only read when a token hits
it; what reads the past reaches as far as its window.

Not counted: activations that are read and written between kernels, norms, biases, the input embedding (a lookup of
one row), the recurrence of a linear layer (its projections are), draft layers, vision and audio parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentroute.capacity import kv
from agentroute.capacity.kv import KvType, Unknown
from agentroute.capacity.weights import QUANTISATIONS, WIDE, Quantisation
from agentroute.errors import UsageError
from agentroute.shape import parameters
from agentroute.shape.model import DenseMlp, Gqa, Layers, Linear, Mla, Mlp, Model, MoeMlp, NoAttention
from agentroute.shape.sharding import Sharding

ACTIVATION_BYTES = 2
"""Bytes of one element of what travels between accelerators: 16 bits, as engines mostly send it (recalled). Some
kernels dispatch to experts in 8 bits (DeepEP); that is not counted on."""

MIXER_KERNELS: dict[str, int] = {"gqa": 7, "mla": 12, "linear": 8, "none": 0}
"""Kernels of one mixer, one after the other, by its kind. Grouped-query: norm, queries with keys and values, rotation,
writing the cache, attention, its sum over splits, output. Latent: queries and the latent have a way down, a norm and a
way up each, and keys and values are absorbed by two products more. Recalled; engines fuse some: assumed."""

MLP_KERNELS: dict[str, int] = {"dense": 4, "moe": 8, "none": 0}
"""Kernels of one MLP: norm, up, activation, down; of MoE besides: router, top-k, sorting, weighted sum; shared experts
(up, activation, down) add ``SHARED_KERNELS``. Recalled; engines fuse some: assumed."""

SHARED_KERNELS = 3
"""Kernels of the shared experts of one layer: up, activation, down."""

Part = Literal["attention", "dense", "experts", "head"]
"""What is quantised apart: mixers, what every token passes, routed experts, and the output layer, which never is."""


@dataclass(frozen=True, slots=True)
class Past:
    """Alike layers that read the past: per token of it, on one accelerator, over all of these layers.

    ``reach_tokens`` is how far back they read, infinite where everything is. ``chunked``: not back from the token but
    to the start of its chunk of ``2 * reach_tokens``, which is half of a chunk on average.
    """

    bytes: float
    """KV bytes that one new token reads of every past one."""
    decode_flops: float
    """FLOPs of one new token with every past one, against the cache as it is kept (latent attention: absorbed)."""
    prefill_flops: float
    """The same when a prompt is read (latent attention: keys and values are made from the latents)."""
    reach_tokens: float = math.inf
    chunked: bool = False

    def read_tokens(self, context_tokens: float) -> float:
        """How many past tokens a new one reads behind ``context_tokens``."""
        return context_tokens if context_tokens < self.reach_tokens else self.reach_tokens

    def pairs(self, context_tokens: float) -> float:
        """Pairs of a token and a past one that it reads, over a whole prompt of ``context_tokens``."""
        reach = self.reach_tokens
        if context_tokens <= reach:
            return context_tokens * context_tokens / 2
        if self.chunked:
            # In its first chunk a prompt reads all of its past, not yet half a chunk.
            return min(context_tokens * context_tokens / 2, context_tokens * reach)
        return reach * context_tokens - reach * reach / 2


@dataclass(frozen=True, slots=True)
class Experts:
    """Alike layers of routed experts.

    Of ``experts`` each token passes ``active``, drawn evenly; ``one_bytes`` is what one expert of each of these layers
    weighs on an accelerator that holds it (a share of it, where experts are tensor-split).
    """

    experts: int
    active: int
    ranks: int
    one_bytes: float

    def hit(self, tokens: float) -> float:
        """Distinct experts of one layer that ``tokens`` tokens are expected to hit: E (1 - (1 - k/E)^n)."""
        missed: float = (1.0 - self.active / self.experts) ** tokens
        return self.experts * (1.0 - missed)

    def read_bytes(self, tokens: float) -> float:
        """Bytes that one accelerator reads: its even share of those, and at least one, as an expert is whole."""
        share = self.hit(tokens) / self.ranks
        return self.one_bytes * (share if share > 1.0 else 1.0)


@dataclass(frozen=True, slots=True)
class Work:
    """What a step does on one accelerator, over all layers of the model."""

    weight_bytes: float
    """Read in every step: mixers, what every token passes, routers, the output layer."""
    experts: tuple[Experts, ...]
    """Routed experts, read as far as tokens hit them."""
    flops: dict[Part, float]
    """FLOPs of one token of the accelerator's replica; of ``experts``: of one token of the whole deployment."""
    past: tuple[Past, ...]
    """What reads the past."""
    state_bytes: float
    """Read and written for each sequence."""
    layers: int
    """Layers of the model."""
    kernels: int
    """Kernels, one after the other."""
    hidden_size: int
    """Width of what is sent, in elements."""
    tp_reduces: int
    """All-reduces over a replica's tensor ranks: after a mixer, and after an MLP that is split over them."""
    group_reduces: int
    """All-reduces over the ranks of all replicas: after experts that are tensor-split over them."""
    expert_reduces: int
    """All-reduces over the ranks that hold parts of one expert."""
    exchanges: int
    """MoE layers whose tokens travel to whole experts and back, which replaces their all-reduce."""
    copies: int
    """How often one token is sent out, the sum over those layers of the experts that it passes."""


def count(
    model: Model, sharding: Sharding, quantisation: Quantisation = QUANTISATIONS["bf16"], kv_type: KvType = "bf16"
) -> Work | Unknown:
    """The work of ``model`` split by ``sharding``; ``Unknown`` names what the model's shape lacks."""
    if model.name.startswith(kv.COMPRESSED):
        return kv.NO_COMPRESSED_RULE
    hidden, vocabulary = model.hidden_size, model.vocab_size
    if hidden is None or vocabulary is None:
        return Unknown("the model's shape lacks hidden_size or vocab_size")
    try:
        past = _past(model, sharding, kv_type)
    except UsageError as problem:
        return Unknown(str(problem))
    if isinstance(past, Unknown):
        return past
    unknown: list[str] = []
    tp, ep, ranks = sharding.tp, sharding.ep, sharding.tp * sharding.attention_dp
    mixers = sum(group.count * _mixer(group, hidden, tp, unknown) for group in model.layers)
    dense = sum(group.count * _dense(group.mlp, hidden, unknown) / tp for group in model.layers)
    if unknown:
        return Unknown(f"the model's shape lacks {', '.join(dict.fromkeys(unknown))}")
    head = vocabulary * hidden / tp if model.output_layer else 0.0
    # A per-layer embedding is projected, gated and projected back on every rank whole.
    own = 3 * hidden * (model.per_layer_embedding_size or 0) * model.layer_count
    moes = [(group.count, group.mlp) for group in model.layers if isinstance(group.mlp, MoeMlp)]
    sizes: dict[tuple[int, int], float] = {}
    expert_flops = 0.0
    for layers, mlp in moes:
        elements = layers * _expert(mlp, hidden, quantisation.expert_width_step)
        expert_flops += 2 * mlp.active * elements / ranks
        kind = mlp.experts, mlp.active
        sizes[kind] = sizes.get(kind, 0.0) + elements * quantisation.experts * ep / ranks
    moe_layers = sum(layers for layers, _ in moes)
    routers = sum(layers * mlp.experts * hidden for layers, mlp in moes)
    split = sum(
        group.count * ((not isinstance(group.attention, NoAttention)) + isinstance(group.mlp, DenseMlp))
        for group in model.layers
    )
    whole, shared = ep > 1, ep == 1 and sharding.attention_dp > 1
    return Work(
        weight_bytes=mixers * quantisation.attention
        + dense * quantisation.dense
        + (routers + own) * WIDE
        + head * quantisation.tables,
        experts=tuple(Experts(experts, active, ep, size) for (experts, active), size in sizes.items()),
        flops={"attention": 2 * mixers, "dense": 2 * (dense + own), "experts": expert_flops, "head": 2 * head},
        past=past[0],
        state_bytes=past[1],
        layers=model.layer_count,
        kernels=sum(group.count * _kernels(group) for group in model.layers),
        hidden_size=hidden,
        tp_reduces=split + (0 if whole or shared else moe_layers) if tp > 1 else 0,
        group_reduces=moe_layers if shared else 0,
        expert_reduces=moe_layers if whole and ranks > ep else 0,
        exchanges=moe_layers if whole else 0,
        copies=sum(layers * mlp.active for layers, mlp in moes) if whole else 0,
    )


def _kernels(group: Layers) -> int:
    """Kernels of one layer."""
    shared = isinstance(group.mlp, MoeMlp) and group.mlp.shared_intermediate_size > 0
    mlp = MLP_KERNELS[group.mlp.kind] if group.mlp else 0
    return MIXER_KERNELS[group.attention.kind] + mlp + SHARED_KERNELS * shared


def _mixer(group: Layers, hidden: int, tp: int, unknown: list[str]) -> float:
    """Elements of one mixer on one of ``tp`` ranks: beyond one per rank, key and value heads are copies; of latent
    attention, what leads down to the latents and the indexer stand on every rank."""
    attention = group.attention
    every = parameters.attention(attention, hidden, unknown, shares_kv=group.shares_kv)
    if isinstance(attention, Gqa) and not group.shares_kv:
        values = 0 if attention.k_eq_v else attention.v_head_dim or attention.head_dim
        one = hidden * (attention.head_dim + values)
        return (every - one * attention.kv_heads) / tp + one * max(1, attention.kv_heads / tp)
    if isinstance(attention, Mla):
        rank = attention.q_lora_rank or 0
        down = hidden * (rank + attention.kv_lora_rank + attention.qk_rope_head_dim)
        if attention.index is not None:
            rows = attention.index.heads or 0
            down += attention.index.head_dim * (hidden + rows * (rank or hidden)) + hidden * rows
        return (every - down) / tp + down
    return every / tp


def _dense(mlp: Mlp | None, hidden: int, unknown: list[str]) -> float:
    """Elements of one MLP that every token passes; of MoE, the shared experts and the latent projections."""
    if isinstance(mlp, MoeMlp):
        latent = 2 * hidden * mlp.latent_size if mlp.latent_size else 0
        return hidden * (3 if mlp.gated else 2) * mlp.shared_intermediate_size + latent
    return parameters.mlp(mlp, hidden, unknown)[0]


def _expert(mlp: MoeMlp, hidden: int, width_step: int) -> int:
    """Elements of one routed expert, its inner width padded."""
    inner = -(-mlp.expert_intermediate_size // width_step) * width_step
    return (3 if mlp.gated else 2) * (mlp.latent_size or hidden) * inner


def _past(model: Model, sharding: Sharding, kv_type: KvType) -> tuple[tuple[Past, ...], float] | Unknown:
    """What reads the past, and the bytes of state that every sequence reads and writes, on one accelerator."""
    tp, dcp = sharding.tp, sharding.dcp
    sparse = next((g.attention.index for g in model.layers if isinstance(g.attention, Mla) and g.attention.index), None)
    if sparse is not None and (sparse.top_k is None or sparse.heads is None):
        return Unknown("the model's shape lacks attention.index.top_k or attention.index.heads")
    found: dict[tuple[float, bool], list[float]] = {}
    state = 0.0

    def add(group: Layers, size: float, decode: float, prefill: float, reach: float, chunked: bool = False) -> None:
        sums = found.setdefault((reach, chunked), [0.0, 0.0, 0.0])
        for i, value in enumerate((size / dcp, decode / tp, prefill / tp)):
            sums[i] += group.count * value

    for group in model.layers:
        attention = group.attention
        if isinstance(attention, Linear):
            size = kv.state_bytes(attention, tp)
            if isinstance(size, Unknown):
                return size
            state += 2 * group.count * size
        elif isinstance(attention, Gqa):
            if attention.heads is None:
                return Unknown("the model's shape lacks attention.heads")
            flops = 2 * attention.heads * (attention.head_dim + (attention.v_head_dim or attention.head_dim))
            chunk = attention.chunk_tokens
            reach = attention.window_tokens or (chunk / 2 if chunk else math.inf)
            add(group, kv.row_bytes(attention, kv_type, tp), flops, flops, reach, bool(chunk))
        elif isinstance(attention, Mla):
            heads, nope, values = attention.heads, attention.qk_nope_head_dim, attention.v_head_dim
            if heads is None or nope is None or values is None:
                return Unknown("the model's shape lacks attention.heads, qk_nope_head_dim or v_head_dim")
            row = kv.row_bytes(attention, kv_type, tp)
            if sparse is not None and kv_type == "fp8":
                row = kv.sparse_row_bytes(attention)
            index = kv.index_bytes(attention)
            decode = 2 * heads * (2 * attention.kv_lora_rank + attention.qk_rope_head_dim)
            prefill = 2 * heads * (nope + attention.qk_rope_head_dim + values)
            reach = math.inf if sparse is None or sparse.top_k is None else sparse.top_k
            # A sparse layer reads latents in prefill, too, as it does in decode.
            add(group, row - index, decode, prefill if sparse is None else decode, reach)
            if attention.index is not None and attention.index.heads is not None:
                # The indexer stands on every rank whole.
                scan = 2.0 * attention.index.heads * attention.index.head_dim * tp
                add(group, index, scan, scan, math.inf)
    return tuple(Past(a, b, c, reach, chunked) for (reach, chunked), (a, b, c) in found.items()), state
