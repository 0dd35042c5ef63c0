"""A model from its config.json: what is not understood is named, and what says nothing of the shape is passed over."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import BASE, DELTA, EXPERTS, INDEX, LATENT, LOCAL, NEMOTRON_NANO, ROUTED, SOURCE, read

from agentroute.errors import UsageError
from agentroute.shape.hf import model_from_config


@pytest.mark.parametrize(
    ("model_type", "keys", "said"),
    [
        ("gpt2", {}, "is of the unknown model type 'gpt2'"),
        ("qwen4_moe", {}, "unknown model type 'qwen4_moe'; did you mean 'qwen3_moe'?"),
        ("gone", {}, "has neither model_type nor architectures"),
        ("gone", {"architectures": ["GPT2LMHeadModel"]}, "unknown model type 'GPT2LMHeadModel'"),
        (
            "deepseek_v4",
            {"compress_ratios": [0, 4, 128]},
            "the config of 'm' has compress_ratios: its compressed cache has no known formula",
        ),
        (
            "gemma3",
            {"sliding_window": 32, "layer_types": ["ring_attention"] * 12},
            "layer_types with 'ring_attention'; understood: full_attention, sliding_attention, chunked_attention",
        ),
        ("gemma3", {"sliding_window": 32, "layer_types": ["full_attention"]}, "it must list all 12 layers"),
        ("llama", {"layer_types": ["sliding_attention"] * 12}, "layer_types with 'sliding_attention'"),
        ("nemotron_h", NEMOTRON_NANO | {"hybrid_override_pattern": "MX"}, "with ['X']; understood"),
        (
            "nemotron_h",
            NEMOTRON_NANO | {"hybrid_override_pattern": "M*"},
            "describes 2 layers and has num_hidden_layers",
        ),
        ("minimax_m2", LOCAL | {"attn_type_list": [0] * 12}, "attn_type_list with other kinds than 1"),
        ("llama", {"sliding_window": 32}, "has what is not understood: sliding_window = 32"),
        ("llama", LOCAL, "has what is not understood: num_experts_per_tok = 2, num_local_experts = 8"),
        ("llama", {"num_memory_heads": 4, "kv_compression": "x"}, "kv_compression = 'x', num_memory_heads = 4"),
        ("gpt_oss", LOCAL, "does not say sliding_window"),
        ("gemma2", {}, "does not say sliding_window or sliding_window_size; its shape is unknown without it"),
        ("llama", {"hidden_size": "gone"}, "does not say hidden_size"),
        ("llama", {"num_hidden_layers": "gone"}, "does not say num_hidden_layers"),
        ("llama", {"num_hidden_layers": 10**9}, "has num_hidden_layers = 1000000000; at most 10000"),
        ("llama", {"num_attention_heads": "4"}, "has num_attention_heads = '4'; it must be a whole number"),
        ("llama", {"head_dim": -1}, "has head_dim = -1; it must be a whole number"),
        ("llama", {"head_dim": 0}, "has head_dim = 0; it must be above 0"),
        ("llama", {"num_key_value_heads": 0}, "has num_key_value_heads = 0; it must be above 0"),
        ("llama", {"num_attention_heads": 0}, "has num_attention_heads = 0; it must be above 0"),
        (
            "llama",
            {"head_dim": 10**12},
            "does not make a model: head_dim = 1000000000000 must be less than or equal to 1000000",
        ),
        ("llama", {"tie_word_embeddings": 1}, "has tie_word_embeddings = 1; it must be true or false"),
        (
            "qwen3_moe",
            EXPERTS | {"num_experts_per_tok": 9},
            "the config of 'm' does not make a model: active experts cannot exceed the 8 there are, got 9",
        ),
        # heads that do not divide
        (
            "llama",
            {"num_attention_heads": 33, "num_key_value_heads": 3, "head_dim": "gone"},
            "has hidden_size = 64 and num_attention_heads = 33; the first must be a multiple of the second",
        ),
        (
            "llama",
            {"num_attention_heads": 32, "num_key_value_heads": 7},
            "has num_attention_heads = 32 and num_key_value_heads = 7; the first must be a multiple of the second",
        ),
        ("llama", {"num_key_value_heads": 8}, "has num_attention_heads = 4 and num_key_value_heads = 8"),
        (
            "qwen3_5",
            DELTA | {"linear_num_key_heads": 12},
            "has linear_num_value_heads = 32 and linear_num_key_heads = 12",
        ),
        (
            "granitemoehybrid",
            {
                "mamba_n_heads": 8,
                "mamba_d_head": 8,
                "mamba_d_state": 16,
                "mamba_expand": 2,
                "mamba_n_groups": 1,
                "mamba_d_conv": 4,
                "shared_intermediate_size": 96,
                "layer_types": ["mamba"] * 12,
            },
            "has mamba_n_heads = 8 of mamba_d_head = 8, together not mamba_expand x hidden_size = 128",
        ),
        # what contradicts itself
        (
            "llama",
            {"architectures": ["MambaForCausalLM"]},
            "has the model type 'llama' and the architecture 'MambaForCausalLM', which is not of it",
        ),
        ("qwen3", {"architectures": ["Qwen3MoeForCausalLM"]}, "and the architecture 'Qwen3MoeForCausalLM'"),
        ("deepseek_v3", ROUTED | LATENT | {"architectures": ["DeepseekV32ForCausalLM"]}, "'DeepseekV32ForCausalLM'"),
        (
            "gemma2",
            {"sliding_window": 32, "sliding_window_size": 64},
            "has sliding_window = 32 and sliding_window_size = 64; they must be equal",
        ),
        ("qwen3_moe", EXPERTS | {"n_routed_experts": 4}, "has what is not understood: n_routed_experts = 4"),
        # what no list knows, and what its name says
        ("llama", {"hyper_connections": 4}, "has what is not understood: hyper_connections = 4"),
        ("llama", {"altup_num_inputs": 4, "ngram_tables": 51}, "altup_num_inputs = 4, ngram_tables = 51"),
        ("llama", {"per_token_cache": 9, "depth_multiplier": 2}, "depth_multiplier = 2, per_token_cache = 9"),
        ("llama", {"num_repeats": 2}, "has what is not understood: num_repeats = 2"),
        ("llama", {"is_encoder_decoder": True}, "has an encoder of its own beside the decoder"),
        ("llama", {"add_cross_attention": True}, "has an encoder of its own beside the decoder"),
        ("llama", {"text_config": [1]}, "has text_config = [1]; it must be a table (a JSON object)"),
        ("qwen3_vl", {"vision_config": "big"}, "has vision_config = 'big'; it must be a table"),
        ("glm_moe_dsa", ROUTED | LATENT | INDEX | {"index_topk_freq": 4}, "does not say index_skip_topk_offset"),
    ],
)
def test_what_is_not_understood_is_named(model_type: str, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(model_type, keys)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"type": "yarn"}, "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        {"rms_norm_eps": 1e-6, "attention_bias": True, "attention_dropout": 0.1, "hidden_act": "silu"},
        {"torch_dtype": "bfloat16", "transformers_version": "5.24", "bos_token_id": 1, "use_cache": True},
        {
            "quantization_config": {},
            "auto_map": {"AutoModel": "x"},
            "is_encoder_decoder": False,
            "id2label": {"0": "x"},
        },
        {"num_beams": 4, "max_length": 20, "chunk_size_feed_forward": 1, "cache_implementation": "hybrid"},
        {"router_aux_loss_coef": 0.1, "output_router_logits": True, "use_mamba_kernels": True, "chunk_size": 128},
        {"sliding_window": None, "num_experts": 0, "kv_lora_rank": None},
    ],
)
def test_what_does_not_change_the_shape_is_passed_over(keys: dict[str, Any]) -> None:
    assert read("llama", keys) == read("llama")


@pytest.mark.parametrize(
    ("model_type", "keys", "keys_too"),
    [
        (
            "nemotron_h",
            NEMOTRON_NANO,
            {"rescale_prenorm_residual": True, "residual_in_fp32": False, "use_mamba_kernels": True,
             "mamba_hidden_act": "silu", "mamba_ssm_cache_dtype": "float32", "use_conv_bias": True, "n_group": 1,
             "time_step_limit": [0.0, 1e308], "layer_norm_epsilon": 1e-5, "moe_shared_expert_overlap": True},
        ),
        (
            "deepseek_v32",
            ROUTED | LATENT | INDEX,
            {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "ep_size": 1, "qk_head_dim": 12, "moe_layer_freq": 1,
             "indexer_rope_interleave": True, "moe_router_dtype": "float32", "index_topk_pattern": None},
        ),
        (
            "lfm2",
            {"full_attn_idxs": [2], "conv_L_cache": 3},
            {"block_dim": 64, "num_heads": 4, "use_pos_enc": True, "block_use_swiglu": True,
             "block_mlp_init_scale": 1.0, "block_norm_eps": 1e-5,
             "block_use_xavier_init": True, "conv_dim": 64, "conv_dim_out": 64, "conv_use_xavier_init": True},
        ),
        (
            "cohere2",
            {"sliding_window": 32},
            {"cache_implementation": "hybrid", "layer_switch": 4, "logit_scale": 0.25, "rotary_pct": 1.0,
             "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj",
             "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True,
             "use_parallel_embedding": True, "use_qk_norm": False},
        ),
        (
            "gemma2",
            {"sliding_window": 32},
            {"sliding_window_size": 32, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 224},
        ),
        ("phi3", {}, {"full_attn_mod": 1, "interpolate_factor": 1, "original_max_position_embeddings": 4096}),
        (
            "minimax_m2",
            LOCAL,
            {"attn_type_list": [1] * 12, "layernorm_full_attention_beta": 1.0, "layernorm_mlp_beta": 1.0,
             "mlp_intermediate_size": 8192, "mtp_transformer_layers": 1, "num_mtp_modules": 3, "use_mtp": True,
             "qk_norm_type": "per_layer", "rotary_dim": 64, "shared_intermediate_size": 0, "swa_rope_theta": -1.0},
        ),
        (
            "jamba",
            {"num_experts": 16, "num_experts_per_tok": 2},
            {"mamba_conv_bias": True, "mamba_dt_rank": 4, "num_logits_to_keep": 1, "use_mamba_kernels": False,
             "mamba_inner_layernorms": True, "calc_logits_for_entire_prompt": False},
        ),
        (
            "gpt_oss",
            LOCAL | {"sliding_window": 32},
            {"experts_per_token": 2, "initial_context_length": 4096, "swiglu_limit": 7.0},
        ),
        (
            "gemma4",
            {"sliding_window": 32},
            {"use_bidirectional_attention": "vision", "vocab_size_per_layer_input": 100, "num_experts": None},
        ),
    ],
    ids=["nemotron_h", "deepseek_v32", "lfm2", "cohere2", "gemma2", "phi3", "minimax_m2", "jamba", "gpt_oss", "gemma4"],
)  # fmt: skip
def test_what_a_published_config_says_besides_is_passed_over(
    model_type: str, keys: dict[str, Any], keys_too: dict[str, Any]
) -> None:
    assert read(model_type, keys, keys_too) == read(model_type, keys)


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("kimi_k2", "DeepseekV3ForCausalLM"),
        ("kimi_k25", "DeepseekV3ForCausalLM"),
        ("mistral", "MistralModel"),
        ("llama", "LLaMAForCausalLM"),
        ("llama", "LlamaBidirectionalModel"),
        ("mimo", "MiMoForCausalLM"),
        ("gpt_oss", "GptOssForCausalLM"),
        ("qwen3_moe", "Qwen3MoeForCausalLM"),
        ("deepseek_v32", "DeepseekV32ForCausalLM"),
    ],
)
def test_these_architectures_are_of_these_model_types(model_type: str, architecture: str) -> None:
    keys = {"llama": {}, "mistral": {}, "mimo": {}, "gpt_oss": LOCAL | {"sliding_window": 32}, "qwen3_moe": EXPERTS}
    model = read(model_type, keys.get(model_type, ROUTED | LATENT), architectures=[architecture])
    assert model.layer_count == 12


def test_a_key_that_says_nothing_of_the_shape_is_named_in_the_notes() -> None:
    assert read("llama", zeal=2, colour="blue", empty=None, off=False, use_cache=True).notes == (
        "config.json keys not understood: colour, zeal."
    )


def test_a_key_outside_of_the_text_part_is_named_in_the_notes() -> None:
    outside = {"image_token_id": 5, "colour": "blue", "hyper_connections": 4, "vision_config": {"depth": 1}}
    config = outside | {"model_type": "qwen3_vl", "text_config": BASE | {"model_type": "qwen3_vl_text", "zeal": 2}}
    notes = model_from_config(config, name="m", provenance=SOURCE).notes or ""
    assert notes.startswith("config.json keys not understood: zeal, colour, hyper_connections. ")


def test_of_very_many_strange_keys_twenty_are_named() -> None:
    notes = read("llama", {f"zeal{i:04}": 1 for i in range(1_000)}).notes or ""
    assert notes.endswith("zeal0019 and 980 more.")


@pytest.mark.parametrize("key", ["new\nline", "x" * 10_000, "head\nline"])
def test_a_strange_key_does_not_break_the_sentence(key: str) -> None:
    try:
        said = read("llama", {key: 1}).notes or ""
    except UsageError as problem:
        said = str(problem)
    assert "not understood" in said
    assert "\n" not in said
    assert len(said) < 200
