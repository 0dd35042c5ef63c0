"""Marks: prompts that begin alike have equal marks as far as they are alike, and no further."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.errors import TaskError
from agentroute.prefix import Mark, marks, named

Message = Mapping[str, Any]

USER: Message = {"role": "user", "content": "hello"}
CALL: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}],
}
IMAGE: Message = {
    "role": "user",
    "content": [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ],
}
TOOLS: list[Message] = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]


def last(*messages: Message, tools: list[Message] | None = None) -> int:
    return marks(messages, [1] * len(messages), tools=tools)[-1].hash


def changed(message: Message, **changes: Any) -> Message:
    return {**copy.deepcopy(message), **changes}


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=1)),
    max_leaves=6,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": json_values}, optional={"name": st.text()}
)


# ---- the chain


def test_a_mark_after_every_message_ascends_in_tokens() -> None:
    found = marks([USER, CALL, USER], [10, 0, 7], tools=TOOLS, tools_tokens=100)
    assert [mark.tokens for mark in found] == [110, 110, 117]
    assert len({mark.hash for mark in found}) == 3
    assert all(0 <= mark.hash < 2**64 for mark in found)


def test_no_messages_no_marks() -> None:
    assert marks([], []) == ()


@given(st.lists(messages, max_size=4), st.lists(messages, max_size=3))
def test_what_goes_on_from_a_prompt_shares_its_marks(parent: list[Message], more: list[Message]) -> None:
    counts = list(range(1, len(parent) + len(more) + 1))
    before = marks(parent, counts[: len(parent)])
    assert marks([*parent, *more], counts)[: len(parent)] == before


def test_after_a_difference_nothing_is_shared() -> None:
    one, other = marks([USER, CALL, USER], [1] * 3), marks([CALL, CALL, USER], [1] * 3)
    assert not {mark.hash for mark in one} & {mark.hash for mark in other}


def test_hashes_are_the_same_in_every_process() -> None:
    assert marks([USER], [5]) == (Mark(MARK_OF_USER, 5),)


MARK_OF_USER = 1357050523852094255
"""Written down once: a saved decision is replayed by another process."""


# ---- what makes equal prompts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (USER, {"content": "hello", "role": "user"}),
        (USER, changed(USER, name=None, tool_calls=[])),
        (USER, changed(USER, content=[{"type": "text", "text": "hello"}])),
        (USER, changed(USER, content=({"text": "hello", "type": "text"},))),
        (USER, MappingProxyType(USER)),
        (changed(USER, content=[{"a": 1}]), changed(USER, content=[MappingProxyType({"a": 1})])),
        (CALL, changed(CALL, content="")),
        (CALL, {key: value for key, value in CALL.items() if key != "content"}),
        (
            CALL,
            changed(
                CALL,
                tool_calls=[{"function": {"arguments": '{"path": "."}', "name": "ls"}, "type": "function", "id": "c1"}],
            ),
        ),
    ],
)
def test_equal_prompts_have_equal_marks(one: Message, other: Message) -> None:
    assert last(one) == last(other)


DIFFERENT: list[Message] = [
    USER,
    CALL,
    IMAGE,
    changed(USER, role="system"),
    changed(USER, content="hello "),
    changed(USER, content='["hello"]'),
    changed(USER, content=["hello"]),
    changed(USER, content=[{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]),
    changed(USER, content=[{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]),
    changed(USER, name="content"),
    changed(CALL, tool_calls=[*CALL["tool_calls"], *CALL["tool_calls"]]),
    changed(IMAGE, content=[IMAGE["content"][0], {"type": "image_url", "image_url": {"url": "data:,BBBB"}}]),
    changed(IMAGE, content=[IMAGE["content"][1], IMAGE["content"][0]]),
    changed(USER, content=b"hello"),
    changed(USER, content="\ud800"),
    changed(USER, strict=True),
    changed(USER, strict=1),
    changed(USER, strict="1"),
]


def test_different_messages_have_different_marks() -> None:
    assert len({last(message) for message in DIFFERENT}) == len(DIFFERENT)


@given(messages, messages)
def test_marks_are_equal_only_where_role_and_content_are(one: Message, other: Message) -> None:
    def said(message: Message) -> tuple[str, str, str]:
        content = message["content"]
        return message["role"], repr(None if content in ("", [], {}) else content), message.get("name", "")

    assert (last(one) == last(other)) == (said(one) == said(other))


def test_tools_stand_before_everything() -> None:
    other_tools = [changed(TOOLS[0], function={"name": "cat"})]
    assert len({last(USER), last(USER, tools=TOOLS), last(USER, tools=other_tools)}) == 3
    assert last(USER, tools=[]) == last(USER)


# ---- names


def test_a_name_stands_for_a_prefix_of_any_length() -> None:
    assert named("session", "a", 10) == Mark(named("session", "a", 500).hash, 10)


def test_names_of_different_kinds_and_borders_are_apart() -> None:
    pairs = [("session", "a"), ("group", "a"), ("session", "b"), ("sessiona", ""), ("", "sessiona"), ("1:a", "")]
    assert len({named(kind, name, 1).hash for kind, name in pairs}) == len(pairs)


# ---- mistakes


@pytest.mark.parametrize(
    ("content", "counts", "right"),
    [
        (USER, [1, 2], "token_counts must have one count a message"),
        (USER, [-1], "must be a whole number of tokens, 0 or more, got -1"),
        (USER, [1.5], "must be a whole number of tokens"),
        (USER, [True], "must be a whole number of tokens"),
        (changed(USER, content=object()), [1], "message 0 must be made of what JSON knows"),
        (changed(USER, content={1: 2, "a": 3}), [1], "message 0 must be made of what JSON knows"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(content: Message, counts: list[int], right: str) -> None:
    with pytest.raises(TaskError, match=right):
        marks([content], counts)


@pytest.mark.parametrize("where", ["tools", "message 0"])
def test_what_holds_itself_is_refused(where: str) -> None:
    loop: dict[str, Any] = {"role": "user"}
    loop["content"] = [loop]
    with pytest.raises(TaskError, match=where):
        marks([loop if where == "message 0" else USER], [1], tools=[loop] if where == "tools" else None)


def test_tools_that_are_no_json_are_refused() -> None:
    with pytest.raises(TaskError, match="tools must be made of what JSON knows"):
        marks([USER], [1], tools=[{"function": object()}])
