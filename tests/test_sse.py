"""Server-sent events: however the bytes are cut, the events are the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.errors import BackendError, FailureKind
from agentroute.sse import MAX_EVENT_BYTES, EventDecoder, Untold


def decode(*chunks: bytes) -> list[str]:
    decoder = EventDecoder()
    return [data for chunk in chunks for data in decoder.feed(chunk)] + decoder.flush()


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"", []),
        (b"data: a\n\n", ["a"]),
        (b"data: a\r\n\r\n", ["a"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data\n\n", [""]),
        (b"data:\n\n", [""]),
        (b": ping\n\ndata: a\n\n", ["a"]),
        (b"event: error\nid: 7\nretry: 3\ndata: a\n\n", ["a"]),
        (b"event: lonely\n\n", []),
        (b"database: no\n\n", []),
        (b"\n\n\ndata: a\n\n\n\n", ["a"]),
        (b"data: a\n\ndata: b", ["a", "b"]),
        (b"data: [DONE]\n\n", ["[DONE]"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        ("data: héé 🌍\n\n".encode(), ["héé 🌍"]),
        (b"data: \xff\n\n", ["�"]),
        (b"<html>no stream</html>", []),
    ],
)
def test_a_stream_holds_these_events(stream: bytes, events: list[str]) -> None:
    assert decode(stream) == events
    assert decode(*(bytes([byte]) for byte in stream)) == events


@given(
    st.lists(
        st.sampled_from([b"data: ", b"data:", b": c", b"id: 1", b"x", b"\r", b"\n", b"\r\n", "é🌍".encode(), b"\xff"])
    ),
    st.data(),
)
def test_where_the_bytes_are_cut_changes_nothing(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    edges = [0, *sorted(cuts), len(stream)]
    assert decode(*(stream[start:end] for start, end in pairwise(edges))) == decode(stream)


@given(
    st.lists(st.sampled_from([b"data: a", b"event: e", b": c", b"\n", b"\r", b"\n\n", b"x"]), max_size=6).map(b"".join)
)
def test_only_between_two_events_may_a_chunk_be_one(before: bytes) -> None:
    decoder = EventDecoder()
    decoder.feed(before)
    if decoder.may_be_one(b"data: b\n\n"):
        assert [(data, type(data)) for data in decoder.feed(b"data: b\n\n")] == [("b", str)]
    assert not decoder.may_be_one(b"data: " + b"b" * MAX_EVENT_BYTES + b"\n\n")


@pytest.mark.parametrize("before", [b"", b"data: a\n\n", b": c\n", b"data: a\r\n\r\n"])
def test_there_it_may(before: bytes) -> None:
    decoder = EventDecoder()
    decoder.feed(before)
    assert decoder.may_be_one(b"data: b\n\n")


def test_an_event_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    decoder = EventDecoder()
    decoder.feed(b"data: ")
    with pytest.raises(BackendError, match="more than 1 MiB") as caught:
        for _ in range(100):
            decoder.feed(b"x" * 65_536)
    assert caught.value.kind is FailureKind.INTERRUPTED


def test_an_event_of_many_lines_is_refused_too() -> None:
    decoder = EventDecoder()
    with pytest.raises(BackendError):
        for _ in range(100):
            decoder.feed(b"data: " + b"x" * 65_536 + b"\n")


def test_events_and_comments_without_end_are_fine_as_long_as_each_is_small() -> None:
    decoder = EventDecoder()
    count = 0
    for _ in range(3):
        decoder.feed(b": " + b"c" * (MAX_EVENT_BYTES - 100) + b"\n")
        count += len(decoder.feed(b"data: " + b"x" * (MAX_EVENT_BYTES - 100) + b"\n\n"))
    assert count == 3


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    decoder = EventDecoder()
    assert decoder.feed(b"data: a\r") == []
    assert decoder.feed(b"\ndata: b\r\n\r\n") == ["a\nb"]


# --- the token counts that a reader did not ask for

PIECE = b'data: {"choices": [{"delta": {"content": "\\"choices\\": [], \\"usage\\": 7"}}], "usage": null}'
COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":7}}'
DONE = b"data: [DONE]"


@pytest.mark.parametrize(
    ("event", "kept"),
    [
        (PIECE, True),
        (COUNTS, False),
        (DONE, True),
        (b": ping", True),
        (b'data: {"choices": [], "usage": null}', True),
        (b'data: {"choices": []}', True),
        (b'data: {"choices": [], "usage": {}', True),
        (b'data: {"choices": [1], "usage": {}, "x": {"choices": []}}', True),
        (b'event: x\ndata: {"choices" : [ ],\ndata: "usage": {}}', False),
    ],
)
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_only_the_event_of_counts_is_left_out(event: bytes, kept: bool, end: bytes) -> None:
    event = event.replace(b"\n", end[: len(end) // 2])
    untold = Untold()
    assert untold.feed(PIECE + end + event + end + DONE + end) + untold.flush() == (
        PIECE + end + (event + end if kept else b"") + DONE + end
    )
    assert untold.feed(event) + untold.flush() == (event if kept else b"")


@given(st.lists(st.sampled_from([event + b"\n\n" for event in (PIECE, COUNTS, DONE, b": c")])), st.data())
def test_where_the_bytes_are_cut_no_other_event_is_touched(events: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(events)
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8))), len(stream)]
    untold = Untold()
    out = b"".join(untold.feed(stream[start:end]) for start, end in pairwise(edges)) + untold.flush()
    assert out == b"".join(event for event in events if not event.startswith(COUNTS))
