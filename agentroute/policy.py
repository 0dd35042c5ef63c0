"""What to optimise: each objective turns an assessment into a score per deployment, and the least score wins.

Most only choose among deployments that keep the SLOs equally well, and never trade an SLO away; ``fit`` is about SLOs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentroute.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from agentroute.assessment import Assessment

Score = Callable[["Assessment"], NDArray[np.float64]]
"""An assessment of d deployments to d scores, the less the better; NaN where it cannot tell."""

SLO_MARGIN = 0.3
"""Share of an SLO that a deployment should leave free; assumed, to start with."""


MISS_PER_GPU_SECOND = 0.04
"""What a GPU-second counts against an SLO that is missed: little, so that work decides where no SLO is at stake."""
MISS_PER_SECOND = 0.004
"""What a second until the answer counts against one, for a task without an SLO."""
MISS_PER_POOL = 0.02
"""What a whole KV pool counts against one."""
MISS_PER_MOVE = 0.5
"""What a conversation that will have to move, since its next steps do not fit, counts against one: its whole prompt is
read again, and it may be late by that. Assumed."""


# An array without an axis is a quicker operand than a number.
_GPU_SECOND, _POOL = np.array(MISS_PER_GPU_SECOND), np.array(MISS_PER_POOL)


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
    score: NDArray[np.float64] = a.gpu_seconds * _GPU_SECOND
    if a.fleet.any_known_pool:
        full = a.full / a.fleet.blocks
        full *= _POOL
        score += full
    own_miss, harm = a.own_miss, a.harm
    if own_miss is not None:
        score += own_miss
    else:
        score += a.e2e_ms * (0.001 * MISS_PER_SECOND)
    if harm is not None:
        score += harm
    if a.cramped is not None:
        score += a.cramped * MISS_PER_MOVE
    return score


def cost(a: Assessment) -> NDArray[np.float64]:
    """The least money for one request, in US dollars."""
    return a.cost_usd


def latency(a: Assessment) -> NDArray[np.float64]:
    """The shortest time to the whole answer, in milliseconds."""
    return a.e2e_ms


def quality(a: Assessment) -> NDArray[np.float64]:
    """The best model at what the task asks for, by the user's own table; of equals the least scarce."""
    if a.ask.quality is None:
        raise UsageError("the objective 'quality' needs a table of models and skills; give one under [quality]")
    best: float = np.fmax.reduce(a.ask.quality)  # NaN without a warning, where the table has no model of the fleet
    return best - a.ask.quality + _TIE * fit(a)


_TIE = 1e-6

OBJECTIVES: Mapping[str, Objective] = {
    "cost": Objective("cost", cost),
    "fit": Objective("fit", fit, weighs_slos=True),
    "latency": Objective("latency", latency),
    "quality": Objective("quality", quality),
}


def objective(name: str, own: Mapping[str, Objective] = MappingProxyType({})) -> Objective:
    """An objective by name, of the ``own`` ones or those above; raises ``UnknownNameError``."""
    found = own.get(name) or OBJECTIVES.get(name)
    if found is None:
        raise UnknownNameError("objective", name, {**OBJECTIVES, **own})
    return found


def blend(*parts: tuple[Score, float]) -> Score:
    """Several scores in one, each over the least of it and times its weight: ``blend((cost, 1.0), (latency, 0.5))``."""

    def blended(a: Assessment) -> NDArray[np.float64]:
        return np.asarray(sum(weight * _over_least(score(a)) for score, weight in parts))

    return blended


def within(share: float, first: Score, then: Score) -> Score:
    """By ``then`` among those whose ``first`` is at most ``share`` above the least; the others after them.

    ``within(0.1, cost, latency)``: the fastest of those that cost at most 10 % more than the cheapest.
    """

    def narrowed(a: Assessment) -> NDArray[np.float64]:
        near, by = _over_least(first(a)), _over_least(then(a))
        return np.where(near <= 1.0 + share, by, by + np.nanmax(by, initial=1.0) + near)

    return narrowed


def _over_least(score: NDArray[np.float64]) -> NDArray[np.float64]:
    least = np.nanmin(score, axis=-1, keepdims=True, initial=np.inf)
    return np.asarray(score / np.maximum(least, 1e-300))
