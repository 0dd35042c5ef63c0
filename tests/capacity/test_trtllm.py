"""TensorRT-LLM's blocks."""

from __future__ import annotations

import pytest

from agentroute.capacity import trtllm
from agentroute.capacity.kv import Unknown
from agentroute.capacity.pool import Pool
from agentroute.catalogue import shipped
from agentroute.shape.sharding import Sharding


def test_the_pool_is_a_share_of_free_memory_in_whole_blocks() -> None:
    free_gib = 17.83
    pool = trtllm.pool(shipped().model("llama-3.1-8b"), Sharding(), "fp8", free_gib * trtllm.FREE_FRACTION)
    assert isinstance(pool, Pool)
    assert pool.block_tokens == 32
    assert pool.tokens == pytest.approx(263_008, rel=0.0005)


def test_the_fullest_stage_decides_and_the_first_stages_take_what_is_left_over() -> None:
    model = shipped().model("deepseek-v3")
    assert trtllm.token_bytes(model, Sharding(pp=2), "bf16") == 31 * 1_152


def test_one_sequence_needs_whole_blocks() -> None:
    model = shipped().model("llama-3.1-8b")
    assert trtllm.needed_gib(model, Sharding(), "bf16", 33) == pytest.approx(64 * 131_072 / 2**30)


def test_without_a_window_given_every_layer_keeps_everything() -> None:
    whole = trtllm.layout(shipped().model("gpt-oss-120b"), Sharding(), "bf16", trtllm.Options(windows=False))
    assert whole == trtllm.Layout(36 * 2_048, 32)
    windows = trtllm.layout(shipped().model("gpt-oss-120b"), Sharding(), "bf16", trtllm.Options(windows=True))
    assert isinstance(windows, Unknown)


def test_the_pool_of_a_layout_is_whole_blocks() -> None:
    layout = trtllm.layout(shipped().model("llama-3.1-8b"), Sharding(), "bf16", trtllm.Options(block_tokens=64))
    assert isinstance(layout, trtllm.Layout)
    assert layout.pool(1.0) == layout.pool_of(1.0) == Pool(128, 64)
    assert layout.pool(-1.0).blocks == 0


def test_a_decode_context_split_has_a_reason() -> None:
    assert isinstance(trtllm.layout(shipped().model("glm-5"), Sharding(tp=2, dcp=2), "bf16"), Unknown)


@pytest.mark.parametrize("name", ["gpt-oss-120b", "qwen3.5-122b-a10b"])
def test_what_no_log_confirms_has_a_reason(name: str) -> None:
    assert isinstance(trtllm.pool(shipped().model(name), Sharding(), "bf16", 10.0), Unknown)
    assert isinstance(trtllm.needed_gib(shipped().model(name), Sharding(), "bf16", 1), Unknown)
