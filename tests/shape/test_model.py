"""A model's shape: each kind of attention carries what it needs, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentroute.catalogue import read
from agentroute.errors import ProfileError
from agentroute.shape.accelerator import Accelerator, PriceTable
from agentroute.shape.model import Layers, Model, MoeMlp, Parameters

SOURCE = {"origin": "measured", "source": "a test"}
DENSE: dict[str, Any] = {
    "format": 1,
    "name": "m",
    "hidden_size": 64,
    "vocab_size": 100,
    "layers": [{"count": 2, "attention": {"kind": "gqa", "kv_heads": 2, "head_dim": 8}}],
    "provenance": SOURCE,
}


GQA: dict[str, Any] = {"kind": "gqa", "kv_heads": 8, "head_dim": 128}
MLA: dict[str, Any] = {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64}


@pytest.mark.parametrize(
    "attention",
    [
        GQA,
        GQA | {"heads": 64, "v_head_dim": 64},
        GQA | {"window_tokens": 128},
        GQA | {"chunk_tokens": 8_192},
        MLA,
        MLA | {"index": {"head_dim": 128}},
        {"kind": "linear"},
        {"kind": "linear", "conv_elements": 24_576, "ssm_elements": 0},
        {"kind": "none"},
    ],
)
def test_each_kind_of_attention_carries_what_it_keeps_per_token(attention: dict[str, Any]) -> None:
    assert Layers.model_validate({"count": 4, "attention": attention}).count == 4


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        ({"kind": "gqa", "kv_heads": 8}, "head_dim"),
        (GQA | {"kv_lora_rank": 5}, "Extra inputs are not permitted"),
        ({"kind": "mla", "kv_heads": 8, "head_dim": 128}, "kv_lora_rank"),
        ({"kind": "linear", "kv_heads": 8}, "Extra inputs are not permitted"),
        (GQA | {"kind": "mha"}, "'gqa', 'mla', 'linear', 'none'"),
        (GQA | {"kv_heads": 0}, "greater than or equal to 1"),
        (GQA | {"kv_heads": 8.0}, "valid integer"),
    ],
)
def test_attention_is_refused(attention: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Layers.model_validate({"count": 4, "attention": attention})
    assert said in str(raised.value)


def test_a_token_passes_no_more_experts_than_there_are() -> None:
    with pytest.raises(ValidationError, match="active experts cannot exceed the 8 there are, got 9"):
        MoeMlp(kind="moe", experts=8, active=9, expert_intermediate_size=64)


def test_a_mistake_in_a_kind_of_attention_is_found_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(
        'format = 1\nname = "m"\nprovenance = { origin = "assumed", source = "a test" }\n\n[[layers]]\ncount = 2\n\n'
        '[layers.attention]\nkind = "gqa"\nkv_heads = 8\nhaed_dim = 128\n'
    )
    with pytest.raises(ProfileError) as raised:
        read(Model, path)
    said = "layers[0].attention.haed_dim: unknown key; did you mean 'head_dim'?"
    assert str(raised.value) == f"{path}:11: {said}"


def test_no_more_parameters_are_active_than_there_are() -> None:
    with pytest.raises(ValidationError, match="active_b cannot exceed total_b = 8, got 9"):
        Parameters.model_validate({"total_b": 8.0, "active_b": 9.0, "provenance": SOURCE})


def test_layers_of_every_kind_are_counted() -> None:
    more = [{"count": 3, "attention": {"kind": "linear"}}, *DENSE["layers"]]
    assert Model.model_validate(DENSE | {"layers": more}).layer_count == 5


@pytest.mark.parametrize(
    "wrong", [{"layers": []}, {"format": 2}, {"name": ""}, {"name": "-x"}, {"capabilities": {"toolz": True}}]
)
def test_a_model_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Model.model_validate(DENSE | wrong)


@pytest.mark.parametrize("yes", ["yes", "on", 1, "true"])
def test_a_capability_is_true_or_false_and_nothing_like_it(yes: object) -> None:
    with pytest.raises(ValidationError):
        Model.model_validate(DENSE | {"capabilities": {"tools": yes}})


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), 1e19, "80"])
def test_an_accelerators_memory_is_a_positive_number(wrong: object) -> None:
    good = {
        "format": 1,
        "name": "a",
        "vendor": "v",
        "memory_gib": 80.0,
        "memory_gb_per_s": 3_000.0,
        "tight_domain_accelerators": 8,
        "provenance": SOURCE,
    }
    Accelerator.model_validate(good)
    with pytest.raises(ValidationError):
        Accelerator.model_validate(good | {"memory_gib": wrong})


def test_an_hour_is_never_free_of_charge() -> None:
    with pytest.raises(ValidationError):
        PriceTable.model_validate({"format": 1, "provenance": SOURCE, "usd_per_accelerator_hour": {"h100": 0.0}})
