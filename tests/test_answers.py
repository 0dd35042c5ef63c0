"""What a client of the OpenAI API is told of errors and decisions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentroute.answers import decision_headers, header, of_error, refusal
from agentroute.errors import (
    AgentrouteError,
    BackendError,
    ConfigError,
    FailureKind,
    NoFeasibleDeployment,
    PoolFull,
    TaskError,
    UnknownNameError,
    UsageError,
)
from agentroute.reasons import Kind, Reason
from agentroute.router import Router
from agentroute.task import Task


def nothing(*kinds: Kind) -> NoFeasibleDeployment:
    return NoFeasibleDeployment("nothing", {f"d{i}": Reason(kind, f"it is {kind}") for i, kind in enumerate(kinds)})


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UsageError("wrong"), 400, None),
        (TaskError("wrong"), 400, None),
        (UnknownNameError("route", "fats", ["fast"]), 404, "model_not_found"),
        (ConfigError("wrong", path=Path("agentroute.toml")), 500, "misconfigured"),
        (PoolFull("full", {"d": Reason("no_room", "full")}), 503, "no_room"),
        (nothing("window", "window"), 400, "context_length_exceeded"),
        (nothing("window", "request_size", "not_allowed"), 400, "context_length_exceeded"),
        (nothing("window", "capability"), 422, "no_feasible_deployment"),
        (nothing("slo"), 422, "no_feasible_deployment"),
        (nothing("not_allowed"), 422, "no_feasible_deployment"),
        (nothing("window", "down"), 503, "unavailable"),
        (nothing(), 504, "deadline_exceeded"),
        (BackendError(FailureKind.CONTEXT_OVERFLOW, "long"), 400, "context_length_exceeded"),
        (BackendError(FailureKind.OVERLOADED, "full"), 429, "overloaded"),
        (BackendError(FailureKind.UNAVAILABLE, "down"), 502, "unavailable"),
        (BackendError(FailureKind.ENGINE_DEAD, "dead"), 502, "engine_dead"),
        (BackendError(FailureKind.INTERRUPTED, "broke"), 502, "interrupted"),
        (BackendError(FailureKind.TIMEOUT, "silent"), 504, "timeout"),
        (BackendError(FailureKind.DEADLINE, "late"), 504, "deadline"),
        (BackendError(FailureKind.BAD_REQUEST, "no"), 400, "bad_request"),
        (BackendError(FailureKind.AUTH, "key", status=401), 502, "backend_auth"),
        (BackendError(FailureKind.NOT_FOUND, "model", status=404), 502, "backend_not_found"),
        (BackendError(FailureKind.CANCELLED, "gone"), 499, "cancelled"),
    ],
)
def test_an_error_has_a_status_and_a_code(error: AgentrouteError, status: int, code: str | None) -> None:
    answer = of_error(error)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == "false"
    told = json.loads(answer.body)["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert told["message"]
    assert told["type"] == ("invalid_request_error" if status < 429 else told["type"])
    assert answer.event == b"data: " + answer.body + b"\n\n"


def test_a_caller_of_the_api_is_not_told_addresses_but_who_and_when() -> None:
    error = BackendError(
        FailureKind.OVERLOADED, "busy", deployment="long", url="http://10.0.0.1:8000", status=429, retry_after_s=7.2
    )
    answer = of_error(error)
    assert b"10.0.0.1" not in answer.body
    assert answer.error["message"] == "long: overloaded: busy"
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["x-agentroute-deployment"] == "long"


def test_every_reason_of_a_refusal_is_told() -> None:
    assert of_error(nothing("window", "slo")).error["message"] == "nothing\n  d0: it is window\n  d1: it is slo"


def test_half_a_character_in_a_servers_words_is_no_trouble() -> None:
    assert json.loads(of_error(BackendError(FailureKind.BAD_REQUEST, "a\ud83d")).body)["error"]["message"].endswith(
        "a?"
    )


def test_a_refusal_of_ones_own() -> None:
    answer = refusal(413, "the body is larger than 1 MiB", code="too_large")
    assert (answer.status, answer.error["code"], answer.headers["x-should-retry"]) == (413, "too_large", "false")


def test_a_decision_is_told_in_headers() -> None:
    decision = Router.shipped().decide(Task(context_tokens=8_000, max_output_tokens=500))
    told = decision_headers(decision)
    assert told["x-agentroute-deployment"] == decision.deployment
    assert told["x-agentroute-reason"] == header(decision.reason) == header(decision.candidates[0].standing)
    assert decision.ttft_ms is not None
    assert float(told["x-agentroute-predicted-ttft-ms"]) == pytest.approx(decision.ttft_ms.mean, abs=0.05)


@pytest.mark.parametrize(
    ("text", "line"),
    [("a\r\nb: c", "a b: c"), ("größer ≥ 5", "gr??er ? 5"), ("x" * 999, "x" * 500), ("tab\there\x00", "tab here?")],
)
def test_words_in_a_header_are_one_line_of_ascii(text: str, line: str) -> None:
    assert header(text) == line
