"""What a failed call, and a decision, look like to a client of the OpenAI API: status, headers and JSON. No I/O.

A client must not send again what was tried everywhere already, so ``x-should-retry`` is always false, which the OpenAI
SDKs obey; others go by the status:

======  ==========================================================================================================
400     the caller's mistake; ``context_length_exceeded`` where only the prompt's length is in the way
404     a route that does not exist
422     nothing in the fleet can take it as it is asked for
429     every server that could take it turned it away
499     the caller went away
500     a file or a setting of agentroute is wrong
502     a server, its key or the way to it is broken
503     there is no room, or everything that could take it is down, at this moment
504     a server was silent for too long, or a deadline passed
======  ==========================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from agentroute.decision import Decision
from agentroute.errors import (
    AgentrouteError,
    BackendError,
    FailureKind,
    FileError,
    NoFeasibleDeployment,
    PoolFull,
    UnknownNameError,
)

MAX_HEADER = 500
"""Characters of a header that is made of words."""

_OF_KIND: dict[FailureKind, tuple[int, str, str]] = {
    FailureKind.CONTEXT_OVERFLOW: (400, "invalid_request_error", "context_length_exceeded"),
    FailureKind.OVERLOADED: (429, "rate_limit_error", "overloaded"),
    FailureKind.UNAVAILABLE: (502, "server_error", "unavailable"),
    FailureKind.ENGINE_DEAD: (502, "server_error", "engine_dead"),
    FailureKind.INTERRUPTED: (502, "server_error", "interrupted"),
    FailureKind.TIMEOUT: (504, "server_error", "timeout"),
    FailureKind.DEADLINE: (504, "server_error", "deadline"),
    FailureKind.BAD_REQUEST: (400, "invalid_request_error", "bad_request"),
    FailureKind.AUTH: (502, "server_error", "backend_auth"),
    FailureKind.NOT_FOUND: (502, "server_error", "backend_not_found"),
    FailureKind.CANCELLED: (499, "server_error", "cancelled"),
}
_TOO_LONG = frozenset({"window", "request_size"})
_FOR_NOW = frozenset({"down", "no_room"})


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An HTTP answer that tells of an error."""

    status: int
    headers: Mapping[str, str]
    error: Mapping[str, Any]
    """``message``, ``type``, ``param`` and ``code``, as in the OpenAI API."""

    @property
    def body(self) -> bytes:
        """The JSON of an answer in one piece."""
        return json.dumps({"error": self.error}, ensure_ascii=False).encode("utf-8", "replace")

    @property
    def event(self) -> bytes:
        """The same as the last event of a stream that had begun."""
        return b"data: " + self.body + b"\n\n"


def of_error(error: AgentrouteError, *, visible: Container[str] | None = None) -> ErrorAnswer:
    """What to answer to a call that failed. The addresses of servers are not told.

    ``visible``: the deployments that the caller may know of; ``None``: all.
    """
    status, kind, code = _told(error)
    headers = {"content-type": "application/json", "x-should-retry": "false"}
    if isinstance(error, BackendError):
        where = f"{error.deployment}: " if error.deployment else ""
        message = f"{where}{error.kind.replace('_', ' ')}: {error.detail}"
        if error.retry_after_s is not None and status == 429:
            headers["retry-after"] = f"{max(0.0, error.retry_after_s):.0f}"
        if error.deployment:
            headers["x-agentroute-deployment"] = header(error.deployment)
    elif isinstance(error, NoFeasibleDeployment) and visible is not None:
        message = error.told(visible)
    else:
        message = str(error)
    return ErrorAnswer(status, headers, {"message": message, "type": kind, "param": None, "code": code})


def refusal(status: int, message: str, *, kind: str = "invalid_request_error", code: str | None = None) -> ErrorAnswer:
    """An answer of one's own: a wrong key, a body that is too large."""
    headers = {"content-type": "application/json", "x-should-retry": "false"}
    return ErrorAnswer(status, headers, {"message": message, "type": kind, "param": None, "code": code})


def decision_headers(decision: Decision) -> dict[str, str]:
    """The headers that tell where a request went, why, and which time to the first token was predicted."""
    headers = {
        "x-agentroute-deployment": header(decision.deployment),
        "x-agentroute-reason": header(decision.reason),
    }
    if (ttft_ms := decision.mean_ttft_ms) is not None:
        headers["x-agentroute-predicted-ttft-ms"] = f"{ttft_ms:.1f}"
    return headers


def header(text: str) -> str:
    """Words as a header may hold them: one line of ASCII."""
    line = " ".join(text.split())
    if not line.isascii() or not line.isprintable():
        line = "".join(c if " " <= c <= "~" else "?" for c in line)
    return line[:MAX_HEADER]


def _told(error: AgentrouteError) -> tuple[int, str, str | None]:
    if isinstance(error, BackendError):
        return _OF_KIND[error.kind]
    if isinstance(error, UnknownNameError):
        return (404, "invalid_request_error", "model_not_found")
    if isinstance(error, FileError):
        return 500, "server_error", "misconfigured"
    if isinstance(error, PoolFull):
        return 503, "server_error", "no_room"
    if isinstance(error, NoFeasibleDeployment):
        kinds = {reason.kind for reason in error.reasons.values()} - {"not_allowed"}
        if not kinds:  # an agent's run is out of time, or its route allows nothing
            return (504, "server_error", "deadline_exceeded") if not error.reasons else _NONE
        if kinds <= _TOO_LONG:
            return 400, "invalid_request_error", "context_length_exceeded"
        return (503, "server_error", "unavailable") if kinds & _FOR_NOW else _NONE
    return 400, "invalid_request_error", None


_NONE = 422, "invalid_request_error", "no_feasible_deployment"
