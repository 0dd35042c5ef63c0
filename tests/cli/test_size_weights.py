"""``agentroute size``: how weights are kept when nobody says, and what it tells of a config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import agentroute

ON = ("--accelerator", "h200_sxm", "--count", "8", "--context", "8000")
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 16_384,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("gpt-oss-120b", "mxfp4 weights (as published)"),
        ("deepseek-v3", "fp8 weights (as published)"),
        ("deepseek-ai/DeepSeek-R1", "fp8 weights (as published)"),
        ("nvidia/DeepSeek-R1-NVFP4", "nvfp4 weights (by the hub id)"),
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8 weights (by the hub id)"),
        ("qwen3-8b", "bf16 weights (by default)"),
    ],
)
def test_without_weights_they_are_kept_as_the_checkpoint_keeps_them(model: str, said: str) -> None:
    assert said in agentroute("size", model, *ON).out.splitlines()[0]


def test_with_weights_they_are_kept_as_asked() -> None:
    assert ", bf16 weights, " in agentroute("size", "gpt-oss-120b", *ON, "--weights", "bf16").out


@pytest.mark.parametrize(("model", "weights"), [("gpt-oss-120b", "fp9"), ("qwen3-8b", "mxfp4")])
def test_weights_that_cannot_be_are_refused_with_those_that_are_known(model: str, weights: str) -> None:
    ran = agentroute("size", model, *ON, "--weights", weights)
    assert ran.code == 2
    assert f"weights of {model} cannot be '{weights}'; known: bf16, fp8, " in ran.err


def test_what_is_not_understood_in_a_config_is_told(tmp_path: Path) -> None:
    keys = {"zeal": 2, "quantization_config": {"quant_method": "aqlm"}}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | keys))
    ran = agentroute("size", str(tmp_path / "config.json"), *ON)
    assert ran.err.startswith(
        "config.json keys not understood: zeal. How its checkpoint keeps weights has no name here"
    )
    assert "bf16 weights (by default)" in ran.out


def test_of_a_config_that_is_understood_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert "not understood" not in agentroute("size", str(tmp_path), *ON).err
