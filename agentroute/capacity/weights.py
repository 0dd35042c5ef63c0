"""How much weight each accelerator carries.

Rules: vLLM 0.33 ``model_executor/layers/linear.py`` (column and row parallel, replicated projections),
``layers/fused_moe``, SGLang 0.5.23 likewise. Vision and audio parts, biases and what an engine repacks at load are not
counted: a few per cent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, Unknown
from agentroute.shape import parameters
from agentroute.shape.model import Attention, DenseMlp, Gqa, Layers, Mla, Mlp, Model, MoeMlp
from agentroute.shape.sharding import Sharding

WIDE = 2.0
"""Bytes of an element that is not quantised: embeddings, norms and routers always are of this kind."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Bytes of one element, scales included, of mixers, of what every token passes, and of routed experts.

    ``expert_width_step``: experts' inner width is padded to a multiple of this by the kernel.
    """

    attention: float = WIDE
    dense: float = WIDE
    experts: float = WIDE
    expert_width_step: int = 1


QUANTISATIONS: dict[str, Quantisation] = {
    "bf16": Quantisation(),
    # One byte; a 4-byte scale for each block of 128 x 128 (or one for a tensor) is next to nothing.
    "fp8": Quantisation(1.0, 1.0, 1.0),
    "fp8-experts": Quantisation(experts=1.0),
    # 4 bits with a 2-byte scale and a 4-bit zero for every 128 elements.
    "awq-int4": Quantisation(*(0.5 + 2.5 / 128,) * 3),
    "w4a16": Quantisation(*(0.5 + 2 / 128,) * 3),
    # 4 bits with a 4-byte scale for every 64 elements (bitsandbytes without double quantisation).
    "bnb": Quantisation(*(0.5 + 4 / 64,) * 3),
    # Published checkpoints leave all but routed experts in 16 bits: 2-byte scale for 32, 1-byte for 16, 1-byte for 32.
    "int4-experts": Quantisation(experts=0.5 + 2 / 32),
    "nvfp4": Quantisation(experts=0.5 + 1 / 16),
    "nvfp4-dense": Quantisation(0.5 + 1 / 16, 0.5 + 1 / 16, 0.5 + 1 / 16),
    # gpt-oss: inner width 2,880 is padded to 3,072.
    "mxfp4": Quantisation(experts=0.5 + 1 / 32, expert_width_step=256),
}
"""By the name of the scheme; a checkpoint may deviate."""


def gib(
    model: Model,
    sharding: Sharding,
    quantisation: Quantisation = QUANTISATIONS["bf16"],
    *,
    stages: Callable[[int, int], tuple[int, ...]] = kv.vllm_stages,
    dense_over_replicas: bool = False,
    draft: bool = False,
) -> float | Unknown:
    """GiB of weights on the fullest accelerator.

    ``stages`` is the engine's split of layers. With attention replicas, experts are spread over all of their ranks;
    dense parts over one replica's (vLLM), or with ``dense_over_replicas`` over all (SGLang).
    """
    unknown: list[str] = []
    hidden, vocabulary = model.hidden_size, model.vocab_size
    if hidden is None or vocabulary is None or model.tied_embeddings is None:
        return Unknown("the model's shape lacks hidden_size, vocab_size or tied_embeddings")
    dense_ranks = sharding.tp * (sharding.attention_dp if dense_over_replicas else 1)
    sizes = [_layer(group, hidden, sharding, dense_ranks, quantisation, unknown) for group in model.layers]
    extra = sum(
        g.count * _layer(g, hidden, sharding, dense_ranks, quantisation, unknown) for g in model.draft_layers if draft
    )
    if unknown:
        return Unknown(f"the model's shape lacks {', '.join(dict.fromkeys(unknown))}")
    table = vocabulary * hidden * WIDE / sharding.tp
    own = (model.per_layer_embedding_size or 0) * model.layer_count * vocabulary * WIDE / sharding.tp
    order, start, most = kv.sequence([group.count for group in model.layers]), 0, 0.0
    for stage, part in enumerate(stages(len(order), sharding.pp)):
        size = sum(sizes[kind] for kind in order[start : start + part])
        start += part
        last = stage == sharding.pp - 1
        size += table + own if stage == 0 else 0.0
        # A tied output layer is the embedding itself, unless it stands on another stage.
        size += table if last and (not model.tied_embeddings or stage > 0) else 0.0
        most = max(most, size + (extra if last else 0.0))
    return most / GIB


def _layer(
    group: Layers, hidden: int, sharding: Sharding, dense_ranks: int, q: Quantisation, unknown: list[str]
) -> float:
    """Bytes of one layer on one accelerator."""
    return _mixer(group.attention, hidden, sharding.tp, unknown, group.shares_kv) * q.attention + _mlp(
        group.mlp, hidden, dense_ranks, sharding.tp * sharding.attention_dp, q, unknown
    )


def _mixer(attention: Attention, hidden: int, tp: int, unknown: list[str], shares_kv: bool) -> float:
    """Elements of one mixer on one of ``tp`` ranks.

    Key and value heads beyond one per rank are copies. Of latent attention, what leads down to the latents and the
    whole indexer stand on every rank.
    """
    every = parameters.attention(attention, hidden, unknown, shares_kv=shares_kv)
    if isinstance(attention, Gqa) and not shares_kv:
        values = 0 if attention.k_eq_v else attention.v_head_dim or attention.head_dim
        one = hidden * (attention.head_dim + values)
        kept = one * attention.kv_heads
        return (every - kept) / tp + one * max(1, attention.kv_heads / tp)
    if isinstance(attention, Mla):
        rank = attention.q_lora_rank or 0
        down = hidden * (rank + attention.kv_lora_rank + attention.qk_rope_head_dim)
        if attention.index is not None:
            rows = attention.index.heads or 0
            down += attention.index.head_dim * (hidden + rows * (rank or hidden)) + hidden * rows
        return (every - down) / tp + down
    return every / tp


def _mlp(mlp: Mlp | None, hidden: int, dense: int, experts: int, q: Quantisation, unknown: list[str]) -> float:
    """Bytes of one MLP on one accelerator: dense parts over ``dense`` ranks, routed experts over ``experts``."""
    if isinstance(mlp, DenseMlp):
        return parameters.mlp(mlp, hidden, unknown)[0] * q.dense / dense
    if not isinstance(mlp, MoeMlp):
        parameters.mlp(mlp, hidden, unknown)
        return 0.0
    matrices, width = 3 if mlp.gated else 2, mlp.latent_size or hidden
    inner = -(-mlp.expert_intermediate_size // q.expert_width_step) * q.expert_width_step
    routed = mlp.experts * matrices * width * inner * q.experts / experts
    latent = 2 * hidden * width if mlp.latent_size else 0
    shared = (hidden * matrices * mlp.shared_intermediate_size + latent) * q.dense / dense
    return routed + shared + hidden * mlp.experts * WIDE
