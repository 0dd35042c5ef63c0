"""What vLLM's start-up log says."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentroute.shape.sharding import Sharding
from agentroute.startup.facts import Started
from agentroute.startup.log import read

DATA = Path(__file__).parents[1] / "data" / "startup"


def said(started: Started) -> dict[str, object]:
    return {name: found.value for name, found in started.facts()}


@pytest.mark.parametrize(
    ("file", "sharding", "pool", "batched"),
    [
        ("vllm-0.32.0-tp2.log", Sharding(tp=2), (1536, 128), 4096),
        ("vllm-0.32.0-pp2.log", Sharding(pp=2), (1536, 128), 4096),
        ("vllm-0.32.0-dp2-ep.log", Sharding(attention_dp=2, ep=2), (1536, 128), 2048),
    ],
)
def test_a_real_server_s_log_gives_split_and_limits(
    file: str, sharding: Sharding, pool: tuple[int, int], batched: int
) -> None:
    started = read((DATA / file).read_text())
    assert started.sharding() == sharding
    assert started.kv_pool() == pool  # of one rank where there are several
    facts = said(started)
    assert facts["version"] == "0.32.0"
    assert (facts["max_model_len"], facts["max_num_seqs"], facts["max_num_batched_tokens"]) == (1024, 4, batched)
    assert (facts["weights"], facts["kv"]) == ("bf16", "bf16")
    assert started.unknown() == ["device", "kv_gib", "weights_gib"]
    assert started.remarks == ()


def test_every_fact_names_the_line_that_says_it() -> None:
    text = (DATA / "vllm-0.32.0-tp2.log").read_text()
    lines = text.split("\n")
    expected = {
        "version": "version 0.32.0",
        "tp": "tensor_parallel_size=2",
        "kv_tokens": "KV cache size: 1,536 tokens",
        "max_model_len": "Maximum concurrency for 1,024 tokens",
        "block_tokens": "num_gpu_blocks_override=12",
        "max_num_seqs": "'max_num_seqs': 4",
    }
    facts = dict(read(text).facts())
    for name, words in expected.items():
        assert words in lines[facts[name].line - 1]


def test_an_old_log_counts_blocks() -> None:
    started = read((DATA / "vllm-0.6-tp4.log").read_text())
    assert started.sharding() == Sharding(tp=4)
    assert started.kv_pool() == (10_340 * 16, 16)
    facts = said(started)
    assert (facts["version"], facts["model"]) == ("0.6.3", "mistralai/Mistral-Large-Instruct-2407")
    assert (facts["max_model_len"], facts["max_num_seqs"]) == (32_768, 256)
    assert facts["weights_gib"] == 57.22  # of the fuller of two workers


@pytest.mark.parametrize(
    ("lines", "name", "value"),
    [
        ("INFO [kv_cache_utils.py:407] # GPU blocks: 33660", "kv_tokens", 33_660 * 16),
        ("INFO [executor_base.py:112] # cuda blocks: 41345, # CPU blocks: 21845", "kv_tokens", 41_345 * 16),
        ("# GPU blocks: 900\n# GPU blocks: 700\n# GPU blocks: 800", "kv_tokens", 700 * 16),  # of three ranks
        ("GPU KV cache size: 389,888 tokens", "kv_tokens", 389_888),
        ("GPU KV cache size: 1,000 tokens\nGPU KV cache size: 900 tokens", "kv_tokens", 900),
        ("# GPU blocks: 99\nAvailable KV cache memory: 38.41 GiB", "kv_gib", 38.41),
        ("# GPU blocks: 99\nthe rest of the memory reserved for KV Cache is 7.57GiB.", "kv_gib", 7.57),
        ("# GPU blocks: 99\nModel loading took 16.4605 GiB and 9.1 seconds", "weights_gib", 16.4605),
        ("# GPU blocks: 99\nModel loading took 74.08 GiB memory and 36.573577 seconds", "weights_gib", 74.08),
        ("# GPU blocks: 99\nnot found at /x/E=40,N=512,device_name=NVIDIA_L40S.json", "device", "NVIDIA L40S"),
        (
            "# GPU blocks: 99\nUsing E=128,N=96,device_name=NVIDIA_H200_down,dtype=fp8_w8a8.json",
            "device",
            "NVIDIA H200",
        ),
        ("# GPU blocks: 9\nSetting kv cache block size to 64 for FLASHMLA backend(s).", "kv_tokens", 9 * 64),
        ("non-default args: {'data_parallel_size': 4, 'enable_expert_parallel': True}", "ep", 4),
        ("non-default args: {'tensor_parallel_size': 2}", "ep", 1),
        ("vllm serve m -tp 2 -dp 2 --enable-expert-parallel", "ep", 4),
        ("vllm serve m --max-model-len 128k", "max_model_len", 128_000),
        ("python -m vllm.entrypoints.openai.api_server --model org/m --max-num-seqs=64", "max_num_seqs", 64),
        ("vllm serve org/m --kv-cache-dtype fp8_e4m3", "kv", "fp8_e4m3"),
    ],
)
def test_single_lines(lines: str, name: str, value: object) -> None:
    assert said(read(lines))[name] == value


def test_what_ran_explains_what_was_asked_for() -> None:
    text = (
        "vllm serve org/m --max-model-len 40960\n"
        "Initializing a V1 LLM engine (v0.19.1) with config: model='org/m', max_seq_len=40000, quantization=None\n"
        "Maximum concurrency for 32,768 tokens per request: 1.00x"
    )
    started = read(text)
    assert said(started)["max_model_len"] == 32_768
    assert started.remarks == ()


def test_lines_that_contradict_each_other_leave_it_unknown_and_are_told() -> None:
    text = "Maximum concurrency for 1,024 tokens per request: 2x, Initializing an LLM engine\n"
    started = read("GPU KV cache size: 4,096 tokens\n" + text + text.replace("1,024", "2,048"))
    assert started.max_model_len is None
    assert "line 2 says max_model_len = 1024, line 3 says 2048" in started.remarks[0]


def test_the_least_of_several_ranks_is_kept_and_told() -> None:
    line = "(EngineCore_DP{} pid=1) GPU KV cache size: {} tokens\n"
    started = read(line.format(1, "250,106") + line.format(0, "249,999"))
    assert said(started)["kv_tokens"] == 249_999
    assert "249,999 to 250,106 tokens; the least is kept, from line 2 (DP0)" in started.remarks[0]


def test_a_fp8_checkpoint_does_not_say_the_type_of_its_kv_cache() -> None:
    config = (
        "Initializing a V1 LLM engine (v0.19.1) with config: dtype=torch.bfloat16, quantization={}, kv_cache_dtype=auto"
    )
    facts = said(read(config.format("fp8")))
    assert facts["weights"] == "fp8" and "kv" not in facts
    assert said(read(config.format("None")))["kv"] == "bf16"
    assert "weights" not in said(read(config.format("compressed-tensors")))


def test_layers_of_several_kinds_are_noted_at_the_pool() -> None:
    text = (
        "GPU KV cache size: 451,040 tokens\n"
        "Setting attention block size to 528 tokens to ensure that attention page size is >= mamba page size.\n"
    )
    started = read(text)
    assert started.kv_pool() == (451_040, 528)
    assert "not all layers keep the whole of a request" in started.pool_notes[0]


def test_a_pool_that_takes_more_than_its_tokens_has_layers_of_several_kinds() -> None:
    """Record v046 of the KV records: windows of some layers make the printed tokens understate the pool."""
    text = "GPU KV cache size: 451,040 tokens\nMaximum concurrency for 131,072 tokens per request: {}x"
    notes = read(text.format(33.42)).pool_notes
    assert (
        "not all layers keep the whole of a request" in notes[0]
        and "takes 33.42 requests of 131,072 tokens at once" in notes[1]
    )
    assert read(text.format(3.44)).pool_notes == ()


def test_ranks_that_share_a_sequence_s_kv_widen_the_default_block() -> None:
    config = (
        "Initializing a V1 LLM engine (v0.19.1) with config: tensor_parallel_size=8, decode_context_parallel_size=8"
    )
    started = read(config + "\nGPU KV cache size: 5,721,088 tokens")
    assert started.kv_pool() == (5_721_088, 128)
    assert started.sharding() == Sharding(tp=8, dcp=8)


def test_a_split_that_is_not_said_is_not_made_up() -> None:
    assert read("GPU KV cache size: 4,096 tokens").sharding() is None
    assert read("vllm serve org/m --max-model-len 4096").sharding() is None
    assert read("vllm serve org/m --config c.yaml").remarks == (
        "--config names a file that may say more; it is not read",
    )
    cut = "non-default args: {'model': 'org/m', 'max_num_seqs': 4, 'chat_template': 'cut in the mid"
    assert read(cut).sharding() is None


def test_degrees_that_do_not_divide_are_told() -> None:
    started = read("vllm serve org/m -tp 8 -dcp 3")
    assert started.sharding() is None
    assert "do not divide each other (tp = 8, dcp = 3)" in started.remarks[0]
