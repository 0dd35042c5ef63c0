"""The families whose ``config.json`` is understood: a table by ``model_type``.

The defaults and most of the keys that change nothing are those of the configuration classes in transformers 5.24; the
other keys stand in published files: PyPI aiconfigurator-core 0.12.0, model_configs, else recalled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentroute.shape import hf_attention as mix
from agentroute.shape import hf_mlp as mlp
from agentroute.shape.hf_config import Config
from agentroute.shape.model import Attention, Mlp


@dataclass(frozen=True)
class Family:
    """How the configs of one ``model_type`` are read."""

    attention: Callable[[Config], list[Attention]]
    mlp: Callable[[Config], list[Mlp]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    """Keys of its published files that say again what others say, or how it computes."""


_TIED = {"tie_word_embeddings": True}
_GEMMA = _TIED | {"head_dim": 256}
_LATENT = Family(mix.mla, mlp.deepseek, harmless=(
    "index_share_for_mtp_iteration", "index_topk_pattern", "indexer_rope_interleave",
))  # fmt: skip
_JAMBA = {
    "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
}  # fmt: skip
_LFM2 = _TIED | {"block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0}
_GEMMA3 = _GEMMA | {
    "sliding_window_pattern": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}  # fmt: skip
_GEMMA3N = _GEMMA | {"sliding_window_pattern": 5, "num_kv_shared_layers": 15, "hidden_size_per_layer_input": 256}
_GEMMA4 = _GEMMA | {"global_head_dim": 512, "sliding_window_pattern": 6, "hidden_size_per_layer_input": 256}
_AFMOE = {"head_dim": 128, "global_attn_every_n_layers": 4, "sliding_window": 1_024}
_LLAMA4 = {
    "intermediate_size_mlp": 16_384, "no_rope_layer_interval": 4, "attention_chunk_size": 8_192,
    "interleave_moe_layer_step": 1, "head_dim": 128,
}  # fmt: skip

_COHERE = (
    "layer_switch", "order_of_interleaved_layers", "use_embedding_sharing", "use_parallel_block",
    "use_parallel_embedding",
)  # fmt: skip
_PHI = ("full_attn_mod", "interpolate_factor")
_STARCODER = (
    "activation_function", "attention_softmax_in_fp32", "mlp_type", "scale_attention_softmax_in_fp32",
    "scale_attn_weights",
)  # fmt: skip
_AFMOE_KEYS = ("load_balance_coeff", "mup_enabled", "num_expert_groups", "num_limited_groups", "route_norm",
               "route_scale", "score_func", "use_grouped_mm")  # fmt: skip
_MINIMAX = (
    "layernorm_full_attention_beta", "layernorm_linear_attention_beta",
    "layernorm_mlp_beta", "max_model_len", "mlp_intermediate_size", "shared_moe_mode",
)  # fmt: skip
_QWEN = ("output_gate_type",)
_NEMOTRON = ("expand", "moe_shared_expert_overlap", "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor",
             "time_step_limit", "time_step_max", "time_step_min", "time_step_rank")  # fmt: skip
_LFM2_KEYS = ("block_dim", "block_out_dim", "block_use_swiglu", "conv_dim", "conv_dim_out", "num_heads", "theta",
              "use_pos_enc")  # fmt: skip
_GEMMA3N_KEYS = ("altup_active_idx", "altup_coef_clip", "altup_correct_scale", "altup_num_inputs",
                 "vocab_size_per_layer_input")  # fmt: skip
_GEMMA4_KEYS = ("vocab_size_per_layer_input",)
_GRANITE = ("init_method", "normalization_function", "time_step_limit", "time_step_max", "time_step_min")
_JAMBA_KEYS = ("calc_logits_for_entire_prompt", "mamba_inner_layernorms", "use_associative_scan")

FAMILIES: dict[str, Family] = {
    "llama": Family(mix.full, mlp.dense),
    "mistral": Family(mix.windowed, mlp.dense),
    "phi3": Family(mix.windowed, mlp.dense, harmless=_PHI),
    "starcoder2": Family(mix.windowed, mlp.plain, _TIED, harmless=_STARCODER),
    "qwen2": Family(mix.upper_windowed, mlp.dense),
    "qwen3": Family(mix.upper_windowed, mlp.dense, {"head_dim": 128}),
    "qwen3_vl": Family(mix.upper_windowed, mlp.dense, {"head_dim": 128}),
    "mimo": Family(mix.upper_windowed, mlp.dense),
    "glm": Family(mix.full, mlp.dense, {"head_dim": 128}),
    "glm4": Family(mix.full, mlp.dense, {"head_dim": 128}),
    "granite": Family(mix.full, mlp.dense),
    "cohere": Family(mix.full, mlp.dense, _TIED, harmless=_COHERE),
    "cohere2": Family(mix.patterned, mlp.dense, _TIED | {"sliding_window_pattern": 4}, harmless=_COHERE),
    "gemma2": Family(mix.patterned, mlp.dense, _GEMMA | {"sliding_window_pattern": 2}),
    "gemma3": Family(mix.patterned, mlp.dense, _GEMMA3, harmless=("_sliding_window_pattern",)),
    "gemma3n": Family(mix.patterned, mlp.gemma3n, _GEMMA3N, harmless=_GEMMA3N_KEYS),
    "gemma4": Family(mix.gemma4, mlp.gemma4, _GEMMA4, harmless=_GEMMA4_KEYS),
    "gemma4_unified": Family(
        mix.gemma4, mlp.gemma4, _GEMMA4 | {"hidden_size_per_layer_input": None}, harmless=_GEMMA4_KEYS
    ),
    "afmoe": Family(mix.afmoe, mlp.afmoe, _AFMOE, harmless=_AFMOE_KEYS),
    "mixtral": Family(mix.windowed, mlp.experts_everywhere),
    "minimax_m2": Family(mix.full, mlp.experts_everywhere, harmless=_MINIMAX),
    "gpt_oss": Family(mix.patterned, mlp.experts_everywhere, {"sliding_window_pattern": 2, "head_dim": 64}),
    "qwen2_moe": Family(mix.upper_windowed, mlp.qwen),
    "qwen3_moe": Family(mix.upper_windowed, mlp.qwen),
    "qwen3_vl_moe": Family(mix.upper_windowed, mlp.qwen),
    "llama4": Family(mix.chunked, mlp.llama4, _LLAMA4, harmless=("for_llm_compressor",)),
    "glm4_moe": Family(mix.full, mlp.deepseek),
    "mimo_v2_flash": Family(mix.mimo_v2, mlp.deepseek),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "kimi_k2": _LATENT,
    "kimi_k25": _LATENT,
    "glm_moe_dsa": _LATENT,
    "glm4_moe_lite": Family(mix.mla, mlp.deepseek, {"first_k_dense_replace": 1}),
    "mistral4": _LATENT,
    "qwen3_next": Family(mix.delta, mlp.qwen, {"full_attention_interval": 4, "head_dim": 256}, harmless=_QWEN),
    "qwen3_5": Family(mix.delta, mlp.dense, {"full_attention_interval": 4, "head_dim": 256}, harmless=_QWEN),
    "qwen3_5_moe": Family(mix.delta, mlp.qwen, {"full_attention_interval": 4, "head_dim": 256}, harmless=_QWEN),
    "nemotron_h": Family(mix.nemotron, mlp.nemotron, harmless=_NEMOTRON),
    "granitemoehybrid": Family(mix.granite, mlp.granite, harmless=_GRANITE),
    "jamba": Family(mix.jamba, mlp.jamba, _JAMBA, harmless=_JAMBA_KEYS),
    "lfm2": Family(mix.lfm2, mlp.lfm2, _LFM2, harmless=_LFM2_KEYS),
}  # fmt: skip
"""Every ``model_type`` that is understood; ``X_text`` stands for ``X``."""
