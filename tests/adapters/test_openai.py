"""The shared wire, on what real servers answered: vLLM 0.32, Dynamo 1.6, sglang-router 0.3, transformers 5.19."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.adapters import ADAPTERS, adapter
from agentroute.adapters.base import Adapter, Load
from agentroute.adapters.openai import OpenAIAdapter
from agentroute.errors import BackendError, FailureKind, UnknownNameError, UsageError
from agentroute.wire import (
    Answer,
    Event,
    Finished,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)

WIRE = OpenAIAdapter()
NOT_FOUND = Answer(404, {}, b'{"detail":"Not Found"}')
HI = [{"role": "user", "content": "hi"}]


def ok(body: Any) -> Answer:
    return Answer(200, {}, (body if isinstance(body, str) else json.dumps(body)).encode())


def talk(conversation: Generator[Request, Answer, Any], answers: dict[str, Answer]) -> Any:
    try:
        request = next(conversation)
        while True:
            request = conversation.send(answers.get(request.path, NOT_FOUND))
    except StopIteration as stop:
        return stop.value


def test_every_adapter_is_found_by_its_name() -> None:
    for name in ADAPTERS:
        made: Adapter = adapter(name)
        assert made.name == name


def test_an_unknown_adapter_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'openai'"):
        adapter("openay")


# --- the request


def test_a_chat_carries_the_callers_fields_untouched() -> None:
    body = {"tools": [{"type": "function"}], "temperature": 0, "made_up": {"a": [1]}}
    request = WIRE.chat("m", HI, body=body, stream=False)
    assert request == Request("/v1/chat/completions", {"model": "m", "messages": HI, **body})


def test_a_stream_asks_for_usage_and_keeps_the_callers_stream_options() -> None:
    options = {"continuous_usage_stats": True, "include_usage": False}
    body = {"stream_options": options}
    request = WIRE.chat("m", HI, body=body, stream=True)
    assert request.body is not None
    assert request.body["stream"] is True
    assert request.body["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert body == {"stream_options": {"continuous_usage_stats": True, "include_usage": False}}


@pytest.mark.parametrize("key", ["model", "messages", "stream"])
def test_the_body_must_not_override_what_the_call_itself_gives(key: str) -> None:
    with pytest.raises(UsageError, match=f"must not set '{key}'"):
        WIRE.chat("m", HI, body={key: "other"}, stream=False)


def test_stream_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(UsageError, match="stream_options must be a mapping, got list"):
        WIRE.chat("m", HI, body={"stream_options": [1]}, stream=True)


# --- a whole answer


def test_a_whole_answer_is_read() -> None:
    body = {
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "reasoning": "let me see",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"a": 1}'}}
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 8}},
    }
    answer = WIRE.completion(ok(body))
    assert answer.text == ""
    assert answer.reasoning == "let me see"
    assert answer.tool_calls == (ToolCall("c1", "get_weather", '{"a": 1}'),)
    assert answer.finish_reason == "tool_calls"
    assert answer.usage == Usage(10, 6, 8)
    assert answer.raw == body


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "a"}, "a"),
        ({"content": None}, ""),
        ({}, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, 7]}, "ab"),
    ],
)
def test_content_comes_as_a_string_as_null_or_in_parts(message: dict[str, Any], text: str) -> None:
    assert WIRE.completion(ok({"choices": [{"message": message}]})).text == text


@pytest.mark.parametrize("usage", [None, [], "many", {"prompt_tokens": "7"}, {"prompt_tokens": True}])
def test_usage_that_is_none_is_unknown_not_zero(usage: Any) -> None:
    assert WIRE.completion(ok({"choices": [{"message": {}}], "usage": usage})).usage == Usage()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<!doctype html><title>Welcome</title>", "answered HTML, not JSON; is this the server's base URL?"),
        ("", "answered nothing, not JSON"),
        ("hello", "answered something else, not JSON"),
        ("[1]", "JSON that is not an object"),
        ("{}", "without a choice"),
        ('{"choices": []}', "without a choice"),
        ('{"choices": [{"message": 1}]}', "without a choice"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_200_that_is_not_this_wire_is_unavailable(body: str, words: str) -> None:
    with pytest.raises(BackendError, match=words.replace("?", r"\?")) as caught:
        WIRE.completion(ok(body))
    assert caught.value.kind is FailureKind.UNAVAILABLE


def test_a_200_that_holds_an_error_is_that_error() -> None:
    with pytest.raises(BackendError, match="queue is full") as caught:
        WIRE.completion(ok({"error": {"message": "queue is full", "code": 503}}))
    assert caught.value.kind is FailureKind.OVERLOADED


# --- a stream

DELTA = '{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}'


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (DELTA % ('{"role":"assistant","content":""}', "null"), []),
        (DELTA % ('{"role":"assistant","content":null}', "null"), []),
        (DELTA % ('{"content":" hi"}', "null"), [TextDelta(" hi")]),
        (DELTA % ('{"reasoning_content":"hm"}', "null"), [ReasoningDelta("hm")]),
        (DELTA % ('{"reasoning":"hm","content":"a"}', "null"), [ReasoningDelta("hm"), TextDelta("a")]),
        (
            DELTA
            % (
                '{"tool_calls":[{"id":"c1","type":"function","index":0,"function":{"name":"get_weather"}}]}',
                "null",
            ),
            [ToolCallDelta(0, "c1", "get_weather", "")],
        ),
        (
            DELTA % ('{"content":null,"tool_calls":[{"index":1,"function":{"arguments":"{\\""}}]}', "null"),
            [ToolCallDelta(1, None, None, '{"')],
        ),
        (DELTA % ("{}", '"length"'), [Finished("length")]),
        ('{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":6}}', [Usage(10, 6, None)]),
        (
            '{"choices":[{"delta":{"content":"z"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}',
            [TextDelta("z"), Finished("stop"), Usage(None, 2, None)],
        ),
        ('{"choices":[],"usage":null,"error":null}', []),
        ('{"choices":null}', []),
        ("{}", []),
    ],
)
def test_one_piece_of_a_stream_holds_these_events(data: str, events: list[Event]) -> None:
    assert list(WIRE.events(data)) == events


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (
            '{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}',
            FailureKind.CONTEXT_OVERFLOW,
            "Context size has been exceeded.",
        ),
        (
            '{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later '
            'or on a different instance.","type":"Service Unavailable","param":null,"code":503}}',
            FailureKind.OVERLOADED,
            "currently busy",
        ),
        (
            '{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.",'
            '"type":"InternalServerError","param":null,"code":500}}',
            FailureKind.ENGINE_DEAD,
            "EngineCore",
        ),
        (
            '{"error":{"message":"Internal server error","type":"internal_server_error","code":500}}',
            FailureKind.UNAVAILABLE,
            "Internal server error",
        ),
        (
            '{"message":"Service temporarily overloaded","type":"Overloaded","code":529}',
            FailureKind.OVERLOADED,
            "temporarily overloaded",
        ),
        ('{"detail":"Not Found"}', FailureKind.UNAVAILABLE, "Not Found"),
        ('{"error":"CB worker died during request 1"}', FailureKind.ENGINE_DEAD, "CB worker died"),
        ('{"error":{"message":"no","type":"invalid_request_error"}}', FailureKind.BAD_REQUEST, "no"),
        ('{"error":{"message":"no","type":"authentication_error"}}', FailureKind.AUTH, "no"),
        ('{"error":{"message":"no","code":"rate_limit_exceeded"}}', FailureKind.OVERLOADED, "no"),
        ('{"error":{"message":"no","code":"429"}}', FailureKind.OVERLOADED, "no"),
        ('{"error":{}}', FailureKind.UNAVAILABLE, "{}"),
        ('{"error":""}', FailureKind.UNAVAILABLE, "an error without words"),
        ('{"choices":[{"del', FailureKind.INTERRUPTED, "not JSON"),
        ("7", FailureKind.INTERRUPTED, "not JSON"),
    ],
)
def test_an_error_inside_a_stream_is_an_error_and_classified(data: str, kind: FailureKind, words: str) -> None:
    with pytest.raises(BackendError) as caught:
        WIRE.events(data)
    assert caught.value.kind is kind
    assert words in caught.value.detail


WORDS = ["error", "message", "detail", "code", "type", "choices", "delta", "content", "tool_calls", "function", "usage"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
)


@given(ANYTHING, st.integers(200, 599))
def test_no_json_whatever_breaks_the_reading(value: Any, status: int) -> None:
    data = json.dumps(value)
    for read in (
        WIRE.events,
        lambda text: WIRE.completion(ok(text)),
        lambda text: talk(WIRE.discover(), {"/v1/models": ok(text)}),
    ):
        try:
            read(data)
        except BackendError as error:
            assert error.detail
    assert len(WIRE.classify(Answer(status, {}, data.encode())).detail) <= 300


# --- an error status


@pytest.mark.parametrize(
    ("status", "body", "kind", "detail"),
    [
        (401, '{"error":"Unauthorized"}', FailureKind.AUTH, "Unauthorized"),
        (403, "", FailureKind.AUTH, "the body is empty"),
        (
            404,
            '{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}',
            FailureKind.NOT_FOUND,
            "The model `x` does not exist.",
        ),
        (404, '{"detail":"Not Found"}', FailureKind.NOT_FOUND, "Not Found"),
        (408, "", FailureKind.OVERLOADED, "the body is empty"),
        (408, '{"detail":"too slow"}', FailureKind.TIMEOUT, "too slow"),
        (413, "", FailureKind.CONTEXT_OVERFLOW, "the body is empty"),
        (429, '{"error":{"message":"slow down"}}', FailureKind.OVERLOADED, "slow down"),
        (
            529,
            '{"message":"Service temporarily overloaded","type":"Overloaded","code":529}',
            FailureKind.OVERLOADED,
            "Service temporarily overloaded",
        ),
        (
            503,
            '{"error":{"message":"The engine is currently busy and cannot accept new requests.","code":503}}',
            FailureKind.OVERLOADED,
            "The engine is currently busy and cannot accept new requests.",
        ),
        (
            503,
            '{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}',
            FailureKind.UNAVAILABLE,
            "Loading model",
        ),
        (
            503,
            '{"error":{"type":"Service Unavailable","code":"no_available_workers","message":"No available workers"}}',
            FailureKind.UNAVAILABLE,
            "No available workers",
        ),
        (
            503,
            '{"error":"CB worker is dead and cannot accept request 1: No requests can be scheduled"}',
            FailureKind.ENGINE_DEAD,
            "CB worker is dead and cannot accept request 1: No requests can be scheduled",
        ),
        (503, "", FailureKind.UNAVAILABLE, "the body is empty"),
        (
            400,
            '{"error":{"message":"This model\'s maximum context length is 1024 tokens.","type":"BadRequestError"}}',
            FailureKind.CONTEXT_OVERFLOW,
            "This model's maximum context length is 1024 tokens.",
        ),
        (
            400,
            '{"error":{"message":"max_tokens=1000000 cannot be greater than max_model_len=1024.","code":400}}',
            FailureKind.CONTEXT_OVERFLOW,
            "max_tokens=1000000 cannot be greater than max_model_len=1024.",
        ),
        (
            400,
            '{"error":{"message":"too long","code":"context_length_exceeded"}}',
            FailureKind.CONTEXT_OVERFLOW,
            "too long",
        ),
        (
            400,
            '{"error":{"message":"temperature must be non-negative","type":"BadRequestError","code":400}}',
            FailureKind.BAD_REQUEST,
            "temperature must be non-negative",
        ),
        (
            422,
            '{"detail":"Unexpected fields in the request: {\'no_such_field\'}"}',
            FailureKind.BAD_REQUEST,
            "Unexpected fields in the request: {'no_such_field'}",
        ),
        (
            422,
            '{"detail":[{"loc":["body","messages"],"msg":"Field required","type":"missing"}]}',
            FailureKind.BAD_REQUEST,
            "body.messages: Field required",
        ),
        (500, "Internal Server Error", FailureKind.UNAVAILABLE, "Internal Server Error"),
        (
            500,
            '{"error":{"message":"EngineDeadError: see the log","code":500}}',
            FailureKind.ENGINE_DEAD,
            "EngineDeadError: see the log",
        ),
        (
            500,
            '{"error":{"code":500,"message":"image input is not supported - hint: provide the mmproj"}}',
            FailureKind.BAD_REQUEST,
            "image input is not supported - hint: provide the mmproj",
        ),
        (
            500,
            '{"error":{"code":500,"message":"Failed to parse messages: Missing tool call type: 5"}}',
            FailureKind.BAD_REQUEST,
            "Failed to parse messages: Missing tool call type: 5",
        ),
        (
            500,
            '{"error":{"code":500,"message":"Failed to parse tools: Missing tool type: {}; tools = [\\n  {}\\n]"}}',
            FailureKind.BAD_REQUEST,
            "Failed to parse tools: Missing tool type: {}; tools = [ {} ]",
        ),
        (
            500,
            '{"error":{"code":500,"message":"Unknown reasoning format: x","type":"server_error"}}',
            FailureKind.BAD_REQUEST,
            "Unknown reasoning format: x",
        ),
        (
            502,
            "<html><head><title>502 Bad\n Gateway</title>",
            FailureKind.UNAVAILABLE,
            "answered HTML: 502 Bad Gateway",
        ),
        (502, "<html>", FailureKind.UNAVAILABLE, "answered HTML"),
        (504, "<html>", FailureKind.TIMEOUT, "answered HTML"),
    ],
)
def test_a_status_and_its_words_mean_this(status: int, body: str, kind: FailureKind, detail: str) -> None:
    error = WIRE.classify(Answer(status, {}, body.encode()))
    assert (error.kind, error.detail, error.status) == (kind, detail, status)


def test_a_redirect_says_what_to_do() -> None:
    error = WIRE.classify(Answer(307, {"location": "http://elsewhere/?key=secret"}, b""))
    assert error.kind is FailureKind.UNAVAILABLE
    assert "base URL" in error.detail
    assert "secret" not in error.detail


def test_a_servers_words_stay_short_and_on_one_line() -> None:
    error = WIRE.classify(Answer(500, {}, json.dumps({"error": {"message": "a\r\n\x1b[31mb\t" * 1_000}}).encode()))
    assert len(error.detail) == 300
    assert error.detail.isprintable()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sun, 29 Nov 2026 14:00:30 GMT", "date": "Sun, 29 Nov 2026 14:00:00 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 14:00:00 GMT", "date": "Sun, 29 Nov 2026 14:00:30 GMT"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_servers_own_clock(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert WIRE.classify(Answer(429, headers, b"")).retry_after_s == seconds


# --- what it is


@pytest.mark.parametrize(
    ("entry", "engine", "window"),
    [
        ({"id": "tiny", "owned_by": "vllm", "max_model_len": 1024}, "vllm", 1024),
        ({"id": "tiny", "owned_by": "sglang", "max_model_len": 4096}, "sglang", 4096),
        ({"id": "tiny", "owned_by": "nvidia", "context_window": 1024}, "dynamo", 1024),
        ({"id": "tiny", "owned_by": "tensorrt_llm"}, "trtllm", None),
        ({"id": "tiny", "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_ctx_train": 8192}}, "llamacpp", 2048),
        ({"id": "tiny"}, "other", None),
        ({"id": "tiny", "owned_by": None, "max_model_len": "1024", "meta": 7}, "other", None),
    ],
)
def test_the_list_of_models_tells_engine_and_window(entry: dict[str, Any], engine: str, window: int | None) -> None:
    listed = {"object": "list", "data": [entry, {"id": "second"}, {"no": "id"}, 7]}
    found = talk(WIRE.discover(), {"/v1/models": ok(listed)})
    assert found.models == ("tiny", "second")
    assert (found.engine, found.max_model_len, found.kv_pool) == (engine, window, None)
    assert "KV pool is unknown" in found.notes[0]


def test_a_server_that_lists_no_models_is_found_without_any() -> None:
    assert talk(WIRE.discover(), {"/v1/models": ok({"data": []})}).models == ()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (ok("<html>"), FailureKind.UNAVAILABLE),
        (ok({"hello": "world"}), FailureKind.UNAVAILABLE),
        (Answer(401, {}, b'{"error":"Unauthorized"}'), FailureKind.AUTH),
        (Answer(404, {}, b"<html>"), FailureKind.NOT_FOUND),
    ],
)
def test_a_server_that_is_no_such_server_is_an_error(answer: Answer, kind: FailureKind) -> None:
    with pytest.raises(BackendError) as caught:
        talk(WIRE.discover(), {"/v1/models": answer})
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("listed", "names", "parents", "root"),
    [
        ([{"id": "base", "root": "org/base-7b", "parent": None}], ("base",), {}, "org/base-7b"),
        ([{"id": "base", "root": "base"}], ("base",), {}, None),
        (
            [{"id": "sql", "root": "/loras/sql", "parent": "base"}, {"id": "base", "root": "org/base-7b"}],
            ("base", "sql"),
            {"sql": "base"},
            "org/base-7b",
        ),
        ([{"id": "a", "root": "org/a"}, {"id": "other-name", "root": "org/a"}], ("a", "other-name"), {}, "org/a"),
        ([{"id": "a", "aliases": ["a", "b", "", 7]}], ("a", "b"), {}, None),
        ([{"id": "a", "parent": "gone", "root": 7, "aliases": "b"}], ("a",), {}, None),
    ],
)
def test_aliases_and_the_bases_of_adapters_are_told(
    listed: list[Any], names: tuple[str, ...], parents: dict[str, str], root: str | None
) -> None:
    found = talk(WIRE.discover(), {"/v1/models": ok({"data": listed})})
    assert (found.models, found.parents, found.root) == (names, parents, root)


def test_text_generation_inference_tells_window_slots_and_version() -> None:
    info = {"model_id": "m", "max_total_tokens": 4096, "max_concurrent_requests": 128, "version": "3.3.6"}
    found = talk(WIRE.discover(), {"/v1/models": ok({"data": [{"id": "m", "owned_by": "m"}]}), "/info": ok(info)})
    assert (found.max_model_len, found.max_num_seqs, found.engine_version) == (4096, 128, "3.3.6")


def test_ollama_tells_its_version() -> None:
    listed = ok({"data": [{"id": "llama3:8b", "owned_by": "library"}]})
    found = talk(WIRE.discover(), {"/v1/models": listed, "/api/version": ok({"version": "0.12.6"})})
    assert (found.engine, found.engine_version, found.wire) == ("other", "0.12.6", "openai")


# --- what it does


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("tgi_batch_current_size 3\ntgi_queue_size 2\n", Load(3, 2)),
        ('vllm:num_requests_running{engine="0"} 3\n', Load(3, process="0")),
        ("sglang_num_running_reqs 3\nsglang_token_usage 0.5\n", Load(3, kv_used=0.5)),
        ("http_requests_total 7\n", Load()),
        ("", Load()),
    ],
)
def test_metrics_of_any_known_server_tell_the_load(text: str, load: Load) -> None:
    assert talk(WIRE.load(), {"/metrics": ok(text)}) == load


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "/metrics asks for a key"),
        (403, "/metrics is forbidden"),
        (404, "/metrics is not there"),
        (501, "/metrics is switched off"),
    ],
)
def test_a_server_that_shows_no_metrics_has_no_known_load_and_says_why(status: int, said: str) -> None:
    assert talk(WIRE.load(), {"/metrics": Answer(status, {}, b"no")}) == Load(hidden=True, said=said)


def test_metrics_that_fail_are_an_error() -> None:
    with pytest.raises(BackendError):
        talk(WIRE.load(), {"/metrics": Answer(500, {}, b"")})
