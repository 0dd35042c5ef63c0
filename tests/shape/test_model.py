"""A model's shape: each kind of attention carries what it needs, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentroute.shape.accelerator import Accelerator, PriceTable
from agentroute.shape.model import Experts, Layers, Model, Parameters

SOURCE = {"origin": "measured", "source": "a test"}
DENSE: dict[str, Any] = {
    "format": 1,
    "name": "m",
    "hidden_size": 64,
    "vocab_size": 100,
    "layers": [{"count": 2, "attention": "gqa", "kv_heads": 2, "head_dim": 8}],
    "provenance": SOURCE,
}


@pytest.mark.parametrize(
    "layers",
    [
        {"attention": "gqa", "kv_heads": 8, "head_dim": 128},
        {"attention": "sliding", "kv_heads": 8, "head_dim": 128, "window_tokens": 128},
        {"attention": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64},
        {"attention": "linear"},
    ],
)
def test_each_kind_of_attention_carries_what_it_needs(layers: dict[str, Any]) -> None:
    assert Layers(count=4, **layers).count == 4


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"attention": "gqa", "kv_heads": 8}, "gqa layers are described by ['head_dim', 'kv_heads'], got ['kv_heads']"),
        ({"attention": "gqa", "kv_heads": 8, "head_dim": 1, "window_tokens": 5}, "gqa layers are described by"),
        ({"attention": "sliding", "kv_heads": 8, "head_dim": 128}, "sliding layers are described by"),
        ({"attention": "mla", "kv_heads": 8, "head_dim": 128}, "mla layers are described by"),
        ({"attention": "linear", "kv_heads": 8}, "linear layers are described by their count alone"),
        ({"attention": "mha", "kv_heads": 8, "head_dim": 128}, "'gqa', 'mla', 'sliding' or 'linear'"),
        ({"attention": "gqa", "kv_heads": 0, "head_dim": 128}, "greater than or equal to 1"),
        ({"attention": "gqa", "kv_heads": 8.0, "head_dim": 128}, "valid integer"),
    ],
)
def test_layers_are_refused(layers: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Layers(count=4, **layers)
    assert said in str(raised.value)


def test_a_token_passes_through_no_more_experts_than_there_are() -> None:
    with pytest.raises(ValidationError, match="active experts cannot exceed the total of 8, got 9"):
        Experts(total=8, active=9, layers=1)


def test_no_more_parameters_are_active_than_there_are() -> None:
    with pytest.raises(ValidationError, match="active_b cannot exceed total_b = 8, got 9"):
        Parameters.model_validate({"total_b": 8.0, "active_b": 9.0, "provenance": SOURCE})


def test_layers_of_every_kind_are_counted() -> None:
    more = [{"count": 3, "attention": "linear"}, *DENSE["layers"]]
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
