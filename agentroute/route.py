"""A route: what applies to a class of tasks unless a task says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agentroute.errors import TaskError, suggest
from agentroute.task import CAPABILITIES, PRIORITIES, Priority, Slo, Task, budget, slo, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An objective, SLOs, limits, and which deployments may be chosen. A bare number for an SLO is a soft mean.

    Raises ``TaskError`` for an SLO that makes no sense.
    """

    name: str
    objective: str | None = None
    """What to optimise; ``None``: as the router says."""
    ttft_ms: float | Slo | None = None
    """Time to the first token, in milliseconds, waiting included."""
    tpot_ms: float | Slo | None = None
    """Time per output token after the first, in milliseconds."""
    deadline_s: float | Slo | None = None
    """Time until the whole answer is there, in seconds, waiting included."""
    allow: frozenset[str] | None = None
    """Names of the deployments that may be chosen; ``None``: all."""
    deny: frozenset[str] = frozenset()
    """Names of the deployments that may not be chosen."""
    needs: frozenset[str] = frozenset()
    """Capabilities that its tasks need, beside their own."""
    priority: Priority | None = None
    """Who waits for its tasks, where they do not say; ``None``: an agent."""
    max_cost_usd: float | None = None
    """US dollars that one request may cost; a task may ask for less, not for more. ``None``: any."""
    quality: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """By skill, the least quality that a model must have; a task's own floor comes before it."""
    p95_output_tokens: int | None = None
    """So long at most are 95 of 100 answers: what is held for one at the start, if it may be longer; ``None``: all."""
    fallbacks: tuple[str, ...] = ()
    """Routes that are tried, in this order, where none of its own deployments can take a task now: it does not fit, is
    down, or is full. Their rules apply instead, but what this one needs is needed there, too."""
    description: str | None = None
    """What it is for, in words."""

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms", "deadline_s"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                Slo(value)
            elif value is not None and not isinstance(value, Slo):
                raise TaskError(f"a route's {name} must be a number or an Slo, got {value!r}")
        for name in ("allow", "deny", "needs", "fallbacks"):
            if isinstance(value := getattr(self, name), str):
                raise TaskError(f"a route's {name} must be a set of names, got {value!r}")
        for need in self.needs:
            if need not in CAPABILITIES:
                raise TaskError(f"there is no capability {need!r} to need; {suggest(need, CAPABILITIES)}")
        if self.priority is not None and self.priority not in PRIORITIES:
            raise TaskError(f"a route's priority must be one of {', '.join(PRIORITIES)}, got {self.priority!r}")
        if self.max_cost_usd is not None:
            budget(self.max_cost_usd)
        if self.p95_output_tokens is not None:
            whole("a route's p95_output_tokens", self.p95_output_tokens)


def soft(value: float | Slo | None) -> Slo | None:
    """A route's field as an ``Slo``: a bare number is a soft mean."""
    return value if value is None or isinstance(value, Slo) else Slo(value, hard=False)


def deadline_of(task: Task, routes: Mapping[str, Route]) -> Slo | None:
    """The deadline of a task: its own, else that of its route."""
    if task.deadline_s is not None:
        return slo(task.deadline_s)
    route = routes.get(task.route)
    return None if route is None else soft(route.deadline_s)
