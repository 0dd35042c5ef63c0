"""Objectives of the user's own: what they are and return is checked, and they cannot call the router that asks them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentroute.errors import UsageError, shown
from agentroute.policy import OBJECTIVES, Objective, Score

if TYPE_CHECKING:
    from agentroute.assessment import Assessment


class _Asked(threading.local):
    """In each thread the objective that is being asked."""

    name: str | None = None


_ASKED = _Asked()


class Own(Objective):
    """A score of the user's own. Raises ``UsageError`` for one that does not give a number for each deployment."""

    __slots__ = ()

    def __call__(self, assessment: Assessment) -> NDArray[np.float64]:
        """The scores."""
        before, _ASKED.name = _ASKED.name, self.name
        try:
            found: Any = self.score(assessment)
        finally:
            _ASKED.name = before
        deployments = len(assessment.fleet.deployments)
        if not isinstance(found, np.ndarray) or found.shape != (deployments,) or found.dtype.kind not in "fiu":
            got = f"shape {found.shape} of {found.dtype}" if isinstance(found, np.ndarray) else shown(found)
            must = f"an array of {deployments} numbers, one for each deployment (NaN where it cannot tell)"
            raise UsageError(f"the objective {self.name!r} must return {must}, got {got}")
        return found.astype(np.float64, copy=False)


def own(scores: Mapping[str, Score]) -> dict[str, Objective]:
    """The user's own objectives, by name; raises ``UsageError`` for one that can be none."""
    for name, score in scores.items():
        if name in OBJECTIVES:
            raise UsageError(f"there is a built-in objective {name!r} already; give your own another name")
        if problem := wrong(score):
            raise UsageError(f"the objective {name!r} {problem}")
    return {name: Own(name, score) for name, score in scores.items()}


def wrong(score: object) -> str | None:
    """What keeps ``score`` from being an objective: the end of a sentence that begins with its name."""
    if not callable(score):
        return f"must be a function, got {shown(score)}"
    if inspect.iscoroutinefunction(score):
        return "must be a plain function, and is an async one"
    try:
        taken = inspect.signature(score)
    except (TypeError, ValueError):  # of some that are written in C
        return None
    try:
        taken.bind(None)
    except TypeError:
        return f"must be called with one argument, the assessment, and takes {taken}"
    return None


class Lock:
    """A lock that an objective which is being asked cannot wait for: its own thread may hold it already."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if _ASKED.name is not None:
            raise UsageError(f"the objective {_ASKED.name!r} must not call the router: it is asked in one of its calls")
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
