"""What a caller may say of a request beyond its body: in headers, around the call, in the body's metadata. No I/O.

Hints name no server and lift no limit: where a route has an SLO, the stricter one of both counts, and of two
priorities the lower. Their SLOs are soft
means, for whoever sends a header rather waits than be refused; ``Task`` takes hard ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any

from agentroute.counting import Counting
from agentroute.errors import UsageError, shown, suggest
from agentroute.needs import needs_of
from agentroute.payload import EndpointName, count, endpoint_of, limit_of, whole
from agentroute.route import Route, soft
from agentroute.shape.model import Capability
from agentroute.task import CAPABILITIES, MAX_CONCURRENCY, MAX_TOKENS, PRIORITIES, Priority, Slo, Task
from agentroute.tokens import GENERIC

MAX_NAME = 256
"""Characters of a session's name, or a route's."""

CLASSES: dict[str, Priority] = {
    "system": "interactive",
    "interactive": "interactive",
    "default": "agent",
    "bulk": "batch",
}
"""The classes of SGLang's model gateway."""

HEADERS: dict[str, tuple[str, ...]] = {
    "route": ("x-agentroute-route",),
    "concurrency": ("x-agentroute-concurrency",),
    "deadline_s": ("x-agentroute-deadline-s",),
    "ttft_ms": ("x-agentroute-ttft-ms", "x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"),
    "tpot_ms": ("x-agentroute-tpot-ms", "x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"),
    "priority": ("x-agentroute-priority", "x-smg-priority"),
    "session_id": (
        "x-agentroute-session-id",
        "x-dynamo-session-id",
        "x-session-id",
        "x-claude-code-session-id",
        "x-session-affinity",
        "session-id",
        "x-litellm-session-id",
    ),
    "parent_session_id": ("x-agentroute-parent-session-id", "x-dynamo-parent-session-id"),
    "step": ("x-agentroute-step",),
    "expected_output_tokens": ("x-agentroute-expected-output-tokens",),
    "shared_prefix_tokens": ("x-agentroute-shared-prefix-tokens",),
    "needs": ("x-agentroute-needs",),
    "max_cost_usd": ("x-agentroute-max-cost-usd",),
    "retried": ("x-stainless-retry-count",),
}
"""By hint the headers that give it, those that come first before those behind them: our own, llm-d's (and their old
names), SGLang's model gateway's, Dynamo's; the sessions of Claude Code, OpenCode (affinity), Codex and LiteLLM; and how
often the OpenAI SDK has sent the request before."""
METADATA = "agentroute_"
"""What a hint's name follows in the ``metadata`` of a request."""
NVEXT = (
    ("agent_hints", "priority", "priority"),
    ("agent_hints", "osl", "expected_output_tokens"),
    ("router", "ttft_target", "ttft_ms"),
    ("router", "itl_target", "tpot_ms"),
)
"""Groups and keys of Dynamo's ``nvext`` in a request's body, and the hint that each is."""

_FIELD_OF = {name: field for field, names in HEADERS.items() for name in names}
_RANK = {name: rank for names in HEADERS.values() for rank, name in enumerate(names)}


MOST = {
    "concurrency": MAX_CONCURRENCY,
    "step": MAX_TOKENS,
    "expected_output_tokens": MAX_TOKENS,
    "shared_prefix_tokens": MAX_TOKENS,
    "retried": MAX_TOKENS,
}
"""By hint the most that it may say."""
UNITS = {"deadline_s": "seconds", "ttft_ms": "milliseconds", "tpot_ms": "milliseconds", "max_cost_usd": "US dollars"}
"""By hint its unit."""


def _check(field: str, value: object, where: str) -> Any:
    """The value of a hint; raises ``UsageError`` that names where it was said."""
    if field == "needs":
        return _capabilities(value, where)
    if field in MOST:
        return _whole(whole(value), MOST[field], where, least=0 if from_zero(field) else 1)
    if field in UNITS:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-9 <= value < 1e12:
            raise UsageError(f"{where} must be a number of {UNITS[field]} above 0, got {shown(value)}")
        return value
    if field == "priority":
        if value not in PRIORITIES:
            raise UsageError(f"{where} must be one of {', '.join(PRIORITIES)}, got {shown(value)}")
        return value
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME or not value.isprintable():
        raise UsageError(f"{where} must be a name of 1 to {MAX_NAME} printable characters, got {shown(value)}")
    return value


def from_zero(field: str) -> bool:
    """Whether a hint that is a whole number may be 0."""
    return field in ("retried", "shared_prefix_tokens")


def _whole(value: object, most: int, where: str, *, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{where} must be a whole number from {least} to {most:,}, got {shown(value)}")
    return value


def _capabilities(value: object, where: str) -> frozenset[Capability]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageError(f"{where} must be a list of capabilities such as tools, got {shown(value)}")
    found: set[Capability] = set()
    for need in value:
        known = next((name for name in CAPABILITIES if name == need), None)
        if known is None:
            raise UsageError(f"{where}: there is no capability {shown(need)}; {suggest(str(need), CAPABILITIES)}")
        found.add(known)
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What a caller says of a request; ``None``: nothing. Raises ``UsageError`` for what makes no sense."""

    route: str | None = None
    """The route that it belongs to."""
    concurrency: int | None = None
    """Siblings in flight at once, this one included."""
    deadline_s: float | None = None
    """Seconds until the whole answer is there."""
    ttft_ms: float | None = None
    """Time to the first token, in milliseconds."""
    tpot_ms: float | None = None
    """Time per output token after the first, in milliseconds."""
    priority: Priority | None = None
    """Who waits for it: interactive (a person), agent (its next step), batch (nobody)."""
    session_id: str | None = None
    """The conversation that it is a step of."""
    parent_session_id: str | None = None
    """The conversation that this one began in."""
    step: int | None = None
    """Which step of the conversation it is, from 1."""
    expected_output_tokens: int | None = None
    """Output tokens expected, reasoning included."""
    shared_prefix_tokens: int | None = None
    """Prompt tokens, from the first one on, that its siblings have in common."""
    needs: frozenset[Capability] = frozenset()
    """What the deployment must be able to do, beyond what the body asks for."""
    max_cost_usd: float | None = None
    """US dollars that it may cost."""
    retried: int = 0
    """How often the caller has sent it before."""

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None:
                _check(name, value, name)

    def over(self, other: Hint) -> Hint:
        """Both: what this one says comes before what ``other`` says; needs are those of both."""
        if self == NOTHING:
            return other
        said = {
            name: value
            for name in _NAMES
            if (value := getattr(self, name)) is not None and not (name == "retried" and value == 0)
        }
        return replace(other, **{**said, "needs": self.needs | other.needs})


_NAMES = tuple(field.name for field in fields(Hint))
NOTHING = Hint()
"""Nothing was said."""
_CURRENT: ContextVar[Hint] = ContextVar("agentroute_hint", default=NOTHING)


@contextmanager
def hint(
    *,
    route: str | None = None,
    concurrency: int | None = None,
    deadline_s: float | None = None,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    priority: Priority | None = None,
    session_id: str | None = None,
    parent_session_id: str | None = None,
    step: int | None = None,
    expected_output_tokens: int | None = None,
    shared_prefix_tokens: int | None = None,
    needs: Iterable[Capability] = (),
    max_cost_usd: float | None = None,
) -> Iterator[Hint]:
    """Say something of every request that is made inside of the block, as the fields of ``Hint``.

    Blocks nest: the inner one comes first. Tasks of asyncio, and what ``asyncio.to_thread`` runs, take it along; a
    thread pool does not (``executor.submit(contextvars.copy_context().run, work)`` does). The time of a deadline begins
    with each request. Raises ``UsageError``.
    """
    said = Hint(
        route=route,
        concurrency=concurrency,
        deadline_s=deadline_s,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        priority=priority,
        session_id=session_id,
        parent_session_id=parent_session_id,
        step=step,
        expected_output_tokens=expected_output_tokens,
        shared_prefix_tokens=shared_prefix_tokens,
        needs=_capabilities(needs, "needs"),
        max_cost_usd=max_cost_usd,
    ).over(_CURRENT.get())
    token = _CURRENT.set(said)
    try:
        yield said
    finally:
        _CURRENT.reset(token)


def current() -> Hint:
    """What is said around this call."""
    return _CURRENT.get()


def from_headers(headers: Iterable[tuple[str, str]] | Mapping[str, str]) -> Hint:
    """The hints among a request's headers (``HEADERS``); all others are left alone.

    Of a header that is sent twice the first counts. Raises ``UsageError`` that names the header.
    """
    said: dict[str, tuple[int, Any]] = {}
    for raw, text in headers.items() if isinstance(headers, Mapping) else headers:
        name = raw.lower()
        field = _FIELD_OF.get(name)
        if field is None or (field in said and said[field][0] <= _RANK[name]):
            continue
        said[field] = _RANK[name], _read(field, text.strip(" \t"), name)
    return Hint(**{field: value for field, (_, value) in said.items()}) if said else NOTHING


def from_metadata(body: Mapping[str, Any]) -> tuple[Hint, Mapping[str, Any] | None]:
    """The hints in a request's body, and its ``metadata`` without them: ``None`` where nothing else is in it.

    They are the keys ``agentroute_*`` of ``metadata``, as text or as what they are, and Dynamo's ``nvext``
    (``agent_hints.priority``, higher is more important; ``agent_hints.osl``; ``router.ttft_target`` and ``.itl_target``
    in ms), which stays in the body. Raises ``UsageError`` that names the key.
    """
    metadata, said = body.get("metadata"), _nvext(body.get("nvext"))
    if not isinstance(metadata, Mapping):
        return said, metadata
    ours = [key for key in metadata if isinstance(key, str) and key.startswith(METADATA)]
    if not ours:
        return said, metadata
    told = {}
    for key in ours:
        field = key.removeprefix(METADATA)
        if field not in _NAMES:
            raise UsageError(f"there is no hint {shown(key)} in metadata; {suggest(field, _NAMES)}")
        told[field] = _read(field, metadata[key], f"metadata.{key}")
    rest = {key: value for key, value in metadata.items() if key not in ours}
    return Hint(**told).over(said), rest or None


def route_of(model: object) -> str | None:
    """The route that a model's name asks for: ``auto`` the default one, ``auto:NAME`` that of the name; ``None``: it is
    the name of a model."""
    if model == "auto":
        return "default"
    if isinstance(model, str) and model.startswith("auto:") and len(model) > len("auto:"):
        return model.removeprefix("auto:")
    return None


def task_of(
    body: Mapping[str, Any],
    hint: Hint,
    *,
    endpoint: EndpointName = "chat",
    counting: Counting | None = None,
    route: Route | None = None,
) -> Task:
    """The task that a request's body and its hints ask for.

    Prompt tokens are counted by the fingerprint of the fleet's model; the most output is the body's, as are needs
    (tools, parallel_tools, json_schema, vision, audio, logprobs), with those of the hint. ``route`` is the one that it
    will be decided by: where that has an SLO, the stricter value counts, as hard as the route says, and of two
    priorities the lower. Raises
    ``UsageError`` for a body that makes no sense.
    """
    kind = endpoint_of(endpoint)
    fingerprint = GENERIC if counting is None else counting.fingerprint()
    found = count(kind, body.get(kind.prompt), body, fingerprint=fingerprint)
    limit = limit_of(kind, body) if kind.limits else 1
    output = hint.expected_output_tokens
    if output is not None and limit is not None:
        output = min(output, limit)
    return Task(
        context_tokens=found.upper,
        expected_context_tokens=found.value,
        context_source=found.source,
        max_output_tokens=limit,
        expected_output_tokens=output,
        concurrency=hint.concurrency or 1,
        ttft_ms=_stricter(hint.ttft_ms, None if route is None else route.ttft_ms),
        tpot_ms=_stricter(hint.tpot_ms, None if route is None else route.tpot_ms),
        deadline_s=_stricter(hint.deadline_s, None if route is None else route.deadline_s),
        max_cost_usd=hint.max_cost_usd,
        needs=needs_of(body) | hint.needs,
        priority=_no_higher(hint.priority, None if route is None else route.priority),
        session_id=hint.session_id,
        parent_session_id=hint.parent_session_id,
        step=hint.step,
        shared_prefix_tokens=min(hint.shared_prefix_tokens or 0, found.upper),
        route=hint.route or "default",
    )


def _no_higher(said: Priority | None, of_route: Priority | None) -> Priority | None:
    """A hint's priority, or its route's where that is lower; ``None``: the route's stays."""
    if said is None or of_route is None:
        return said
    return max(said, of_route, key=PRIORITIES.index)


def _stricter(said: float | None, of_route: float | Slo | None) -> Slo | None:
    """A hint's SLO beside the route's; ``None``: the route's stays."""
    if said is None:
        return None
    held = soft(of_route)
    if held is None:
        return Slo(said, hard=False)
    return replace(held, value=said) if said < held.value else None


def _nvext(nvext: object) -> Hint:
    """What Dynamo's extension of a body says."""
    if not isinstance(nvext, Mapping):
        return NOTHING
    said: dict[str, Any] = {}
    for group, key, field in NVEXT:
        inner = nvext.get(group)
        value = inner.get(key) if isinstance(inner, Mapping) else None
        if value is None:
            continue
        where = f"nvext.{group}.{key}"
        if field == "priority":
            if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
                raise UsageError(f"{where} must be a number, higher for what is more important, got {shown(value)}")
            said[field] = "interactive" if value > 0 else "batch" if value < 0 else "agent"
        else:
            said[field] = _check(field, value, where)
    return Hint(**said) if said else NOTHING


def _read(field: str, value: object, where: str) -> Any:
    """A hint's value out of a text, or as it is; ``where`` names it in the error."""
    if field == "priority" and where == "x-smg-priority":
        if value not in CLASSES:
            raise UsageError(f"{where} must be one of {', '.join(CLASSES)}, got {shown(value)}")
        return CLASSES[str(value)]
    if isinstance(value, str):
        if field == "needs":
            value = [part.strip() for part in value.split(",") if part.strip()]
        elif field in MOST:
            value = int(value) if value.isascii() and value.isdigit() and len(value) <= 12 else value
        elif field in UNITS:
            value = _float(value)
    return _check(field, value, where)


def _float(text: str) -> object:
    try:
        return float(text) if "_" not in text else text
    except ValueError:
        return text
