"""How much weight each accelerator carries."""

from __future__ import annotations

import pytest

from agentroute.capacity import kv, weights
from agentroute.capacity.kv import Unknown
from agentroute.catalogue import shipped
from agentroute.shape.sharding import Sharding


def gib(name: str, quantisation: str = "bf16", **degrees: int) -> float:
    found = weights.gib(shipped().model(name), Sharding(**degrees), weights.QUANTISATIONS[quantisation])
    assert not isinstance(found, Unknown), found.reason
    return found


@pytest.mark.parametrize(
    ("model", "quantisation", "tp", "pp", "logged"),
    [
        ("llama-3.1-70b", "bf16", 8, 1, 16.4605),
        ("llama-3.1-405b", "awq-int4", 4, 1, 51.1453),
        ("mistral-nemo-12b", "fp8", 1, 2, 6.5727),
        ("qwen3-30b-a3b", "bf16", 4, 1, 14.2474),
        ("deepseek-v3", "fp8", 8, 1, 81.66),
        ("glm-5", "nvfp4", 8, 1, 55.67),
        ("gpt-oss-120b", "mxfp4", 1, 1, 65.9651),
    ],
)
def test_weights_are_met_within_five_percent(model: str, quantisation: str, tp: int, pp: int, logged: float) -> None:
    assert gib(model, quantisation, tp=tp, pp=pp) == pytest.approx(logged, rel=0.05)


def test_every_split_of_experts_weighs_the_same() -> None:
    assert gib("deepseek-v3", "fp8", tp=8, ep=8) == gib("deepseek-v3", "fp8", tp=8)


def test_attention_replicas_each_carry_all_of_attention() -> None:
    split, copies = gib("deepseek-v3", "fp8", tp=8), gib("deepseek-v3", "fp8", attention_dp=8)
    assert copies > split
    over = weights.gib(
        shipped().model("deepseek-v3"),
        Sharding(attention_dp=8),
        weights.QUANTISATIONS["fp8"],
        dense_over_replicas=True,
    )
    assert not isinstance(over, Unknown)
    assert split < over < copies


def test_kv_projections_are_copied_beyond_one_head_a_rank() -> None:
    model = shipped().model("qwen3-235b-a22b")
    four, eight = gib(model.name, tp=4), gib(model.name, tp=8)
    assert eight > four / 2


def test_a_tied_output_layer_is_there_twice_only_on_another_stage() -> None:
    model = shipped().model("qwen3-0.6b")
    assert model.vocab_size is not None
    assert model.hidden_size is not None
    table = model.vocab_size * model.hidden_size * 2 / kv.GIB
    assert gib(model.name, pp=2) == pytest.approx((gib(model.name) - table) / 2 + table, rel=0.001)


def test_a_draft_is_carried_only_when_it_is_used() -> None:
    model = shipped().model("glm-5")
    with_draft = weights.gib(model, Sharding(tp=8), weights.QUANTISATIONS["nvfp4"], draft=True)
    assert not isinstance(with_draft, Unknown)
    assert 0.5 < with_draft - gib("glm-5", "nvfp4", tp=8) < 1.0


def test_a_shape_that_lacks_a_part_has_a_reason() -> None:
    found = weights.gib(shipped().model("llama-3.1-8b").model_copy(update={"vocab_size": None}), Sharding())
    assert isinstance(found, Unknown)
    assert "vocab_size" in found.reason
