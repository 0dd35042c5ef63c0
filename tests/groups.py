"""Groups of siblings, and where a plan puts them, for tests of a fan-out."""

from __future__ import annotations

from dataclasses import replace

from fleets import BLOCK, task

from agentroute.profile import Profile
from agentroute.spread import Spread
from agentroute.task import Task

UNITS = 69
"""Blocks of one request of ``task()``: 1,100 tokens."""


def requests(spread: Spread) -> dict[str, int]:
    """Siblings by deployment."""
    found: dict[str, int] = {}
    for placement in spread.placements:
        found[placement.deployment] = found.get(placement.deployment, 0) + placement.requests
    return found


PREFIX = 800 // BLOCK
"""Blocks of a common prefix of 800 tokens."""


def caching(profile: Profile) -> Profile:
    """The same with prefix caching reported."""
    assert profile.limits is not None
    return profile.model_copy(update={"limits": profile.limits.model_copy(update={"prefix_caching": True})})


def alike(shared: int = 800) -> Task:
    """``task()`` with a prefix that its siblings have in common."""
    return replace(task(), shared_prefix_tokens=shared)
