"""The ladder: which rung counts, what a conversation is made of, and an upper bound that stands above the value."""

from __future__ import annotations

import base64
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentroute.tokens.marks as marks
from agentroute.catalogue import shipped
from agentroute.tokens import GENERIC, Previous, Source, TokenCount, estimate, of_model, of_size
from agentroute.tokens.messages import prompt_of

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
messages = st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), json_values), max_size=4)
TALK = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "What is the tide at noon?"}]
TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}]


class Letters:
    """A tokenizer that makes a token of every character."""

    def count(self, text: str) -> int:
        return len(text)


# ---- the rungs


def test_without_anything_else_a_generic_fingerprint_counts() -> None:
    count = estimate(TALK)
    assert (count.source, count.origin) == ("generic fingerprint", "assumed")
    assert 10 <= count.value <= 40


def test_a_models_fingerprint_comes_before_it_and_is_tighter() -> None:
    talk = [{"role": "user", "content": "The harbour smelled of diesel and wet rope. " * 50}]
    own, generic = estimate(talk, fingerprint=of_model(shipped().model("qwen3-32b"))), estimate(talk)
    assert own.source == "fingerprint"
    assert own.upper / own.value < generic.upper / generic.value


def test_a_tokenizer_comes_before_a_fingerprint_and_its_bound_allows_for_marks_alone() -> None:
    count = estimate(TALK, tokenizer=Letters())
    text = "\n".join(message["content"] for message in TALK)
    assert count.source == "tokenizer"
    assert count.value == len(text) + 2 * marks.MESSAGE + marks.TEMPLATE
    assert count.upper == len(text) + 3 * marks.MESSAGE_AT_MOST + marks.TEMPLATE_AT_MOST


def test_what_the_server_said_comes_before_a_tokenizer_and_is_exact() -> None:
    assert estimate(TALK, served=17, tokenizer=Letters()) == TokenCount(17, 17, "server")


def test_the_step_before_comes_first_and_only_what_is_new_is_estimated() -> None:
    previous = Previous.of(TALK, 2_000, 30)
    answer = {"role": "assistant", "content": "High water is at ten past twelve, local time, at the outer pier."}
    grown = [*TALK, answer, {"role": "user", "content": "Thanks."}]
    count = estimate(grown, previous=previous, served=17, tokenizer=Letters())
    assert (count.source, count.origin) == ("usage", "reported")
    assert 2_030 < count.value <= 2_045
    assert count.value <= count.upper <= 2_080
    assert estimate(TALK, previous=previous) == TokenCount(2_000, 2_000, "usage")


def test_reasoning_that_the_conversation_no_longer_holds_counts_at_most() -> None:
    """An answer of 900 tokens, of which the conversation kept one word."""
    grown = [*TALK, {"role": "assistant", "content": "Noon."}]
    count = estimate(grown, previous=Previous.of(TALK, 2_000, 900))
    assert count.value <= 2_020
    assert count.upper == 2_000 + 900 + marks.MESSAGE_AT_MOST


def test_an_answer_that_the_server_did_not_count_is_estimated() -> None:
    grown = [*TALK, {"role": "assistant", "content": "Noon is high water. " * 40}]
    count = estimate(grown, previous=Previous.of(TALK, 2_000))
    assert 2_150 < count.value < 2_300


@pytest.mark.parametrize(
    ("talk", "tools"),
    [
        pytest.param(TALK[:1], [], id="a message is gone"),
        pytest.param([TALK[0], {"role": "user", "content": "A summary."}, TALK[1]], [], id="compacted"),
        pytest.param([*TALK, {"role": "user", "content": "And?"}], TOOLS, id="other tools"),
    ],
)
def test_a_conversation_that_did_not_only_grow_is_counted_anew(talk: list[dict[str, Any]], tools: list[Any]) -> None:
    count = estimate(talk, tools, previous=Previous.of(TALK, 2_000, 30))
    assert count.source == "generic fingerprint"
    assert count.upper < 1_000


def test_size_alone_gives_a_token_every_four_bytes_and_at_most_one_each() -> None:
    assert of_size(4_000) == TokenCount(1_000, 4_000, "size")
    assert of_size(0) == TokenCount(1, 1, "size")


@pytest.mark.parametrize("source", get_args(Source))
def test_every_source_has_an_origin(source: Source) -> None:
    assert TokenCount(1, 1, source).origin in {"reported", "derived", "assumed"}


# ---- what counts


@pytest.mark.parametrize("fingerprint", [GENERIC, of_model(shipped().model("gpt-oss-20b"))], ids=["generic", "own"])
@given(conversation=messages)
def test_no_more_is_expected_than_the_upper_bound(fingerprint: Any, conversation: list[dict[str, Any]]) -> None:
    count = estimate(conversation, fingerprint=fingerprint)
    assert 1 <= count.value <= count.upper


@given(messages, st.text(max_size=50))
def test_another_message_never_makes_it_less(conversation: list[dict[str, Any]], text: str) -> None:
    longer = [*conversation, {"role": "user", "content": text}]
    assert estimate(longer).value > estimate(conversation).value


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"role": "user", "content": [{"type": "text", "text": "x " * 300}]}, id="parts"),
        pytest.param({"role": "user", "content": ["x " * 300]}, id="bare parts"),
        pytest.param({"role": "user", "content": [{"type": [], "text": "x " * 300}]}, id="a part of no known type"),
        pytest.param({"role": "user", "content": [{"type": "file", "file": "x " * 300}]}, id="another part"),
        pytest.param({"role": "assistant", "content": None, "tool_calls": [{"a": "x " * 300}]}, id="tool calls"),
        pytest.param({"role": "assistant", "content": "", "reasoning_content": "x " * 300}, id="reasoning"),
        pytest.param({"role": "tool", "content": "x " * 300, "tool_call_id": "1"}, id="a tool's answer"),
        pytest.param({"content": "", "tool_calls": [{"a": "x " * 300}]}, id="tool calls without a role"),
        pytest.param({"role": "user", "content": {1, "x " * 300}}, id="what is no JSON"),
        pytest.param({"role": "user", "content": "\ud800" * 250}, id="half a character"),
    ],
)
def test_everything_in_a_message_counts(message: dict[str, Any]) -> None:
    assert estimate([message]).value > 150
    assert estimate([message], tokenizer=Letters()).value > 250


def test_arguments_count_as_they_are_not_as_json_in_json() -> None:
    arguments = '{"path": "a\\"b", "lines": [1, 2]}'
    call = {"id": "call_1", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    prompt = prompt_of([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert arguments in prompt.text
    assert prompt.tool_calls == 1


def test_tools_count_with_what_templates_say_of_them_and_may_be_indented() -> None:
    bare, with_tools = estimate(TALK, tokenizer=Letters()), estimate(TALK, TOOLS, tokenizer=Letters())
    schema = with_tools.value - bare.value - marks.TOOLS
    assert 60 < schema < 120
    assert with_tools.upper - bare.upper == pytest.approx(marks.TOOLS_AT_MOST + marks.TOOLS_SPREAD * schema, abs=1)


def test_an_image_counts_as_assumed_and_not_by_its_bytes() -> None:
    data = "data:image/png;base64," + base64.b64encode(bytes(200_000)).decode()
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": data}}]
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    bare = estimate([{"role": "user", "content": parts[:1]}])
    seen = estimate([{"role": "user", "content": parts}])
    heard = estimate([{"role": "user", "content": [*parts, sound]}])
    assert (seen.assumed, seen.value - bare.value, seen.upper - bare.upper) == (
        marks.IMAGE,
        marks.IMAGE,
        marks.IMAGE_AT_MOST,
    )
    assert heard.assumed == marks.IMAGE + marks.AUDIO
    assert heard.upper - seen.upper == marks.AUDIO_AT_MOST


@pytest.mark.parametrize(
    ("text", "most"),
    [
        pytest.param("x" * 600, 300, id="one letter"),
        pytest.param("\u1019\u1004\u103a\u1039\u1002\u101c\u102c\u1015\u102b " * 12, 228, id="Burmese"),
        pytest.param("\U0001f600\U0001f680\U0001f9ea" * 10, 121, id="emoji"),
        pytest.param("{}[]()<>!@#$%^&*~`|\\;:" * 8, 136, id="signs"),
        pytest.param("Καλημέρα κόσμε αυτό είναι ένα τεστ " * 6, 211, id="Greek"),
        pytest.param("สวัสดีชาวโลกนี่คือการทดสอบ " * 6, 163, id="Thai"),
        pytest.param("नमस्ते दुनिया यह एक परीक्षण है " * 6, 199, id="Hindi"),
        pytest.param("31415926535897932384626433832795" * 8, 257, id="digits"),
    ],
)
def test_what_the_corpus_lacks_stays_below_the_generic_bound(text: str, most: int) -> None:
    """``most``: of the tokenizers of tests/data/tokens, but for SmolLM2, whose server is asked elsewhere."""
    assert most < estimate([{"role": "user", "content": text}]).upper < 6 * most
