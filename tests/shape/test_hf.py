"""A model from its config.json: where the keys stand, in a mapping, a file or a folder; and whatever stands there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hf_configs import BASE, DELTA, EXPERTS, INDEX, LATENT, LOCAL, NEMOTRON_NANO, ROUTED, SOURCE, read
from hypothesis import given
from hypothesis import strategies as st

from agentroute.errors import ProfileError, UsageError
from agentroute.shape.hf import model_from_config
from agentroute.shape.hf_families import FAMILIES
from agentroute.shape.model import Layers, Model

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


def test_per_layer_embeddings_are_kept() -> None:
    assert read("gemma4", sliding_window=32, hidden_size_per_layer_input=16).per_layer_embedding_size == 16


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
