"""Completions, responses and embeddings: how their answers are read, whole and in pieces."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.adapters.base import Endpoint
from agentroute.adapters.endpoints import CHATS, COMPLETIONS, EMBEDDINGS, ENDPOINTS, RESPONSES
from agentroute.adapters.llamacpp import LlamaCppAdapter
from agentroute.adapters.openai import OpenAIAdapter
from agentroute.assembly import Assembly
from agentroute.demo.embedded import EmbeddedServer
from agentroute.errors import BackendError, FailureKind
from agentroute.sse import EventDecoder
from agentroute.wire import Answer, Completion, Finished, TextDelta, ToolCall, Usage

WIRE, LLAMA = OpenAIAdapter(), LlamaCppAdapter()
USAGE = {"input_tokens": 12, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 8}}
FULL = {"code": "rate_limit_exceeded", "message": "no"}
MESSAGE = {
    "type": "message",
    "content": [{"type": "output_text", "text": "Hel"}, {"type": "output_text", "text": "lo"}],
}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"city":"Paris"}',
}


def whole(endpoint: Endpoint, raw: Any) -> Completion:
    return WIRE.completion(Answer(200, {}, json.dumps(raw).encode()), endpoint)


def streamed(endpoint: Endpoint, pieces: list[Any]) -> Completion:
    assembly = Assembly()
    for piece in pieces:
        assembly.take(WIRE.events(json.dumps(piece), endpoint))
    return assembly.completion()


# --- completions


def test_a_completion_is_read_whole_and_in_pieces() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    raw = {"choices": [{"text": "Once upon", "finish_reason": "length"}], "usage": usage}
    found = whole(COMPLETIONS, raw)
    assert (found.text, found.finish_reason, found.usage, found.raw) == ("Once upon", "length", Usage(5, 2, 4), raw)
    pieces = [
        {"choices": [{"text": "Once", "finish_reason": None}]},
        {"choices": [{"text": " upon", "finish_reason": "length"}]},
        {"choices": [], "usage": usage},
    ]
    assert WIRE.events(json.dumps(pieces[1]), COMPLETIONS) == [TextDelta(" upon"), Finished("length")]
    found = streamed(COMPLETIONS, pieces)
    assert (found.text, found.finish_reason, found.usage) == ("Once upon", "length", Usage(5, 2, 4))


# --- several answers in one


def choice(endpoint: Endpoint, index: int | None, text: str, finish: str | None = None) -> dict[str, Any]:
    said = {"text": text} if endpoint is COMPLETIONS else {"delta": {"content": text}}
    return {**({} if index is None else {"index": index}), **said, "finish_reason": finish}


SEVERAL = [["Once", " upon", ""], ["a", "b", ""], ["x", "y", ""]]
"""The pieces of three answers; the last of each holds why it ended."""
several = pytest.mark.parametrize("endpoint", [CHATS, COMPLETIONS], ids=lambda each: each.name)


def part(endpoint: Endpoint, index: int, at: int) -> dict[str, Any]:
    return choice(endpoint, index, SEVERAL[index][at], (None, None, "stop" if index else "length")[at])


@several
@given(order=st.permutations([0, 1, 2] * 3))
def test_of_answers_whose_pieces_alternate_that_of_index_0_is_read(endpoint: Endpoint, order: list[int]) -> None:
    pieces = [{"choices": [part(endpoint, i, order[:at].count(i))]} for at, i in enumerate(order)]
    found = streamed(endpoint, pieces)
    assert (found.text, found.finish_reason) == ("Once upon", "length")


@several
@given(order=st.permutations([0, 1, 2]))
def test_of_answers_whose_pieces_come_together_that_of_index_0_is_read(endpoint: Endpoint, order: list[int]) -> None:
    found = streamed(endpoint, [{"choices": [part(endpoint, i, at) for i in order]} for at in range(3)])
    assert (found.text, found.finish_reason) == ("Once upon", "length")


@several
def test_of_answers_that_came_whole_that_of_index_0_is_read_and_the_rest_is_kept(endpoint: Endpoint) -> None:
    def answer(index: int, text: str) -> dict[str, Any]:
        said = {"text": text} if endpoint is COMPLETIONS else {"message": {"content": text}}
        return {"index": index, **said, "finish_reason": "stop"}

    raw = {"choices": [answer(1, "b"), answer(0, "a")]}
    found = whole(endpoint, raw)
    assert (found.text, found.raw) == ("a", raw)
    assert whole(endpoint, {"choices": [answer(1, "b")]}).text == "b", "the only one there is"


@several
def test_an_answer_without_an_index_is_the_answer(endpoint: Endpoint) -> None:
    found = streamed(endpoint, [{"choices": [choice(endpoint, None, text)]} for text in ("Once", " upon")])
    assert found.text == "Once upon"


# --- responses


@pytest.mark.parametrize(
    ("raw", "finish"),
    [
        ({"status": "completed", "output": [THOUGHT, MESSAGE], "error": None}, "stop"),
        ({"status": "completed", "output": [THOUGHT, MESSAGE, CALL], "error": None}, "tool_calls"),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [MESSAGE]},
            "length",
        ),
        ({"status": "incomplete", "incomplete_details": None, "output": [MESSAGE]}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}, "output": []}, "content_filter"),
        ({"status": "queued", "output": []}, None),
    ],
)
def test_a_response_ends_in_the_words_of_chats(raw: dict[str, Any], finish: str | None) -> None:
    found = whole(RESPONSES, {"object": "response", **raw, "usage": USAGE})
    assert found.finish_reason == finish
    assert found.usage == Usage(12, 5, 8)
    assert found.text == ("Hello" if MESSAGE in raw["output"] else "")
    assert found.reasoning == ("hm" if THOUGHT in raw["output"] else "")
    assert found.tool_calls == (
        (ToolCall("call_1", "get_weather", '{"city":"Paris"}'),) if CALL in raw["output"] else ()
    )


STREAM: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"status": "in_progress", "usage": None, "error": None}},
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}},
    {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "hm"},
    {"type": "response.output_item.added", "output_index": 1, "item": {"type": "message", "content": []}},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "Hel"},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "lo", "logprobs": []},
    {"type": "response.output_text.done", "output_index": 1, "text": "Hello"},
    {"type": "response.output_item.added", "output_index": 2, "item": {**CALL, "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"city":'},
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '"Paris"}'},
    {"type": "response.function_call_arguments.done", "output_index": 2, "arguments": '{"city":"Paris"}'},
    {"type": "response.output_item.done", "output_index": 2, "item": CALL},
]
ENDED = {"status": "completed", "output": [THOUGHT, MESSAGE, CALL], "usage": USAGE, "error": None}


def test_a_response_in_pieces_is_the_response() -> None:
    found = streamed(RESPONSES, [*STREAM, {"type": "response.completed", "response": ENDED}])
    told = whole(RESPONSES, ENDED)
    for name in ("text", "reasoning", "tool_calls", "finish_reason", "usage"):
        assert getattr(found, name) == getattr(told, name), name


@pytest.mark.parametrize("end", ["response.completed", "response.incomplete"])
@pytest.mark.parametrize("missing", ["", "reasoning_text", "output_text", "function_call", "arguments"])
def test_what_did_not_come_in_pieces_is_taken_from_the_end_of_a_response(end: str, missing: str) -> None:
    """With nothing missing this tells that nothing is taken twice."""
    came = [piece for piece in STREAM if not missing or missing not in json.dumps(piece).replace("_item.done", "")]
    found = streamed(RESPONSES, [*came, {"type": end, "response": ENDED}])
    told = whole(RESPONSES, ENDED)
    for name in ("text", "reasoning", "tool_calls", "usage"):
        assert getattr(found, name) == getattr(told, name), name


def test_a_response_of_which_only_the_end_comes_is_the_response() -> None:
    found = streamed(RESPONSES, [{"type": "response.completed", "response": ENDED}])
    told = whole(RESPONSES, ENDED)
    assert found == replace(told, raw={})
    assert (found.text, found.reasoning) == ("Hello", "hm")
    assert [call.name for call in found.tool_calls] == ["get_weather"]


@pytest.mark.parametrize("numbered", [True, False])
def test_arguments_of_several_tool_calls_go_to_their_own(numbered: bool) -> None:
    other = {**CALL, "call_id": "call_2", "arguments": '{"city":"Rome"}'}
    begun = [
        {"type": "response.output_item.added", "item": {**item, "arguments": ""}}
        | ({"output_index": index} if numbered else {})
        for index, item in enumerate([CALL, other])
    ]
    ended = {"status": "completed", "output": [CALL, other]}
    found = streamed(RESPONSES, [*begun, {"type": "response.completed", "response": ended}])
    assert [call.id for call in found.tool_calls] == ["call_1", "call_2"]
    assert [call.arguments for call in found.tool_calls] == [CALL["arguments"], other["arguments"]]


def test_a_response_that_was_cut_ends_with_length_and_its_usage() -> None:
    ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": USAGE}
    found = streamed(RESPONSES, [{"type": "response.incomplete", "response": ended}])
    assert (found.finish_reason, found.usage) == ("length", Usage(12, 5, 8))


@pytest.mark.parametrize(
    ("piece", "kind"),
    [
        ({"type": "response.failed", "response": {"status": "failed", "error": FULL}}, FailureKind.OVERLOADED),
        ({"type": "response.failed", "response": {"status": "failed", "error": None}}, FailureKind.INTERRUPTED),
        ({"type": "response.cancelled", "response": {"status": "cancelled"}}, FailureKind.INTERRUPTED),
        ({"type": "error", "code": "server_error", "message": "boom", "param": None}, FailureKind.UNAVAILABLE),
        ({"error": {"message": "The request queue is full.", "code": 503}}, FailureKind.OVERLOADED),
    ],
)  # fmt: skip
def test_a_response_that_failed_is_an_error(piece: dict[str, Any], kind: FailureKind) -> None:
    with pytest.raises(BackendError) as caught:
        WIRE.events(json.dumps(piece), RESPONSES)
    assert caught.value.kind is kind
    if "response" in piece:
        with pytest.raises(BackendError) as caught:
            whole(RESPONSES, {**piece["response"], "output": []})
        assert caught.value.kind is kind


# --- embeddings


def test_embeddings_are_passed_through_with_their_usage() -> None:
    raw = {"data": [{"embedding": [0.5, 0.25]}], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    found = whole(EMBEDDINGS, raw)
    assert found.raw == raw
    assert found.usage == Usage(3)
    assert (found.text, found.finish_reason) == ("", None)


# --- all of them


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=list(ENDPOINTS))
def test_usage_that_the_server_does_not_say_is_unknown(endpoint: Endpoint) -> None:
    raws: list[dict[str, Any]] = [{}, {"usage": None}, {"usage": 7}, {"usage": []}]
    for raw in raws:
        assert WIRE.usage(endpoint, raw) is None
    assert WIRE.usage(endpoint, {"usage": {}}) == Usage()


def test_usage_stands_in_the_answer_and_in_the_last_event_of_a_response() -> None:
    assert WIRE.usage(RESPONSES, {"usage": USAGE}) == Usage(12, 5, 8)
    assert WIRE.usage(RESPONSES, {"type": "response.completed", "response": {"usage": USAGE}}) == Usage(12, 5, 8)
    assert WIRE.usage(CHATS, {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}) == Usage(3, 4)


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=list(ENDPOINTS))
@pytest.mark.parametrize("raw", [{}, {"hello": "world"}, {"choices": []}, {"data": 7, "output": 7}])
def test_a_200_that_answers_something_else_is_unavailable(endpoint: Endpoint, raw: Any) -> None:
    with pytest.raises(BackendError, match="without") as caught:
        whole(endpoint, raw)
    assert caught.value.kind is FailureKind.UNAVAILABLE


WORDS = [
    "type",
    "response",
    "output",
    "item",
    "delta",
    "usage",
    "status",
    "choices",
    "text",
    "data",
    "error",
    "content",
]
VALUES = ["response.completed", "response.failed", "response.output_item.added", "function_call", "completed", "failed"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
)


@given(ANYTHING, st.sampled_from(list(ENDPOINTS.values())))
def test_no_json_whatever_breaks_the_reading(value: Any, endpoint: Endpoint) -> None:
    for read in (lambda: WIRE.events(json.dumps(value), endpoint), lambda: whole(endpoint, value)):
        try:
            read()
        except BackendError as error:
            assert error.detail


# --- the real server


def send(server: EmbeddedServer, endpoint: Endpoint, payload: dict[str, Any], *, stream: bool) -> httpx.Response:
    request = LLAMA.request(endpoint, "any", payload, stream=stream)
    return httpx.post(server.url.removesuffix("/v1") + request.path, json=dict(request.body or {}), timeout=60)


@pytest.mark.parametrize("endpoint", [CHATS, COMPLETIONS, RESPONSES], ids=lambda each: each.name)
def test_a_real_server_answers_the_same_whole_and_in_pieces_with_its_usage(
    llama_one: EmbeddedServer, endpoint: Endpoint
) -> None:
    prompt: Any = "Once upon a time" if endpoint is not CHATS else [{"role": "user", "content": "Once upon a time"}]
    payload = {endpoint.prompt: prompt, "temperature": 0, endpoint.limits[0]: 6}
    answer = send(llama_one, endpoint, payload, stream=False)
    told = LLAMA.completion(Answer(answer.status_code, {}, answer.content), endpoint)
    decoder, assembly = EventDecoder(), Assembly()
    for data in decoder.feed(send(llama_one, endpoint, payload, stream=True).content) + decoder.flush():
        if data != "[DONE]":
            assembly.take(LLAMA.events(data, endpoint))
    found = assembly.completion()
    assert told.text
    assert (found.text, found.finish_reason) == (told.text, told.finish_reason)
    for usage in (told.usage, found.usage):
        assert usage.prompt_tokens
        assert usage.completion_tokens == 6


def test_a_real_server_without_embeddings_says_so(llama_one: EmbeddedServer) -> None:
    answer = send(llama_one, EMBEDDINGS, {"input": "hi"}, stream=False)
    error = LLAMA.classify(Answer(answer.status_code, {}, answer.content))
    assert (error.kind, error.status) == (FailureKind.NOT_FOUND, 501)


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "logprobs": True}, True),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "grammar": 'root ::= "a"'}, False),
    ],
)
def test_what_llama_cpp_refuses_together_it_still_refuses(
    llama_tools: EmbeddedServer, body: dict[str, Any], stream: bool
) -> None:
    payload = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **body}
    with pytest.raises(BackendError, match="together; leave it out"):
        send(llama_tools, CHATS, payload, stream=stream)
    raw = httpx.post(
        llama_tools.url.removesuffix("/v1") + CHATS.path, json={"model": "any", "stream": stream, **payload}, timeout=60
    )
    assert raw.status_code == 400


def test_a_real_server_keeps_to_choices(llama_one: EmbeddedServer) -> None:
    choices = ["maybe", 'say "no"']
    payload = {
        "messages": [{"role": "user", "content": "Is the sky blue?"}],
        "guided_choice": choices,
        "max_tokens": 20,
    }
    answer = send(llama_one, CHATS, payload, stream=False)
    assert LLAMA.completion(Answer(answer.status_code, {}, answer.content)).text in choices
