"""A model from its config.json: what follows what mixes its tokens, and its draft layers."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import DELTA, EXPERTS, LATENT, LOCAL, NEMOTRON_NANO, ROUTED, mlps, moe, read


def test_layers_of_gemma_4_that_share_kv_may_be_twice_as_wide() -> None:
    model = read("gemma4", sliding_window=32, num_kv_shared_layers=6, use_double_wide_mlp=True)
    assert {(group.shares_kv, getattr(group.mlp, "intermediate_size", 0)) for group in model.layers} == {
        (False, 128), (True, 256),
    }  # fmt: skip


# ---- what follows


@pytest.mark.parametrize(
    ("model_type", "keys", "kinds"),
    [
        ("llama", {}, {"dense": 12}),
        ("mixtral", LOCAL, {"moe": 12}),
        ("minimax_m2", LOCAL, {"moe": 12}),
        ("qwen3_moe", EXPERTS, {"moe": 12}),
        ("qwen3_moe", EXPERTS | {"mlp_only_layers": [0, 1]}, {"dense": 2, "moe": 10}),
        ("qwen3_moe", EXPERTS | {"decoder_sparse_step": 2}, {"dense": 6, "moe": 6}),
        ("deepseek_v3", ROUTED | LATENT | {"first_k_dense_replace": 3}, {"dense": 3, "moe": 9}),
        ("glm4_moe", ROUTED | {"first_k_dense_replace": 1}, {"dense": 1, "moe": 11}),
        ("glm_moe_dsa", ROUTED | LATENT | {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 9}, {"dense": 3, "moe": 9}),
        ("llama4", LOCAL | {"interleave_moe_layer_step": 2}, {"dense": 6, "moe": 6}),
        ("nemotron_h", NEMOTRON_NANO, {"none": 29, "moe": 23}),
        ("jamba", EXPERTS | {"moe_intermediate_size": "gone"}, {"dense": 6, "moe": 6}),
    ],
)
def test_the_experts_of_a_family(model_type: str, keys: dict[str, Any], kinds: dict[str, int]) -> None:
    assert mlps(read(model_type, keys)) == kinds


@pytest.mark.parametrize(
    ("model_type", "keys", "width"),
    [
        ("qwen3_moe", EXPERTS, 0),
        ("qwen3_next", EXPERTS | DELTA | {"shared_expert_intermediate_size": 48}, 48),
        ("deepseek_v2", ROUTED | LATENT | {"n_shared_experts": 2}, 64),
        ("llama4", LOCAL, 128),
        ("nemotron_h", NEMOTRON_NANO, 3_712),
    ],
)
def test_the_shared_experts_of_a_family(model_type: str, keys: dict[str, Any], width: int) -> None:
    assert moe(read(model_type, keys)).shared_intermediate_size == width


def test_experts_of_nemotron_may_work_in_a_latent_and_have_no_gate() -> None:
    experts = moe(read("nemotron_h", NEMOTRON_NANO, moe_latent_size=1024))
    assert (experts.latent_size, experts.gated) == (1024, False)


def test_the_width_of_lfm2_is_two_thirds_rounded_up() -> None:
    """LFM2-1.2B: block_ff_dim 12,288 makes 8,192."""
    mlp = read("lfm2", full_attn_idxs=[2], conv_L_cache=3, block_ff_dim=12_288).layers[0].mlp
    assert getattr(mlp, "intermediate_size", None) == 8_192


# ---- draft layers


def test_a_draft_layer_is_like_the_last_layer_of_attention() -> None:
    model = read("qwen3_5", DELTA, mtp_num_hidden_layers=1)
    assert model.draft_layers == (model.layers[1].model_copy(update={"count": 1}),)


def test_nemotron_drafts_with_layers_that_it_lists() -> None:
    drafts = read(
        "nemotron_h", NEMOTRON_NANO, num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E"
    ).draft_layers
    assert [(layer.attention.kind, layer.mlp and layer.mlp.kind) for layer in drafts] == [
        ("gqa", "none"),
        ("none", "moe"),
    ]
