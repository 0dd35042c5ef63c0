"""What to optimise: each objective turns an assessment into a score per deployment, and the least score wins.

An objective only chooses among deployments that keep the SLOs equally well; it never trades an SLO away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentroute.errors import UnknownNameError

if TYPE_CHECKING:
    from agentroute.assessment import Assessment

Objective = Callable[["Assessment"], NDArray[np.float64]]
"""An assessment of d deployments to d scores; NaN where the objective cannot tell."""

SLO_MARGIN = 0.3
"""Share of an SLO that a deployment should leave free; assumed, to start with."""


def fit(a: Assessment) -> NDArray[np.float64]:
    """The least scarce deployment: the one that would be least full with the task and its siblings there.

    Where the KV pool is known, the share of its blocks that would be held; else GPU-seconds, GPUs x E2E / siblings.
    """
    if not a.fleet.any_known_pool:
        return a.gpu_seconds
    share: NDArray[np.float64] = (a.held + a.units * a.ask.concurrency) / a.fleet.blocks
    return np.asarray(np.where(a.fleet.known_pool, share, a.gpu_seconds))


def cost(a: Assessment) -> NDArray[np.float64]:
    """The least money for one request, in US dollars."""
    return a.cost_usd


def latency(a: Assessment) -> NDArray[np.float64]:
    """The shortest time to the whole answer, in milliseconds."""
    return a.e2e_ms


OBJECTIVES: Mapping[str, Objective] = {"cost": cost, "fit": fit, "latency": latency}


def objective(name: str) -> Objective:
    """An objective by name; raises ``UnknownNameError``."""
    if name not in OBJECTIVES:
        raise UnknownNameError("objective", name, OBJECTIVES)
    return OBJECTIVES[name]
