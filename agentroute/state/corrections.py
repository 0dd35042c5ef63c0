"""What experience says of the curves: a bounded factor on TTFT and TPOT, by deployment, context and load."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentroute.inputs import LOADS
from agentroute.state.steady import Steady

Latency = Literal["ttft_ms", "tpot_ms"]
METRICS: tuple[Latency, ...] = ("ttft_ms", "tpot_ms")
"""The order of the metrics on an array's axis of two."""

CONTEXTS = (2_048, 8_192, 32_768)
"""Prompt tokens at which the next of four context regions begins: what a curve gets wrong at one length (the knee of
TTFT, the KV share of TPOT) it gets wrong at its like."""

MOST = math.log(3.0)
"""No factor is beyond 3 or below 1/3, and no observation counts for more: the profile would be another server's."""
LEAN = 2.0
"""Observations that a deployment's overall ratio weighs against "as predicted" (1.0). Assumed."""
LEAN_REGION = 3.0
"""Observations that a region's ratio weighs against the deployment's. Assumed."""
MEMORY = 16.0
"""Observations after which a new one counts 1/16: with requests that scatter by 30 %, a mean within 6 %. Assumed."""
SERIES = 4
"""So many in a row beyond the band, on one side, are no outliers but a change: what was learnt before is dropped. By
chance (each side of an 80 % band has 10 %) it happens once in about ten thousand requests."""
FADE_S = 600.0
"""Evidence fades by e in so many seconds, so that what was slow is tried again. Assumed."""
REFRESH_S = 10.0
"""While no call ends, factors are reckoned again no more often than this; evidence fades by 2 % in it."""
DRIFT = math.log(1.3)
"""A ratio beyond 1.3, or below 1/1.3, is a drift: the width of an extrapolated band."""
DRIFT_SEEN = 20
"""... once so many requests were seen. Assumed."""

_BAND, _SURE = 1.28 * 1.25, 1.64 * 1.25
"""Half an 80 % band over the mean absolute deviation, of a normal scatter; and 95 %, one-sided."""
FIRST_DEVIATION, LEAST_DEVIATION = 0.2, 0.05
"""Mean absolute deviation of a log-ratio: at first (an 80 % band of +-32 %), and at least. Assumed."""
_ALL = (len(CONTEXTS) + 1) * (len(LOADS) + 1)
"""The place of a deployment's overall ratio, after its regions."""
_MEAN, _WEIGHT, _AT, _DEVIATION, _SERIES, _SERIES_SUM, _SEEN = range(7)
"""What is kept of a region: the mean log-ratio, its evidence and when that was true, the mean absolute deviation, the
series beyond the band (its signed length and its sum), and how many were seen."""
_FORGOTTEN = 0.05
"""Evidence of so few observations is none: that of a full memory is gone after an hour."""


WHOLE = "all requests"
"""The region of a ratio over all that a deployment has seen."""


class Drift(NamedTuple):
    """A curve that is off: ``ratio`` is seen / predicted, the middle of the last requests seen; 3 is 3 or more."""

    deployment: int
    metric: Latency
    region: str
    """In words; ``WHOLE`` for the deployment as a whole."""
    ratio: float
    observations: int
    """Requests seen there since the start."""


class Corrections:
    """Factors learnt from what happened. Not locked: the router calls it under its own lock.

    Each observation is a log-ratio seen / predicted, of the *uncorrected* prediction: so a factor is an average of what
    was seen, never fed back into itself, and cannot oscillate. The average is robust (one beyond the 80 % band of the
    scatter counts as one at its edge) and close to the median; it leans on the deployment's overall ratio, and that on
    1.0, as long as there is little evidence.
    """

    def __init__(self, deployments: int) -> None:
        self._cells = np.zeros((2, deployments, _ALL + 1, 7))
        self._cells[..., _AT], self._cells[..., _DEVIATION] = -math.inf, FIRST_DEVIATION
        self._table = np.ones((len(CONTEXTS) + 1, 2, deployments, len(LOADS) + 1))
        self._learnt = False
        self._due = math.inf
        self._steady = Steady()

    def seen(
        self, deployment: int, metric: Latency, isl: float, n: float, predicted_ms: float, seen_ms: float, now: float
    ) -> None:
        """A call ended. ``predicted_ms`` is what the curve said at ``isl`` prompt tokens and ``n`` in flight, before
        any correction; nothing is learnt where it is unknown (NaN), or where ``seen_ms`` is no time."""
        if not (0.0 < predicted_ms < math.inf and 0.0 < seen_ms < math.inf):
            return
        time, m = self._steady(now), METRICS.index(metric)
        ratio = min(max(math.log(seen_ms) - math.log(predicted_ms), -MOST), MOST)
        region = context_region(isl) * (len(LOADS) + 1) + bisect_right(LOADS, n)
        for place in (region, _ALL):
            cell = self._cells[m, deployment, place]
            cell[:] = _learnt(cell.tolist(), ratio, time)
        if not self._learnt:
            self._learnt, self._due = True, time + REFRESH_S
        # Replaced, never changed, so that who reads it keeps what was true.
        self._table = self._table.copy()
        self._table[:, :, deployment] = self._reckoned(slice(deployment, deployment + 1), time)[:, :, 0]

    def table(self, now: float) -> NDArray[np.float64] | None:
        """Factors, shape (4 context regions, 2 metrics, deployments, 3 load regions), or ``None``: nothing is learnt.

        Not to be written to: others read it, too.
        """
        if not self._learnt:
            return None
        time = self._steady(now)
        if time >= self._due:
            self._due = time + REFRESH_S
            self._table = self._reckoned(slice(None), time)
            self._learnt = bool((self._faded(slice(None), time) > 0.0).any())
            if not self._learnt:
                return None
        return self._table

    def factors(self, isl: float, now: float) -> NDArray[np.float64] | None:
        """``table`` at one prompt length: shape (2 metrics, deployments, 3 load regions), or ``None``."""
        table = self.table(now)
        return None if table is None else table[context_region(isl)]

    def drifting(self, now: float) -> list[Drift]:
        """Curves whose ratio is beyond 1.3 or below 1/1.3 with 95 % certainty, after ``DRIFT_SEEN`` requests there.

        The ratio is the robust mean m of the last (about 16) log-ratios, not leaned on anything; certain is
        |m| - 1.64 x s / sqrt(w) > ln 1.3, s = 1.25 x mean absolute deviation, w the evidence left, at least 8.
        """
        weight, seen = self._faded(slice(None), self._steady(now)), self._cells[..., _SEEN]
        enough = (seen >= DRIFT_SEEN) & (weight >= MEMORY / 2)
        spread = _SURE * self._cells[..., _DEVIATION] / np.sqrt(np.maximum(weight, 1.0))
        found = np.argwhere(enough & (np.abs(self._cells[..., _MEAN]) - spread > DRIFT))
        return [
            Drift(d, METRICS[m], _words(r), math.exp(self._cells[m, d, r, _MEAN]), int(seen[m, d, r]))
            for m, d, r in found.tolist()
        ]

    def adopt(self, old: Corrections, deployments: Mapping[int, int]) -> None:
        """Take over what was learnt of deployments that have new numbers."""
        was, now = list(deployments), list(deployments.values())
        self._cells[:, now] = old._cells[:, was]
        self._table[:, :, now] = old._table[:, :, was]
        self._learnt, self._due, self._steady = old._learnt, old._due, old._steady

    def _faded(self, deployments: slice, time: float) -> NDArray[np.float64]:
        cells = self._cells[:, deployments]
        weight = cells[..., _WEIGHT] * np.exp((cells[..., _AT] - time) / FADE_S)
        return np.where(weight < _FORGOTTEN, 0.0, weight)

    def _reckoned(self, deployments: slice, time: float) -> NDArray[np.float64]:
        weight, mean = self._faded(deployments, time), self._cells[:, deployments, :, _MEAN]
        overall = weight[..., _ALL:] * mean[..., _ALL:] / (weight[..., _ALL:] + LEAN)
        region = weight[..., :_ALL]
        log = (region * mean[..., :_ALL] + LEAN_REGION * overall) / (region + LEAN_REGION)
        by_context = np.exp(log).reshape(2, -1, len(CONTEXTS) + 1, len(LOADS) + 1)
        return np.ascontiguousarray(by_context.transpose(2, 0, 1, 3))


def _learnt(cell: list[float], ratio: float, time: float) -> list[float]:
    """What is kept of a region after one more log-ratio."""
    mean, weight, at, deviation, series, total, seen = cell
    weight *= math.exp((at - time) / FADE_S)
    off, band = ratio - mean, _BAND * deviation
    outside = abs(off) > band and weight >= SERIES
    if not outside or series * off < 0.0:
        series = total = 0.0
    if outside:
        series, total = series + math.copysign(1.0, off), total + ratio
    if abs(series) >= SERIES:
        return [total / SERIES, float(SERIES), time, deviation, 0.0, 0.0, seen + 1.0]
    step = off if weight < SERIES else min(max(off, -band), band)
    weight = min(weight + 1.0, MEMORY)
    deviation += (min(abs(off), 2.0 * band) - deviation) / MEMORY
    return [mean + step / weight, weight, time, max(deviation, LEAST_DEVIATION), series, total, seen + 1.0]


def context_region(isl: float) -> int:
    """Which of the four context regions a prompt of ``isl`` tokens is in."""
    return bisect_right(CONTEXTS, isl)


def _words(region: int) -> str:
    if region == _ALL:
        return WHOLE
    context, load = divmod(region, len(LOADS) + 1)
    return f"{_between(CONTEXTS, context)} prompt tokens, {_between(LOADS, load)} in flight"


def _between(edges: tuple[float, ...], region: int) -> str:
    if region == 0:
        return f"under {edges[0]:,.0f}"
    if region == len(edges):
        return f"{edges[-1]:,.0f} or more"
    return f"{edges[region - 1]:,.0f} to {edges[region]:,.0f}"
