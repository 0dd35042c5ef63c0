"""One run of a policy over a fleet at a load, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from simulation.engine import Server
from simulation.grounds import Ground
from simulation.trace import KINDS, Kind, trace
from simulation.world import Policy, Result, World

WARM_UP_S = 150.0
WINDOW_S = 600.0
TAIL_S = 100.0
"""The load goes on for so long after the window, so that its last requests meet what the first did."""
PATIENCE_S = 240.0
"""No agent waits longer; so long after the window all its requests have ended."""

Make = Callable[[Sequence[Server], int], Policy]
"""A fresh policy for a fleet's servers and a seed."""


@dataclass(frozen=True, slots=True)
class Score:
    """What became of the requests that were asked in the window."""

    asked: int
    attainment: float
    """Share that kept all its SLOs."""
    goodput_rps: float
    """Of those, per second."""
    completed_rps: float
    """Answers that were whole before their agents gave up, per second of the window, by when they ended."""
    completed_tokens_per_s: float
    """Prompt and answer tokens of those."""
    by_kind: dict[Kind, float]
    """Attainment of each kind."""
    preemptions: int
    cached: float
    """Share of prompt tokens that were not read again."""
    held_s: float
    """Mean seconds that a request waited at the router."""


def score(results: Sequence[Result], world: World, window: tuple[float, float]) -> Score:
    """The figures of one run."""
    begin, end = window
    asked = [r for r in results if begin <= r.asked_at < end]
    whole = [r.request for r in results if r.e2e_s is not None and begin <= (r.ended_at or end) < end]
    kinds = {kind: [r.kept for r in asked if r.kind == kind] for kind in KINDS}
    calls = [r.call for r in asked if r.call is not None]
    return Score(
        asked=len(asked),
        attainment=fmean(r.kept for r in asked),
        goodput_rps=sum(r.kept for r in asked) / (end - begin),
        completed_rps=len(whole) / (end - begin),
        completed_tokens_per_s=sum(r.prompt_tokens + r.output_tokens for r in whole) / (end - begin),
        by_kind={kind: fmean(kept) for kind, kept in kinds.items() if kept},
        preemptions=sum(engine.preemptions for engine in world.engines),
        cached=sum(c.cached_tokens for c in calls) / max(1, sum(c.prompt_tokens for c in calls)),
        held_s=fmean((r.placed_at or r.ended_at or end) - r.asked_at for r in asked),
    )


def run(
    ground: Ground,
    make: Make,
    rps: float,
    *,
    seed: int = 1,
    warm_up_s: float = WARM_UP_S,
    window_s: float = WINDOW_S,
    tail_s: float = TAIL_S,
) -> Score:
    """``rps`` requests a second are offered; the same seed offers everybody the same agents."""
    end = warm_up_s + window_s
    world = World(ground.true, make(ground.true, seed))
    results = world.run(trace(ground.mix, rps, end + tail_s, seed), end + PATIENCE_S + 1.0)
    return score(results, world, (warm_up_s, end))
