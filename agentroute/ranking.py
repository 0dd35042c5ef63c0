"""Which deployment is best: by rank, within a rank by the objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentroute.compiled import UNKNOWN_CAPABILITY, Ints
from agentroute.policy import SLO_MARGIN, Objective

if TYPE_CHECKING:
    from agentroute.assessment import Assessment

SLO_STEP = 2 * UNKNOWN_CAPABILITY
HARM = 2 * SLO_STEP
MISSED = 2 * HARM
INFEASIBLE = 2 * MISSED
"""The rank of a deployment: 1 for an unknown KV pool, or a conversation that would soon not fit, 2 for an unknown
capability, 4 for an SLO kept without the margin, 8 for one that others there would no longer keep, 16 for one missed,
32 for one that cannot take the task. The least rank wins; the objective decides within a rank."""
HARMFUL = 0.5
"""So many others that are expected to miss an SLO count in the rank."""


_SLO_BOUNDS = np.array([1.0 - SLO_MARGIN, 1.0])
_SLO_RANK = np.array([0, SLO_STEP, MISSED])
_SCALE = 2.0 ** (30.0 * np.arange(INFEASIBLE))
"""By rank what a score is multiplied by, so that one number orders by both: scores of one rank are less than 2^30
apart. A power of two changes no digit of them."""


def rank(a: Assessment) -> Ints:
    """``known_rank``, whether a conversation would soon not fit, and how well SLOs are kept: its own, and those of
    others there."""
    ranks = a.known_rank
    if a.cramped is not None:
        ranks = ranks | a.cramped
    if a.used is not None:
        # NaN sorts last: it ranks with the missed ones.
        ranks = ranks + _SLO_RANK.take(_SLO_BOUNDS.searchsorted(a.used))
    harm = a.harm
    if harm is not None:
        ranks = ranks + (harm > HARMFUL) * HARM
    return ranks


def order(a: Assessment, objective: Objective) -> NDArray[np.intp]:
    """Feasible deployments, best first: by rank, within a rank by the objective, of equals the less busy one."""
    score, ranks = objective(a), a.known_rank
    if not objective.weighs_slos:
        ranks = a.rank
        if a.used is not None:
            score = np.where(ranks < MISSED, score, a.used)
    if a.feasible is not None:
        ranks = np.where(a.feasible, ranks, INFEASIBLE)
    ranked = np.lexsort((a.in_flight, score, ranks))
    return ranked[: len(ranked) if a.feasible is None else int(a.feasible.sum())]


def best(a: Assessment, objective: Objective) -> int | None:
    """The first of ``order``; ``None`` when nothing is feasible."""
    if objective.weighs_slos:  # what a score of the user's own returns is checked, so that one is always asked
        able = range(len(a.fleet.deployments)) if a.feasible is None else a.feasible.nonzero()[0]
        if len(able) < 2:
            return int(able[0]) if len(able) else None
    key = objective(a)
    ranks = a.known_rank if objective.weighs_slos else a.rank
    if ranks is not a.fleet.pool_rank or a.fleet.any_pool_rank:
        key = key * _SCALE.take(ranks)
    if a.feasible is not None:
        key = np.where(a.feasible, key, np.inf)
    best = int(key.argmin())
    least = key.item(best)
    if least != least:
        least = float(np.fmin.reduce(key))
        best = int((key == least).argmax())
    # One that lacks nothing and has no equal. All else (nothing is known, equals, SLOs that are missed, and are
    # then compared by how far) is sorted.
    if 0.0 < least < np.inf and not ranks.item(best) and np.count_nonzero(key == least) == 1:
        return best
    ordered = order(a, objective)
    return int(ordered[0]) if len(ordered) else None
