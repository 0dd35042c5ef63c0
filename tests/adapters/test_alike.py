"""The pieces of a stream that differ by their text alone: what is read without the JSON's reader is what it reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.adapters import adapter
from agentroute.adapters.alike import Alike
from agentroute.wire import TextDelta

ADAPTER = adapter("openai")


def piece(text: str, *, index: int | None = 0, last: bool = False, **more: object) -> str:
    """``last``: the index stands behind the text."""
    number = {} if index is None else {"index": index}
    rest = {"delta": {"content": text}, "logprobs": None, "finish_reason": None}
    choice = {**rest, **number} if last else {**number, **rest}
    return json.dumps({"id": "chatcmpl-1", "choices": [choice], **more}, ensure_ascii=False)


def chunk(data: str) -> bytes:
    """As most servers write it, and most reads bring it."""
    return f"data: {data}\n\n".encode("utf-8", "surrogatepass")


def after(data: str, text: str) -> Alike:
    alike = Alike()
    alike.learn(data, text)
    return alike


@pytest.mark.parametrize("first", ["a", " hello", "日本", "😀"])
@pytest.mark.parametrize("text", ["a", "", " ", "}", "},", "日本", "\u00e9", "a'b", "<", "x" * 5_000])
def test_a_text_without_quotes_is_read_as_it_stands(first: str, text: str) -> None:
    alike = after(piece(first), first)
    assert alike.text(piece(text)) == text
    assert alike.text_in(chunk(piece(text))) == text


@pytest.mark.parametrize("text", ['"', "\\", "\n", "\t", "a\u0000", '"}', "\u2028"])
def test_what_json_may_write_otherwise_is_left_to_its_reader(text: str) -> None:
    alike = after(piece("a"), "a")
    assert alike.text(piece(text)) is None
    assert alike.text_in(chunk(piece(text))) is None


@pytest.mark.parametrize(
    "came",
    [
        chunk(piece("b"))[1:],
        chunk(piece("b"))[:-1],
        chunk(piece("b")) * 2,
        chunk(piece("b")).replace(b"data: ", b"data:"),
        chunk(piece("b")).replace(b"\n\n", b"\r\n\r\n"),
        chunk(piece("b")) + b"data: [DONE]\n\n",
        b"event: x\n" + chunk(piece("b")),
        chunk(piece("\u00e9")).replace("\u00e9".encode(), "\u00e9".encode()[:1]),
        chunk(piece("")).replace(b"}}", b"}")[:-30],
        b"data: [DONE]\n\n",
        b"",
    ],
)
def test_a_chunk_that_is_not_one_whole_event_has_to_be_decoded(came: bytes) -> None:
    assert after(piece("a"), "a").text_in(came) is None


@pytest.mark.parametrize(
    "data",
    [
        piece("a", usage={"prompt_tokens": 1}),
        piece("a").replace('"finish_reason": null', '"finish_reason": "stop"'),
        piece("a", index=1),
        piece("a", index=None),
        piece("a").replace('{"content"', '{"role": "assistant", "content"'),
        piece("a").replace('"a"', "null"),
        piece("a")[:-1],
        "[DONE]",
        "",
    ],
)
def test_a_piece_that_differs_otherwise_is_left_to_the_reader(data: str) -> None:
    assert after(piece("a"), "a").text(data) is None
    assert after(piece("a"), "a").text_in(chunk(data)) is None


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("index", [0, None])
def test_a_piece_of_another_answer_is_not_taken_for_one_of_this(index: int | None, last: bool) -> None:
    alike = after(piece("a", index=index, last=last), "a")
    assert alike.text(piece("b", index=index, last=last)) == "b"
    for other in (1, 2, 10):
        assert alike.text(piece("b", index=other, last=last)) is None
        assert list(ADAPTER.events(piece("b", index=other, last=last))) == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        # Where the text stands cannot be told.
        ('{"delta": {"content": "a"}, "choices": [{"delta": {"content": "a"}}]}', "a"),
        ('{"choices": [{"delta": {"role": "assistant", "content": "a"}}]}', "a"),
        ('{"choices": [{"delta": {"content": "a", "x": 1}}]}', "a"),
        ('{"choices": [{"delta": {"content": "\\u0061"}}]}', "a"),
        ('{"delta": {"content": "a"}, "choices": [{"\\u0064elta": {"content": "a"}}]}', "a"),
        ('{"choices": [{"delta": {"content": [{"type": "text", "text": "a"}]}}]}', "a"),
    ],
)
def test_nothing_is_learnt_where_there_is_a_doubt(data: str, text: str) -> None:
    assert after(data, text).text(data) is None


def test_nothing_is_known_at_first() -> None:
    assert Alike().text(piece("a")) is None
    assert Alike().text_in(chunk(piece("a"))) is None


_PARTS = st.sampled_from(['"', "\\", "}", "{", "a", "é", "\u0001", '"delta"', '{"content": "', ", ", "😀", "\ud83d"])


@given(
    st.lists(st.lists(_PARTS, max_size=5).map("".join), min_size=1, max_size=8),
    st.sampled_from(
        [{}, {"usage": None}, {"created": 1}, {"delta": {"content": "a"}}, {"x": '"delta": {"content": "a"'}]
    ),
    st.booleans(),
    st.lists(st.sampled_from([0, 1, 2, None]), min_size=8, max_size=8),
    st.booleans(),
)
def test_it_never_reads_anything_that_the_reader_does_not(
    texts: list[str], more: dict[str, object], compact: bool, indices: list[int | None], last: bool
) -> None:
    alike = Alike()
    for text, index in zip(texts, indices, strict=False):
        data = piece(text, index=index, last=last, **more)
        if compact:
            data = json.dumps(json.loads(data), separators=(",", ":"))
        read = list(ADAPTER.events(data))
        found = alike.text(data)
        assert alike.text_in(chunk(data)) == found
        if found is not None:
            assert ([TextDelta(found)] if found else []) == read
        elif len(read) == 1 and isinstance(only := read[0], TextDelta):
            alike.learn(data, only.text)
