"""How every endpoint of a fleet stands at this moment: by its own account, by what was predicted, by its profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentroute.adapters.base import Discovery
from agentroute.doctor.finding import Finding, worst_first
from agentroute.doctor.running import at_this_moment
from agentroute.doctor.server import disagreements
from agentroute.errors import NoFeasibleDeployment
from agentroute.estimate import Estimate
from agentroute.fleet import Deployment, Fleet
from agentroute.pulse import Vital
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import Task

BY_RUNNING = frozenset({"unreachable", "engine_dead", "load_hidden", "load_mixed", "breaker", "thrash", "drift"})
"""Kinds of findings that tell how an endpoint stands now, and not how it was set up."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One endpoint. ``None`` is unknown."""

    deployment: Deployment
    url: str
    vital: Vital
    said: Discovery | None
    """What it said of itself, when it was last asked."""
    closed_in_s: float | None
    """Where the breaker is not closed: seconds until a call may try whether it is back."""
    predicted_ms: Estimate | None
    """Mean TTFT that one more request would have, of the size that the server counts on average, else ``size``."""
    size: tuple[int, int]
    """Prompt and answer tokens that this is of."""
    findings: tuple[Finding, ...]

    @property
    def state(self) -> str:
        """``up``, ``down``, ``dead`` (only its front answers), ``silent`` (no good answer) or ``unknown``."""
        vital = self.vital
        if vital.up is False:
            return "dead" if vital.trouble == "dead" else "down"
        return "up" if vital.up else "silent" if vital.failures else "unknown"


class Predictor:
    """Predicts TTFT for each endpoint by itself, at the load that it reports."""

    def __init__(self, deployments: Sequence[Deployment], size: tuple[int, int]) -> None:
        self._size = size
        self._routers = {
            (one.name, url): Router(Fleet([replace(one, urls=(url,), pool=None)]))
            for one in deployments
            for url in one.urls
        }

    def __call__(self, deployment: Deployment, url: str, vital: Vital) -> tuple[Estimate | None, tuple[int, int]]:
        """The prediction, and the size of the request that it is of."""
        size = (_tokens(vital.isl, self._size[0]), _tokens(vital.osl, self._size[1]))
        if not vital.up or vital.trouble == "mixed":
            return None, size
        router, load = self._routers[deployment.name, url], vital.load
        router.observe(deployment.name, Load(load.running, load.waiting, load.kv_used))
        try:
            return router.decide(Task(context_tokens=size[0], max_output_tokens=size[1])).ttft_ms, size
        except NoFeasibleDeployment:
            return None, size


def standings(
    router: Router,
    vitals: Mapping[tuple[str, str], Vital],
    heard: Mapping[tuple[str, str], tuple[Discovery, str | None]],
    predict: Predictor,
) -> list[Standing]:
    """How every endpoint stands, in the order of the fleet.

    ``vitals`` and ``heard`` are by deployment and URL; ``heard`` has what a server said and the shipped model of it.
    """
    found = router.doctor()
    out = []
    for deployment in router.fleet.deployments:
        for url in dict.fromkeys(deployment.urls):
            vital = vitals.get((deployment.name, url), Vital())
            said, model = heard.get((deployment.name, url), (None, None))
            where = url if len(deployment.urls) > 1 else None
            own = [one for one in found if one.deployment == deployment.name and one.kind in BY_RUNNING]
            if where:
                own = [one for one in own if where in one.text]
            if said is not None:
                own += disagreements(deployment, said, url=where, model=model)
            if vital.up and vital.trouble is None:
                now = replace(vital.load, hidden=False)
                own += at_this_moment(deployment, now, f"at {where}, " if where else "")
            predicted_ms, size = predict(deployment, url, vital)
            closed_in_s = router.signs(deployment.name, url=url).closed_in_s
            out.append(Standing(deployment, url, vital, said, closed_in_s, predicted_ms, size, tuple(worst_first(own))))
    return out


def _tokens(mean: float | None, assumed: int) -> int:
    return max(1, round(mean)) if mean is not None and mean < 1e9 else assumed
