"""llama.cpp's cells, to the printed MiB."""

from __future__ import annotations

import pytest

from agentroute.capacity import llamacpp
from agentroute.capacity.kv import KvType, Unknown
from agentroute.capacity.llamacpp import Layout, LlamaPool, Options
from agentroute.catalogue import shipped
from agentroute.shape.sharding import Sharding


def cache(
    name: str, n_ctx: int, k_type: KvType = "fp16", v_type: KvType | None = None, options: Options | None = None
) -> LlamaPool:
    found = llamacpp.pool(shipped().model(name), n_ctx, k_type, v_type, options or Options())
    assert not isinstance(found, Unknown), found.reason
    return found


@pytest.mark.parametrize(
    ("model", "n_ctx", "k_type", "v_type", "mib"),
    [
        ("qwen3-30b-a3b", 4_096, "fp16", None, 384.0),
        ("llama-3.1-70b", 8_000, "fp16", None, 2_500.0),
        ("command-r", 512, "q8_0", "fp16", 490.0),
        ("qwen2.5-32b", 32_768, "q8_0", None, 4_352.0),
        ("deepseek-v3", 4_096, "fp16", None, 61 * 4.5),
    ],
)
def test_memory_is_cells_times_rows(model: str, n_ctx: int, k_type: KvType, v_type: KvType | None, mib: float) -> None:
    assert cache(model, n_ctx, k_type, v_type).mib == mib


@pytest.mark.parametrize(
    ("model", "n_ctx", "sequences", "cells", "mib"),
    [("gemma-3-4b", 4_096, 1, 1_536, 254.0), ("gpt-oss-120b", 65_535, 4, 1_024, 2_340.0)],
)
def test_windowed_layers_have_cells_for_their_window(
    model: str, n_ctx: int, sequences: int, cells: int, mib: float
) -> None:
    found = cache(model, n_ctx, options=Options(sequences=sequences))
    assert (found.swa_cells, found.mib) == (cells, mib)


def test_older_builds_keep_everything_in_every_layer() -> None:
    old = cache("gemma-3-4b", 4_096, options=Options(windows=False))
    assert (old.swa_cells, old.mib) == (None, 544.0)


def test_older_builds_keep_latent_attention_as_heads() -> None:
    old = cache("deepseek-v2-lite", 4_096, options=Options(latent=False))
    assert old.mib == 1_080.0
    assert cache("deepseek-v2-lite", 4_096).mib == 27 * 4.5


def test_sequences_have_cells_of_their_own_unless_unified() -> None:
    own = cache("deepseek-v2-lite", 2_048, options=Options(sequences=8, unified=False, latent=False))
    assert (own.mib, own.blocks, own.sequences(2_048), own.longest_tokens()) == (4_320.0, 16_384, 8, 2_048)
    unified = cache("deepseek-v2-lite", 2_048, options=Options(sequences=8, latent=False))
    assert (unified.mib, unified.sequences(2_048)) == (540.0, 1)


@pytest.mark.parametrize(
    ("model", "n_ctx", "k_type", "shares", "mib"),
    [
        ("llama-3.1-70b", 8_000, "fp16", (1, 1, 1), (843.75, 843.75, 812.5)),
        ("qwen3-32b", 2_048, "fp16", (1, 1), (264.0, 248.0)),
        ("qwen2.5-32b", 32_768, "q8_0", (10, 6), (2_788.0, 1_564.0)),
    ],
)
def test_the_cache_follows_its_layer(
    model: str, n_ctx: int, k_type: KvType, shares: tuple[float, ...], mib: tuple[float, ...]
) -> None:
    assert cache(model, n_ctx, k_type).device_mib(shares) == mib


def test_a_state_does_not_grow_with_the_context_but_with_the_sequences() -> None:
    one, longer = cache("granite-4.0-h-micro", 256), cache("granite-4.0-h-micro", 512)
    assert longer.bytes - one.bytes == 256 * 4 * 2_048
    two = cache("granite-4.0-h-micro", 256, options=Options(sequences=2))
    assert 2 * (one.bytes - 256 * 4 * 2_048) == two.bytes - 256 * 4 * 2_048


def test_a_chunk_is_a_window_to_the_cache() -> None:
    # 12 full layers of 32,768 cells and 36 chunked ones of 8,192 + 512, each row 4,096 B.
    found = cache("llama-4-scout", 32_768)
    assert (found.swa_cells, found.mib) == (8_704, 12 * 128 + 36 * 34)


def laid_out(name: str, devices: int = 1, options: Options | None = None) -> Layout:
    found = llamacpp.layout(shipped().model(name), Sharding(pp=devices), "fp16", options or Options())
    assert not isinstance(found, Unknown), found.reason
    return found


@pytest.mark.parametrize(
    ("model", "devices", "gib", "cells"),
    [
        ("llama-3.1-8b", 1, 1.0, 8_192),  # 131,072 B a cell
        ("llama-3.1-8b", 2, 1.0, 15_392),  # 17 of 32 layers on the first device: 15,420 cells, whole 32s
        ("gpt-oss-120b", 1, 1.0, 28_352),  # 18 windowed layers keep 768 cells, 27 MiB; 18 full ones share the rest
        ("gpt-oss-120b", 1, 0.01, 128),  # 145 cells of all 36 layers, whole 32s
    ],
)
def test_the_largest_context_that_a_memory_holds(model: str, devices: int, gib: float, cells: int) -> None:
    assert laid_out(model, devices).pool(gib).cells == cells


def test_a_tensor_split_moves_the_limit_to_the_device_with_most_layers() -> None:
    even, uneven = laid_out("qwen2.5-32b", 2), laid_out("qwen2.5-32b", 2, Options(shares=(10.0, 6.0)))
    assert even.devices == ((33,), (31,))
    assert uneven.devices == ((41,), (23,))
    assert uneven.pool(4.0).cells < even.pool(4.0).cells


def test_a_row_split_leaves_the_cache_with_its_layer() -> None:
    model = shipped().model("qwen3-32b")
    assert llamacpp.layout(model, Sharding(tp=2), "fp16") == llamacpp.layout(model, Sharding(pp=2), "fp16")


def test_sequences_share_the_cells_or_have_a_set_each() -> None:
    pool = laid_out("llama-3.1-8b", options=Options(sequences=4)).pool(4.0)
    assert pool.cells == 32_768
    assert [pool.sequences(tokens) for tokens in (1_024, 8_192, 8_193, 32_768, 32_769)] == [32, 4, 3, 1, 0]
    own = laid_out("llama-3.1-8b", options=Options(sequences=4, unified=False)).pool(4.0)
    assert own.cells == 8_192
    assert [own.concurrency(tokens) for tokens in (1, 8_192, 16_384)] == [4, 4, 0.5]


def test_where_only_windows_are_kept_memory_sets_no_limit() -> None:
    assert laid_out("mistral-7b").pool(4.0).longest_tokens() == llamacpp.MOST_CELLS
    assert laid_out("mistral-7b").pool(0.5).longest_tokens() == 4_096


def test_a_decode_context_split_has_a_reason() -> None:
    assert isinstance(llamacpp.layout(shipped().model("glm-5"), Sharding(tp=2, dcp=2), "fp16"), Unknown)
