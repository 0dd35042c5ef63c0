"""The answer: what was chosen, what to expect of it, and why the others were not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentroute.assessment import Assessment
from agentroute.errors import NoFeasibleDeployment, PoolFull
from agentroute.estimate import Estimate
from agentroute.fleet import Deployment
from agentroute.inputs import Metric
from agentroute.latency.points import Point
from agentroute.origin import ORIGINS
from agentroute.policy import objective
from agentroute.reasons import refused, sources, standing
from agentroute.task import Task


@dataclass(frozen=True, slots=True)
class Headroom:
    """The KV blocks of a pool: ``free`` of ``blocks`` are not held; one request of the task needs ``needed``."""

    free: int
    blocks: int
    needed: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A deployment that could take the task, and what to expect of it. ``None`` is unknown."""

    deployment: str
    model: str | None
    profile: str
    sharding: str | None
    n: int
    """Requests that would be in flight there, this task's siblings included."""
    n_run: int
    """Those of them that would run at once; the others wait."""
    ttft_ms: Estimate | None
    tpot_ms: Estimate | None
    e2e_ms: Estimate | None
    wait_ms: float
    """The part of TTFT and E2E that is waiting for a place."""
    cost_usd: Estimate | None
    headroom: Headroom | None
    standing: str
    """How it stands against the winner: the reason it was chosen, or the one reason it was not."""
    sources: tuple[str, ...]
    """Where its numbers come from, one sentence each."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a task should go. A value: it carries the state it was decided on, the rest is worked out on demand."""

    task: Task
    objective: str
    deployment: str
    """The chosen deployment's name."""
    model: str | None
    """Its model; ``None`` when nobody named it."""
    decided_at: float = field(compare=False)
    """The router's clock at the decision, in seconds."""
    _assessment: Assessment = field(repr=False, compare=False)
    _best: int = field(repr=False, compare=False)

    @classmethod
    def of(cls, task: Task, objective: str, assessment: Assessment, best: int, now: float) -> Decision:
        """The decision for deployment number ``best`` of an assessment."""
        chosen = assessment.fleet.deployments[best]
        return cls(task, objective, chosen.name, chosen.model_name, now, assessment, best)

    @property
    def chosen(self) -> Deployment:
        """The chosen deployment."""
        return self._assessment.fleet.deployments[self._best]

    @property
    def url(self) -> str | None:
        """The base URL of the chosen endpoint; ``None`` when the deployment has none."""
        urls = self.chosen.urls
        if not urls:
            return None
        return urls[self._assessment.fleet.pools[self._best].index(int(self._assessment.pool[self._best]))]

    @property
    def ttft_ms(self) -> Estimate | None:
        """Time to the first token, waiting included; ``None`` when nothing is measured or derived."""
        return estimate(self._assessment, self._best, "ttft_ms")

    @property
    def tpot_ms(self) -> Estimate | None:
        """Time per output token after the first; ``None`` when nothing is measured or derived."""
        return estimate(self._assessment, self._best, "tpot_ms")

    @property
    def e2e_ms(self) -> Estimate | None:
        """Time to the whole answer, waiting included; ``None`` when nothing is measured or derived."""
        return estimate(self._assessment, self._best, "e2e_ms")

    @property
    def cost_usd(self) -> Estimate | None:
        """US dollars for one request; ``None`` without a price or without a measured latency."""
        return _cost(self._assessment, self._best)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every deployment that could take the task, best first."""
        order = self._assessment.order(objective(self.objective))
        rest = [int(d) for d in order if d != self._best]
        return tuple(self._candidate(d) for d in (self._best, *rest))

    @property
    def rejected(self) -> dict[str, str]:
        """Every deployment that could not take it, with its one reason."""
        return rejections(self._assessment)

    def explain(self) -> str:
        """Candidates, estimates and reasons, as plain text."""
        from agentroute.explain import explain

        return explain(self)

    def _candidate(self, d: int) -> Candidate:
        a, deployment = self._assessment, self._assessment.fleet.deployments[d]
        ttft, tpot = estimate(a, d, "ttft_ms"), estimate(a, d, "tpot_ms")
        return Candidate(
            deployment=deployment.name,
            model=deployment.model_name,
            profile=deployment.profile.name,
            sharding=deployment.profile.split,
            n=int(a.n[d]),
            n_run=int(a.n_run[d]),
            ttft_ms=ttft,
            tpot_ms=tpot,
            e2e_ms=estimate(a, d, "e2e_ms"),
            wait_ms=float(a.wait_ms[d]) if a.wait_ms is not None else 0.0,
            cost_usd=_cost(a, d),
            headroom=_headroom(a, d),
            standing=standing(a, d, self._best, self.objective),
            sources=sources(deployment, [one for one in (ttft, tpot) if one is not None]),
        )


def estimate(a: Assessment, d: int, metric: Metric) -> Estimate | None:
    """A metric at deployment ``d`` with its band, in milliseconds."""
    mean = float(getattr(a, metric)[d])
    if mean != mean:
        return None
    band = 1.0 + float(a.band(d, metric))
    return Estimate(mean, mean / band, mean * band, a.origin(d), a.extrapolated(d), _interpolated(a, d, metric))


_OF_POINT: dict[Metric, Callable[[Point], bool]] = {
    "ttft_ms": lambda point: point.mean_ttft_ms() is not None,
    "tpot_ms": lambda point: point.mean_tpot_ms() is not None,
    "e2e_ms": lambda point: point.mean_ttft_ms() is not None and point.mean_tpot_ms() is not None,
}
"""Whether a point tells a metric."""


def _interpolated(a: Assessment, d: int, metric: Metric) -> bool:
    """Whether a metric is read off deployment ``d``'s curve between its points, and off none of them."""
    points = a.fleet.deployments[d].profile.points
    if not points or a.extrapolated(d):
        return False
    load = (a.ask.isl, a.ask.osl, int(a.n_run[d]))
    return not any(point.load == load and _OF_POINT[metric](point) for point in points)


def _cost(a: Assessment, d: int) -> Estimate | None:
    mean = float(a.cost_usd[d])
    if mean != mean:
        return None
    price = a.fleet.deployments[d].profile.price
    origin = price.provenance.origin if price else "assumed"
    if a.fleet.usd_per_input_token[d] == a.fleet.usd_per_input_token[d]:
        return Estimate(mean, mean, mean, origin)
    band = 1.0 + float(a.band(d, "e2e_ms"))
    weaker = max(origin, a.origin(d), key=ORIGINS.index)
    return Estimate(mean, mean / band, mean * band, weaker, a.extrapolated(d), _interpolated(a, d, "e2e_ms"))


def _headroom(a: Assessment, d: int) -> Headroom | None:
    if not a.fleet.known_pool[d]:
        return None
    blocks = int(a.fleet.blocks[d])
    return Headroom(free=blocks - int(a.held[d]), blocks=blocks, needed=int(a.units[d]))


def rejections(a: Assessment) -> dict[str, str]:
    """The one reason of every deployment that cannot take the task."""
    return {deployment.name: refused(a, d) for d, deployment in enumerate(a.fleet.deployments) if not a.is_feasible(d)}


def refusal(task: Task, a: Assessment) -> NoFeasibleDeployment:
    """The error for a task that no deployment can take (now)."""
    output = f"{task.max_output_tokens:,}" if task.max_output_tokens else "unset"
    size = f"{task.context_tokens:,} context and {output} output tokens"
    if a.able is None or a.able.any():
        return PoolFull(f"no deployment has room now for a task of {size}", rejections(a))
    return NoFeasibleDeployment(f"no deployment can take a task of {size}", rejections(a))
