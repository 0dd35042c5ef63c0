"""A model from its config.json: what mixes its tokens, by family.

Where a test names a model, the keys are those of its published config.json (as copied in PyPI aiconfigurator-core
0.12.0, model_configs, if not said otherwise).
"""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import DELTA, EXPERTS, INDEX, LATENT, LOCAL, NEMOTRON_NANO, ROUTED, mixers, mlps, moe, read

from agentroute.catalogue import shipped
from agentroute.shape.model import Gqa, Linear


@pytest.mark.parametrize(
    ("model_type", "keys", "layers"),
    [
        ("llama", {}, {"gqa": 12}),
        ("mistral", {}, {"gqa": 12}),
        ("mistral", {"sliding_window": 32}, {"window 32": 12}),
        ("starcoder2", {"sliding_window": 32}, {"window 32": 12}),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": False, "max_window_layers": 8}, {"gqa": 12}),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 8},
         {"gqa": 8, "window 32": 4}),
        ("gemma2", {"sliding_window": 32}, {"window 32": 6, "gqa": 6}),
        ("gemma3", {"sliding_window": 32}, {"window 32": 10, "gqa": 2}),
        ("gemma3", {"sliding_window": 32, "sliding_window_pattern": 3}, {"window 32": 8, "gqa": 4}),
        ("cohere2", {"sliding_window": 32}, {"window 32": 9, "gqa": 3}),
        ("afmoe", EXPERTS | {"sliding_window": 32, "num_dense_layers": 2}, {"window 32": 9, "gqa": 3}),
        ("gemma4_unified", {"sliding_window": 32}, {"window 32": 10, "gqa": 2}),
        ("gpt_oss", LOCAL | {"sliding_window": 32}, {"window 32": 6, "gqa": 6}),
        (
            "gpt_oss",
            LOCAL | {"sliding_window": 32, "layer_types": ["sliding_attention"] * 9 + ["full_attention"] * 3},
            {"window 32": 9, "gqa": 3},
        ),
        ("llama4", LOCAL, {"chunk 8192": 9, "gqa": 3}),
        ("llama4", LOCAL | {"no_rope_layers": [1] * 10 + [0] * 2}, {"chunk 8192": 10, "gqa": 2}),
        ("gemma3n", {"sliding_window": 32, "num_kv_shared_layers": 4, "num_hidden_layers": 10},
         {"window 32": 5, "gqa": 1, "window 32 shared": 3, "gqa shared": 1}),
        ("deepseek_v3", ROUTED | LATENT, {"mla": 12}),
        ("deepseek_v32", ROUTED | LATENT | INDEX, {"mla with indexer": 12}),
        ("qwen3_next", EXPERTS | DELTA, {"linear": 9, "gqa": 3}),
        ("qwen3_5", DELTA | {"full_attention_interval": 3}, {"linear": 8, "gqa": 4}),
        (
            "qwen3_5",
            DELTA | {"layer_types": ["linear_attention"] * 10 + ["full_attention"] * 2},
            {"linear": 10, "gqa": 2},
        ),
        ("nemotron_h", NEMOTRON_NANO, {"linear": 23, "none": 23, "gqa": 6}),
        ("jamba", {"num_experts": 1, "num_hidden_layers": 32}, {"linear": 28, "gqa": 4}),
        ("lfm2", {"full_attn_idxs": [2, 5], "conv_L_cache": 3}, {"linear": 10, "gqa": 2}),
    ],
)  # fmt: skip
def test_the_layers_of_a_family(model_type: str, keys: dict[str, Any], layers: dict[str, int]) -> None:
    assert mixers(read(model_type, keys)) == layers


def test_without_kv_heads_every_head_has_its_own_and_without_head_dim_heads_share_the_hidden_size() -> None:
    assert read("llama", num_key_value_heads="gone", head_dim="gone").layers[0].attention == Gqa(
        kind="gqa", heads=4, kv_heads=4, head_dim=16
    )


def test_gemma_4_has_wider_heads_without_a_value_matrix_where_it_sees_everything() -> None:
    """gemma-4-26B-A4B: 25 sliding layers of 8 x 256, 5 full ones of 2 x 512; dense beside the experts."""
    model = read(
        "gemma4", EXPERTS, num_hidden_layers=30, num_attention_heads=16, num_key_value_heads=8, head_dim=256,
        global_head_dim=512, num_global_key_value_heads=2, attention_k_eq_v=True, sliding_window=1024,
        num_experts_per_tok="gone", top_k_experts=2, enable_moe_block=True,
    )  # fmt: skip
    sliding, full = model.layers
    assert (sliding.count, full.count) == (25, 5)
    assert sliding.attention == Gqa(kind="gqa", heads=16, kv_heads=8, head_dim=256, window_tokens=1024)
    assert full.attention == Gqa(kind="gqa", heads=16, kv_heads=2, head_dim=512, k_eq_v=True)
    assert moe(model).shared_intermediate_size == 128


def test_trinity_is_the_shipped_model() -> None:
    """arcee-ai/Trinity-Nano-Preview, as the NeuronX Distributed Inference tests quote it."""
    found = read(
        "afmoe", EXPERTS, num_hidden_layers=56, hidden_size=1024, num_attention_heads=8, head_dim=128, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=256, num_shared_experts=1, num_dense_layers=2, num_expert_groups=1,
        global_attn_every_n_layers=4, sliding_window=2048, intermediate_size=3072, vocab_size=200_192,
    )  # fmt: skip
    assert found.layers == shipped().model("trinity-nano").layers


def test_gemma_4_without_encoders_is_the_shipped_model() -> None:
    """google/gemma-4-12B-it, as ports of gemma4_unified quote it."""
    found = read(
        "gemma4_unified", num_hidden_layers=48, hidden_size=3840, num_attention_heads=16, num_key_value_heads=8,
        head_dim=256, global_head_dim=512, num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=1024,
        intermediate_size=15_360, vocab_size=262_144,
    )  # fmt: skip
    assert found.layers == shipped().model("gemma-4-12b").layers
    assert found.per_layer_embedding_size is None


def test_the_state_of_a_gated_delta_net() -> None:
    """Qwen3-Next: a convolution over 2 x 16 x 128 + 32 x 128 channels keeps 3 inputs; 32 heads keep 128 x 128."""
    model = read("qwen3_next", EXPERTS, DELTA)
    mixer, full = model.layers[0].attention, model.layers[1].attention
    assert isinstance(mixer, Linear)
    assert (mixer.conv_elements, mixer.ssm_elements) == (8_192 * 3, 32 * 128 * 128)
    assert isinstance(full, Gqa)
    assert full.output_gate


def test_the_state_of_mamba_2() -> None:
    """Nemotron-3-Nano: vLLM logs an attention block of 4,176 tokens, from 64 x 64 x 128 and 6,144 x 3 elements."""
    mixer = read("nemotron_h", NEMOTRON_NANO).layers[0].attention
    assert isinstance(mixer, Linear)
    assert (mixer.conv_elements, mixer.ssm_elements) == (6_144 * 3, 64 * 64 * 128)


def test_the_state_of_a_short_convolution() -> None:
    mixer = read("lfm2", full_attn_idxs=[2], conv_L_cache=3).layers[0].attention
    assert isinstance(mixer, Linear)
    assert (mixer.conv_elements, mixer.ssm_elements) == (64 * 2, 0)


def test_granite_4_names_its_layers() -> None:
    mamba = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_d_conv": 4}
    keys = mamba | {"layer_types": ["mamba"] * 10 + ["attention"] * 2, "shared_intermediate_size": 96}
    assert mixers(read("granitemoehybrid", keys)) == {"linear": 10, "gqa": 2}
    assert mlps(read("granitemoehybrid", keys)) == {"dense": 12}
    assert moe(read("granitemoehybrid", keys, LOCAL)).shared_intermediate_size == 96


def test_an_indexer_whose_choice_is_shared_keeps_no_rows() -> None:
    """GLM-5.3: 21 of 78 layers keep an indexer, as vLLM's log shows; the list and the rule say the same."""
    glm = ROUTED | LATENT | INDEX | {"num_hidden_layers": 78, "first_k_dense_replace": 3}
    types = ["full"] * 2 + [*["full"] + ["shared"] * 3] * 19
    by_list = read("glm_moe_dsa", glm, indexer_types=types, index_topk_freq=4)
    by_rule = read("glm_moe_dsa", glm, index_topk_freq=4, index_skip_topk_offset=3)
    assert mixers(by_list) == mixers(by_rule) == {"mla with indexer": 21, "mla": 57}
    assert by_list.layers == by_rule.layers


def test_sliding_layers_of_mimo_v2_have_heads_of_their_own() -> None:
    own = {f"swa_{key}": value for key, value in {
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "v_head_dim": 8,
    }.items()}  # fmt: skip
    model = read(
        "mimo_v2_flash", ROUTED, own, sliding_window=32, hybrid_layer_pattern=[0, *[1] * 11],
        moe_layer_freq=[0, *[1] * 11], v_head_dim=8,
    )  # fmt: skip
    assert mixers(model) == {"gqa": 1, "window 32": 11}
    assert mlps(model) == {"dense": 1, "moe": 11}
    assert isinstance(sliding := model.layers[1].attention, Gqa)
    assert sliding.kv_heads == 4
