"""``agentroute explain --record`` and ``--replay``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import agentroute

TASK = ("--context", "3000", "--output", "200", "--concurrency", "4", "--ttft", "5s", "--model", "qwen3-32b")
REPLAY = ("--model", "qwen3-32b", "--replay")


@pytest.fixture(autouse=True)
def _no_config_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_replay_prints_the_same_explanation() -> None:
    first = agentroute("explain", *TASK, "--record", "one.json")
    assert "wrote one.json" in first.err
    again = agentroute("explain", *REPLAY, "one.json")
    assert (again.code, again.out) == (0, first.out)


def test_json_holds_the_record() -> None:
    answer = agentroute("explain", *TASK, "--json").json
    Path("one.json").write_text(json.dumps(answer["record"]))
    again = agentroute("explain", *REPLAY, "one.json", "--json").json
    assert {**again, "record": 0} == {**answer, "record": 0}
    assert again["record"]["answer"] == answer["record"]["answer"]


def test_an_answer_that_this_version_does_not_give_is_pointed_out() -> None:
    record = agentroute("explain", *TASK, "--json").json["record"]
    record["answer"]["deployment"] = "other"
    Path("one.json").write_text(json.dumps(record))
    ran = agentroute("explain", *REPLAY, "one.json")
    assert ran.code == 0
    assert "says 'other'; this version decides otherwise" in ran.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must hold one table"),
        ('{"schema_version": 7}', "schema_version"),
        ("[" * 100_000, "nests too deeply"),
        (" " * (4 * 2**20 + 1), "is larger than 4 MiB"),
    ],
)
def test_what_is_no_record_is_one_sentence(text: str, says: str) -> None:
    Path("one.json").write_text(text)
    ran = agentroute("explain", "--replay", "one.json")
    assert ran.code == 2
    (error,) = [line for line in ran.err.splitlines() if line.startswith("error:")]
    assert says in error


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--replay", "nowhere.json"), "cannot be read"),
        (("--replay", "one.toml"), "--replay must name a .json file"),
        ((*TASK, "--record", "one.toml"), "--record must name a .json file"),
        ((*TASK, "--record", "nowhere/one.json"), "cannot be written"),
        ((), "give either --context"),
        ((*TASK, "--replay", "one.json"), "give either --context"),
    ],
)
def test_wrong_options_are_one_sentence(args: tuple[str, ...], says: str) -> None:
    ran = agentroute("explain", *args)
    assert ran.code == 2
    assert says in ran.err


def test_a_record_of_another_fleet_names_what_differs() -> None:
    agentroute("explain", *TASK, "--record", "one.json")
    ran = agentroute("explain", "--model", "qwen3-32b", "--price", "h100_sxm=9", "--replay", "one.json")
    assert ran.code == 2
    assert "deployment 'qwen3-32b/sglang-h100-tp2' has changed since" in ran.err


REFUSED = ("--context", "3000", "--output", "200", "--ttft", "1ms", "--model", "qwen3-32b")


def test_a_refusal_is_recorded_and_refused_again() -> None:
    first = agentroute("explain", *REFUSED, "--record", "one.json")
    assert first.code == 3
    assert "wrote one.json" in first.err
    again = agentroute("explain", *REPLAY, "one.json")
    assert (again.code, again.out) == (3, first.out)
    assert "would take it with a TTFT limit of" in first.out


def test_a_refusal_that_the_command_line_got_wrong_is_recorded_nowhere() -> None:
    ran = agentroute("explain", *REFUSED, "--record", "one.toml")
    assert ran.code == 2
    assert list(Path().iterdir()) == []


def test_json_holds_the_record_of_a_refusal() -> None:
    answer = agentroute("explain", *REFUSED, "--json").json
    Path("one.json").write_text(json.dumps(answer["record"]))
    again = agentroute("explain", *REPLAY, "one.json", "--json")
    assert again.code == 3
    assert {**again.json, "task": 0} == {**answer, "task": 0}
    assert answer["changes"][0]["field"] == "ttft_ms"


def test_an_answer_that_this_version_refuses_is_pointed_out() -> None:
    record = agentroute("explain", *REFUSED, "--json").json["record"]
    record["answer"]["deployment"] = "other"
    Path("one.json").write_text(json.dumps(record))
    ran = agentroute("explain", *REPLAY, "one.json")
    assert ran.code == 3
    assert "says 'other'; this version refuses" in ran.err
