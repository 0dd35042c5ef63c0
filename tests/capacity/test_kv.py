"""What a layer keeps per token, and which layers stand on which stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.capacity import kv
from agentroute.capacity.kv import KvType, Spec, Unknown
from agentroute.catalogue import shipped
from agentroute.errors import UsageError
from agentroute.shape.model import Linear, Model


def token_bytes(name: str, tp: int, kv_type: KvType, *, draft: bool = False) -> int:
    found = kv.specs(shipped().model(name), tp, kv_type, draft=draft)
    assert not isinstance(found, Unknown)
    return sum(spec.row_bytes * spec.count for spec in found)


@pytest.mark.parametrize(
    ("model", "tp", "kv_type", "size"),
    [
        ("llama-3.1-8b", 1, "bf16", 131_072),
        ("llama-3.1-8b", 1, "fp8", 65_536),
        ("llama-3.1-70b", 8, "bf16", 40_960),
        ("qwen3-235b-a22b", 4, "bf16", 48_128),
        ("qwen3-235b-a22b", 8, "bf16", 48_128),
        ("deepseek-v3", 1, "bf16", 70_272),
        ("deepseek-v3", 8, "bf16", 70_272),
        ("deepseek-v3", 8, "fp8", 61 * 576),
        ("deepseek-v3.2", 8, "fp8", 61 * 788),
        ("glm-5", 8, "bf16", 78 * 1_284),
        ("glm-5", 8, "fp8", 78 * 788),
        ("glm-5.3", 4, "fp8_per_tensor", 47_700),
        ("gemma-4-26b-a4b", 1, "bf16", 25 * 8_192 + 5 * 4_096),
    ],
)
def test_bytes_of_one_token_on_one_accelerator(model: str, tp: int, kv_type: KvType, size: int) -> None:
    assert token_bytes(model, tp, kv_type) == size


def test_a_draft_layer_is_one_more_layer_of_the_same_kind() -> None:
    assert token_bytes("glm-5", 8, "fp8", draft=True) == 79 * 788


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2", "kimi-k2", "glm-5"])
@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_a_latent_cache_is_not_divided_by_tp(name: str, tp: int) -> None:
    assert token_bytes(name, tp, "bf16") == token_bytes(name, 1, "bf16")


@given(heads=st.sampled_from([1, 2, 4, 8, 16]), tp=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_kv_heads_divide_until_each_rank_has_one(heads: int, tp: int) -> None:
    assert kv.kv_heads_per_rank(heads, tp) == max(1, heads // tp)
    assert kv.kv_heads_per_rank(heads, heads) == kv.kv_heads_per_rank(heads, 2 * heads) == 1


@pytest.mark.parametrize(
    ("kv_type", "size"),
    [("f32", 4_096), ("bf16", 2_048), ("fp8", 1_024), ("q8_0", 1_088), ("q4_0", 576), ("q5_1", 768)],
)
def test_bytes_of_1024_elements(kv_type: KvType, size: int) -> None:
    assert kv.elements_bytes(1_024, kv_type) == size


def test_a_quantised_row_has_whole_blocks() -> None:
    with pytest.raises(UsageError, match="multiple of 32 elements, got 80"):
        kv.elements_bytes(80, "q8_0")


def test_a_state_is_divided_by_tp_and_does_not_grow_with_the_context() -> None:
    # Nemotron 3 Nano: 64 heads x 64 x 128 in 32 bits, and 6,144 channels of 3 inputs in 16.
    linear = Linear(kind="linear", conv_elements=6_144 * 3, ssm_elements=64 * 64 * 128)
    assert kv.state_bytes(linear, 1) == 2_134_016
    assert kv.state_bytes(linear, 2) == 1_067_008
    assert kv.state_bytes(linear, 1, speculative_tokens=1) == 2_134_016 + 6_144 * 2
    assert isinstance(kv.state_bytes(Linear(kind="linear"), 1), Unknown)


def test_layers_that_share_kv_keep_none_unless_the_engine_allocates_it_all_the_same() -> None:
    model = shipped().model("gemma-4-e4b")
    own, all_of_them = kv.specs(model, 1, "bf16"), kv.specs(model, 1, "bf16", shared_too=True)
    assert not isinstance(own, Unknown)
    assert not isinstance(all_of_them, Unknown)
    assert (sum(spec.count for spec in own), sum(spec.count for spec in all_of_them)) == (24, 42)


def test_a_compressed_cache_is_unknown_never_a_number() -> None:
    shape = shipped().model("llama-3.1-8b").model_dump() | {"name": "deepseek-v4-flash"}
    found = kv.specs(Model.model_validate(shape), 1, "fp8")
    assert isinstance(found, Unknown)
    assert "DeepSeek-V4" in found.reason


@pytest.mark.parametrize(
    ("layers", "pp", "vllm", "sglang", "trtllm"),
    [
        (48, 2, (24, 24), (24, 24), (24, 24)),
        (61, 2, (31, 30), (30, 31), (31, 30)),
        (61, 4, (15, 15, 16, 15), (15, 15, 15, 16), (16, 15, 15, 15)),
        (62, 4, (15, 16, 16, 15), (15, 15, 16, 16), (16, 16, 15, 15)),
        (63, 4, (16, 16, 16, 15), (15, 16, 16, 16), (16, 16, 16, 15)),
    ],
)
def test_layers_of_each_stage(
    layers: int, pp: int, vllm: tuple[int, ...], sglang: tuple[int, ...], trtllm: tuple[int, ...]
) -> None:
    assert kv.vllm_stages(layers, pp) == vllm
    assert kv.sglang_stages(layers, pp) == sglang
    assert kv.trtllm_stages(layers, pp) == trtllm


@pytest.mark.parametrize(
    ("layers", "shares", "devices"),
    [
        (64, (1, 1, 1), (22, 22, 20)),
        (80, (1, 1, 1), (27, 27, 26)),
        (64, (10, 6), (41, 23)),
        (64, (1, 1), (33, 31)),
        (42, (1, 1), (22, 20)),
        (80, (1,) * 6, (14, 13, 14, 13, 14, 12)),
    ],
)
def test_llamacpp_counts_the_output_as_a_layer(layers: int, shares: tuple[int, ...], devices: tuple[int, ...]) -> None:
    assert kv.llamacpp_stages(layers, shares) == devices


@given(layers=st.integers(1, 200), pp=st.integers(1, 16))
def test_every_layer_stands_on_one_stage(layers: int, pp: int) -> None:
    for split in (kv.vllm_stages, kv.sglang_stages, kv.trtllm_stages):
        parts = split(layers, pp)
        assert (len(parts), sum(parts)) == (pp, layers)
        assert max(parts) - min(parts) <= 1
    parts = kv.llamacpp_stages(layers, [1] * pp)
    assert (len(parts), sum(parts)) == (pp, layers)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_groups_are_spread_evenly(counts: list[int]) -> None:
    order = kv.sequence(counts)
    assert [order.count(group) for group in range(len(counts))] == counts
    half = len(order) // 2
    for group, count in enumerate(counts):
        assert abs(order[:half].count(group) - count * half / len(order)) <= 1


def test_stages_take_the_layers_in_order() -> None:
    # Six of one kind and two of another, which stand third and seventh.
    assert kv.sequence((6, 2)) == (0, 0, 1, 0, 0, 0, 1, 0)
    assert kv.stage_counts((6, 2), (4, 4)) == ((3, 1), (3, 1))
    assert kv.stage_counts((6, 2), (2, 2, 2, 2)) == ((2, 0), (1, 1), (2, 0), (1, 1))


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=3).map(tuple),
    pp=st.integers(2, 8),
    sizes=st.lists(st.integers(0, 1_000), min_size=3, max_size=3),
)
def test_the_fullest_stage_is_among_those_that_may_be(counts: tuple[int, ...], pp: int, sizes: list[int]) -> None:
    parts = kv.sglang_stages(sum(counts), pp)
    taken = [kv.dot(sizes, stage) for stage in kv.stage_counts(counts, parts)]
    assert max([kv.dot(sizes, stage) for stage in kv.fullest_stages(counts, parts)]) == max(taken)
    first, last, between = kv.ends_and_between(counts, parts)
    assert (kv.dot(sizes, first), kv.dot(sizes, last)) == (taken[0], taken[-1])
    assert max([kv.dot(sizes, stage) for stage in between], default=None) == max(taken[1:-1], default=None)


def test_alike_layers_are_counted_together() -> None:
    found = kv.specs(shipped().model("deepseek-v3"), 1, "bf16")
    assert found == (Spec("full", 61, 1_152),)
