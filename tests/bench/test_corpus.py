"""A corpus of text and real tokenizers' counts, and fingerprints fitted to it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import httpx
import numpy as np
import pytest

import agentroute.tokens.generic
from agentroute.bench.corpus import Corpus, HeldOut, fingerprints, fit, held_out
from agentroute.bench.fingerprint import generic_module, tables, with_table
from agentroute.catalogue import FOLDER
from agentroute.demo.embedded import EmbeddedServer
from agentroute.errors import FileError

DATA = Path(__file__).parents[1] / "data" / "tokens"
CLASSES = ("english", "code", "json", "tools", "japanese", "chinese", "logs", "base64")


@cache
def corpus() -> Corpus:
    return Corpus.read(DATA / "counts.csv")


@cache
def made() -> HeldOut:
    return held_out(corpus())


def errors(tokenizer: str, kind: str | None = None) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Relative errors of the samples of the eight classes, or of one, each estimated by fits to all the others."""
    column = corpus().tokenizers.index(tokenizer)
    rows = [i for i, own in enumerate(corpus().classes) if own == kind or (kind is None and own in CLASSES)]
    return np.asarray(made().own[rows, column] / corpus().counts[rows, column] - 1.0)


# ---- how close it is


@pytest.mark.parametrize("tokenizer", corpus().tokenizers)
def test_text_that_no_fit_has_seen_is_within_28_per_cent_and_3_on_average(tokenizer: str) -> None:
    """English, code, JSON, tool schemas, Japanese, Chinese, logs, base64."""
    assert np.abs(errors(tokenizer)).max() < 0.28
    assert abs(errors(tokenizer).mean()) < 0.03


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("tokenizer", corpus().tokenizers)
def test_no_class_is_far_off_on_average(tokenizer: str, kind: str) -> None:
    assert abs(errors(tokenizer, kind).mean()) < 0.05


def test_the_upper_bounds_hold() -> None:
    """Of a tokenizer's own fingerprint, and of one that has seen neither the text nor the tokenizer."""
    assert (made().counts <= made().own_upper).mean() >= 0.99
    assert (made().counts <= made().generic_upper).mean() >= 0.97


def test_the_upper_bounds_are_not_absurd() -> None:
    assert (made().own_upper / made().counts).mean() < 1.5
    assert (made().generic_upper / made().counts).mean() < 2.2


@pytest.mark.parametrize(("kind", "least"), [("japanese", 0.55), ("base64", 0.62), ("json", 0.34)])
def test_a_token_every_four_characters_is_far_off_where_the_fingerprint_is_not(kind: str, least: float) -> None:
    rows = [i for i, own in enumerate(corpus().classes) if own == kind]
    assert (made().by_size[rows] / made().counts[rows]).mean(axis=0).max() < 1.0 - least


# ---- the corpus and the files made of it


def test_every_class_has_three_samples_and_each_sample_its_text() -> None:
    assert all(corpus().classes.count(kind) >= 3 for kind in (*CLASSES, "languages"))
    assert {path.stem for path in DATA.glob("*.txt")} == {*corpus().samples}
    assert {*corpus().about} == {*corpus().tokenizers}


def test_the_shipped_models_hold_what_the_corpus_gives() -> None:
    made = tables(corpus())
    assert len(made) >= 30
    for path in sorted((FOLDER / "models").glob("*.toml")):
        text = path.read_text()
        assert with_table(text, made.get(path.stem)) == text, path.name
    module = Path(agentroute.tokens.generic.__file__)
    assert generic_module(corpus()) == module.read_text()


def test_a_table_is_replaced_and_taken_away() -> None:
    bare = 'name = "x"\n\n[capabilities]\ntools = true\n\n[provenance]\norigin = "assumed"\n'
    table = '[tokens]\nmargin = 1.0\n\n[tokens.provenance]\norigin = "measured"\n\n'
    once = with_table(bare, table)
    assert once.index("[tokens]") < once.index("\n[provenance]")
    assert with_table(once, table) == once
    assert with_table(once, None) == bare


def test_a_count_is_what_the_real_tokenizer_says(llama_one: EmbeddedServer) -> None:
    """SmolLM2's, by the server that the tests have; the others need packages that they do not have."""
    column = corpus().tokenizers.index("smollm2")
    for i, text in enumerate(corpus().texts):
        asked = {"content": text, "add_special": False, "parse_special": False}
        answer = httpx.post(f"{llama_one.url}/tokenize", json=asked, timeout=30.0, trust_env=False)
        assert len(answer.raise_for_status().json()["tokens"]) == corpus().counts[i, column], corpus().samples[i]


def test_a_fit_finds_weights_that_made_the_counts() -> None:
    values = np.random.default_rng(2)
    x, weights = values.uniform(0, 100, (60, 5)), np.array([0.5, 0.0, 1.0, 0.2, 2.0])
    found = fit(x, (x @ weights)[:, np.newaxis], np.full(5, 0.5), 0.5)
    assert found == pytest.approx(weights, abs=0.03)


def test_a_feature_without_samples_stays_as_assumed_and_no_weight_is_below_zero() -> None:
    x = np.array([[10.0, 0.0, 50.0], [20.0, 0.0, 30.0], [30.0, 0.0, 10.0]])
    found = fit(x, np.array([[10.0], [20.0], [30.0]]), np.array([0.5, 0.7, 0.5]), 0.5)
    assert found[1] == pytest.approx(0.7)
    assert (found >= 0.0).all()


def test_the_same_corpus_gives_the_same_weights() -> None:
    assert fingerprints(corpus()) == fingerprints(Corpus.read(DATA / "counts.csv"))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("", "must be a table with a column sample"),
        ("sample,a\none,1\n", "and two samples"),
        ("sample,a\none,1\ntwo,none\n", "a count above 0"),
        ("sample,a\none,1\ntwo,0\n", "a count above 0"),
        ("sample,a\none,1\ntwo,1,1\n", "a count above 0"),
        ("sample,a\none,1\nempty,1\n", r"names empty.txt, which is empty"),
        ("sample,a\none,1\ngone,1\n", "cannot be read"),
    ],
)
def test_a_wrong_table_is_named_with_its_line(tmp_path: Path, table: str, words: str) -> None:
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "two.txt").write_text("two")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "counts.csv").write_text(table)
    with pytest.raises(FileError, match=words):
        Corpus.read(tmp_path / "counts.csv")
