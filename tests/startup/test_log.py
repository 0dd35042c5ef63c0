"""Any log: whose it is, what is refused, and that nothing breaks the reader."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.catalogue import shipped
from agentroute.cli.profiles_from import profile_of_log
from agentroute.errors import UsageError
from agentroute.profile import EngineName
from agentroute.startup.devices import ACCELERATORS
from agentroute.startup.lines import LONGEST, MOST_CHARACTERS, MOST_LINES, split
from agentroute.startup.log import ENGINES, MOST_REMARKS, read

DATA = Path(__file__).parents[1] / "data" / "startup"
LOGS = sorted(DATA.glob("*.log"))
LINES = [log.read_text().split("\n") for log in LOGS]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log.stem))
def test_the_engine_is_known_by_its_lines(log: Path) -> None:
    assert read(log.read_text()).engine == log.stem.split("-")[0]


@pytest.mark.parametrize("name", ENGINES)
def test_the_line_that_is_asked_for_would_be_understood(name: EngineName) -> None:
    assert list(read(ENGINES[name].EXAMPLE).facts())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no start-up line of an engine that is understood; there should be one such as vllm: 'GPU KV"),
        ("GET / 200 OK\n", "holds no start-up line"),
        (
            "# GPU blocks: 9\nllama_context: n_ctx = 9",
            "start-up lines of vllm and llamacpp; give the log of one server",
        ),
        ("see vllm serve and its manual\n", "speaks of vllm, but holds nothing of its start"),
    ],
)
def test_what_is_no_start_up_log_is_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_of_several_starts_the_last_counts() -> None:
    log = (DATA / "vllm-0.32.0-tp2.log").read_text()
    again = log.replace("1,536 tokens", "3,072 tokens").replace("'max_num_seqs': 4", "'max_num_seqs': 8")
    started = read(log + again)
    assert started.kv_tokens and started.kv_tokens.value == 3072
    assert started.max_num_seqs and started.max_num_seqs.value == 8
    assert "the log holds 2 starts" in started.remarks[0]


def test_every_device_is_an_accelerator_that_ships() -> None:
    assert set(ACCELERATORS.values()) <= set(shipped().accelerator_names)


SECRET = "sk-not-a-real-key"


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve --api-key {SECRET} org/m --max-model-len 9",
        f"vllm serve org/m --api-key={SECRET} --hf-token {SECRET} --max-model-len 9",
        f"vllm serve s3://user:{SECRET}@host/m?key={SECRET} --max-model-len 9",
        f"non-default args: {{'api_key': '{SECRET}', 'hf_token': '{SECRET}', 'max_model_len': 9}}",
        f"args: Namespace(api_key=['{SECRET}'], model='m', max_model_len=9)\n# GPU blocks: 7",
        f"server_args=ServerArgs(model_path='m', api_key='{SECRET}', admin_api_key='{SECRET}', tp_size=8)",
        f"python -m sglang.launch_server --api-key {SECRET} --model-path m --tp 8",
        f"llama-server --api-key {SECRET} -m m.gguf -c 9 -np 1",
        f"trtllm-serve m --tp_size 8 --hf_token {SECRET}",
        f"HF_TOKEN={SECRET} trtllm-serve --hf_token {SECRET} m --tp_size 8",
        f"vllm serve {SECRET} --max-model-len 9",
        f"vllm serve https://user:{SECRET}@host.example/?token={SECRET} --max-model-len 9",
        f"vllm serve 'https://user:a?{SECRET}@host.example/m' --max-model-len 9",
        f"non-default args: {{'model': 's3://AKIAKEY:{SECRET}@bucket', 'max_model_len': 9}}",
        f"python -m sglang.launch_server --model-path https://{SECRET}@huggingface.co --tp 8",
        "llama-server --api-key -m not-a-real-key -c 9 -np 1",
        "trtllm-serve --hf_token --model not-a-real-key --tp_size 8",
        f"llama-server -c 9 -np 1\nsrv load_model: loading model 'https://{SECRET}@host/'",
    ],
)
def test_a_key_in_the_log_is_never_repeated(text: str) -> None:
    started = read(text)
    profile = profile_of_log(started, Path("server.log"), None)
    told = profile.model_dump_json() + repr(started)
    assert SECRET not in told and "not-a-real-key" not in told


def test_a_model_that_may_be_a_key_is_told() -> None:
    assert read(f"vllm serve {SECRET} -tp 2").remarks == (
        "line 1 names a model by what may be a key, so it is left out",
    )


numbers = st.integers(0, 10**12).map(str) | st.sampled_from(["0", "1", "-1", "None", "auto", "9" * 400, "²", "٣"])


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A few lines of one engine, with other numbers, cut short, in any order, with anything between them."""
    theirs = draw(st.sampled_from(LINES))
    lines = draw(st.lists(st.sampled_from(theirs) | st.text(max_size=40), max_size=12))
    out = []
    for line in lines:
        line = re.sub(r"\d+", lambda _: draw(numbers), line[:3000], count=draw(st.integers(0, 4)))
        out.append(line[: draw(st.integers(0, len(line)))] if draw(st.booleans()) else line)
    return "\n".join(out)


@given(mangled() | st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        started = read(text)
    except UsageError:
        return
    profile = profile_of_log(started, Path("server.log"), None)
    assert profile.engine.name == started.engine
    for _, found in started.facts():
        assert 1 <= found.line <= text.count("\n") + 1


def everything(text: str, engine: EngineName) -> str:
    """What an engine reads when it is given all lines."""
    return repr(ENGINES[engine].read(split(text)))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log.stem))
def test_the_lines_that_are_passed_over_say_nothing(log: Path) -> None:
    text = log.read_text()
    name = read(text).engine
    words = ENGINES[name].WORDS
    assert repr(ENGINES[name].read(split(text, words))) == everything(text, name)


@given(mangled(), st.sampled_from(sorted(ENGINES)))
def test_no_line_that_is_passed_over_says_anything(text: str, engine: EngineName) -> None:
    assert repr(ENGINES[engine].read(split(text, ENGINES[engine].WORDS))) == everything(text, engine)


def test_kernels_of_another_engine_do_not_make_it_that_engine_s_log() -> None:
    """vLLM prints TensorRT-LLM's prefix where it uses kernels of it."""
    started = read("[TensorRT-LLM][INFO] Set logger level to INFO\nGPU KV cache size: 4,096 tokens\n")
    assert started.engine == "vllm"


@pytest.mark.parametrize(
    ("text", "told_by"),
    [
        ("vllm serve org/m -tp 2", "command line"),
        ("python -m sglang.launch_server --model-path m --tp 8", "command line"),
        ("llama-server -m m.gguf -c 8192 -np 4", "command line"),
        ("trtllm-serve org/m --tp_size 8", "command line"),
        ("vllm serve org/m -tp 2\nGPU KV cache size: 4,096 tokens", "start-up log"),
        ("GPU KV cache size: 4,096 tokens", "start-up log"),
    ],
)
def test_a_command_line_is_not_called_a_log(text: str, told_by: str) -> None:
    assert read(text).told_by == told_by


SLOW = {
    "a name without an end": "llama-server -m a\n" + ("llama_a" * 7_100 + "\n") * 20,
    "caches": ("llama_kv_cache" * 3_500 + "\n") * 20,
    "open brackets": ("Initializing an LLM engine (v" * 1_700 + "\n") * 20,
    "lines that go on": "vllm serve m\n" + "a \\\n" * 330_000,
    "commands that are none": "vllm serve a a a a a a\n" * 45_000,
    "long commands": ("vllm serve m " + "a " * 9_000 + "\n") * 50,
    "long words": ("vllm serve m --tp 2 " + "x" * 19_000 + "\n") * 50,
    "quotes": ("vllm serve m --a '" + "'\"" * 9_000 + "\n") * 50,
    "dumps": "server_args=ServerArgs(" + ("a" * 40_000 + "\n") * 25,
    "ranks": "max_total_num_tokens=9, chunked_prefill_size=1\n"
    + "".join(f"[2026 TP{i}] Load weight end. mem usage=1.0 GB\n" for i in range(20_000)),
    "cells": "llama_kv_cache: size = 1.0 MiB ( 9 cells, 1 layers, 1/1 seqs), K (f16): 1.0 MiB, V (f32): 1.0 MiB\n"
    * 10_000,
    "nothing": "vllm serve m -tp 2\n" + "\n" * 1_000_000,
    "restarts": "non-default args: {'max_num_seqs': 4}\n" * 25_000,
    "containers": '{"log":"vllm serve a"}\n' * 45_000,
}


@pytest.mark.parametrize("name", SLOW)
def test_a_megabyte_of_anything_is_read_in_moments(name: str) -> None:
    """In time of this process, as other processes share the cores; the slowest took 23 s once."""
    begin = time.process_time()
    try:
        started = read(SLOW[name])
    except UsageError:
        started = None
    assert time.process_time() - begin < 3
    assert started is None or len(started.remarks) <= MOST_REMARKS + 3


def test_a_log_that_never_stops_saying_what_a_start_says_is_not_read_to_its_end() -> None:
    log = "(EngineCore_DP{} pid=1) GPU KV cache size: 4,096 tokens\n"
    started = read("".join(log.format(i) for i in range(MOST_LINES)) + log.format(0).replace("4,096", "9"))
    assert started.kv_tokens and started.kv_tokens.value == 4096
    assert f"it is read up to line {MOST_LINES}" in started.remarks[0]
    wide = "GPU KV cache size: 4,096 tokens".ljust(LONGEST, "x") + "\n"
    assert f"it is read up to line {MOST_CHARACTERS // LONGEST}" in read(wide * 100).remarks[0]


def test_of_many_starts_the_last_counts_all_the_same() -> None:
    started = read("".join(f"non-default args: {{'max_num_seqs': {i}}}\n" for i in range(1, 5_001)))
    assert started.max_num_seqs and (started.max_num_seqs.value, started.max_num_seqs.line) == (5_000, 5_000)
