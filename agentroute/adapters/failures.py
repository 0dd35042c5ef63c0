"""What an error from a server means: one reading of its status and its words, for every OpenAI-compatible runtime.

Servers write errors in five shapes: ``{"error": {"message", "type", "code"}}`` (vLLM, llama.cpp), the same keys flat
(Dynamo, SGLang, TensorRT-LLM), ``{"detail": ...}`` (FastAPI), ``{"error": "words"}`` (transformers, TGI, Ollama), and
no JSON at all (a proxy's HTML). Streams hold them, too, behind a status of 200.

Words were seen in answers of vLLM 0.32, llama.cpp (xllamacpp 2026.10), Dynamo 1.6, sglang-router 0.3 and transformers
5.19, and read in SGLang 0.5.23 (``managers/scheduler.py``, ``managers/tokenizer_manager.py``). Those of TensorRT-LLM,
TGI and Ollama are recalled.
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
    r"|exceeds the (maximum allowed|context) length|context window|prompt is too long|default_max_tokens"
    r"|too large to process. increase the physical batch size|inputs` (tokens \+|must have less than)"
)
_DEAD = re.compile(r"engine_?dead|enginecore encountered|engine is dead|engine process|worker[ _](is[ _])?(dead|died)")
_BUSY = re.compile(
    r"overload|too many requests|rate.?limit|(currently|server) busy|queue (is )?full|at capacity|try again later"
    r"|waiting timeout|higher priority request"
)
_SLOW = re.compile(r"running timeout")
_LOADING = re.compile(r"loading model")
_CALLERS_FAULT = re.compile(
    r"bad.?request|invalid.?request|validation|input is not supported"
    r"|failed to parse (messages|tools): |unknown reasoning format: "  # llama.cpp, of what the caller wrote
)
_REFUSED = re.compile(r"authentication|unauthori[sz]ed|invalid.?api.?key|permission")
_MISSING = re.compile(r"not.?found.?error|model_not_found")
_ANOTHER_MODEL = re.compile(
    r"model_not_found|\bmodel\W{1,3}\S{1,120} (does not exist|(is |was )?not found)|is pinned to"
)
_NOT_HERE = re.compile(r"priority is disabled")
_NO_ROUTE = re.compile(r"(file |404 page )?not found\.?|the body is empty", re.IGNORECASE)
_NO_SUCH_CALL = re.compile(r"does not support \w+ api|does not appear to be an embedding model")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Complaint:
    """A server's error in its own words."""

    message: str
    type: str = ""
    code: str = ""


def failure(answer: Answer, now: datetime | None = None) -> BackendError:
    """An answer with an error status, or a 200 that holds an error, as one classified error.

    ``now`` is what a date in ``Retry-After`` counts from where the server's own ``Date`` is missing.
    """
    text = answer.body.decode("utf-8", errors="replace")
    said = complaint(_json(text)) or Complaint(_plain(text))
    kind = kind_of(answer.status, said, empty=not text.strip())
    if 300 <= answer.status < 400:
        said = Complaint("redirects, which is not followed; give the URL that it redirects to as the base URL")
    retry_after_s = retry_after(answer.headers, now, limited=kind is FailureKind.OVERLOADED)
    return BackendError(kind, one_line(said.message), status=answer.status, retry_after_s=retry_after_s)


def lacks_route(error: BackendError) -> bool:
    """Whether a server says that it has no such route, or its model no such use, rather than no such model.

    A 404 in the words of FastAPI (vLLM, SGLang), llama.cpp, Go's net/http (Ollama), or without any (Dynamo, Text
    Generation Inference: recalled); 405 and 501; vLLM's and SGLang's refusal of embeddings by a model that generates.
    """
    if error.status == 404 and _NO_ROUTE.fullmatch(error.detail):
        return True
    return error.status in (405, 501) or bool(_NO_SUCH_CALL.search(error.detail.lower()))


def stream_failure(value: Any, event: str = "") -> BackendError | None:
    """The error in one JSON value of a stream, or ``None`` when it is not one.

    ``event`` is the event's name where it has one: what comes under the name ``error`` is an error in whatever shape.
    """
    named = bool(event) and event.strip().lower() == "error"
    if not named:
        if not isinstance(value, (dict, Mapping)):
            return None
        if value.get("error") is None and ("choices" in value or not _flat_error(value)):
            return None
    said = complaint(value)
    if said is None:
        if not named:
            return None
        said = Complaint(value if isinstance(value, str) else json.dumps(value))
    status = int(said.code) if _HTTP_ERROR.fullmatch(said.code) else None
    return BackendError(kind_of(status, said, empty=False), one_line(said.message), status=status)


def _flat_error(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object without ``error`` is one: Dynamo's ``{"status": "live", "message": ...}`` is none."""
    marked = any(value.get(key) is not None for key in ("type", "code", "detail")) or value.get("object") == "error"
    return marked or len(value) == 1


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
    402: FailureKind.AUTH,
    404: FailureKind.NOT_FOUND,
    405: FailureKind.NOT_FOUND,
    407: FailureKind.AUTH,
    410: FailureKind.NOT_FOUND,
    413: FailureKind.CONTEXT_OVERFLOW,
    429: FailureKind.OVERLOADED,
    499: FailureKind.CANCELLED,
    501: FailureKind.NOT_FOUND,
    504: FailureKind.TIMEOUT,
    522: FailureKind.TIMEOUT,
    524: FailureKind.TIMEOUT,
    529: FailureKind.OVERLOADED,
}
"""Statuses that need no words. 405 and 501: this path, or what it offers, is not here (llama.cpp without
``--embeddings``); 499: the client left (nginx, Dynamo); 522 and 524: a proxy waited in vain; 529: Dynamo is full."""
_ANY = range(400, 600)
_BY_WORDS: tuple[tuple[range, re.Pattern[str], FailureKind], ...] = (
    (range(500, 600), _DEAD, FailureKind.ENGINE_DEAD),
    (range(503, 504), _LOADING, FailureKind.UNAVAILABLE),
    (range(503, 504), _NOT_HERE, FailureKind.NOT_FOUND),
    (range(503, 504), _SLOW, FailureKind.TIMEOUT),
    (range(503, 504), _BUSY, FailureKind.OVERLOADED),
    (range(400, 500), _ANOTHER_MODEL, FailureKind.NOT_FOUND),
    (range(400, 500), _NO_SUCH_CALL, FailureKind.NOT_FOUND),
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
        return Complaint(error, _words(value.get("error_type")), _code(value))
    if not isinstance(error, Mapping):
        return None
    for key in ("message", "detail", "error"):
        if error.get(key):
            return Complaint(_words(error[key]), _words(error.get("type")), _code(error))
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


def _code(error: Mapping[str, Any]) -> str:
    """The code of an error; a word for it (``rate_limit_exceeded``) stands in the same place as a status."""
    codes = (error.get(key) for key in ("code", "status_code", "http_status_code"))
    return next((_words(code) for code in codes if code is not None), "")


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


_SPAN = re.compile(
    r"(?:(\d{1,4})h)?(?:(\d{1,4})m(?!s))?(?:(\d{1,6}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?", re.ASCII
)
"""``6m0s``, ``120ms``: how long, as Go writes it."""
_EPOCH_S = 1e9
"""A number of seconds above this is a moment (from 2001 on), not how long to wait."""


def retry_after(headers: Mapping[str, str], now: datetime | None = None, *, limited: bool = False) -> float | None:
    """Seconds that a server asks to be left alone for; ``None`` when it does not say.

    ``Retry-After`` in seconds or as a date, ``retry-after-ms``, else, where a limit was what refused (``limited``), the
    longest of the ``x-ratelimit-reset`` headers whose ``x-ratelimit-remaining`` is not known to be above 0. A date
    counts from the server's own clock, if it is known, else from ``now``.
    """
    clock = _date(headers.get("date", "")) or now or datetime.now(UTC)
    asked = headers.get("retry-after", "").strip()
    if (seconds := _number(asked)) is not None:
        return seconds
    if (until := _date(asked)) is not None:
        return max(0.0, (until - clock).total_seconds())
    if (milliseconds := _number(headers.get("retry-after-ms", "").strip())) is not None:
        return milliseconds / 1_000.0
    if not limited:
        return None
    waits = [
        wait
        for name, value in headers.items()
        if name.startswith("x-ratelimit-reset") and not _some_left(headers, name.removeprefix("x-ratelimit-reset"))
        if (wait := _wait_s(value.strip(), clock)) is not None
    ]
    return max(waits, default=None)


def _some_left(headers: Mapping[str, str], which: str) -> bool:
    left = _number(headers.get(f"x-ratelimit-remaining{which}", "").strip())
    return left is not None and left > 0


def _wait_s(value: str, clock: datetime) -> float | None:
    """Seconds, seconds since 1970, ``6m0s``, or a date."""
    if (number := _number(value)) is not None:
        return max(0.0, number - clock.timestamp()) if number > _EPOCH_S else number
    if value and (span := _SPAN.fullmatch(value)):
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in span.groups())
        return hours * 3_600.0 + minutes * 60.0 + seconds + milliseconds / 1_000.0
    until = _date(value)
    return max(0.0, (until - clock).total_seconds()) if until else None


def _number(value: str) -> float | None:
    return float(value) if re.fullmatch(r"\d{1,10}(\.\d{1,9})?", value, re.ASCII) else None


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (TypeError, ValueError, IndexError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
