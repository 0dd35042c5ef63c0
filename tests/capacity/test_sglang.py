"""SGLang's pools: tokens, windows and states."""

from __future__ import annotations

import pytest

from agentroute.capacity import sglang
from agentroute.capacity.kv import GIB, KvType, Unknown
from agentroute.capacity.sglang import Layout, Options
from agentroute.catalogue import shipped
from agentroute.shape.sharding import Sharding


def laid_out(name: str, kv_type: KvType = "bf16", options: Options | None = None, **degrees: int) -> Layout:
    found = sglang.layout(shipped().model(name), Sharding(**degrees), kv_type, options or Options())
    assert not isinstance(found, Unknown), found.reason
    return found


def test_windowed_layers_have_eight_tokens_for_ten() -> None:
    pool = laid_out("gemma-4-26b-a4b").pool(36.69)
    assert pool.printed_tokens == pytest.approx(213_761, rel=0.0005)
    assert pool.swa_tokens == int(pool.printed_tokens * 0.8)


def test_layers_that_share_kv_are_allocated_all_the_same() -> None:
    shared, own = laid_out("gemma-4-e4b"), shipped().model("gemma-4-e4b")
    rows = shared.full_bytes // 4_096 + shared.swa_bytes // 2_048
    assert rows == sum(group.count for group in own.layers)


def test_states_take_their_share_first() -> None:
    layout = laid_out("granite-4.0-h-micro")
    kv_gib, state_gib = layout.split(5.81)
    assert state_gib / 5.81 == pytest.approx(0.474, abs=0.001)
    assert kv_gib + state_gib == pytest.approx(5.81)
    pool = layout.pool(3.04, 2.77)
    assert pool.state_slots is not None
    assert pool.sequences(1) == pool.state_slots
    assert laid_out("llama-3.1-8b").split(5.0) == (5.0, 0.0)


def test_a_wrapper_that_does_not_know_its_stage_allocates_all_layers() -> None:
    whole = laid_out("mistral-small-24b", options=Options(whole_model_per_stage=True), pp=4)
    assert whole.full_bytes == 163_840
    assert whole.pool(53.68).printed_tokens == pytest.approx(351_850, rel=0.0005)
    assert laid_out("mistral-small-24b", pp=4).full_bytes == 40_960


def test_sparse_latent_attention_has_pages_of_64() -> None:
    assert laid_out("deepseek-v3.2", "fp8").pool(43.67).printed_tokens % 64 == 0
    assert laid_out("deepseek-v3").page_tokens == 1


def test_a_draft_has_the_same_tokens() -> None:
    assert laid_out("deepseek-v3", options=Options(draft=True)).cell_bytes == 62 * 1_152


def test_the_pool_is_what_the_fraction_leaves() -> None:
    # Qwen2 72B on eight H100: 76.63 GiB free before loading, 59.64 after it, a fraction of 0.83.
    pool = laid_out("qwen2.5-72b", tp=8).pool(sglang.pool_gib(76.63, 59.64, 0.83))
    assert pool.printed_tokens == pytest.approx(1_218_251, rel=0.005)


def test_the_longest_sequence_is_the_pool_and_a_window_never_stops_it() -> None:
    pool = laid_out("gemma-4-26b-a4b").pool(3.0)
    assert pool.longest_tokens() == pool.printed_tokens
    assert pool.longest_tokens(1_000) == 1_000
    assert pool.layout.needed_gib(pool.printed_tokens) <= 3.0 + 1 / GIB
    assert laid_out("gemma-4-26b-a4b").pool(0.0).longest_tokens() == 0


def test_chunked_layers_share_the_pool_of_windowed_ones() -> None:
    layout = laid_out("llama-4-scout", tp=8)
    assert (layout.full_bytes, layout.swa_bytes, layout.span_tokens) == (12 * 512, 36 * 512, 8_192)


def test_models_that_it_does_not_know_as_hybrid_keep_everything() -> None:
    layout = laid_out("gemma-3-27b", options=Options(windows=False))
    assert (layout.full_bytes, layout.swa_bytes) == (62 * 8_192, 0)
    assert layout.pool(10.0).swa_tokens is None


def test_states_have_their_share_beside_the_kv_unless_it_is_given() -> None:
    layout = laid_out("granite-4.0-h-micro")
    kv_gib, state_gib = layout.split(5.81)
    assert layout.pool_of(5.81) == layout.pool(kv_gib) == layout.pool(kv_gib, state_gib)
    assert layout.pool(kv_gib, 0.0).sequences(1) == 0


def test_every_stage_bounds_the_pool_by_its_own_layers() -> None:
    # 36 linear layers and 4 of attention on two stages: 18 and 2 on each.
    one, two = laid_out("granite-4.0-h-micro"), laid_out("granite-4.0-h-micro", pp=2)
    assert (two.full_bytes * 2, two.state_bytes * 2) == (one.full_bytes, one.state_bytes)


def test_a_sequence_holds_its_window_and_what_it_has_not_freed_yet() -> None:
    pool = laid_out("gpt-oss-120b").pool(10.0)
    assert pool.layout.held_tokens == 128 + 128 + 2
    assert pool.swa_tokens is not None
    assert pool.concurrency(258) == pytest.approx(pool.swa_tokens / 258)
    assert pool.concurrency(8_192) == pool.blocks / 8_192


def test_a_windowed_pool_smaller_than_a_window_is_the_limit() -> None:
    pool = laid_out("gemma-4-26b-a4b").pool(0.1)
    assert pool.swa_tokens is not None
    assert pool.swa_tokens < pool.layout.held_tokens
    assert pool.longest_tokens() == pool.swa_tokens
    assert (pool.sequences(pool.swa_tokens), pool.sequences(pool.swa_tokens + 1)) == (1, 0)


def test_a_decode_context_split_has_a_reason() -> None:
    assert isinstance(sglang.layout(shipped().model("glm-5"), Sharding(tp=8, dcp=8), "bf16"), Unknown)
