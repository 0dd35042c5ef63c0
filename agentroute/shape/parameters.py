"""How many weights a model has, counted from its shape: pure arithmetic on its groups of layers."""

from __future__ import annotations

from dataclasses import dataclass

from agentroute.shape.model import Attention, DenseMlp, Gqa, Layers, Linear, Mla, Mlp, Model, MoeMlp, NoAttention


@dataclass(frozen=True)
class ParameterCount:
    """Weights in elements, without biases, vision or audio parts and draft layers."""

    total: int | None
    """All of them: what memory must hold; ``None`` when a part is unknown."""
    active: int | None
    """Those of a token's layers and both embeddings; equals the total without experts, ``None`` when a part is unknown.
    Per-layer embeddings count as active, although a token reads one row of them."""
    lookup: int | None
    """Those of ``active`` that no token multiplies: an input embedding that is not the output layer, too. Some
    publishers leave them out of their active figure. ``None`` when unknown."""
    output: int | None
    """Those of the output layer, which the layers alone leave out, too. ``None`` when unknown."""
    unknown: tuple[str, ...] = ()
    """The parts that are unknown; empty when everything is counted."""


def count(model: Model) -> ParameterCount:
    """The weights of ``model``; the first unknown part leaves all of them unknown, and every one is named."""
    unknown: list[str] = []
    hidden = _known(model.hidden_size, "hidden_size", unknown)
    vocabulary = _known(model.vocab_size, "vocab_size", unknown)
    tied = _known(model.tied_embeddings, "tied_embeddings", unknown)
    layers = sum(group.count for group in model.layers)
    own = model.per_layer_embedding_size or 0
    lookup = vocabulary * (own * layers + (0 if tied and model.output_layer else hidden))
    # A token's row for each layer is projected from its embedding, once for all layers, gated and projected back.
    outer = (vocabulary * hidden if model.output_layer else 0) + hidden + 3 * hidden * own * layers
    total = active = outer + lookup
    for group in model.layers:
        every, passed = layer(group, hidden, unknown)
        total, active = total + group.count * every, active + group.count * passed
    if unknown:
        return ParameterCount(None, None, None, None, tuple(dict.fromkeys(unknown)))
    return ParameterCount(total, active, lookup, vocabulary * hidden if model.output_layer else 0)


def layer(group: Layers, hidden: int, unknown: list[str]) -> tuple[int, int]:
    """All weights of one layer of a group and those that a token passes; what is unknown is added to ``unknown``."""
    mixing = attention(group.attention, hidden, unknown, shares_kv=group.shares_kv)
    every, passed = mlp(group.mlp, hidden, unknown)
    return mixing + every, mixing + passed


def attention(kind: Attention, hidden: int, unknown: list[str], *, shares_kv: bool = False) -> int:
    """Weights of one layer's mixer with its norm, in elements."""
    match kind:
        case Gqa():
            heads = _known(kind.heads, "attention.heads", unknown)
            values = kind.v_head_dim or kind.head_dim
            queries = heads * kind.head_dim * (2 if kind.output_gate else 1)
            kept = 0 if shares_kv else kind.kv_heads * (kind.head_dim + (0 if kind.k_eq_v else values))
            return hidden * (queries + kept + heads * values + 1)
        case Mla():
            return _mla(kind, hidden, unknown)
        case Linear():
            return _known(kind.parameters, "attention.parameters", unknown) + hidden
        case NoAttention():
            return 0


def mlp(kind: Mlp | None, hidden: int, unknown: list[str]) -> tuple[int, int]:
    """All weights of one layer's MLP with its norm, and those that a token passes, in elements."""
    match kind:
        case DenseMlp():
            every = hidden * (kind.intermediate_size * (3 if kind.gated else 2) + 1)
            return every, every
        case MoeMlp():
            matrices, width = 3 if kind.gated else 2, kind.latent_size or hidden
            expert = matrices * width * kind.expert_intermediate_size
            always = hidden * (matrices * kind.shared_intermediate_size + kind.experts + 1)
            always += 2 * hidden * width if kind.latent_size else 0
            return always + kind.experts * expert, always + kind.active * expert
        case None:
            _known(None, "mlp", unknown)
            return 0, 0
    return 0, 0


def _mla(kind: Mla, hidden: int, unknown: list[str]) -> int:
    heads = _known(kind.heads, "attention.heads", unknown)
    nope = _known(kind.qk_nope_head_dim, "attention.qk_nope_head_dim", unknown)
    values = _known(kind.v_head_dim, "attention.v_head_dim", unknown)
    rope, latent = kind.qk_rope_head_dim, kind.kv_lora_rank
    queries = heads * (nope + rope)
    made = queries * hidden if kind.q_lora_rank is None else kind.q_lora_rank * (hidden + 1 + queries)
    made += hidden * (latent + rope + 1) + latent * (1 + heads * (nope + values)) + heads * values * hidden
    if kind.index is not None:
        rows = _known(kind.index.heads, "attention.index.heads", unknown)
        made += kind.index.head_dim * (hidden + rows * (kind.q_lora_rank or hidden)) + hidden * rows
    return made


def _known(value: int | None, part: str, unknown: list[str]) -> int:
    if value is None:
        unknown.append(part)
        return 0
    return value
