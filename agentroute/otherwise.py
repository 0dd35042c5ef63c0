"""What a task would meet with other numbers: most of a state is the same for all, some of it hangs on them.

A prompt of another length may stand in another context region of the corrections, and more or less of it is cached;
one that is the first of several has siblings in flight that a lone one has not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agentroute.assessment import Assessment
from agentroute.inputs import Ask, Otherwise, State
from agentroute.state.corrections import CONTEXTS

NOTHING = Otherwise()


def met(a: Assessment, changed: Ask, *, in_group: bool) -> State:
    """The state of ``a`` as the task would meet it with the numbers of ``changed``, of shape (t, 1).

    ``in_group``: whether its siblings are told by a group's name. If not, they are told by being equal to it, so that
    it has none with another number.
    """
    state, its = a.state, a.state.otherwise or NOTHING
    several: Any = np.asarray(changed.concurrency) > 1.0
    siblings: Any = 0
    if in_group and its.siblings:
        siblings = np.where(several, float(its.siblings), 0.0)
    return state._replace(
        siblings=siblings,
        shared=_shared(its, changed, several) if in_group else None,
        cached_tokens=_cached(its, changed, several),
        factors=_factors(its, changed),
    )


def alone(state: State) -> State:
    """What ``met`` says of a single task, as the state of one."""
    siblings: Any = state.siblings
    cached, shared, factors = state.cached_tokens, state.shared, state.factors
    return state._replace(
        siblings=int(siblings.item()) if isinstance(siblings, np.ndarray) else siblings,
        cached_tokens=cached[0] if cached is not None and cached.ndim > 1 else cached,
        shared=shared[0] if shared is not None else None,
        factors=factors[:, 0] if factors is not None and factors.ndim > 3 else factors,
    )


def _shared(its: Otherwise, changed: Ask, several: Any) -> Any:
    """Where a prefix of that very length is held by the group, shape (t, pools)."""
    found: Any = None
    for tokens, pools in its.shared:
        here = pools & (several & (np.asarray(changed.shared_tokens) == tokens))
        found = here if found is None else found | here
    return found if found is not None and found.any() else None


def _cached(its: Otherwise, changed: Ask, several: Any) -> Any:
    """Tokens of the prompt that are cached, shape (t, pools) or (pools,)."""
    cached: Any = its.begun_tokens
    if its.talk_tokens is not None:
        of_talk = np.minimum(its.talk_tokens, changed.isl)
        cached = of_talk if cached is None else np.maximum(cached, of_talk)
    if its.group_tokens is not None:
        of_group = np.where(several, np.minimum(its.group_tokens, changed.shared_tokens), 0.0)
        cached = of_group if cached is None else np.maximum(cached, of_group)
    return cached


def _factors(its: Otherwise, changed: Ask) -> Any:
    """By the context region of each prompt, shape (2, t, d, load regions), or of all of them (2, d, load regions)."""
    if its.factors is None:
        return None
    regions = np.searchsorted(CONTEXTS, np.ravel(changed.isl), side="right")
    first = int(regions[0])
    if (regions == first).all():
        return its.factors[first]
    return its.factors.take(regions, axis=0).swapaxes(0, 1)
