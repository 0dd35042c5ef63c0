"""A deployment's TTFT and TPOT at any load: from its measured points, from its roofline, or from both.

A time is its physics (``latency.physics``: few terms, coefficients that are not negative, by relative least squares)
times what the points say beyond that (``latency.residual``: its logarithm, interpolated). What the points leave open is
left to a shape: the deployment's roofline, else a typical one. So one point moves the roofline to its height, one
measured ISL takes from it what another ISL would cost, and the more is measured the less it says. Beyond the measured
loads the nearest one is carried on by the ratio of the physics, never clamped, and the answer says that it is
extrapolated. Times stand on a grid of logarithms (``latency.layout``), with lines between.

Tried on the public points, and not better: curves each on their own (PCHIP in the logarithms: TPOT 3.2 % instead of
2.4 %); the residual interpolated along its own curve alone (2.8 %); a noise or a kernel chosen for each deployment, by
likelihood or by leaving points out (2.3 to 2.6 %, and slower); outliers weighed less (2.5 %); further terms, isl^2,
context alone, sqrt(n) isl / osl (2.4 %); for TTFT the smooth kernel (9.8 instead of 8.9 %, and across a knee worse).
Beyond the greatest concurrency: the roofline's ratio alone (TPOT 9.6 %, TTFT 28 %), coefficients that the points alone
tell (8.9 and 24 %), the slope of the last two points (10 and 27 %), instead of 8.0 and 25 %. From one measured ISL to
one 8 times as long: the roofline's proportions of the terms in n, fixed (median TPOT 12 %), no term for the attention
of prompts (11 %), a typical server's shape in place of the roofline's (8.5 %), instead of 5.3 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.bands import Bands
from agentroute.latency.bounds import Bounds
from agentroute.latency.layout import Axes, Hull, knots, lay_out
from agentroute.latency.metric import TPOT, TTFT, Metric
from agentroute.latency.physics import TYPICAL, Shape
from agentroute.latency.points import STATISTICS, Measured, Point, Statistic, noise_of
from agentroute.latency.queueing import Queues

Array = NDArray[np.float64]

Tails = Mapping[tuple[str, Statistic], float]

MOST_ROWS, MOST_CELLS, MOST_KNOTS = 256, 4_096, 32
"""Points and cells of one curve, and loads on one of its axes; where there are more, neighbours are merged."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """``ln_ttft`` and ``ln_tpot``: logarithms of milliseconds, shape (isl, osl, n), over the logarithms ``axes``."""

    axes: Axes
    ln_ttft: Array
    ln_tpot: Array
    ttft: Metric
    tpot: Metric
    hull: Hull
    """The loads that it passes through."""
    is_measured: bool
    """False where nothing is measured, and all is derived from a roofline."""
    queues: Queues
    bounds: Bounds | None
    """What its accelerators cannot beat; ``None``: unknown."""
    tails: Tails
    """By metric and statistic the most that was measured over the mean, where percentiles were measured."""
    noise: tuple[float, float] = (0.0, 0.0)
    """Half the 80 % band of the measured mean TTFT and TPOT, as fractions, by how much repeats of a load differed."""

    @classmethod
    def fit(cls, points: Iterable[Point], shape: Shape | None = None) -> Curve | None:
        """The curve through ``points``, or ``None`` when none has both a mean TTFT and a mean TPOT.

        ``shape`` is that of the deployment's roofline; without one, a typical one. Where there are more points than
        ``MOST_ROWS``, or more loads on an axis than ``MOST_KNOTS``, neighbours are merged and their points averaged.
        """
        points = tuple(points)
        rows = [
            (*point.load, ttft_ms, tpot_ms)
            for point in points
            if (ttft_ms := point.mean_ttft_ms()) is not None and (tpot_ms := point.mean_tpot_ms()) is not None
        ]
        if not rows:
            return None
        data, hull = _thinned(np.log(np.array(rows, dtype=np.float64)))
        noise = noise_of(point.ttft_ms for point in points), noise_of(point.tpot_ms for point in points)
        return replace(cls._through(data, hull, shape or TYPICAL, _tails(points), measured=True), noise=noise)

    @classmethod
    def derived(cls, loads: Array, ttft_ms: Array, tpot_ms: Array, bounds: Bounds | None = None) -> Curve:
        """The curve through what a roofline says at ``loads`` (isl, osl, n), shape (m, 3), with nothing measured."""
        data = np.log(np.column_stack([loads, ttft_ms, tpot_ms]))
        return cls._through(data, Hull.of(data[:, :3]), replace(TYPICAL, bounds=bounds), {}, measured=False)

    @classmethod
    def _through(cls, data: Array, hull: Hull, shape: Shape, tails: Tails, *, measured: bool) -> Curve:
        loads, axes = data[:, :3], knots(hull)
        ttft = Metric.through(TTFT, loads, data[:, 3], shape.ttft)
        tpot = Metric.through(TPOT, loads, data[:, 4], shape.tpot)
        values = lay_out((ttft, tpot), hull, data, axes, shape.bounds)
        return cls(axes, values[0], values[1], ttft, tpot, hull, measured, Queues.of(data), shape.bounds, tails)

    def without_grid(self) -> Curve:
        """The curve for asking how sure it is alone: its times stand in a table, and take half of its memory."""
        return replace(self, ln_ttft=_NO_TIMES, ln_tpot=_NO_TIMES)

    @property
    def most_n(self) -> float:
        """The greatest measured concurrency; infinite where nothing is measured."""
        return float(np.exp(self.hull.axes[2][-1])) if self.is_measured else np.inf

    def support(self, isl: float, osl: float, n: float) -> float:
        """``Bands.support`` of this curve alone."""
        return float(Bands((self,)).support(isl, osl, np.array([n]))[0])

    def bands(self, load: tuple[float, float, float]) -> tuple[float, float]:
        """``Bands.at`` of this curve alone, which takes longer than one of several does when asked again."""
        ttft, tpot = Bands((self,)).at(load[0], load[1], np.array([load[2]]))[:, 0].tolist()
        return ttft, tpot


_NO_TIMES: Array = np.empty((0, 0, 0))


def merged(values: Array, most: int) -> Array:
    """``values`` with at most ``most`` different ones: each becomes the mean of its group of neighbours."""
    found, nth = np.unique(values, return_inverse=True)
    if len(found) <= most:
        return values
    groups = np.array_split(found, most)
    return np.concatenate([np.full(len(group), group.mean()) for group in groups])[nth]


def _thinned(data: Array) -> tuple[Array, Hull]:
    """Rows (load, TTFT, TPOT) in ascending order of their load, as many as can be dealt with, and their hull."""
    most = MOST_KNOTS
    while True:
        rows = _averaged(np.column_stack([*(merged(data[:, axis], most) for axis in range(3)), data[:, 3:]]))
        hull = Hull.of(rows[:, :3])
        if most <= 2 or (len(rows) <= MOST_ROWS and hull.measured.size <= MOST_CELLS):
            return rows, hull
        most = most * 3 // 4


def _averaged(data: Array) -> Array:
    """Rows in ascending order of their load (the first three columns), those with the same load averaged."""
    loads, nth = np.unique(data[:, :3], axis=0, return_inverse=True)
    nth = nth.ravel()  # numpy 2.0 alone gives it a second axis
    count = np.bincount(nth)
    means = [np.bincount(nth, weights=data[:, column]) / count for column in (3, 4)]
    return np.column_stack([loads, *means])


def _tails(points: Sequence[Point]) -> dict[tuple[str, Statistic], float]:
    tails: dict[tuple[str, Statistic], float] = {}
    for point in points:
        for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
            measured: Measured | None = getattr(point, metric)
            if measured is None or measured.mean is None:
                continue
            for stat in STATISTICS[1:]:
                if (value := getattr(measured, stat)) is not None:
                    tails[metric, stat] = max(tails.get((metric, stat), 0.0), value / measured.mean)
    return tails
