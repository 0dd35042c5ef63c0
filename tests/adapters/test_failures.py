"""What an error means beyond what was captured: headers, words of servers that need a GPU, errors inside streams."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.adapters.failures import complaint, failure, retry_after, stream_failure
from agentroute.adapters.openai import OpenAIAdapter
from agentroute.errors import BackendError, FailureKind
from agentroute.wire import Answer

K = FailureKind
NOW = datetime(2026, 11, 29, 14, 0, 0, tzinfo=UTC)
WIRE = OpenAIAdapter()


def kind_of(status: int, body: Any) -> FailureKind:
    return failure(Answer(status, {}, (body if isinstance(body, str) else json.dumps(body)).encode())).kind


# --- by status alone


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, K.BAD_REQUEST),
        (401, K.AUTH),
        (402, K.AUTH),
        (403, K.AUTH),
        (404, K.NOT_FOUND),
        (405, K.NOT_FOUND),
        (407, K.AUTH),
        (409, K.BAD_REQUEST),
        (410, K.NOT_FOUND),
        (413, K.CONTEXT_OVERFLOW),
        (422, K.BAD_REQUEST),
        (429, K.OVERLOADED),
        (499, K.CANCELLED),
        (500, K.UNAVAILABLE),
        (501, K.NOT_FOUND),
        (502, K.UNAVAILABLE),
        (503, K.UNAVAILABLE),
        (504, K.TIMEOUT),
        (520, K.UNAVAILABLE),
        (522, K.TIMEOUT),
        (524, K.TIMEOUT),
        (529, K.OVERLOADED),
    ],
)
def test_a_status_speaks_where_the_body_does_not(status: int, kind: FailureKind) -> None:
    for body in ("", "no JSON", "<html><title>a proxy's page</title></html>", {"hello": 1}, [1]):
        assert kind_of(status, body) is kind


# --- by the words of servers that were read or recalled, not captured


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        # SGLang 0.5.23: flat, with object = error
        (503, {"object": "error", "message": "The request queue is full.", "code": 503}, K.OVERLOADED),
        (503, {"object": "error", "message": "Request waiting timeout reached.", "code": 503}, K.OVERLOADED),
        (503, {"object": "error", "message": "Request running timeout reached.", "code": 503}, K.TIMEOUT),
        (503, {"message": "The request is aborted by a higher priority request."}, K.OVERLOADED),
        (503, {"message": "Using priority is disabled for this server. Please send"}, K.NOT_FOUND),
        (
            400,
            {"message": "The input (9000 tokens) is longer than the model's context length (8192 tokens)."},
            K.CONTEXT_OVERFLOW,
        ),
        (
            400,
            {"message": "Requested token count exceeds the model's maximum context length of 8192 tokens. You"},
            K.CONTEXT_OVERFLOW,
        ),
        (
            400,
            {"message": "Input length (9000 tokens) exceeds the maximum allowed length (8186 tokens). Use a shorter"},
            K.CONTEXT_OVERFLOW,
        ),
        (
            500,
            {
                "error": {
                    "message": "input (601 tokens) is too large to process. increase the physical batch size "
                    "(current batch size: 512)",
                    "type": "server_error",
                }
            },
            K.CONTEXT_OVERFLOW,
        ),
        (400, {"message": "The model does not support Embeddings API", "type": "BadRequestError"}, K.NOT_FOUND),
        (400, {"message": "This model does not appear to be an embedding model by default."}, K.NOT_FOUND),
        (400, {"message": "Multimodal prompt is too long after expanding multimodal tokens."}, K.CONTEXT_OVERFLOW),
        # vLLM 0.32
        (
            400,
            {"error": {"message": "Input length (9) exceeds model's maximum context length (8)."}},
            K.CONTEXT_OVERFLOW,
        ),
        (503, {"error": {"message": "Request failed; please retry", "code": 503}}, K.UNAVAILABLE),
        # TensorRT-LLM, recalled
        (
            400,
            {"message": "The sum of prompt length (9) and query length (0) should not exceed max_seq_len (8)"},
            K.CONTEXT_OVERFLOW,
        ),
        (400, {"message": "`default_max_tokens` (-1) must be greater than 0"}, K.CONTEXT_OVERFLOW),
        # TGI, recalled
        (
            422,
            {
                "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
                "error_type": "validation",
            },
            K.CONTEXT_OVERFLOW,
        ),
        (
            422,
            {"error": "Input validation error: `temperature` must be positive", "error_type": "validation"},
            K.BAD_REQUEST,
        ),
        (429, {"error": "Model is overloaded", "error_type": "overloaded"}, K.OVERLOADED),
        # Ollama, recalled
        (404, {"error": {"message": "model 'x' not found", "type": "api_error"}}, K.NOT_FOUND),
        (503, {"error": "server busy, please try again.  maximum pending requests exceeded"}, K.OVERLOADED),
        # OpenAI's own
        (400, {"error": {"message": "The model `x` does not exist", "code": "model_not_found"}}, K.NOT_FOUND),
        (422, {"detail": "model `x` was not found"}, K.NOT_FOUND),
        # a file that is missing is no model that is missing
        (400, {"error": {"message": "the image for the model at http://x/y.png was not found"}}, K.BAD_REQUEST),
    ],
)
def test_these_words_mean_this(status: int, body: Any, kind: FailureKind) -> None:
    assert kind_of(status, body) is kind


@pytest.mark.parametrize("key", ["code", "status_code", "http_status_code"])
def test_the_code_of_an_error_stands_under_several_names(key: str) -> None:
    assert (said := complaint({"error": {"message": "no", key: 503}})) is not None
    assert said.code == "503"
    assert (said := complaint({"error": "no", key: 503, "error_type": "busy"})) is not None
    assert (said.code, said.type) == ("503", "busy")


# --- inside a stream


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, K.OVERLOADED),
        ({"type": "error", "code": "server_error", "message": "boom"}, K.UNAVAILABLE),
        ({"error": {"object": "error", "message": "The request queue is full.", "code": 503}}, K.OVERLOADED),
        ({"object": "error", "message": "boom", "code": 500}, K.UNAVAILABLE),
        ({"error": {"message": "boom", "code": 500}, "choices": []}, K.UNAVAILABLE),
        ({"message": "boom"}, K.UNAVAILABLE),
        ({"error": "Input validation error: no", "error_type": "validation"}, K.BAD_REQUEST),
    ],
)
def test_an_error_without_choices_is_an_error(value: Any, kind: FailureKind) -> None:
    assert (error := stream_failure(value)) is not None
    assert error.kind is kind


@pytest.mark.parametrize(
    "value",
    [
        {"choices": [{"delta": {"content": "hi"}}]},
        {"choices": [], "usage": {"prompt_tokens": 1}, "error": None},
        {"choices": [], "message": "x", "type": "y"},
        {"status": "live", "message": "Service is live"},  # Dynamo's /live
        {"type": "response.created", "response": {"error": None}},
        {"object": "response", "error": None, "output": []},
        {},
        7,
        None,
    ],
)
def test_what_is_no_error_is_none(value: Any) -> None:
    assert stream_failure(value) is None


@pytest.mark.parametrize("data", ['{"error":"no"}', '{"choices":[],"message":"no"}', '"no"', '{"why":"no"}'])
def test_what_comes_under_the_name_error_is_an_error_in_any_shape(data: str) -> None:
    with pytest.raises(BackendError) as caught:
        WIRE.events(data, event="error")
    assert "no" in caught.value.detail


@pytest.mark.parametrize("reason", ["abort", "error", "cancelled"])
def test_an_answer_that_the_server_gave_up_is_interrupted(reason: str) -> None:
    whole = {"choices": [{"message": {"content": "Once upon"}, "finish_reason": reason}]}
    piece = {"choices": [{"delta": {}, "finish_reason": reason}]}
    for read in (
        lambda: WIRE.completion(Answer(200, {}, json.dumps(whole).encode())),
        lambda: WIRE.events(json.dumps(piece)),
    ):
        with pytest.raises(BackendError, match=reason) as caught:
            read()
        assert caught.value.kind is K.INTERRUPTED


# --- how long to wait


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Sun, 29 Nov 2026 14:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 13:00:30 GMT"}, 0.0),
        ({"retry-after": "Sun, 29 Nov 2026 14:00:30 GMT", "date": "Sun, 29 Nov 2026 14:00:10 GMT"}, 20.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "2", "retry-after-ms": "250"}, 2.0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-requests": "120ms"}, 0.12),
        ({"x-ratelimit-reset-tokens": "1h2m3.5s"}, 3_723.5),
        ({"x-ratelimit-reset": "12"}, 12.0),
        ({"x-ratelimit-reset": str(int(NOW.timestamp()) + 9)}, 9.0),
        ({"x-ratelimit-reset": "Sun, 29 Nov 2026 14:00:05 GMT"}, 5.0),
        ({"x-ratelimit-reset-a": "1s", "x-ratelimit-reset-b": "9s", "x-ratelimit-remaining-b": "80"}, 1.0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-remaining-requests": "0"}, 1.0),
        ({"x-ratelimit-reset-requests": ""}, None),
        ({"x-ratelimit-reset-requests": "soon"}, None),
        ({"retry-after": "soon", "x-ratelimit-reset": "3"}, 3.0),
    ],
)
def test_a_server_says_how_long_it_wants_to_be_left_alone(headers: dict[str, str], seconds: float | None) -> None:
    assert WIRE.classify(Answer(429, headers, b""), NOW).retry_after_s == seconds


def test_a_rate_limit_that_did_not_refuse_says_nothing() -> None:
    headers = {"x-ratelimit-reset-requests": "6m0s"}
    assert failure(Answer(400, headers, b""), NOW).retry_after_s is None
    assert failure(Answer(503, headers | {"retry-after": "1"}, b""), NOW).retry_after_s == 1.0


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset", "date"]), st.text()))
def test_no_header_whatever_breaks_the_reading(headers: dict[str, str]) -> None:
    wait = retry_after(headers, NOW, limited=True)
    assert wait is None or wait >= 0.0
