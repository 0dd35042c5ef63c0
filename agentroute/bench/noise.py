"""How sure a mean is: rounds of one load, their mean, its standard error, and whether they drift."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf, sqrt
from statistics import fmean

Z80 = 1.2816
"""Standard deviations to each side that hold 80 % of a normal distribution."""

DRIFT = 3.0
"""Halves of a run that differ by more than so many standard errors of their difference drift."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The mean of one quantity over rounds, in its unit.

    The error is that of the mean of the rounds' means: requests of one round share whatever the machine did just then,
    so that an error over requests would be far too small.
    """

    mean: float
    error: float
    """Its standard error; infinite after a single round, which says nothing of others."""
    rounds: int

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Noise:
        """Of the means of one or more rounds, each above 0."""
        mean = fmean(rounds)
        error = _deviation(rounds, mean) / sqrt(len(rounds)) if len(rounds) > 1 else inf
        return cls(mean, error, len(rounds))

    @property
    def relative(self) -> float:
        """The standard error as a fraction of the mean."""
        return self.error / self.mean


def pooled(loads: Iterable[Sequence[float]]) -> float | None:
    """The relative standard deviation between rounds, over the rounds of all loads together.

    ``None`` when no load has two rounds. A few rounds of one load would tell it badly: of three, it is off by a half.
    """
    repeated = [rounds for rounds in loads if len(rounds) > 1]
    if not repeated:
        return None
    means = [fmean(rounds) for rounds in repeated]
    squares = sum(
        (len(rounds) - 1) * (_deviation(rounds, mean) / mean) ** 2 for rounds, mean in zip(repeated, means, strict=True)
    )
    return sqrt(squares / sum(len(rounds) - 1 for rounds in repeated))


def between_runs(spread: float, rounds: int) -> float:
    """Half the 80 % band of a mean, as a fraction, for another run of as many rounds: both runs have their error."""
    return Z80 * spread * sqrt(2.0 / rounds)


def drift(rounds: Sequence[float]) -> float | None:
    """By which fraction the later half of rounds lies above the earlier one; ``None`` when the noise explains it.

    At least six rounds are needed: of fewer, no half has an error of its own that is worth its name.
    """
    half = len(rounds) // 2
    if half < 3:
        return None
    early, late = Noise.of(rounds[:half]), Noise.of(rounds[-half:])
    apart = late.mean - early.mean
    return apart / early.mean if abs(apart) > DRIFT * sqrt(early.error**2 + late.error**2) else None


def _deviation(values: Sequence[float], mean: float) -> float:
    """Sample standard deviation; ``statistics.stdev`` sums fractions, which takes much longer."""
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def percentile(values: Sequence[float], share: float) -> float:
    """The least of ``values`` that at least ``share`` of them do not exceed (nearest rank)."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]
