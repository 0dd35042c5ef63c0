"""``validate kv``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import agentroute

RECORDS = Path(__file__).parents[1] / "data" / "kv_records.jsonl"


def test_it_prints_every_record_and_the_distribution() -> None:
    ran = agentroute("validate", "kv", str(RECORDS))
    assert ran.code == 0, ran.err
    assert "records predicted" in ran.out
    for line in RECORDS.read_text().splitlines():
        assert json.loads(line)["id"] in ran.out


def test_json_has_a_line_for_each_figure_and_a_summary() -> None:
    ran = agentroute("validate", "kv", str(RECORDS), "--json")
    data = json.loads(ran.out)
    assert (data["schema_version"], data["command"]) == (1, "validate kv")
    for record in data["records"]:
        assert {"id", "quantity", "predicted", "logged", "error", "reason"} <= {*record}
        assert (record["predicted"] is None) == bool(record["reason"])
    assert {*data["summary"]} == {"kv_tokens", "kv_memory", "weights", "concurrency", "needed_kv", "max_len"}
    for figures in data["summary"].values():
        assert {*figures} == {"n", "median", "p90", "max", "within_0_5pct", "within_5pct"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "records.jsonl:2: "),
        ('{"id": "x"}', "records.jsonl:2: source_url: field required"),
        ('{"id": "x", "colour": 1}', "records.jsonl:2: "),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(RECORDS.read_text().splitlines()[0] + "\n" + line + "\n")
    ran = agentroute("validate", "kv", str(path))
    assert ran.code == 2
    assert message in ran.err.replace("\n", "")


def test_an_id_must_be_there_once(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text((RECORDS.read_text().splitlines()[0] + "\n") * 2)
    ran = agentroute("validate", "kv", str(path))
    assert ran.code == 2
    assert "is there twice" in ran.err


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    assert agentroute("validate", "kv", str(tmp_path / "none.jsonl")).code == 2
