"""Prompts that no prefix cache knows, and how long they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from agentroute.bench.prompts import NONCE, Lengths, Prompts


@given(st.integers(1, 400))
def test_a_prompt_has_the_words_that_were_asked_for(words: int) -> None:
    assert len(Prompts(1).make(words).split()) == words


def test_no_two_prompts_begin_alike_whichever_thread_asks() -> None:
    prompts = Prompts(1)
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(prompts.make, [20] * 2_000))
    assert len({" ".join(prompt.split()[:NONCE]) for prompt in made}) == len(made)


def test_two_runs_share_no_prompt_unless_they_are_to() -> None:
    assert Prompts().make(20) != Prompts().make(20)
    assert Prompts("a").make(20) == Prompts("a").make(20) != Prompts("b").make(20)


@given(template=st.integers(0, 200), per_word=st.floats(1.0, 3.0), tokens=st.integers(400, 100_000))
def test_two_prompts_tell_how_long_any_other_must_be(template: int, per_word: float, tokens: int) -> None:
    def counted(words: int) -> int:
        return round(template + per_word * words)

    lengths = Lengths.of((16, counted(16)), (256, counted(256)))
    assert abs(counted(lengths.words(tokens)) - tokens) <= 0.02 * tokens


def test_a_server_that_counts_nonsense_gets_a_token_a_word() -> None:
    assert Lengths.of((16, 50), (256, 50)).words(100) == 100


def test_a_prompt_shorter_than_the_template_is_one_word() -> None:
    assert Lengths(40.0, 1.0).words(8) == 1
