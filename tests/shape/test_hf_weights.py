"""How a checkpoint keeps its weights, by its quantization_config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.capacity.weights import QUANTISATIONS
from agentroute.shape.hf_weights import kept
from agentroute.shape.model import Model

ATTENTION = ["lm_head", "model.layers.1.self_attn*"]
GATES = ["lm_head", "model.layers.0.mlp.gate", "model.layers.0.input_layernorm", "model.layers.0.self_attn.q_norm"]


def packed(bits: int, kind: str, group: int | None, **more: Any) -> dict[str, Any]:
    """What compressed-tensors writes."""
    weights = {"num_bits": bits, "type": kind, "group_size": group}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        **more,
    }


@pytest.mark.parametrize(
    ("quantisation", "experts", "name"),
    [
        # nothing said
        (None, True, None),
        ({}, True, None),
        # DeepSeek-V3, Qwen3-235B-A22B-FP8, Llama 4 Maverick FP8
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, True, "fp8"),
        ({"quant_method": "fp8", "modules_to_not_convert": GATES}, True, "fp8"),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ATTENTION}, True, "fp8-experts"),
        # gpt-oss
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, True, "mxfp4"),
        ({"quant_method": "mxfp4"}, True, "mxfp4"),
        # ModelOpt: GLM-5.1-NVFP4, Qwen3-235B-A22B-NVFP4, Llama-3.1-70B-Instruct-FP8
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ATTENTION}, True, "nvfp4"),
        ({"quant_algo": "NVFP4", "exclude_modules": GATES, "group_size": 16}, True, "nvfp4-dense"),
        ({"quant_algo": "NVFP4", "exclude_modules": ["model.layers.0.self_attn.q_a_proj"]}, True, "nvfp4"),
        ({"quant_algo": "FP8", "exclude_modules": ["lm_head"]}, False, "fp8"),
        # four bits in integers
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, False, "awq-int4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, False, "w4a16"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, False, "bnb"),
        # compressed-tensors: Kimi-K2.5, and dense models
        (packed(4, "int", 32, ignore=["lm_head", "re:.*self_attn.*"]), True, "int4-experts"),
        (packed(4, "int", 128, ignore=["lm_head"]), False, "w4a16"),
        (packed(8, "float", None), False, "fp8"),
        (packed(4, "float", 16, format="nvfp4-pack-quantized"), False, "nvfp4-dense"),
        (packed(4, "float", 32, format="mxfp4-pack-quantized", ignore=["re:.*self_attn.*"]), True, "mxfp4"),
    ],
)
def test_a_known_scheme_has_a_name(quantisation: object, experts: bool, name: str | None) -> None:
    found = kept(quantisation, experts=experts)
    assert (found.name, found.note) == (name, None)
    assert name is None or name in QUANTISATIONS


@pytest.mark.parametrize(
    ("quantisation", "experts", "said"),
    [
        ({"quant_method": "aqlm"}, False, "aqlm"),
        ({"weight_block_size": [128, 128]}, False, "no quant_method"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, True, "MIXED_PRECISION"),
        # gemma-4-31B-IT-NVFP4: dense, its attention in 16 bits
        ({"quant_algo": "NVFP4", "ignore": ATTENTION}, False, "NVFP4, 4-bit float outside of attention"),
        ({"quant_method": "gptq", "bits": 8}, False, "gptq, 8-bit int"),
        ({"quant_method": "gptq"}, False, "gptq without bits"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, False, "bitsandbytes, 8-bit bnb"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, False, "compressed-tensors with no kinds"),
        (packed(8, "int", None), False, "compressed-tensors, 8-bit int"),
        ("fp8", False, "a quantization_config of 'fp8'"),
    ],
)
def test_a_scheme_without_a_name_is_named_in_the_notes(quantisation: object, experts: bool, said: str) -> None:
    found = kept(quantisation, experts=experts)
    assert found.name is None
    assert found.note is not None
    assert found.note.startswith(f"How its checkpoint keeps weights has no name here: {said}")


def test_scales_in_groups_of_another_size_are_noted() -> None:
    found = kept({"quant_method": "awq", "bits": 4, "group_size": 64}, experts=False)
    assert found.name == "awq-int4"
    assert found.note == "Its weights have a scale for every 64 elements; awq-int4 is counted with 128."


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip


def test_the_name_stands_in_the_model() -> None:
    assert Model.from_hf_config(LLAMA).checkpoint_weights is None
    assert Model.from_hf_config(LLAMA | {"quantization_config": {"quant_method": "fp8"}}).checkpoint_weights == "fp8"


def test_the_text_part_may_say_it() -> None:
    text = LLAMA | {"quantization_config": {"quant_method": "fp8"}}
    assert Model.from_hf_config({"model_type": "llava", "text_config": text}).checkpoint_weights == "fp8"


def test_a_file_beside_the_config_may_say_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert Model.from_hf_config(tmp_path).checkpoint_weights == "fp8"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.sampled_from(["int", "float", "NVFP4", "FP8", "attn"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["weights", "num_bits", "type", "group_size", "targets", "group_0"]), inner, max_size=4
    ),
    max_leaves=8,
)  # fmt: skip


@given(
    quantisation=st.dictionaries(
        st.sampled_from(["quant_algo", "bits", "group_size", "config_groups", "ignore", "load_in_4bit", "format"]),
        JSON,
        max_size=5,
    ),
    method=st.sampled_from(["fp8", "awq", "gptq", "modelopt", "compressed-tensors", "bitsandbytes", "mxfp4"]) | JSON,
    experts=st.booleans(),
)
def test_whatever_it_says_there_is_a_name_or_a_note(
    quantisation: dict[str, Any], method: object, experts: bool
) -> None:
    found = kept(quantisation | {"quant_method": method}, experts=experts)
    assert found.name in QUANTISATIONS or found.note
