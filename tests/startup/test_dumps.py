"""How engines write down their arguments."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.startup.dumps import amount, called, fields, first, options, whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a=1, b='x, y', c=None", {"a": "1", "b": "x, y", "c": "None"}),
        ("ServerArgs(a=1, c=C(a=2, d=[3]), e=4) f=5", {"a": "1", "e": "4"}),
        ("{'a': 1, 'b': {'c': 2}, 'd': ['e'], 'f': \"g\"}", {"a": "1", "f": "g"}),
        ("a='x' b=2 c=C(d='}') e=3", {"a": "x", "b": "2", "e": "3"}),  # as pydantic prints a model
        ("a=1, a=2", {"a": "1"}),
        ("mode=<Mode.NONE: 0>, a=1", {"a": "1"}),
        ("a=1, b='cut in the mid", {"a": "1"}),
        ("a=1, b=B(c=2", {"a": "1"}),
        ("it's all prose", {}),
        ("", {}),
    ],
)
def test_only_the_outermost_keys_count(text: str, said: dict[str, str]) -> None:
    assert fields(text) == said


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.integers() | st.text(max_size=8)))
def test_what_python_prints_is_read_back(values: dict[str, int | str]) -> None:
    plain = {key: value for key, value in values.items() if "\\" not in repr(value)}
    expected = {key: str(value) for key, value in plain.items()}
    assert fields(repr(plain)) == expected
    assert fields("Args(" + ", ".join(f"{key}={value!r}" for key, value in plain.items()) + ")") == expected


def test_options_are_named_without_dashes() -> None:
    words = ["--tp", "8", "--max-model-len=128k", "-c", "4096", "--kv-unified", "--port", "-1", "loose"]
    assert options(words) == {
        "tp": "8",
        "max_model_len": "128k",
        "c": "4096",
        "kv_unified": "",
        "port": "-1",
    }
    assert options(["--tp", "2", "--tp", "4"]) == {"tp": "4"}
    assert options([]) == {}


@pytest.mark.parametrize("option", ["--api-key", "--hf-token", "--admin-api-key", "--key", "--ssl-password"])
def test_what_may_be_a_key_is_not_taken_for_the_next_option_s_value(option: str) -> None:
    assert options([option, "-m", "word"])["m"] == ""
    assert options([option, "--tp", "8"])["tp"] == "8"
    assert options([option, "word", "-m", "model"])["m"] == "model"


@pytest.mark.parametrize("option", ["--tokenizer-mode", "--max-num-batched-tokens", "--enable-prefix-caching"])
def test_what_is_no_key_leaves_the_next_option_alone(option: str) -> None:
    assert options([option, "-m", "model"])["m"] == "model"


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("vllm serve org/m --tp 2", ("org/m", {"tp": "2"})),
        ("exec /usr/bin/vllm serve 'a model' --tp 2", ("a model", {"tp": "2"})),
        ("vllm serve org/m", ("org/m", {})),
        ("vllm serve --tp 2", (None, {"tp": "2"})),
        # After an option, a word may be its value: never take a key for the model.
        ("vllm serve --api-key sk-not-a-real-key org/m", (None, {"api_key": "sk-not-a-real-key"})),
        ("vllm serve 'never closed --tp 2", None),
        ("vllm serve m --tp '2", ("m", {"tp": "'2"})),
        ("vllm serve a\\ model --x \"two \\\" words\"' end' --y ''", ("a model", {"x": 'two " words end', "y": ""})),
        ("vllm serve m --tp 2 \\", ("m", {"tp": "2"})),
        ("vllm serve", (None, {})),
        ("to restart vllm serve with care", None),
        ("INFO 11-29 19:11:58 Restart vllm serve with --enable-scale-out to enable them.", None),
        ("nothing is called", None),
    ],
)
def test_a_command_is_told_from_talk_of_it(text: str, call: tuple[str | None, dict[str, str]] | None) -> None:
    assert called(text, re.compile(r"\bvllm serve(?=\s|$)")) == call


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("131,072", 131_072),
        ("128k", 128_000),
        ("128K", 131_072),
        ("25.6k", 25_600),
        ("1M", 2**20),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("auto", None),
        ("1000000001", None),
        ("9" * 5_000, None),
        ("", None),
        (None, None),
    ],
)
def test_a_count_is_whole_and_in_reach_or_unknown(text: str | None, value: int | None) -> None:
    assert whole(text) == value


def test_an_amount_is_above_zero_or_unknown() -> None:
    assert [amount(text) for text in ("16.46", "7", "0.00", "-1.86", "1e3", "", None)] == [16.46, 7.0, *[None] * 5]


def test_none_is_no_value() -> None:
    assert first({"a": "None", "b": "", "c": "x"}, "a", "b", "c") == "x"
    assert first({"a": "None"}, "a", "z") is None
