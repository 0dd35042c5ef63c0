"""Tokens of a conversation, from its size: assumed, and said to be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.tokens import TokenCount, estimate

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
messages = st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), json_values), max_size=4)


@pytest.mark.parametrize(
    ("conversation", "count"),
    [
        ([], TokenCount(8, 40, "assumed")),
        ([{"role": "user", "content": ""}], TokenCount(16, 48, "assumed")),
        ([{"role": "user", "content": "x" * 60}], TokenCount(31, 78, "assumed")),
        ([{"role": "user", "content": "ü" * 30}], TokenCount(31, 108, "assumed")),
        ([{"role": "user", "content": "x" * 60}] * 2, TokenCount(54, 116, "assumed")),
    ],
)
def test_a_conversation_is_so_many_tokens(conversation: list[dict[str, Any]], count: TokenCount) -> None:
    assert estimate(conversation) == count


@given(messages)
def test_no_more_is_expected_than_the_upper_bound(conversation: list[dict[str, Any]]) -> None:
    count = estimate(conversation)
    assert 1 <= count.value <= count.upper


@given(messages, st.text(max_size=50))
def test_another_message_never_makes_it_less(conversation: list[dict[str, Any]], text: str) -> None:
    longer = [*conversation, {"role": "user", "content": text}]
    assert estimate(longer).value > estimate(conversation).value
    assert estimate(longer).upper > estimate(conversation).upper


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"role": "user", "content": [{"type": "text", "text": "x" * 600}]}, id="parts"),
        pytest.param({"role": "assistant", "content": None, "tool_calls": [{"a": "x" * 600}]}, id="tool calls"),
        pytest.param({"role": "tool", "content": "x" * 600, "tool_call_id": "1"}, id="a tool's answer"),
        pytest.param({"content": "", "tool_calls": [{"a": "x" * 600}]}, id="tool calls without a role"),
        pytest.param({"role": "user", "content": {1, "x" * 600}}, id="what is no JSON"),
        pytest.param({"role": "user", "content": "\ud800" * 200}, id="half a character"),
    ],
)
def test_everything_in_a_message_counts(message: dict[str, Any]) -> None:
    assert estimate([message]).upper > 240


def test_what_else_is_in_the_prompt_counts() -> None:
    assert estimate([], {"tools": ["x" * 600]}).upper > 240
