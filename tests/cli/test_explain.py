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
        (("--replay", "one.toml"), "--replay must name a .json or .jsonl file"),
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


@pytest.fixture
def calls() -> Path:
    """Three calls, of which the second was a mistake of its caller."""
    answer = agentroute("explain", *TASK, "--json").json
    other = agentroute("explain", *TASK[2:], "--context", "9000", "--json").json
    path = Path("calls.jsonl")
    made = [{"decision": answer["record"]}, {"decision": None}, {"decision": other["record"]}]
    path.write_text("".join(json.dumps(call) + "\n" for call in made))
    return path


def test_any_line_of_a_file_of_calls_is_decided_on_again(calls: Path) -> None:
    first, last, third = (
        agentroute("explain", *REPLAY, str(calls), *more, "--json").json
        for more in (("--line", "1"), (), ("--line", "3"))
    )
    assert first["record"]["task"]["context_tokens"] == 3_000
    assert last == third
    assert last["record"]["task"]["context_tokens"] == 9_000


def test_a_full_file_of_calls_that_was_put_aside_is_read_like_the_one_that_is_written(calls: Path) -> None:
    aside = calls.rename("calls.jsonl.1")
    said = agentroute("explain", *REPLAY, str(aside), "--line", "1", "--json").json
    assert said["record"]["task"]["context_tokens"] == 3_000


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--line", "2"), "calls.jsonl:2: that call holds no decision"),
        (("--line", "4"), "calls.jsonl: holds 3 lines, no line 4"),
        (("--line", "0"), "--line counts from 1"),
    ],
)
def test_a_line_without_a_decision_is_one_sentence(calls: Path, more: tuple[str, ...], says: str) -> None:
    ran = agentroute("explain", *REPLAY, str(calls), *more)
    assert ran.code == 2
    assert says in ran.err


@pytest.mark.parametrize("text", ["", "{\n", '{"decision": {"schema_version": 7}}\n', "[" * 100_000, "[]\n"])
def test_lines_that_are_no_calls_are_one_sentence(text: str) -> None:
    Path("calls.jsonl").write_text(text)
    ran = agentroute("explain", *REPLAY, "calls.jsonl")
    assert ran.code == 2
    assert [line for line in ran.err.splitlines() if line.startswith("error: calls.jsonl")]


def test_a_line_of_a_single_record_is_a_mistake() -> None:
    Path("one.json").write_text("{}")
    assert "--line is for .jsonl files" in agentroute("explain", *REPLAY, "one.json", "--line", "1").err
