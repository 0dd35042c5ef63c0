"""What an error from a server means: one reading of its status and its words, for every OpenAI-compatible runtime.

Servers write errors in five shapes: ``{"error": {"message", "type", "code"}}`` (vLLM, llama.cpp), the same keys flat
(Dynamo), ``{"detail": ...}`` (FastAPI), ``{"error": "words"}`` (transformers), and no JSON at all (a proxy's HTML).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from agentroute.errors import BackendError, FailureKind
from agentroute.wire import Answer

MAX_DETAIL = 300
"""Characters of a server's words that are passed on."""

_OVERFLOW = re.compile(
    r"exceed_context_size|context_length_exceeded|context size has been exceeded|exceeds the available context size"
    r"|maximum context length|context length of|'s context length|max_model_len|max_(seq|input)_len|max_num_tokens"
)
_DEAD = re.compile(r"engine_?dead|enginecore encountered|engine is dead|engine process|worker (is dead|died)")
_BUSY = re.compile(
    r"overload|too many requests|rate.?limit|currently busy|queue (is )?full|at capacity|try again later"
)
_LOADING = re.compile(r"loading model")
_CALLERS_FAULT = re.compile(r"bad.?request|invalid.?request|validation|input is not supported")
_REFUSED = re.compile(r"authentication|unauthori[sz]ed|invalid.?api.?key|permission")
_MISSING = re.compile(r"not.?found.?error|model_not_found")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Complaint:
    """A server's error in its own words."""

    message: str
    type: str = ""
    code: str = ""


def failure(answer: Answer) -> BackendError:
    """An answer with an error status, or a 200 that holds an error, as one classified error."""
    text = answer.body.decode("utf-8", errors="replace")
    said = complaint(_json(text)) or Complaint(_plain(text))
    kind = kind_of(answer.status, said, empty=not text.strip())
    if 300 <= answer.status < 400:
        said = Complaint("redirects, which is not followed; give the URL that it redirects to as the base URL")
    retry_after_s = _retry_after_s(answer.headers)
    return BackendError(kind, one_line(said.message), status=answer.status, retry_after_s=retry_after_s)


def stream_failure(value: Any) -> BackendError | None:
    """The error in one JSON value of a stream, or ``None`` when it is not one."""
    if not isinstance(value, Mapping) or (value.get("error") is None and "choices" in value):
        return None
    said = complaint(value)
    if said is None:
        return None
    status = int(said.code) if _HTTP_ERROR.fullmatch(said.code) else None
    return BackendError(kind_of(status, said, empty=False), one_line(said.message), status=status)


def kind_of(status: int | None, said: Complaint, *, empty: bool) -> FailureKind:
    """The kind of an error with this status (``None``: it has none), these words, and maybe an empty body."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status == 408:
        return FailureKind.OVERLOADED if empty else FailureKind.TIMEOUT
    words = f"{said.type} {said.code} {said.message}".lower()
    for statuses, pattern, kind in _BY_WORDS:
        if (status is None or status in statuses) and pattern.search(words):
            return kind
    return FailureKind.BAD_REQUEST if status is not None and 400 <= status < 500 else FailureKind.UNAVAILABLE


_HTTP_ERROR = re.compile(r"[45][0-9]{2}")

_BY_STATUS: dict[int | None, FailureKind] = {
    401: FailureKind.AUTH,
    403: FailureKind.AUTH,
    404: FailureKind.NOT_FOUND,
    413: FailureKind.CONTEXT_OVERFLOW,
    429: FailureKind.OVERLOADED,
    504: FailureKind.TIMEOUT,
    529: FailureKind.OVERLOADED,
}
_ANY = range(400, 600)
_BY_WORDS: tuple[tuple[range, re.Pattern[str], FailureKind], ...] = (
    (range(500, 600), _DEAD, FailureKind.ENGINE_DEAD),
    (range(503, 504), _LOADING, FailureKind.UNAVAILABLE),
    (range(503, 504), _BUSY, FailureKind.OVERLOADED),
    (_ANY, _OVERFLOW, FailureKind.CONTEXT_OVERFLOW),
    (range(500, 501), _CALLERS_FAULT, FailureKind.BAD_REQUEST),
    (range(0), _REFUSED, FailureKind.AUTH),
    (range(0), _MISSING, FailureKind.NOT_FOUND),
)
"""The statuses that a word may speak for; an error inside a stream without a status goes by its words alone."""


def complaint(value: Any) -> Complaint | None:
    """The error in a JSON value, in any of the shapes; ``None`` when there is none."""
    if not isinstance(value, Mapping):
        return None
    error = value.get("error", value)
    if isinstance(error, str):
        return Complaint(error)
    if not isinstance(error, Mapping):
        return None
    for key in ("message", "detail", "error"):
        if error.get(key):
            return Complaint(_words(error[key]), _words(error.get("type")), _words(error.get("code")))
    return Complaint(json.dumps(error)) if "error" in value else None


def one_line(text: str) -> str:
    """A server's words on one line of at most ``MAX_DETAIL`` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_DETAIL]).split())
    return line[: MAX_DETAIL - 3] + "..." if len(line) > MAX_DETAIL else line or "an error without words"


def looks_like_html(text: str) -> bool:
    """Whether a body is a web page rather than JSON."""
    return text.lstrip("\ufeff \t\r\n")[:1] == "<"


def _words(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):  # FastAPI: [{"loc": ["body", "messages"], "msg": "Field required"}]
        return "; ".join(_words(item) for item in value)
    if isinstance(value, Mapping):
        where = value.get("loc")
        place = ".".join(str(part) for part in where) + ": " if isinstance(where, list) else ""
        said = value.get("msg") or value.get("message")
        return place + str(said) if said else json.dumps(value)
    return str(value)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _plain(text: str) -> str:
    if looks_like_html(text):
        title = _TITLE.search(text)
        return f"answered HTML: {html.unescape(title[1])}" if title and title[1].strip() else "answered HTML"
    return text.strip() or "the body is empty"


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from either form of ``Retry-After``; a date counts from the server's own clock, if known."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
        return float(value)
    until, now = _date(value), _date(headers.get("date", ""))
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds()) if until else None


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (TypeError, ValueError, IndexError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
