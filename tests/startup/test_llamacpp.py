"""What the start-up log of llama.cpp's server says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentroute.demo.embedded import find_model
from agentroute.startup.facts import Started
from agentroute.startup.log import read

DATA = Path(__file__).parents[1] / "data" / "startup"

SERVE = """
import os, sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.kv_unified = sys.argv[1], 1024, 2, sys.argv[2] == "unified"
p.offline, p.ui, p.verbosity, p.cache_ram_mib = True, False, 4, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(p)
time.sleep(60)
os._exit(1)
"""
"""Serves until it is killed: a server that is let go of at the end of its process has been seen to wait for ever."""


def said(started: Started) -> dict[str, object]:
    return {name: found.value for name, found in started.facts()}


@pytest.mark.parametrize(
    ("file", "window", "slots", "pool", "kv"),
    [
        ("llamacpp-split.log", 512, 4, (2048, 512), "fp16"),
        ("llamacpp-unified.log", 1024, 4, (1024, 1), "fp16"),
        ("llamacpp-one-q8.log", 2048, 1, (2048, 2048), "q8_0"),
    ],
)
def test_a_real_server_s_log_gives_slots_and_memory(
    file: str, window: int, slots: int, pool: tuple[int, int], kv: str
) -> None:
    started = read((DATA / file).read_text())
    facts = said(started)
    assert (facts["max_model_len"], facts["max_num_seqs"], facts["kv"]) == (window, slots, kv)
    assert started.kv_pool() == pool
    assert facts["weights"] == "gguf" and facts["weights_gib"] == 0.09
    assert started.sharding() is None  # it spreads layers over what is there, and does not say so in degrees
    assert "version" not in facts  # a library build calls itself 0
    assert started.remarks == ()


@pytest.mark.parametrize(("mode", "window", "pool"), [("split", 512, (1024, 512)), ("unified", 1024, (1024, 1))])
def test_the_log_of_a_server_started_now(mode: str, window: int, pool: tuple[int, int]) -> None:
    command = [sys.executable, "-c", SERVE, str(find_model()), mode]
    log = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            log += line
            if "listening on http" in line:
                break
        server.kill()
    started = read(log)
    assert (said(started)["max_model_len"], said(started)["max_num_seqs"]) == (window, 2)
    assert started.kv_pool() == pool


def test_a_quiet_log_has_one_line_that_says_it_all() -> None:
    line = "0.00.655.940 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 512, kv_unified = '{}'"
    assert read(line.format("false")).kv_pool() == (2048, 512)
    assert read(line.format("true")).kv_pool() == (512, 1)


OLD = """build: 5200 (1a2b3c4d) with cc (Debian 12.2.0-14) 12.2.0 for x86_64-linux-gnu
llama_context: n_seq_max     = 4
llama_context: n_ctx         = {}
llama_context: n_ctx_per_seq = 4096
llama_context: n_batch       = 2048
llama_kv_cache_unified: size = 1536.00 MiB ( 16384 cells, 48 layers, 4 seqs), K (f16): 768.00 MiB, V (f16): 768.00 MiB
"""


def test_an_old_log_does_not_say_unified_but_its_sizes_do() -> None:
    started = read(OLD.format(16_384))
    assert started.kv_pool() == (16_384, 4096)
    assert said(started)["version"] == "b5200-1a2b3c4d"
    assert said(started)["kv_gib"] == 1.5
    assert read(OLD.format(4096)).kv_pool() == (4096, 1)


def test_sizes_that_do_not_fit_together_are_told() -> None:
    started = read(OLD.format(9000))
    assert started.kv_pool() is None
    assert "line 3 says n_ctx = 9000" in started.remarks[0]


def test_a_sliding_window_s_cells_are_not_the_pool() -> None:
    text = """llama_context: n_seq_max = 4
llama_context: n_ctx = 65536
llama_context: n_ctx_seq = 65536
llama_context: kv_unified = true
llama_kv_cache_iswa: creating non-SWA KV cache, size = 65536 cells
llama_kv_cache: size = 2304.00 MiB ( 65536 cells,  18 layers,  4/1 seqs), K (f16): 1152.00 MiB, V (f16): 1152.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells
llama_kv_cache: size =   36.00 MiB (  1024 cells,  18 layers,  4/1 seqs), K (f16):   18.00 MiB, V (f16):   18.00 MiB
"""
    started = read(text)
    assert started.kv_pool() == (65_536, 1)
    assert said(started)["kv_gib"] == round(2340 / 1024, 3)


def test_types_of_k_and_v_that_differ_are_told() -> None:
    text = (
        "llama_kv_cache: size = 36.00 MiB ( 1024 cells,  18 layers,  1/1 seqs), K (q8_0): 18.00 MiB, V (f16): 18.00 MiB"
    )
    started = read("llama_context: n_ctx = 1024\n" + text)
    assert started.kv is None
    assert "K is q8_0 and V f16" in started.remarks[0]


def test_a_draft_model_s_context_comes_second_and_does_not_count() -> None:
    draft = "llama_context: n_seq_max = 1\nllama_context: n_ctx = 512\nllama_context: n_ctx_seq = 512\n"
    assert read(OLD.format(16_384) + draft).kv_pool() == (16_384, 4096)


@pytest.mark.parametrize(
    ("command", "window", "slots", "pool"),
    [
        ("llama-server -m m.gguf -c 8192 -np 4", 2048, 4, (8192, 2048)),
        ("llama-server -m m.gguf -c 8192 -np 4 -kvu", 8192, 4, (8192, 1)),
        ("llama-server -m m.gguf --ctx-size 8192 --parallel 1 -ctk q8_0 -ctv q8_0", 8192, 1, (8192, 8192)),
        ("./build/bin/llama-server -hf org/m-GGUF:Q4_K_M -c 8192", None, None, None),
    ],
)
def test_a_command(command: str, window: int | None, slots: int | None, pool: tuple[int, int] | None) -> None:
    started = read(command)
    facts = said(started)
    assert (facts.get("max_model_len"), facts.get("max_num_seqs"), started.kv_pool()) == (window, slots, pool)


def test_an_accelerator_is_named() -> None:
    found = "  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes\n"
    assert said(read(found * 2 + "llama_context: n_ctx = 9"))["device"] == "NVIDIA GeForce RTX 4090"
