"""A route: what applies to a class of tasks unless a task says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from agentroute.errors import TaskError
from agentroute.task import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An objective, SLOs and an allow list. A bare number for an SLO is a soft mean.

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

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms", "deadline_s"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                Slo(value)
            elif value is not None and not isinstance(value, Slo):
                raise TaskError(f"a route's {name} must be a number or an Slo, got {value!r}")
        if isinstance(self.allow, str):
            raise TaskError(f"a route's allow must be a set of deployment names, got {self.allow!r}")


def soft(value: float | Slo | None) -> Slo | None:
    """A route's field as an ``Slo``: a bare number is a soft mean."""
    return value if value is None or isinstance(value, Slo) else Slo(value, hard=False)
