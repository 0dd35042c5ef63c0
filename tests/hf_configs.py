"""Cut-down contents of config.json files, by family, and what a model made of them looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentroute.origin import Provenance
from agentroute.shape.hf import model_from_config
from agentroute.shape.model import Gqa, Mla, Model, MoeMlp

SOURCE = Provenance(origin="assumed", source="a test")
BASE: dict[str, Any] = {
    "num_hidden_layers": 12, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 100, "tie_word_embeddings": False, "max_position_embeddings": 4_096,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED: dict[str, Any] = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "q_lora_rank": 24,
}  # fmt: skip
INDEX: dict[str, Any] = {"index_head_dim": 8, "index_n_heads": 2, "index_topk": 64}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
NEMOTRON_NANO: dict[str, Any] = {
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_hidden_layers": 52,
    "hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 131_072,
    "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128,
    "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "expand": 2,
}  # fmt: skip


def read(model_type: str, *parts: Mapping[str, Any], **more: Any) -> Model:
    config: dict[str, Any] = {**BASE, "model_type": model_type}
    for part in (*parts, more):
        config |= part
    return model_from_config(
        {key: value for key, value in config.items() if value != "gone"}, name="m", provenance=SOURCE
    )


def mixers(model: Model) -> dict[str, int]:
    """Layers by what mixes their tokens."""
    found: dict[str, int] = {}
    for group in model.layers:
        match group.attention:
            case Gqa(window_tokens=int(window)):
                kind = f"window {window}"
            case Gqa(chunk_tokens=int(chunk)):
                kind = f"chunk {chunk}"
            case Mla(index=index):
                kind = "mla" if index is None else "mla with indexer"
            case other:
                kind = other.kind
        kind += " shared" if group.shares_kv else ""
        found[kind] = found.get(kind, 0) + group.count
    return found


def mlps(model: Model) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in model.layers:
        assert group.mlp is not None
        found[group.mlp.kind] = found.get(group.mlp.kind, 0) + group.count
    return found


def moe(model: Model) -> MoeMlp:
    return next(group.mlp for group in model.layers if isinstance(group.mlp, MoeMlp))
