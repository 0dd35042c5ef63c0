"""A log as lines."""

from __future__ import annotations

import json

import pytest

from agentroute.startup.lines import LONGEST, Line, Place, split


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("(EngineCore_DP3 pid=10613) INFO 11-29 19:11:55 GPU KV cache size", "DP3"),
        ("(EngineCore_0 pid=357) INFO 09-21 23:16:19 [core.py:75]", "DP0"),
        ("(EngineCore pid=9100) INFO", None),
        ("(Worker_DP1_TP2_EP6 pid=11320) INFO", "DP1 TP2"),
        ("(Worker_PP1_TP0 pid=11320) INFO", "PP1 TP0"),
        ("(VllmWorker TP1 pid=71) INFO", "TP1"),
        ("INFO 03-01 10:00:00 no rank is named", None),
        ("[2026-02-26 16:41:18 TP6] KV Cache is allocated.", "TP6"),
        ("[2026-02-26 16:41:18 DP5 TP5 EP5] max_total_num_tokens=471872", "DP5 TP5"),
        ("[2026-02-26 16:41:18] server_args=ServerArgs(", None),
        ("[TensorRT-LLM][INFO] [batchmgr][RANK 2] Number of tokens per block: 32.", "rank 2"),
    ],
)
def test_a_line_knows_the_rank_that_it_names(text: str, rank: str | None) -> None:
    assert split(text) == [Line(1, text, rank)]


@pytest.mark.parametrize(
    "raw",
    [
        "\x1b[36m(EngineCore pid=1)\x1b[0;0m ready",
        "2026-03-01T10:00:00.123456789Z stderr F (EngineCore pid=1) ready",
        json.dumps({"log": "(EngineCore pid=1) ready\n", "stream": "stderr", "time": "2026-03-01T10:00:00Z"}),
        "(EngineCore pid=1) ready\r",
    ],
)
def test_colours_and_what_a_container_adds_are_gone(raw: str) -> None:
    assert [line.text for line in split(raw)] == ["(EngineCore pid=1) ready"]


def test_a_line_that_a_container_or_a_shell_broke_is_one_line_again() -> None:
    kubernetes = "2026-03-01T10:00:00Z stdout P one\n2026-03-01T10:00:00Z stdout F  two\nthree"
    assert split(kubernetes) == [Line(1, "one two"), Line(3, "three")]
    docker = "\n".join(json.dumps({"log": part}) for part in ("one", " two\n", "three\n"))
    assert split(docker) == [Line(1, "one two"), Line(3, "three")]
    assert split("\nvllm serve m \\\n  --max-model-len 10\n") == [Line(2, "vllm serve m   --max-model-len 10")]
    assert split("the end is missing \\") == [Line(1, "the end is missing ")]


def test_a_line_is_cut_where_no_engine_goes() -> None:
    assert [len(line.text) for line in split("x" * (LONGEST + 1))] == [LONGEST]


@pytest.mark.parametrize("raw", ['{"log":', '{"log":3}', '{"log":' + "[" * 5_000])
def test_what_only_looks_like_a_container_s_line_stays(raw: str) -> None:
    assert [line.text for line in split(raw)] == [raw]


def test_only_lines_that_hold_a_word_are_cut_out_with_all_that_belongs_to_them() -> None:
    text = "one\nvllm serve m \\\n  -tp 2\nthree\nsay so\n\nsay"
    assert split(text, ["-tp", "say"]) == [Line(2, "vllm serve m   -tp 2"), Line(5, "say so"), Line(7, "say")]
    assert [text[line.at :][:4] for line in split(text, ["-tp", "say"])] == ["vllm", "say ", "say"]
    assert split(text, ["nowhere"]) == []
    docker = "\n".join(json.dumps({"log": part}) for part in ("not\n", "one", " two\n", "three\n"))
    assert split(docker, ["two"]) == [Line(2, "one two")]


def test_a_reading_may_begin_anywhere() -> None:
    assert split("say one\nsay two\n", ["say"], Place(8, 2)) == [Line(2, "say two")]


def test_what_goes_on_for_ever_is_cut() -> None:
    lines = split("say \\\n" * 30_000, ["say"])
    assert [len(line.text) for line in lines[:2]] == [LONGEST - LONGEST // 5, LONGEST - LONGEST // 5]
    assert sum(line.text.count("say") for line in lines) == 30_000
