"""What to optimise: each objective turns an assessment into a score per deployment, and the least score wins.

Most only choose among deployments that keep the SLOs equally well, and never trade an SLO away; ``fit`` is about SLOs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentroute.errors import UnknownNameError

if TYPE_CHECKING:
    from agentroute.assessment import Assessment

Score = Callable[["Assessment"], NDArray[np.float64]]
"""An assessment of d deployments to d scores, the less the better; NaN where it cannot tell."""

SLO_MARGIN = 0.3
"""Share of an SLO that a deployment should leave free; assumed, to start with."""


MISS_PER_GPU_SECOND = 0.04
"""What a GPU-second counts against an SLO that is missed: little, so that work decides where no SLO is at stake."""
MISS_PER_POOL = 0.1
"""What a whole KV pool counts against one."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A score with its name.

    Where it ``weighs_slos`` itself, it alone decides; else it chooses among those that keep the SLOs equally well.
    """

    name: str
    score: Score
    weighs_slos: bool = False

    def __call__(self, assessment: Assessment) -> NDArray[np.float64]:
        """The scores."""
        return self.score(assessment)


def fit(a: Assessment) -> NDArray[np.float64]:
    """The least scarce deployment: where the fewest SLOs are expected to be missed, the task's own and those of others
    there, now and soon; and, where that is alike, where it takes the least of GPUs and KV.

    So a task that keeps its SLOs anywhere goes where least is lost by it, and one that keeps them nowhere, too.
    """
    score = a.gpu_seconds * MISS_PER_GPU_SECOND
    if a.fleet.any_known_pool:
        full = a.units * a.ask.concurrency
        full += a.held
        full /= a.fleet.blocks
        full *= MISS_PER_POOL
        score += full
    if a.own_miss is not None:
        score += a.own_miss
    if a.harm is not None:
        score += a.harm
    return score


def cost(a: Assessment) -> NDArray[np.float64]:
    """The least money for one request, in US dollars."""
    return a.cost_usd


def latency(a: Assessment) -> NDArray[np.float64]:
    """The shortest time to the whole answer, in milliseconds."""
    return a.e2e_ms


OBJECTIVES: Mapping[str, Objective] = {
    "cost": Objective("cost", cost),
    "fit": Objective("fit", fit, weighs_slos=True),
    "latency": Objective("latency", latency),
}


def objective(name: str) -> Objective:
    """An objective by name; raises ``UnknownNameError``."""
    if name not in OBJECTIVES:
        raise UnknownNameError("objective", name, OBJECTIVES)
    return OBJECTIVES[name]
