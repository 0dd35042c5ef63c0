"""What an agent asks for: a task, and the SLOs it has."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from agentroute.errors import TaskError, shown, suggest
from agentroute.latency.points import STATISTICS, Statistic
from agentroute.shape.model import Capability, Model
from agentroute.tokens import Previous, Source, Tokenizer, estimate, of_model

CAPABILITIES: tuple[Capability, ...] = get_args(Capability)
Priority = Literal["interactive", "agent", "batch"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
"""A person waits; an agent's next step waits; nobody waits. The first that waits is served first."""
SOURCES: tuple[Source, ...] = get_args(Source)
UNSET_OUTPUT_TOKENS = 1_024
"""Output tokens that are planned for when a task does not say: never silently the whole window."""
MAX_TOKENS = 1_000_000_000
MAX_CONCURRENCY = 1_000_000
MOST_HASH = 2**64


@dataclass(frozen=True, slots=True)
class Slo:
    """A limit on a latency: ``value`` in the unit of the field that holds it.

    ``stat`` is the statistic it is about. ``hard``: a deployment that is not predicted to keep it is refused;
    otherwise it only ranks lower.
    """

    value: float
    stat: Statistic = "mean"
    hard: bool = True
    from_itl: bool = False
    """True where a limit on the gap between two tokens was given, and is held as one on their mean, TPOT."""

    def __post_init__(self) -> None:
        if not _is_time(self.value):
            raise TaskError(f"an SLO's value must be a finite number above 0, below 1e12, got {shown(self.value)}")
        if not isinstance(self.hard, bool):
            raise TaskError(f"an SLO's hard must be True or False, got {shown(self.hard)}")
        if self.stat not in STATISTICS:
            raise TaskError(f"an SLO's stat must be one of {', '.join(STATISTICS)}, got {shown(self.stat)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an agent asks for. Raises ``TaskError`` when a field makes no sense.

    A bare number for an SLO is a hard mean. What is ``None`` here is taken from the route.
    """

    context_tokens: int
    """Prompt tokens; an upper bound, since admission goes by it."""
    max_output_tokens: int | None = None
    """Output tokens at most, reasoning included; ``None``: plan for 1,024, or for what the window leaves."""
    expected_output_tokens: int | None = None
    """Output tokens expected, reasoning included, for prediction; ``None``: as ``max_output_tokens``."""
    concurrency: int = 1
    """Siblings in flight at once, this one included. See ``group``."""
    ttft_ms: float | Slo | None = None
    """Time to the first token, in milliseconds, waiting included."""
    tpot_ms: float | Slo | None = None
    """Time per output token after the first, in milliseconds."""
    deadline_s: float | Slo | None = None
    """Time until the whole answer is there, in seconds from now, waiting included."""
    max_cost_usd: float | None = None
    """US dollars that one request may cost; a deployment that is predicted to cost more is refused."""
    needs: AbstractSet[str] = frozenset()
    """Capabilities that the deployment must offer: tools, parallel_tools, json_schema, vision, ..."""
    quality: Mapping[str, float] = field(default_factory=lambda: _Floors())
    """By skill, the least quality that the model must have, on the scale of the router's own table."""
    priority: Priority | None = None
    """Who waits for it: interactive, agent or batch; ``None``: as the route says, else an agent. It orders those that
    wait for room."""
    allow: AbstractSet[str] | None = None
    """Names of the deployments that it may go to; ``None``: all. What the route forbids stays forbidden."""
    deny: AbstractSet[str] = frozenset()
    """Names of the deployments that it must not go to."""
    pin: str | None = None
    """The only deployment that it may go to."""
    session_id: str | None = None
    """The conversation that it is a step of: its prompt begins with the one before."""
    parent_session_id: str | None = None
    """The conversation whose prompt that of this one begins with, at its first step."""
    step: int | None = None
    """Which step of the conversation it is, from 1."""
    shared_prefix_tokens: int = 0
    """Prompt tokens, from the first one on, that its siblings have in common."""
    prefix: tuple[tuple[int, int], ...] = ()
    """Marks of ``agentroute.prefix``, (hash, tokens), ascending: what its prompt begins with; none: not known."""
    route: str = "default"
    """The route whose objective, SLOs and allow list apply."""
    objective: str | None = None
    """What to optimise; ``None``: as the route says."""
    group: str | None = None
    """What siblings share, so that those in flight already are not expected a second time; ``None``: siblings are the
    calls with an equal task. Give one where siblings differ in size, or where strangers ask for the same."""
    expected_context_tokens: int | None = None
    """Prompt tokens expected, for ranking; ``None``: as ``context_tokens``."""
    context_source: Source | None = field(default=None, compare=False)
    """Where both come from (``tokens.Source``); ``None``: the caller says so. Tasks of two sources may be siblings."""

    def __post_init__(self) -> None:
        whole("context_tokens", self.context_tokens, MAX_TOKENS)
        whole("concurrency", self.concurrency, MAX_CONCURRENCY)
        if self.max_output_tokens is not None:
            whole("max_output_tokens", self.max_output_tokens, MAX_TOKENS)
        if self.expected_context_tokens is not None:
            whole("expected_context_tokens", self.expected_context_tokens, self.context_tokens)
        if self.expected_output_tokens is not None:
            whole("expected_output_tokens", self.expected_output_tokens, self.max_output_tokens or MAX_TOKENS)
        if self.shared_prefix_tokens != 0:
            whole("shared_prefix_tokens", self.shared_prefix_tokens, self.context_tokens)
        if self.step is not None:
            whole("step", self.step, MAX_TOKENS)
        if self.max_cost_usd is not None:
            budget(self.max_cost_usd)
        for name in ("ttft_ms", "tpot_ms", "deadline_s"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Slo):
                _time(name, value)
        if type(self.needs) is not frozenset:
            object.__setattr__(self, "needs", _needs(self.needs))
        for need in self.needs:
            if need not in CAPABILITIES:
                raise TaskError(f"there is no capability {shown(need)} to need; {suggest(str(need), CAPABILITIES)}")
        if self.priority is not None and self.priority not in PRIORITIES:
            raise TaskError(f"priority must be one of {', '.join(PRIORITIES)}, got {shown(self.priority)}")
        if not isinstance(self.route, str):
            raise TaskError(f"route must be a route's name, got {shown(self.route)}")
        _writable("route", self.route)
        for name in ("group", "objective", "pin", "session_id", "parent_session_id"):
            if (value := getattr(self, name)) is not None:
                if not isinstance(value, str):
                    raise TaskError(f"{name} must be a name or None, got {shown(value)}")
                _writable(name, value)
        if self.allow is not None:
            object.__setattr__(self, "allow", _names("allow", self.allow))
        if self.deny or type(self.deny) is not frozenset:
            object.__setattr__(self, "deny", _names("deny", self.deny))
        if type(self.quality) is not _Floors:
            object.__setattr__(self, "quality", _Floors.of(self.quality))
        if self.prefix or type(self.prefix) is not tuple:
            object.__setattr__(self, "prefix", _prefix(self.prefix))
        if self.context_source is not None and self.context_source not in SOURCES:
            raise TaskError(f"context_source must be one of {', '.join(SOURCES)}, got {shown(self.context_source)}")

    @property
    def siblings(self) -> Hashable:
        """What tells siblings from strangers."""
        return self if self.group is None else self.group

    @classmethod
    def from_messages(
        cls,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_output_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        concurrency: int = 1,
        ttft_ms: float | Slo | None = None,
        tpot_ms: float | Slo | None = None,
        deadline_s: float | Slo | None = None,
        needs: AbstractSet[str] = frozenset(),
        route: str = "default",
        objective: str | None = None,
        group: str | None = None,
        model: Model | None = None,
        previous: Previous | None = None,
        served_tokens: int | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> Task:
        """A task for ``messages``; it needs ``tools`` when some are given.

        Its tokens are those of the best that is given: the usage of the step before (``previous``), what the server
        said of this prompt (``served_tokens``), a ``tokenizer``, the fingerprint of ``model``, else a generic one.
        """
        count = estimate(
            messages,
            tools,
            fingerprint=of_model(model),
            previous=previous,
            served=served_tokens,
            tokenizer=tokenizer,
        )
        return cls(
            context_tokens=count.upper,
            expected_context_tokens=count.value,
            context_source=count.source,
            max_output_tokens=max_output_tokens,
            concurrency=concurrency,
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            deadline_s=deadline_s,
            needs=frozenset(needs) | ({"tools"} if tools else set()),
            route=route,
            objective=objective,
            group=group,
        )


def slo(value: float | Slo | None) -> Slo | None:
    """A task's field as an ``Slo``: a bare number is a hard mean."""
    return value if value is None or isinstance(value, Slo) else Slo(value)


def whole(name: str, value: object, most: int = MAX_TOKENS) -> None:
    """Raise ``TaskError`` unless ``value`` is a whole number from 1 to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise TaskError(f"{name} must be a whole number from 1 to {most:,}, got {shown(value)}")


def budget(value: object) -> None:
    """Raise ``TaskError`` unless ``value`` is an amount of US dollars that something may cost."""
    if not _is_time(value):
        raise TaskError(f"max_cost_usd must be a finite number above 0, got {shown(value)}")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 <= value < 1e12


def _time(name: str, value: object) -> None:
    if not _is_time(value):
        raise TaskError(f"{name} must be a finite number above 0 or an Slo, below 1e12, got {shown(value)}")


class _Floors(Mapping[str, float]):
    """A mapping that does not change and can be hashed, as a task must."""

    __slots__ = ("_items",)

    def __init__(self, items: tuple[tuple[str, float], ...] = ()) -> None:
        self._items = items

    @classmethod
    def of(cls, floors: object) -> _Floors:
        if not isinstance(floors, Mapping):
            raise TaskError(f"quality must map skills to the least that will do, got {shown(floors)}")
        for skill, floor in floors.items():
            number = isinstance(floor, int | float) and not isinstance(floor, bool) and abs(floor) < 1e12
            if not isinstance(skill, str) or not number:
                raise TaskError(f"quality must map skills to finite numbers, got {shown(skill)}: {shown(floor)}")
        return cls(tuple(sorted((skill, float(floor)) for skill, floor in floors.items())))

    def __getitem__(self, skill: str) -> float:
        return dict(self._items)[skill]

    def __iter__(self) -> Iterator[str]:
        return (skill for skill, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return repr(dict(self._items))


def _names(what: str, names: object) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TaskError(f"{what} must be a set of deployments' names, got {shown(names)}")
    listed = list(names)
    for name in listed:
        if not isinstance(name, str):
            raise TaskError(f"{what} must hold deployments' names, got {shown(name)}")
        _writable(what, name)
    return frozenset(listed)


def _writable(what: str, name: str) -> None:
    """Raise ``TaskError`` for what no record can hold."""
    if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
        raise TaskError(f"{what} must be text that UTF-8 can hold, without lone surrogates, got {shown(name)}")


def _prefix(marks: object) -> tuple[tuple[int, int], ...]:
    if isinstance(marks, str) or not isinstance(marks, Iterable):
        raise TaskError(f"prefix must hold marks, pairs of a hash and a number of tokens, got {shown(marks)}")
    listed = tuple(marks)
    for mark in listed:
        if not isinstance(mark, tuple) or len(mark) != 2 or not _is_mark(*mark):
            raise TaskError(
                "prefix must hold pairs of a hash, a whole number of 64 bits, and a number of tokens from 0 to "
                f"{MAX_TOKENS:,}, got {shown(mark)}"
            )
    return listed


def _is_mark(hash_: object, tokens: object) -> bool:
    if not isinstance(hash_, int) or not isinstance(tokens, int) or isinstance(hash_, bool) or isinstance(tokens, bool):
        return False
    return abs(hash_) <= MOST_HASH and 0 <= tokens <= MAX_TOKENS


def _needs(needs: object) -> frozenset[str]:
    if isinstance(needs, str) or not isinstance(needs, Iterable):
        raise TaskError(f"needs must be a set of capabilities such as {{'tools'}}, got {shown(needs)}")
    listed = list(needs)
    for need in listed:
        if not isinstance(need, str):
            raise TaskError(f"there is no capability {shown(need)} to need; needs are names such as 'tools'")
    return frozenset(listed)
