"""A model from its config.json: what each family's keys mean, and what is named because it is not understood.

The configs are cut down to the keys that shape a model; where a test names a model, they are those of its published
config.json (as copied in PyPI aiconfigurator-core 0.12.0, model_configs, if not said otherwise).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.catalogue import shipped
from agentroute.errors import ProfileError, UsageError
from agentroute.origin import Provenance
from agentroute.shape.hf import model_from_config
from agentroute.shape.hf_families import FAMILIES
from agentroute.shape.model import Gqa, Layers, Linear, Mla, Model, MoeMlp

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


# ---- what mixes tokens


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


@pytest.mark.parametrize(
    ("vision", "weights"),
    [
        ({"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}, 27 * 1152 * (4 * 1152 + 2 * 4304)),
        (
            {"model_type": "gemma4_vision", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16},
            2 * 8 * (4 * 8 + 3 * 16),
        ),
        ({"patch_size": 14}, 0),
        ({"depth": 27, "hidden_size": 1152, "intermediate_size": None}, 0),
    ],
)
def test_the_blocks_of_a_vision_part_are_counted(vision: dict[str, Any], weights: int) -> None:
    model = read("qwen2", vision_config=vision)
    assert model.encoder_parameters == (weights or None)
    assert model.capabilities["vision"]


@pytest.mark.parametrize(
    ("architectures", "output"),
    [(["MistralModel"], False), (["MistralForCausalLM"], True), ([], True), ("gone", True)],
)
def test_a_bare_body_has_no_output_layer(architectures: object, output: bool) -> None:
    assert read("mistral", architectures=architectures).output_layer is output


def test_layers_of_gemma_4_that_share_kv_may_be_twice_as_wide() -> None:
    model = read("gemma4", sliding_window=32, num_kv_shared_layers=6, use_double_wide_mlp=True)
    assert {(group.shares_kv, getattr(group.mlp, "intermediate_size", 0)) for group in model.layers} == {
        (False, 128), (True, 256),
    }  # fmt: skip


def test_per_layer_embeddings_are_kept() -> None:
    assert read("gemma4", sliding_window=32, hidden_size_per_layer_input=16).per_layer_embedding_size == 16


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


# ---- where the keys stand


def test_the_text_part_is_read_and_what_stands_outside_of_it_is_not() -> None:
    outside = {"hidden_size": 1, "image_token_id": 5, "vision_config": {"hidden_size": 2, "num_hidden_layers": 3}}
    config = outside | {"model_type": "qwen3_vl", "text_config": BASE | {"model_type": "qwen3_vl_text"}}
    model = model_from_config(config, name="m", provenance=SOURCE)
    assert (model.hidden_size, model.layer_count) == (64, 12)
    assert model.capabilities == {"vision": True, "audio": False}


def test_tied_embeddings_may_be_said_outside_of_the_text_part() -> None:
    text = {key: value for key, value in BASE.items() if key != "tie_word_embeddings"} | {"model_type": "qwen3_vl_text"}
    config = {"model_type": "qwen3_vl", "tie_word_embeddings": True, "text_config": text}
    assert model_from_config(config, name="m", provenance=SOURCE).tied_embeddings is True


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"]
)
def test_without_a_model_type_the_architecture_tells(architecture: str) -> None:
    assert model_from_config(BASE | {"architectures": [architecture]}, name="m", provenance=SOURCE).layer_count == 12


# ---- from a dict, a file, a folder


def test_a_model_from_a_dict_is_named_after_its_type_or_as_one_says() -> None:
    config = BASE | {"model_type": "llama"}
    assert Model.from_hf_config(config).name == "llama"
    assert Model.from_hf_config(config | {"_name_or_path": "org/Big-7B"}).name == "big-7b"
    assert Model.from_hf_config(config, name="mine").name == "mine"


def test_a_model_from_a_file_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BASE | {"model_type": "llama"}))
    assert Model.from_hf_config(folder) == Model.from_hf_config(str(folder / "config.json"))
    assert Model.from_hf_config(folder).name == "tiny"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "config.json:1: is not valid JSON"),
        ("[]", "config.json:1: must hold one table"),
        (json.dumps(BASE | {"model_type": "gpt2"}), "the unknown model type 'gpt2'"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ProfileError) as raised:
        Model.from_hf_config(tmp_path / "config.json")
    assert str(tmp_path) in str(raised.value)
    assert said in str(raised.value)


# ---- what is not understood is named


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


@pytest.mark.parametrize("strange", [[], 5, None, b"{}"])
def test_what_is_neither_a_mapping_nor_a_path_is_refused(strange: Any) -> None:
    with pytest.raises(UsageError, match=r"the config must be the contents of a config\.json or its path, not"):
        Model.from_hf_config(strange)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted({*BASE, *EXPERTS, *ROUTED, *LOCAL, *LATENT, *INDEX, *DELTA, *NEMOTRON_NANO, "text_config", "layer_types",
               "architectures", "moe_layer_freq", "mlp_only_layers", "full_attn_idxs", "indexer_types", "conv_L_cache",
               "mamba_dt_rank", "no_rope_layers", "num_nextn_predict_layers", "mtp_layers_block_type",
               "layers_block_type", "num_kv_shared_layers", "sliding_window", "_name_or_path",
               "quantization_config", "vision_config", "is_encoder_decoder", "hyper"})  # fmt: skip


@given(
    model_type=st.sampled_from(sorted(FAMILIES)),
    parts=st.sets(st.sampled_from(range(7))),
    strange=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4),
)
def test_whatever_a_config_says_there_is_a_model_or_one_sentence(
    model_type: str, parts: set[int], strange: dict[str, Any]
) -> None:
    config: dict[str, Any] = {**BASE, "model_type": model_type}
    for part in parts:
        config |= (EXPERTS, ROUTED, LOCAL, LATENT, INDEX, DELTA, NEMOTRON_NANO)[part]
    try:
        model = Model.from_hf_config(config | strange)
    except UsageError as problem:
        assert str(problem).startswith("the config of ")
    else:
        assert all(isinstance(group, Layers) for group in model.layers)
        assert Model.model_validate(model.model_dump()) == model
