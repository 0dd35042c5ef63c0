"""Classes of characters, and the pairs of them that a text has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.shape.fingerprint import FEATURES, Feature
from agentroute.tokens.classes import OF_PAIR, pairs

texts = st.text(alphabet=st.characters(exclude_categories=()), max_size=200)


def features(text: str) -> dict[Feature, int]:
    return {name: int(n) for name, n in zip(FEATURES, pairs(text) @ OF_PAIR, strict=True) if n}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("cat", {"word": 1, "lower_more": 2}),
        ("The cat", {"word": 1, "cap_more": 1, "lower_more": 3, "space": 1, "word_after_space": 1}),
        ("getName", {"word": 1, "lower_more": 4, "hump": 1, "cap_more": 1}),
        ("SQL", {"word": 1, "caps": 2}),
        ("f47a", {"word": 1, "alnum": 2, "digit_more": 1}),
        ("1024", {"digit": 1, "digit_more": 3}),
        ("a.b", {"word": 1, "joiner_after_word": 1, "word_after_sign": 1}),
        ("f(x);", {"word": 1, "sign_after_word": 2, "word_after_sign": 1, "sign_more": 1}),
        ("{ }", {"sign": 2, "space": 1}),
        ("a\n    b", {"word": 1, "newline": 1, "indent": 1, "spaces": 3, "word_after_space": 1}),
        ("a\r\n\n", {"word": 1, "newline": 1, "newlines": 2}),
        ("\tx", {"newlines": 1, "word": 1}),
        ("für", {"word": 1, "latin": 2}),
        ("дом", {"cyrillic": 1, "cyrillic_more": 2}),
        ("東京は雨。", {"kanji": 2, "kanji_more": 1, "kana": 1, "cjk_sign": 1}),
        ("カレーを", {"kana": 1, "kana_more": 3}),
        ("기차", {"hangul": 1, "hangul_more": 1}),
        ("a → b", {"word": 1, "space": 2, "symbol": 1, "word_after_space": 1}),
        ("🚢", {"other": 2}),
        ("\ud800", {"other": 1}),
    ],
)
def test_a_character_counts_by_its_kind_and_by_what_stands_before_it(text: str, found: dict[Feature, int]) -> None:
    assert features(text) == found


def test_every_pair_is_one_feature_and_every_feature_has_a_pair() -> None:
    assert (OF_PAIR.sum(axis=1) == 1).all()
    assert (OF_PAIR.sum(axis=0) >= 1).all()


@given(texts)
def test_every_utf_16_unit_counts_once(text: str) -> None:
    assert pairs(text).sum() == len(text.encode("utf-16-le", "surrogatepass")) // 2


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=200))
def test_ascii_counts_the_same_on_its_own_way(text: str) -> None:
    # The last character, which is no ASCII, sends the whole text the other way.
    other = pairs(text + "東") - pairs(text)
    assert other.sum() == 1 and (other >= 0).all()


@given(texts, texts)
def test_texts_on_lines_of_their_own_add_up(one: str, two: str) -> None:
    whole = pairs(f"{one}\n{two}")
    assert np.array_equal(whole, pairs(f"{one}\n") + pairs(two))
