"""What SGLang's start-up log says."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentroute.shape.sharding import Sharding
from agentroute.startup.facts import Started
from agentroute.startup.log import read

DATA = Path(__file__).parents[1] / "data" / "startup"
FINAL = "max_total_num_tokens={}, chunked_prefill_size={}, max_prefill_tokens=16384, max_running_requests=2048, context_len=131072, available_gpu_mem=7.98 GB"  # noqa: E501


def said(started: Started) -> dict[str, object]:
    return {name: found.value for name, found in started.facts()}


def test_attention_dp_is_counted_beside_tp() -> None:
    started = read((DATA / "sglang-dp-attention.log").read_text())
    assert started.sharding() == Sharding(tp=1, attention_dp=8, ep=8)
    assert started.kv_pool() == (471_872, 1)  # the least of eight ranks
    facts = said(started)
    assert (facts["max_model_len"], facts["max_num_seqs"], facts["max_num_batched_tokens"]) == (163_840, 128, 1024)
    assert (facts["weights"], facts["kv"], facts["weights_gib"]) == ("fp8", "bf16", 83.47)
    assert facts["model"] == "deepseek-ai/DeepSeek-V3"
    assert any("471,872 to 471,936 tokens; the least is kept" in remark for remark in started.remarks)


@pytest.mark.parametrize(
    ("arguments", "sharding"),
    [
        ("tp_size=8, dp_size=1, ep_size=1", Sharding(tp=8)),
        ("tp_size=8, dp_size=2, enable_dp_attention=True", Sharding(tp=4, attention_dp=2)),
        ("tp_size=4, dp_size=2, enable_dp_attention=False", Sharding(tp=4, attention_dp=2)),
        ("tp_size=8, dp_size=1, attn_dp_size=4, enable_dp_attention=True", Sharding(tp=2, attention_dp=4)),
        ("tp_size=4, pp_size=2, dcp_size=2", Sharding(tp=4, pp=2, dcp=2)),
    ],
)
def test_the_split_in_the_arguments(arguments: str, sharding: Sharding) -> None:
    assert read(f"server_args=ServerArgs(model_path='m', {arguments})").sharding() == sharding
    pairs = (pair.split("=") for pair in arguments.split(", "))
    assert read("server_args={" + ", ".join(f"'{key}': {value}" for key, value in pairs) + "}").sharding() == sharding


@pytest.mark.parametrize(
    ("command", "sharding"),
    [
        ("python -m sglang.launch_server --model-path m --tp 8", Sharding(tp=8)),
        ("sglang serve --model-path m --tp-size 8 --dp-size 8 --enable-dp-attention", Sharding(tp=1, attention_dp=8)),
        ("python3 -m sglang.launch_server --tensor-parallel-size 4 --expert-parallel-size 4", Sharding(tp=4, ep=4)),
        ("sglang serve --model-path m --tp 8 --attn-dp-size 4", Sharding(tp=2, attention_dp=4)),
        ("python -m sglang.launch_server --model-path m", None),
    ],
)
def test_the_split_in_a_command(command: str, sharding: Sharding | None) -> None:
    assert read(command).sharding() == sharding


def test_replicas_that_do_not_divide_tp_are_told() -> None:
    started = read("server_args=ServerArgs(tp_size=8, pp_size=2, dp_size=3, enable_dp_attention=True)")
    assert started.tp is None and started.pp
    assert "no multiple of its 3 attention replicas" in started.remarks[0]


def test_of_a_line_that_is_cut_short_the_split_is_not_believed() -> None:
    started = read("server_args=ServerArgs(model_path='m', page_size=64, tp_size=8, dp_size=8, ep_size=8, enable_dp")
    assert started.sharding() is None and started.ep is None
    assert said(started)["block_tokens"] == 64
    assert "line 1 is cut short" in started.remarks[0]


def test_the_last_line_says_what_was_allocated() -> None:
    text = (
        "server_args=ServerArgs(max_running_requests=None, context_length=None, page_size=64)\n"
        "[2026-01-01 10:00:00 TP0] KV Cache is allocated. #tokens: 442752, K size: 27.02 GB, V size: 27.02 GB\n"
        f"[2026-01-01 10:00:01 TP0] {FINAL.format(442_750, 8192)}"
    )
    started = read(text)
    assert started.kv_pool() == (442_750, 64)
    assert said(started)["kv_gib"] == 54.04
    assert (said(started)["max_num_seqs"], said(started)["max_model_len"]) == (2048, 131_072)


def test_without_chunks_a_step_takes_the_whole_of_prefill() -> None:
    assert said(read(FINAL.format(442_750, -1)))["max_num_batched_tokens"] == 16_384


def test_a_sliding_window_has_a_pool_of_its_own() -> None:
    text = (
        "KV Cache is allocated. #tokens: 800, K size: 1.00 GB, V size: 1.00 GB\n"
        "KV Cache is allocated. #tokens: 1000, K size: 2.00 GB, V size: 2.00 GB\n"
        "SWAKVPool mem usage: 6.00 GB, swa size: 800, full size: 1000"
    )
    started = read(text)
    assert said(started)["kv_tokens"] == 1000
    assert said(started)["kv_gib"] == 6.0
    assert "sliding window have a pool of their own, of 800 tokens" in started.pool_notes[0]


def test_states_beside_the_pool_are_noted() -> None:
    text = "Mamba Cache is allocated. max_mamba_cache_size: 186, conv_state size: 0.10GB\n" + FINAL.format(
        327_310, 8192
    )
    assert "keep a state for each request" in read(text).pool_notes[0]


def test_the_dtype_of_activations_is_not_that_of_the_weights() -> None:
    """GLM-5-FP8's log says dtype=torch.bfloat16 where it loads fp8 weights."""
    loaded = "KV Cache is allocated. #tokens: 9\nLoad weight end. type=X, {}avail mem=9.00 GB, mem usage=89.58 GB."
    assert "weights" not in said(read(loaded.format("dtype=torch.bfloat16, ")))
    assert said(read(loaded.format("quant=fp8, fmt=e4m3, ")))["weights"] == "fp8"
