"""Which start of a log counts."""

from __future__ import annotations

import pytest

from agentroute.startup.facts import Started
from agentroute.startup.lines import near_the_end
from agentroute.startup.log import read

INIT = "{}Initializing a V1 LLM engine (v{}) with config: model='{}', tensor_parallel_size={}, max_seq_len=9\n"
POOL = "{}GPU KV cache size: {} tokens\n"


def said(started: Started) -> dict[str, object]:
    return {name: found.value for name, found in started.facts()}


def start(version: str, model: str, tp: int, tokens: int, rank: str = "") -> str:
    return INIT.format(rank, version, model, tp) + POOL.format(rank, tokens)


@pytest.mark.parametrize("rank", ["", "(EngineCore pid=7) ", "(EngineCore_DP0 pid=7) "])
@pytest.mark.parametrize(
    ("version", "model"), [("0.19.1", "org/one"), ("0.20.0", "org/one"), ("0.19.1", "org/two"), ("0.20.0", "org/two")]
)
def test_a_second_initialising_line_is_a_restart(version: str, model: str, rank: str) -> None:
    started = read(start("0.19.1", "org/one", 2, 4096, rank) + "GET /\n" + start(version, model, 4, 8192, rank))
    facts = said(started)
    assert (facts["version"], facts["model"], facts["tp"], facts["kv_tokens"]) == (version, model, 4, 8192)
    assert started.remarks == ("the log holds 2 starts; the last is read, from line 4 on",)


@pytest.mark.parametrize("ranks", [("(EngineCore_DP0 pid=1) ", "(EngineCore_DP1 pid=2) "), ("", "")])
def test_data_parallel_engines_are_one_start(ranks: tuple[str, str]) -> None:
    """Up to about 0.9 they do not name their rank."""
    args = "non-default args: {'model': 'org/m', 'data_parallel_size': 2, 'max_num_seqs': 64}\n"
    inits = "".join(INIT.format(rank, "0.9.2", "org/m", 1) for rank in ranks)
    log = args + inits + POOL.format(ranks[0], 4096) + POOL.format(ranks[1], 2048)
    assert said(read(log))["max_num_seqs"] == 64
    assert said(read(log))["kv_tokens"] == 2048
    again = read(log + log.replace("64", "32"))
    assert said(again)["max_num_seqs"] == 32
    assert "the log holds 2 starts; the last is read, from line 6 on" in again.remarks


def test_a_banner_belongs_to_the_start_that_follows_it() -> None:
    banner = "(APIServer pid=1) INFO █ █▄   ▄█  version {}\n"
    one = banner.format("0.31.0") + "non-default args: {'max_num_seqs': 4}\n"
    for version in ("0.31.0", "0.32.0"):
        started = read(one + banner.format(version) + "non-default args: {'max_num_seqs': 8}\n")
        assert (said(started)["version"], said(started)["max_num_seqs"]) == (version, 8)
        assert "from line 3 on" in started.remarks[0]


@pytest.mark.parametrize(
    ("one", "other", "name", "value"),
    [
        (
            "build: 5200 (1a2b3c4d) with cc\nllama_context: n_ctx = 9\nllama_context: n_batch = 9\n",
            "build: 5300 (2a2b3c4d) with cc\nllama_context: n_ctx = 8\nllama_context: n_batch = 8\n",
            "max_num_batched_tokens",
            8,
        ),
        (
            "[TensorRT-LLM] TensorRT-LLM version: 1.0.0\nmax_seq_len=9, max_num_requests=9, max_num_tokens=9\n",
            "[TensorRT-LLM] TensorRT-LLM version: 1.1.0\nmax_seq_len=8, max_num_requests=8, max_num_tokens=8\n",
            "version",
            "1.1.0",
        ),
        (
            "server_args=ServerArgs(model_path='org/one', tp_size=1)\n",
            "server_args=ServerArgs(model_path='org/two', tp_size=2)\n",
            "tp",
            2,
        ),
    ],
)
def test_every_engine_s_last_start_counts(one: str, other: str, name: str, value: object) -> None:
    started = read(one + other)
    assert said(started)[name] == value
    assert "the log holds 2 starts" in started.remarks[0]


def test_a_rank_that_says_something_twice_is_not_two_ranks() -> None:
    rank = "(EngineCore_DP0 pid=1) "
    started = read(POOL.format(rank, 900) + POOL.format(rank, "1,000"))
    assert said(started)["kv_tokens"] == 1000
    assert started.remarks == ()
    worker = "(Worker_TP0 pid=1) Loading model weights took {} GB\n"
    assert said(read(POOL.format("", 9) + worker.format(9.5) + worker.format(0.5)))["weights_gib"] == 9.5  # and a draft
    unnamed = read(POOL.format("", 900) + POOL.format("", "1,000"))
    assert said(unnamed)["kv_tokens"] == 900
    assert (
        "the KV pool is printed more than once, 900 to 1,000 tokens; the least is kept, from line 1"
        in (unnamed.remarks[0])
    )


@pytest.mark.parametrize(("most", "number"), [(1, 5), (2, 3), (3, 1), (9, 1)])
def test_the_end_of_a_log_holds_a_word_only_so_often(most: int, number: int) -> None:
    text = "go\nx\n" * 3
    place = near_the_end(text, ["go"], most)
    assert text[: place.at].count("\n") == place.number - 1
    assert text[place.at :].count("go") == min(most, 3)
    assert place.number in (number, number - 1)  # the line before holds none of the words
