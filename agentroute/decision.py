"""The answer: what was chosen, what to expect of it, and why the others were not."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import repeat
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from agentroute.assessment import Assessment, Late
from agentroute.ceilings import Ceilings, Stand, ceilings
from agentroute.compiled import CompiledFleet
from agentroute.errors import UnknownNameError
from agentroute.estimate import Estimate
from agentroute.expected import expected, known
from agentroute.fleet import Deployment, Fleet
from agentroute.inputs import Metric
from agentroute.latency.rates import Workload
from agentroute.outcome import Outcome
from agentroute.policy import Objective
from agentroute.reasons import Reason, at_load, of_unmeasured, refused, standing
from agentroute.task import Task

if TYPE_CHECKING:
    from agentroute.router import Router
    from agentroute.whatif import Changes


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
    wait_ms: float | None
    """The part of TTFT and E2E that is waiting for a place; ``None``: some wait, and nobody knows for how long."""
    cost_usd: Estimate | None
    headroom: Headroom | None
    standing: str
    """How it stands against the winner: the reason it was chosen, or the one reason it was not."""
    sources: tuple[str, ...]
    """Where its numbers come from, one sentence each."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a task should go. A value: it carries what it was decided on, the rest is worked out on demand."""

    task: Task
    objective: str
    deployment: str
    """The chosen deployment's name."""
    model: str | None
    """Its model; ``None`` when nobody named it."""
    decided_at: float = field(compare=False)
    """The router's clock at the decision, in seconds."""
    _on: Assessment | Late | Callable[[Task], Assessment] = field(repr=False, compare=False)
    """What it was decided on; of a decision among many, what works it out."""
    _best: int = field(repr=False, compare=False)
    _by: Objective = field(repr=False, compare=False)
    chosen: Deployment = field(repr=False, compare=False)
    """The chosen deployment."""

    @classmethod
    def of(
        cls,
        task: Task,
        by: Objective,
        on: Assessment | Late | Callable[[Task], Assessment],
        chosen: Deployment,
        best: int,
        now: float,
    ) -> Decision:
        """The decision for the deployment ``chosen``, number ``best``; of an assessment, or of what works it out."""
        made: Decision = _new(cls)
        # Half as long as the constructor of a frozen value.
        _set_task(made, task)
        _set_objective(made, by.name)
        _set_deployment(made, chosen.name)
        _set_model(made, chosen.model_name)
        _set_decided_at(made, now)
        _set_on(made, on)
        _set_best(made, best)
        _set_by(made, by)
        _set_chosen(made, chosen)
        return made

    @classmethod
    def each(
        cls,
        tasks: Sequence[Task],
        by: Objective,
        fleet: CompiledFleet,
        on: Callable[[Task], Assessment],
        best: Sequence[int],
        now: float,
    ) -> list[Decision]:
        """Decisions on many tasks that met the same; ``on`` works out the assessment of one.

        The constructor of a frozen value takes 1 us, of the 4 us that one of many tasks may take: so fields are set
        for all of them, one field after the other.
        """
        made = [object.__new__(cls) for _ in tasks]
        deployments = fleet.deployments
        names, models = [one.name for one in deployments], [one.model_name for one in deployments]
        fields: dict[str, Iterable[Any]] = {
            "task": tasks,
            "objective": repeat(by.name),
            "deployment": map(names.__getitem__, best),
            "model": map(models.__getitem__, best),
            "decided_at": repeat(now),
            "_on": repeat(on),
            "_best": best,
            "_by": repeat(by),
            "chosen": map(deployments.__getitem__, best),
        }
        for name, values in fields.items():
            deque(map(getattr(cls, name).__set__, made, values), maxlen=0)
        return made

    @property
    def _assessment(self) -> Assessment:
        if not isinstance(self._on, Assessment):
            object.__setattr__(self, "_on", self._on(self.task))
        assert isinstance(self._on, Assessment)
        return self._on

    @property
    def url(self) -> str | None:
        """The base URL of the chosen endpoint; ``None`` when the deployment has none."""
        urls = self.chosen.urls
        if len(urls) < 2:
            return urls[0] if urls else None
        return urls[self._assessment.fleet.pools[self._best].index(int(self._assessment.pool[self._best]))]

    @property
    def pool(self) -> int:
        """The number of the chosen endpoint's KV pool, for ``Router.acquire(avoid=...)``."""
        return int(self._assessment.pool[self._best])

    @property
    def reason(self) -> str:
        """Why it was chosen, in one sentence."""
        said = of_unmeasured(self._on, self._best, self._by) if isinstance(self._on, Late) else None
        return said or self._standing(self._best)

    @property
    def mean_ttft_ms(self) -> float | None:
        """The mean of ``ttft_ms`` alone, which is at hand: its band takes nearly as long as the decision did."""
        if isinstance(self._on, Late) and self._on.fleet.curves.curves[self._best] is None:
            return None
        mean = self._assessment.ttft_ms.item(self._best)
        return mean if mean == mean else None

    @property
    def ttft_ms(self) -> Estimate | None:
        """Time to the first token, waiting included; ``None`` when nothing is measured or derived."""
        return expected(self._assessment, self._best).ttft_ms

    @property
    def tpot_ms(self) -> Estimate | None:
        """Time per output token after the first; ``None`` when nothing is measured or derived."""
        return expected(self._assessment, self._best).tpot_ms

    @property
    def e2e_ms(self) -> Estimate | None:
        """Time to the whole answer, waiting included; ``None`` when nothing is measured or derived."""
        return expected(self._assessment, self._best).e2e_ms

    @property
    def cost_usd(self) -> Estimate | None:
        """US dollars for one request; ``None`` without a price or without a measured latency."""
        return expected(self._assessment, self._best).cost_usd

    def spent_usd(self, outcome: Outcome) -> float | None:
        """US dollars that a request has cost, ``derived``: its tokens by their price, else its share of the time of the
        accelerators, with as many others beside it as were predicted. ``None`` without a price or what it is paid for.
        """
        a, d = self._assessment, self._best
        if math.isfinite(per_token := float(a.fleet.usd_per_input_token[d])):
            if outcome.prompt_tokens is None or outcome.output_tokens is None:
                return None
            return per_token * outcome.prompt_tokens + float(a.fleet.usd_per_output_token[d]) * outcome.output_tokens
        if outcome.e2e_ms is None or not math.isfinite(per_second := float(a.fleet.usd_per_second[d])):
            return None
        return per_second * outcome.e2e_ms / 1_000.0 / max(1, int(a.n_run[d]))

    def limit_ms(self, metric: Metric) -> float | None:
        """What is left of the task's or its route's SLO on a metric, in milliseconds; ``None``: it has none."""
        limits = self._assessment.ask.limits
        return min((limit.limit_ms for limit in limits if limit.metric == metric), default=None)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every deployment that could take the task, best first."""
        return tuple(self._candidate(d) for d in self._ranked())

    @property
    def rejected(self) -> dict[str, Reason]:
        """Every deployment that could not take it, with its one reason."""
        return rejections(self._assessment)

    @property
    def changes(self) -> Changes:
        """The smallest change of the task that would have changed the answer, and that which makes each loser win."""
        from agentroute.whatif import changes

        return changes(self._assessment, self._by, self._best, self.task)

    def record(self) -> dict[str, Any]:
        """The decision and everything it read, for ``json.dumps``; see ``agentroute.replay``."""
        from agentroute.replay import record_of

        return record_of(self)

    def ceilings(self, deployment: str) -> Ceilings:
        """What limits a deployment at the load that the task would meet there, the binding one first.

        Rates hold up to the task's own limits. Raises ``UnknownNameError``.
        """
        names = [own.name for own in self._assessment.fleet.deployments]
        if deployment not in names:
            raise UnknownNameError("deployment", deployment, names)
        return self._ceilings(names.index(deployment))

    def _ceilings(self, d: int) -> Ceilings:
        a = self._assessment
        slos = {limit.metric: limit.limit_ms for limit in a.ask.limits}
        n = int(a.n[d])
        load = Workload(
            int(a.ask.isl), int(a.ask.osl), max(1, n), slos.get("ttft_ms"), slos.get("tpot_ms"), slos.get("e2e_ms")
        )
        return ceilings(_stands(a.fleet).of(d), load)

    def explain(self, top: int | None = 8) -> str:
        """Why, as plain text: the best ``top`` candidates (``None``: all) with estimates, ceilings and sources, the
        reason of every deployment, and what would change the answer."""
        from agentroute.explain import explain

        return explain(self, top)

    def _ranked(self) -> list[int]:
        """Deployments that could take the task, best first."""
        order = self._assessment.order(self._by)
        return [self._best, *(int(d) for d in order if d != self._best)]

    def _standing(self, d: int) -> str:
        return standing(self._assessment, d, self._best, self._by)

    def _candidate(self, d: int) -> Candidate:
        a, deployment = self._assessment, self._assessment.fleet.deployments[d]
        ttft, tpot, e2e, cost = expected(a, d)
        return Candidate(
            deployment=deployment.name,
            model=deployment.model_name,
            profile=deployment.profile.name,
            sharding=deployment.profile.split,
            n=int(a.n[d]),
            n_run=int(a.n_run[d]),
            ttft_ms=ttft,
            tpot_ms=tpot,
            e2e_ms=e2e,
            wait_ms=_wait_ms(a, d),
            cost_usd=cost,
            headroom=_headroom(a, d),
            standing=self._standing(d),
            sources=at_load(known(a.fleet, d).sources, deployment, [one for one in (ttft, tpot) if one is not None]),
        )


_new = object.__new__
(
    _set_task, _set_objective, _set_deployment, _set_model, _set_decided_at, _set_on, _set_best, _set_by, _set_chosen
) = (getattr(Decision, one.name).__set__ for one in fields(Decision))  # fmt: skip


class _Stands:
    """Where the deployments of one fleet stand, each worked out once."""

    def __init__(self, deployments: tuple[Deployment, ...]) -> None:
        self._deployments = deployments
        self._stands: dict[int, Stand] = {}

    def of(self, d: int) -> Stand:
        from agentroute.outlook import stand

        if d not in self._stands:
            self._stands[d] = stand(self._deployments[d])
        return self._stands[d]


_STANDS: WeakKeyDictionary[CompiledFleet, _Stands] = WeakKeyDictionary()


def _stands(fleet: CompiledFleet) -> _Stands:
    if fleet not in _STANDS:
        _STANDS[fleet] = _Stands(fleet.deployments)
    return _STANDS[fleet]


def replay(record: Mapping[str, Any], router_or_fleet: Router | Fleet) -> Decision:
    """The recorded decision made again: the same answer, with exactly the same numbers.

    Raises ``UsageError`` for what is no record, or one of another fleet.
    """
    from agentroute import replay as records

    if isinstance(router_or_fleet, Fleet):
        return records.replay(record, CompiledFleet.of(router_or_fleet))
    return records.replay(record, router_or_fleet.rules.compiled, router_or_fleet.rules.own)


def _wait_ms(a: Assessment, d: int) -> float | None:
    wait = 0.0 if a.wait_ms is None else float(a.wait_ms[d])
    if wait == wait:
        return wait
    return 0.0 if a.n[d] <= a.n_run[d] else None


def _headroom(a: Assessment, d: int) -> Headroom | None:
    if not a.fleet.known_pool[d]:
        return None
    blocks = int(a.fleet.blocks[d])
    return Headroom(free=blocks - int(a.held[d]), blocks=blocks, needed=int(a.units[d]))


def rejections(a: Assessment) -> dict[str, Reason]:
    """The one reason of every deployment that cannot take the task."""
    return {deployment.name: refused(a, d) for d, deployment in enumerate(a.fleet.deployments) if not a.is_feasible(d)}
