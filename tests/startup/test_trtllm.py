"""What TensorRT-LLM's start-up log says."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentroute.shape.sharding import Sharding
from agentroute.startup.facts import Found, Started
from agentroute.startup.log import read

DATA = Path(__file__).parents[1] / "data" / "startup"


def said(started: Started) -> dict[str, object]:
    return {name: found.value for name, found in started.facts()}


def test_the_second_allocation_counts_and_attention_dp_stands_beside_tp() -> None:
    started = read((DATA / "trtllm-1.1-attention-dp.log").read_text())
    assert started.sharding() == Sharding(tp=1, attention_dp=2, ep=2)
    assert started.kv_pool() == (524_256, 32)  # the less of two ranks
    facts = said(started)
    assert (facts["version"], facts["model"], facts["kv"]) == ("1.1.0", "deepseek-ai/DeepSeek-V3", "fp8")
    assert (facts["max_model_len"], facts["max_num_seqs"], facts["max_num_batched_tokens"]) == (163_840, 64, 8192)
    assert (facts["weights_gib"], facts["kv_gib"]) == (83.1, 34.31)


def test_an_early_version_s_lines() -> None:
    text = """[TensorRT-LLM] TensorRT-LLM version: 0.17.0
[TensorRT-LLM][INFO] Max KV cache pages per sequence: 2048
[TensorRT-LLM][INFO] Number of tokens per block: 64.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 26.91 GiB for max tokens in paged KV cache (220480).
[02/14/2025-09:38:53] [TRT-LLM] [I] max_seq_len=131072, max_num_requests=2048, max_num_tokens=8192
"""
    started = read(text)
    assert started.kv_pool() == (220_480, 64)
    assert said(started)["version"] == "0.17.0"
    assert started.sharding() is None  # it says nothing of it


def test_of_several_windows_the_longest_is_the_pool() -> None:
    window = "[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 9 [window size={}], tokens per block=32, "
    window += "primary blocks={}, secondary blocks=0"
    text = (
        "\n".join([window.format(128, 50), window.format(131_072, 1000)])
        + "\n[TensorRT-LLM][INFO] [MemUsageChange] Allocated 2.00 GiB for max tokens in paged KV cache (33600)."
    )
    started = read(text)
    assert started.kv_pool() == (32_000, 32)
    assert "pools of their own" in started.pool_notes[0]


@pytest.mark.parametrize(
    ("command", "model", "sharding"),
    [
        ("trtllm-serve org/m --tp_size 8 --ep_size 8", "org/m", Sharding(tp=8, ep=8)),
        ("trtllm-serve serve org/m --tp_size 4 --pp_size 2 --max_batch_size 64", "org/m", Sharding(tp=4, pp=2)),
        # The file may turn attention DP on, which makes another split of the same numbers.
        ("trtllm-serve org/m --tp_size 8 --extra_llm_api_options more.yaml", "org/m", None),
    ],
)
def test_a_command(command: str, model: str, sharding: Sharding | None) -> None:
    started = read(command)
    assert said(started)["model"] == model
    assert started.sharding() == sharding
    assert bool(started.remarks) == (sharding is None)


@pytest.mark.parametrize(
    ("arguments", "sharding"),
    [
        ("tensor_parallel_size=8", Sharding(tp=8)),
        ("tensor_parallel_size=8 enable_attention_dp=False", Sharding(tp=8)),
        ("tensor_parallel_size=8 enable_attention_dp=True", Sharding(tp=1, attention_dp=8)),
        ("tensor_parallel_size=8 enable_attention_dp=None moe_expert_parallel_size=8", Sharding(tp=8, ep=8)),
        ("max_seq_len=9", None),
    ],
)
def test_attention_dp_is_off_unless_it_is_turned_on(arguments: str, sharding: Sharding | None) -> None:
    started = read(f"[TRT-LLM] [I] LLM Args: model='org/m' {arguments}")
    assert started.sharding() == sharding
    assert started.attention_dp == (Found(sharding.attention_dp, 1) if sharding else None)


def test_the_arguments_may_stand_on_the_next_line_but_not_later() -> None:
    args = "[TRT-LLM] [I] LLM Args:\n{}model='org/m' tensor_parallel_size=8"
    assert read(args.format("")).sharding() == Sharding(tp=8)
    assert read("trtllm-serve org/m --max_seq_len 9\n" + args.format("Something else\n")).sharding() is None


def test_a_file_that_two_commands_name_is_forgotten_when_the_arguments_are_dumped() -> None:
    command = "trtllm-serve org/m --tp_size 8 --extra_llm_api_options more.yaml\n"
    assert read(command * 2 + "LLM Args: model='org/m' tensor_parallel_size=8").remarks == ()


def test_a_dump_of_the_arguments_says_what_a_file_hid() -> None:
    text = (
        "trtllm-serve org/m --tp_size 8 --extra_llm_api_options more.yaml\n"
        "[03/01/2026-10:01:30] [TRT-LLM] [I] LLM Args: model='org/m' tensor_parallel_size=8 enable_attention_dp=True"
    )
    started = read(text)
    assert started.sharding() == Sharding(tp=1, attention_dp=8)
    assert started.remarks == ()
