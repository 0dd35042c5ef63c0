"""Learning a tokenizer from the usage that a server reports, prompt by prompt."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.bench.corpus import Corpus
from agentroute.tokens import GENERIC, Fingerprint, estimate
from agentroute.tokens.classes import pairs
from agentroute.tokens.learn import LEAST_MARGIN, MOST_MARGIN, REACH, SPREAD, Learner

COUNTS = Path(__file__).parents[1] / "data" / "tokens" / "counts.csv"
AROUND = 10
"""Tokens that the made-up server's template puts around one message."""


@cache
def corpus() -> Corpus:
    return Corpus.read(COUNTS)


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def errors(fingerprint: Fingerprint, tokenizer: str, texts: list[int]) -> Any:
    column = corpus().tokenizers.index(tokenizer)
    values = [fingerprint.tokens(pairs(corpus().texts[i]))[0] for i in texts]
    return np.array(values) / corpus().counts[texts, column] - 1.0


@cache
def taught(tokenizer: str) -> tuple[float, float, float]:
    """What 32 samples teach of the other 32, over three ways to part them.

    The mean absolute error before and after, and the share of counts below the bound after. The generic fingerprint was
    fitted to all of them, for other tokenizers.
    """
    column, parts = corpus().tokenizers.index(tokenizer), 3
    before = after = held = 0.0
    for part in range(parts):
        mixed = random.Random(part).sample(range(64), 64)
        seen, rest = mixed[::2], mixed[1::2]
        learner = Learner.of(GENERIC, name=tokenizer)
        for i in seen:
            learner = learner.learn(said(corpus().texts[i]), int(corpus().counts[i, column]) + AROUND)
        before += np.abs(errors(GENERIC, tokenizer, rest)).mean() / parts
        after += np.abs(errors(learner.fingerprint, tokenizer, rest)).mean() / parts
        uppers = np.array([learner.fingerprint.tokens(pairs(corpus().texts[i]))[1] for i in rest])
        held += (uppers >= corpus().counts[rest, column]).mean() / parts
    return float(before), float(after), float(held)


@pytest.mark.parametrize("tokenizer", corpus().tokenizers)
def test_thirty_two_prompts_bring_a_tokenizer_within_ten_per_cent(tokenizer: str) -> None:
    _, after, held = taught(tokenizer)
    assert after < 0.10
    assert held >= 0.97


@pytest.mark.parametrize("tokenizer", ["mistral-v3", "llama-2", "smollm2"])
def test_a_tokenizer_that_the_generic_fingerprint_is_not_made_for_is_learnt(tokenizer: str) -> None:
    before, after, _ = taught(tokenizer)
    assert before > 0.18
    assert after < 0.5 * before


def test_a_learner_is_a_value() -> None:
    first = Learner.of(GENERIC)
    second = first.learn(said("one two three four"), 40)
    assert first.fingerprint == GENERIC and first.seen == 0
    assert second.fingerprint != GENERIC and second.seen == 1
    with pytest.raises(ValueError, match="read-only"):
        second.covariance[0, 0] = 1.0


def test_characters_that_were_never_seen_keep_their_weight_and_bound() -> None:
    learner = Learner.of(GENERIC)
    for _ in range(50):
        learner = learner.learn(said("only plain english words here"), 16)
    text = pairs("東京")
    assert learner.fingerprint.tokens(text)[0] == pytest.approx(GENERIC.tokens(text)[0])
    assert learner.fingerprint.tokens(text)[1] >= 0.9 * GENERIC.tokens(text)[1]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(min_size=1, max_size=80), st.integers(1, 10**9)), max_size=15))
def test_whatever_a_server_reports_it_stays_bounded(reports: list[tuple[str, int]]) -> None:
    learner = Learner.of(GENERIC)
    for text, tokens in reports:
        learner = learner.learn(said(text), tokens)
        count = estimate(said(text), fingerprint=learner.fingerprint)
        assert 1 <= count.value <= count.upper
    first, now = np.array(GENERIC.weights), np.array(learner.fingerprint.weights)
    assert (now <= first * REACH + SPREAD + 1e-9).all() and (now >= first / REACH - 1e-9).all()
    assert (np.diag(learner.covariance) <= SPREAD**2 + 1e-9).all() and (np.diag(learner.covariance) > 0.0).all()
    assert LEAST_MARGIN <= learner.margin <= MOST_MARGIN


def test_a_bound_that_is_passed_grows_wider() -> None:
    learner = Learner.of(GENERIC)
    passed = learner.learn(said("one two three four"), 4_000)
    kept = learner.learn(said("one two three four"), 14)
    assert passed.margin > learner.margin > kept.margin


@pytest.mark.parametrize(
    ("messages", "tokens"),
    [
        pytest.param([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], 900, id="an image"),
        pytest.param(said("hello there"), 3, id="less than the marks"),
    ],
)
def test_what_says_nothing_of_text_teaches_nothing(messages: list[dict[str, Any]], tokens: int) -> None:
    learner = Learner.of(GENERIC)
    assert learner.learn(messages, tokens) is learner
