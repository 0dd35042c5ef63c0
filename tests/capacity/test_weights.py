"""How much weight each accelerator carries."""

from __future__ import annotations

import pytest

from agentroute.capacity import kv, weights
from agentroute.capacity.kv import Unknown
from agentroute.catalogue import shipped
from agentroute.origin import Provenance
from agentroute.shape.model import DenseMlp, Layers, Model, NoAttention, NoMlp
from agentroute.shape.sharding import Sharding


def gib(name: str, quantisation: str = "bf16", **degrees: int) -> float:
    found = weights.gib(shipped().model(name), Sharding(**degrees), weights.QUANTISATIONS[quantisation])
    assert not isinstance(found, Unknown), found.reason
    return found


def counted(model: Model, sharding: Sharding) -> float:
    found = weights.gib(model, sharding)
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
    model = shipped().model("qwen3-0.6b").model_copy(update={"max_context_tokens": None})
    assert model.vocab_size is not None
    assert model.hidden_size is not None
    table = model.vocab_size * model.hidden_size * 2 / kv.GIB
    whole, halves = counted(model, Sharding()), counted(model, Sharding(pp=2))
    assert halves == pytest.approx((whole - table) / 2 + table, rel=0.001)


def test_a_model_that_only_embeds_has_no_output_layer() -> None:
    base, embeds = gib("mistral-7b"), gib("e5-mistral-7b")
    context = shipped().model("mistral-7b").max_context_tokens
    assert context is not None
    table = 32_000 * 4096 * 2 / kv.GIB
    longer = (context - 32_768) * 128 * 2 / kv.GIB
    assert base - embeds == pytest.approx(table + longer, rel=0.001)


def test_sines_and_cosines_stand_on_every_rank() -> None:
    model = shipped().model("llama-3.1-8b")
    without = model.model_copy(update={"max_context_tokens": None})
    for sharding in (Sharding(), Sharding(tp=8), Sharding(pp=4)):
        assert counted(model, sharding) - counted(without, sharding) == pytest.approx(131_072 * 128 * 2 / kv.GIB)


@pytest.mark.parametrize(("inner", "mib"), [(5120, 10), (5121, 12), (6144, 12), (4096, 8)])
def test_a_large_tensor_takes_whole_2_mib(inner: int, mib: int) -> None:
    """The way up is one tensor of 1024 x ``inner`` in 16 bits; below 10 MiB tensors share."""
    layer = Layers(count=1, attention=NoAttention(kind="none"), mlp=DenseMlp(kind="dense", intermediate_size=1))
    wide = DenseMlp(kind="dense", intermediate_size=inner, gated=False)
    base = Model(
        format=1, name="m", hidden_size=1024, vocab_size=64, tied_embeddings=True, layers=(layer,),
        provenance=Provenance(origin="assumed", source="made up"),
    )  # fmt: skip
    none = base.model_copy(update={"layers": (layer.model_copy(update={"mlp": NoMlp(kind="none")}),)})
    more = base.model_copy(update={"layers": (layer.model_copy(update={"mlp": wide}),)})
    taken = (counted(more, Sharding()) - counted(none, Sharding())) * 1024
    assert taken == pytest.approx(2 * mib, abs=1e-6)


def test_a_vision_part_is_split_over_the_tensor_ranks() -> None:
    model = shipped().model("qwen3.5-9b")
    blind = model.model_copy(update={"encoder_parameters": None})
    assert model.encoder_parameters is not None
    for tp in (1, 2):
        more = counted(model, Sharding(tp=tp)) - counted(blind, Sharding(tp=tp))
        assert more == pytest.approx(model.encoder_parameters * 2 / tp / kv.GIB)


def test_the_largest_tensor_of_experts_is_the_way_up() -> None:
    parts = weights.Parts.of(shipped().model("llama-4-maverick"))
    assert not isinstance(parts, Unknown)
    assert parts.expert_tensor_elements(Sharding(tp=4, pp=3)) == 128 * 2 * 5120 * 8192 / 4
    dense = weights.Parts.of(shipped().model("llama-3.1-8b"))
    assert not isinstance(dense, Unknown)
    assert dense.expert_tensor_elements(Sharding()) == 0


def test_a_model_taken_apart_weighs_the_same() -> None:
    model = shipped().model("gemma-4-31b")
    parts = weights.Parts.of(model)
    assert not isinstance(parts, Unknown)
    sharding = Sharding(tp=2, pp=4)
    assert weights.gib(parts, sharding) == weights.gib(model, sharding) == parts.gib(sharding)


def test_a_draft_is_carried_only_when_it_is_used() -> None:
    model = shipped().model("glm-5")
    with_draft = weights.gib(model, Sharding(tp=8), weights.QUANTISATIONS["nvfp4"], draft=True)
    assert not isinstance(with_draft, Unknown)
    # One layer like the others, and what joins its two inputs.
    assert 0.5 < with_draft - gib("glm-5", "nvfp4", tp=8) < 1.0


def test_a_shape_that_lacks_a_part_has_a_reason() -> None:
    found = weights.gib(shipped().model("llama-3.1-8b").model_copy(update={"vocab_size": None}), Sharding())
    assert isinstance(found, Unknown)
    assert "vocab_size" in found.reason


@pytest.mark.parametrize(("scheme", "file_gb"), [("q8_0", 8.54), ("q4_0", 4.66), ("q4_k_m", 4.92)])
def test_a_gguf_file_weighs_what_is_published(scheme: str, file_gb: float) -> None:
    """Sizes of the published files of Llama 3.1 8B (recalled)."""
    found = weights.gib(shipped().model("llama-3.1-8b"), Sharding(), weights.QUANTISATIONS[scheme])
    assert found == pytest.approx(file_gb * 1e9 / 2**30, rel=0.05)


def test_what_stands_on_every_rank_does_not_shrink_with_them() -> None:
    """DeepSeek-V3: what leads down to the latents, routers, norms, and the rotary table, whatever the tensor split."""
    model, fp8 = shipped().model("deepseek-v3"), weights.QUANTISATIONS["fp8"]
    sizes = [weights.gib(model, Sharding(tp=tp), fp8) for tp in (8, 16)]
    eight, sixteen = (size for size in sizes if isinstance(size, float))
    down, routers = 61 * 7_168 * (1_536 + 512 + 64), 58 * 7_168 * 256 * 2
    norms, rotary = 61 * 2 * 7_168 * 2, 163_840 * 64 * 2
    # Tensors take whole 2 MiB, on twice as many ranks twice as often.
    assert 1.0 <= (2 * sixteen - eight) * 2**30 / (down + routers + norms + rotary) <= 1.1
