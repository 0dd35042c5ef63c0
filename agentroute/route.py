"""A route: what applies to a class of tasks unless a task says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from agentroute.task import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An objective, SLOs and an allow list. The SLOs of a config file are soft unless it says hard."""

    name: str
    objective: str | None = None
    """What to optimise; ``None``: as the router says."""
    ttft_ms: Slo | None = None
    tpot_ms: Slo | None = None
    deadline_s: Slo | None = None
    allow: frozenset[str] | None = None
    """Names of the deployments that may be chosen; ``None``: all."""
