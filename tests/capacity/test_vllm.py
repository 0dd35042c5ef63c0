"""vLLM's pool: groups, pages, stages, and how its log counts."""

from __future__ import annotations

import pytest

from agentroute.capacity import vllm
from agentroute.capacity.kv import GIB, KvType, Unknown
from agentroute.capacity.vllm import Layout, Options
from agentroute.catalogue import shipped
from agentroute.shape.model import Linear, Model
from agentroute.shape.sharding import Sharding


def laid_out(name: str, kv_type: KvType = "bf16", options: Options | None = None, **degrees: int) -> Layout:
    found = vllm.layout(shipped().model(name), Sharding(**degrees), kv_type, options or Options())
    assert not isinstance(found, Unknown), found.reason
    return found


@pytest.mark.parametrize(
    ("model", "groups", "block_tokens"),
    [
        ("llama-3.1-8b", 1, 16),
        ("deepseek-v3", 1, 64),
        ("gpt-oss-120b", 2, 16),  # 18 full and 18 sliding
        ("gemma-3-27b", 7, 16),  # 10 full, and 52 sliding padded to 60
        ("gemma-3-1b", 7, 16),  # 4 full, and 22 sliding padded to 24
        ("gemma-4-26b-a4b", 6, 16),  # 5 full of 32-token blocks and 25 sliding of 16
        ("lfm2-1.2b", 3, 16),  # 6 of attention, and 10 convolutions padded to 12
    ],
)
def test_layers_form_groups_of_equally_many(model: str, groups: int, block_tokens: int) -> None:
    layout = laid_out(model)
    assert sum(group.groups for group in layout.groups) == groups
    assert layout.block_tokens == block_tokens


@pytest.mark.parametrize(
    ("model", "kv_type", "options", "block_tokens"),
    [
        ("nemotron-3-nano-30b-a3b", "fp8", Options(), 4_176),
        ("nemotron-nano-9b-v2", "bf16", Options(ssm_bytes=2), 672),
        ("qwen3.5-122b-a10b", "fp8", Options(), 4_176),
        ("qwen3.5-122b-a10b", "fp8", Options(draft=True, speculative_tokens=1), 4_192),
    ],
)
def test_a_state_decides_the_attention_block(model: str, kv_type: KvType, options: Options, block_tokens: int) -> None:
    assert laid_out(model, kv_type, options).block_tokens == block_tokens


def test_a_hybrid_prints_fewer_tokens_than_it_holds() -> None:
    # Gemma 3 27B in 109.86 GiB printed 205,696 tokens and 50.05 x 4,096.
    pool = laid_out("gemma-3-27b").pool(109.86)
    assert pool.printed_tokens("blocks_per_group") == 205_696
    assert pool.concurrency(4_096) == pytest.approx(50.05, abs=0.005)
    assert pool.printed_tokens("concurrency", 4_096) == int(pool.concurrency(4_096) * 4_096)
    assert isinstance(pool.printed_tokens("concurrency"), Unknown)


def test_a_sliding_layer_costs_its_window_and_the_batch_in_flight() -> None:
    # gpt-oss-120b: 131,072 tokens need 4.5 GiB in 18 full layers and 521 blocks in 18 sliding ones.
    assert laid_out("gpt-oss-120b").needed_gib(131_072) == pytest.approx(4.79, abs=0.005)
    full = laid_out("gpt-oss-120b", options=Options(hybrid=False))
    assert full.needed_gib(131_072) == pytest.approx(9.0)


def test_states_take_pages_whatever_the_length() -> None:
    layout = laid_out("qwen3.5-122b-a10b", "fp8")
    assert layout.units(1) == 1 + 3 * 2
    assert layout.units(131_072) == 32 + 3 * 2
    assert laid_out("qwen3.5-122b-a10b", "fp8", Options(align=False)).units(131_072) == 32 + 3


def test_the_admission_check_once_charged_all_layers_to_one_stage() -> None:
    old = Options(whole_model_check=True, partition=(16, 32))
    assert laid_out("qwen3-30b-a3b", options=old, pp=2).needed_gib(262_144) == pytest.approx(24.0)
    assert laid_out("qwen3-30b-a3b", options=Options(partition=(16, 32)), pp=2).needed_gib(262_144) == pytest.approx(16)


def test_the_fullest_stage_decides() -> None:
    even, odd = laid_out("deepseek-v3", pp=1), laid_out("deepseek-v3", pp=2)
    assert odd.block_bytes * 61 == even.block_bytes * 31
    assert laid_out("gpt-oss-120b", pp=2).block_bytes * 2 == laid_out("gpt-oss-120b").block_bytes


def test_tensor_and_layer_split_cost_the_same_while_heads_divide() -> None:
    assert laid_out("qwen3-32b", tp=2).block_bytes == laid_out("qwen3-32b", pp=2).block_bytes == 131_072 * 16


def test_decode_context_split_multiplies_the_block() -> None:
    one, eight = laid_out("glm-5", "fp8", tp=8), laid_out("glm-5", "fp8", tp=8, dcp=8)
    assert (one.block_tokens, eight.block_tokens) == (64, 512)
    assert eight.pool(19.47).printed_tokens("blocks_per_group") == 2_720_768


def test_a_window_is_not_split_over_a_decode_context() -> None:
    model, split = shipped().model("gpt-oss-120b"), Sharding(tp=16, dcp=2)
    assert isinstance(vllm.layout(model, split, "bf16"), Unknown)
    assert isinstance(vllm.layout(model, split, "bf16", Options(hybrid=False)), Layout)


@pytest.mark.parametrize(
    ("model", "split", "starts"),
    [
        ("llama-3.1-70b", Sharding(tp=8, dcp=8), False),
        ("llama-3.1-70b", Sharding(tp=16, dcp=16), False),
        ("llama-3.1-70b", Sharding(tp=16, dcp=2), True),
        ("qwen3-235b-a22b", Sharding(tp=8, dcp=2), True),
        ("qwen3-235b-a22b", Sharding(tp=8, dcp=8), False),
        ("deepseek-v3", Sharding(tp=8, dcp=8), True),
    ],
)
def test_only_copies_of_the_same_heads_share_a_sequence(model: str, split: Sharding, starts: bool) -> None:
    found = vllm.layout(shipped().model(model), split, "bf16")
    assert isinstance(found, Layout) is starts
    assert starts or "vLLM refuses dcp" in str(found)


@pytest.mark.parametrize("model", ["gpt-oss-120b", "gemma-3-27b", "llama-3.1-70b", "qwen3.5-27b"])
@pytest.mark.parametrize(("rule", "window"), [("blocks_per_group", None), ("concurrency", 131_072)])
def test_printed_tokens_lead_back_to_the_pool(model: str, rule: vllm.TokenRule, window: int | None) -> None:
    layout = laid_out(model)
    pool = layout.pool(40.0)
    printed = pool.printed_tokens(rule, window)
    assert isinstance(printed, int)
    again = layout.of_printed(printed, rule, window)
    assert abs(again.blocks - pool.blocks) <= max(sum(group.groups for group in layout.groups), pool.blocks * 1e-4)


def test_a_pool_is_whole_blocks_of_which_the_engine_keeps_one() -> None:
    """Its log counts that one in, requests never get it: one that needs all ten would wait for ever."""
    layout = laid_out("llama-3.1-8b")
    pool = layout.pool(layout.block_bytes * 10.99 / GIB)
    assert (pool.allocated, pool.blocks) == (10, 9)
    assert (pool.printed_tokens("blocks_per_group"), pool.concurrency(80)) == (160, 2.0)
    assert (pool.longest_tokens(), pool.sequences(80), pool.sequences(160)) == (144, 1, 0)
    assert layout.pool(-2.14).blocks == layout.pool(layout.block_bytes * 1.5 / GIB).blocks == 0
    assert layout.pool(0.0).longest_tokens() == 0


def test_a_model_of_states_only_has_a_pool_of_their_pages() -> None:
    state = Linear(kind="linear", conv_elements=3_000, ssm_elements=100_000)
    layout = vllm.layout(_with(state), Sharding(), "bf16", Options(align=False))
    assert isinstance(layout, Layout)
    assert layout.block_bytes == 32 * (3_000 * 2 + 100_000 * 4)
    pool = layout.pool(layout.block_bytes * 10.5 / GIB)
    assert (pool.blocks, pool.sequences(1), pool.sequences(1_000_000)) == (9, 9, 9)
    assert pool.longest_tokens(1_000_000) == 1_000_000
    assert isinstance(pool.printed_tokens("blocks_per_group"), Unknown)
    assert pool.printed_tokens("concurrency", 4_096) == 40_960
    aligned = vllm.layout(_with(state), Sharding(), "bf16", Options(align=True))
    assert isinstance(aligned, Layout)
    assert aligned.pool(layout.block_bytes * 11.5 / GIB).sequences(1) == 5


def test_a_window_keeps_every_batch_in_flight() -> None:
    one, two = laid_out("gpt-oss-120b"), laid_out("gpt-oss-120b", options=Options(batches_in_flight=2))
    assert two.units(131_072) - one.units(131_072) == 8_192 // 16
    assert two.block_bytes == one.block_bytes


def test_what_has_no_rule_has_a_reason() -> None:
    base = shipped().model("llama-3.1-8b")
    for model, words in ((_two_states(), "states of several sizes"), (_uneven(base), "cannot be made alike")):
        found = vllm.layout(model, Sharding(), "bf16")
        assert isinstance(found, Unknown)
        assert words in found.reason


def _with(state: Linear) -> Model:
    """Llama 3.1 8B with a state in each of its 32 layers instead of attention."""
    base = shipped().model("llama-3.1-8b")
    return base.model_copy(update={"layers": (base.layers[0].model_copy(update={"attention": state}),)})


def _two_states() -> Model:
    one = _with(Linear(kind="linear", conv_elements=64, ssm_elements=64))
    two = _with(Linear(kind="linear", conv_elements=64, ssm_elements=128))
    return one.model_copy(update={"layers": (*one.layers, *two.layers)})


def _uneven(base: Model) -> Model:
    """Half of the layers slide with rows of 3/4 the size."""
    group = base.layers[0]
    sliding = group.attention.model_copy(update={"kv_heads": 6, "window_tokens": 512})
    return base.model_copy(update={"layers": (group, group.model_copy(update={"attention": sliding}))})
