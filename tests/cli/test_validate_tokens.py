"""``validate tokens``: how far fingerprints are from real tokenizers' counts of text that no fit has seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from console import agentroute

COUNTS = Path(__file__).parents[1] / "data" / "tokens" / "counts.csv"


def test_every_tokenizer_and_class_has_its_figures() -> None:
    ran = agentroute("validate", "tokens", str(COUNTS), "--json")
    assert ran.code == 0, ran.err
    data = ran.json
    assert (data["schema_version"], data["command"], data["counts"]) == (
        1,
        "validate tokens",
        {"samples": 64, "tokenizers": 10},
    )
    assert {*data["summary"]} == {"fingerprint", "generic", "chars_4"}
    for way in data["summary"].values():
        assert len(way) == 10
        for of in way.values():
            assert sum(one["n"] for one in of["classes"].values()) == 64
            assert of["n"] == 64 - of["classes"]["languages"]["n"]
            assert abs(of["mean"]) <= of["mean_absolute"] <= abs(of["worst"])
    assert data["upper"]["fingerprint"]["below_upper"] == 1.0
    assert data["upper"]["generic"]["below_upper"] >= 0.97


def test_in_the_terminal_it_is_three_tables() -> None:
    ran = agentroute("validate", "tokens", str(COUNTS))
    assert ran.code == 0, ran.err
    for words in ("64 samples, 10 tokenizers", "own fingerprint", "generic fingerprint", "a token every 4 characters"):
        assert words in ran.out
    assert ran.out.count("\ngpt-oss ") == 3


def test_without_a_file_it_reads_the_one_of_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    table = few(checkout / COUNTS.relative_to(COUNTS.parents[3]).parent)
    assert table.name == COUNTS.name
    monkeypatch.chdir(checkout)
    assert agentroute("validate", "tokens", "--json").json["counts"]["samples"] == 3
    monkeypatch.chdir(tmp_path)
    ran = agentroute("validate", "tokens")
    assert ran.code == 2
    assert "counts.csv" in ran.err.replace("\n", "")


def few(folder: Path) -> Path:
    """Three samples, counted by one tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("english-1", "a few words"), ("english-2", "some more words here"), ("code-1", "f(x) = 1")):
        (folder / f"{name}.txt").write_text(text)
    table = folder / "counts.csv"
    table.write_text("sample,mine\nenglish-1,3\nenglish-2,4\ncode-1,6\n")
    return table


def test_of_one_tokenizer_and_a_few_samples_it_says_what_it_can(tmp_path: Path) -> None:
    data = agentroute("validate", "tokens", str(few(tmp_path)), "--json").json
    assert data["summary"]["fingerprint"]["mine"]["classes"]["code"]["n"] == 1
