"""A deployment's measured points as a rectangular grid of logarithms over (isl, osl, concurrency).

Between measured loads the grid is interpolated, linearly in the logarithms. Every cell that was not measured, and a
guard cell far beyond each end, is filled from the measured cells, the nearest first, by a power law whose exponents
come from the points themselves, as far as they can be believed. So nothing is ever clamped: outside the measured loads
the power law goes on, on the slow side, and the answer says that it is extrapolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.points import STATISTICS, Measured, Point, Statistic, noise_of

Array = NDArray[np.float64]

GUARD = float(np.log(64.0))
"""How far beyond the ends the guard cells lie: a factor of 64. Beyond them the same slope continues."""

MOST_KNOTS = 32
"""Most values kept apart on an axis: a grid of 34 x 34 x 34 cells takes about a megabyte."""


@dataclass(frozen=True, slots=True)
class Law:
    """A power law over (isl, osl, n): the exponents to assume where an axis has one measured value, and the least and
    greatest ones to believe going down from the measured loads, and going up.
    """

    assumed: tuple[float, float, float]
    down: tuple[tuple[float, float], ...]
    up: tuple[tuple[float, float], ...]


TTFT_LAW = Law((1.0, 0.0, 0.5), down=((0.0, 0.3), (-0.5, 0.0), (0.0, 0.2)), up=((1.0, 2.0), (0.0, 0.0), (0.5, 1.5)))
TPOT_LAW = Law((0.1, 0.0, 0.5), down=((0.0, 0.05), (-0.5, 0.0), (0.0, 0.1)), up=((0.1, 1.0), (0.0, 0.0), (0.5, 1.0)))
"""Assumed, and chosen to err to the slow side. Up: prefill is at least linear in the prompt and at most quadratic, a
decode step grows with the batch up to being bound by it, and a longer answer helps nothing. Down: overheads and the
reading of the weights stay, and a shorter answer brings more prefills."""

TTFT_BAND, TPOT_BAND, LEAST_BAND = 0.30, 0.10, 0.05
"""Assumed relative error where the points are too few to tell: by how much predicting one step beyond the measured
loads missed, over the public curves of InferenceX and NVIDIA's gap analysis."""


@dataclass(frozen=True)
class Curve:
    """A grid with axes ``isl``, ``osl``, ``n`` (ascending logarithms, guards included).

    ``ln_ttft`` and ``ln_tpot`` have shape (isl, osl, n) and hold the logarithm of milliseconds. ``measured`` is 1.0
    where a cell was measured, or lies between two measured concurrencies, and 0.0 where it was filled.
    """

    isl: Array
    osl: Array
    n: Array
    ln_ttft: Array
    ln_tpot: Array
    measured: Array
    ttft_band: float
    tpot_band: float
    tails: Mapping[tuple[str, Statistic], float]
    """By metric and statistic the most that was measured over the mean, where percentiles were measured."""

    @classmethod
    def fit(cls, points: Iterable[Point]) -> Curve | None:
        """The curve through ``points``, or ``None`` when none has both a mean TTFT and a mean TPOT.

        Where an axis has more than ``MOST_KNOTS`` values, neighbours are merged and their points averaged.
        """
        points = tuple(points)
        rows = [
            (*point.load, ttft_ms, tpot_ms)
            for point in points
            if (ttft_ms := point.mean_ttft_ms()) is not None and (tpot_ms := point.mean_tpot_ms()) is not None
        ]
        if not rows:
            return None
        data: Array = np.log(np.array(rows, dtype=np.float64))
        data = _averaged(np.column_stack([*(merged(data[:, axis], MOST_KNOTS) for axis in range(3)), data[:, 3:]]))
        loads, ttft, tpot = data[:, :3], data[:, 3], data[:, 4]
        axes = [_with_guards(np.unique(loads[:, axis])) for axis in range(3)]
        cells = np.stack([np.searchsorted(axes[axis], loads[:, axis]) for axis in range(3)], axis=1)
        measured, known_ttft, known_tpot = _between(cells, ttft, tpot, axes)
        return cls(
            isl=axes[0],
            osl=axes[1],
            n=axes[2],
            ln_ttft=_rising(_fill(known_ttft, measured, axes, *_exponents(loads, ttft, TTFT_LAW)), measured),
            ln_tpot=_rising(_fill(known_tpot, measured, axes, *_exponents(loads, tpot, TPOT_LAW)), measured),
            measured=measured.astype(np.float64),
            ttft_band=hypot(_band(cells, ttft, axes[2], TTFT_BAND), noise_of(point.ttft_ms for point in points)),
            tpot_band=hypot(_band(cells, tpot, axes[2], TPOT_BAND), noise_of(point.tpot_ms for point in points)),
            tails=_tails(points),
        )

    def doublings_outside(self, load: tuple[float, float, float]) -> float:
        """How far ``load`` (logarithms) lies outside the measured range, in doublings summed over the axes."""
        outside = 0.0
        for axis, x in zip((self.isl, self.osl, self.n), load, strict=True):
            outside += max(axis[1] - x, x - axis[-2], 0.0)
        return outside / float(np.log(2.0))


def merged(values: Array, most: int) -> Array:
    """``values`` with at most ``most`` different ones: each becomes the mean of its group of neighbours."""
    knots, nth = np.unique(values, return_inverse=True)
    if len(knots) <= most:
        return values
    groups = np.array_split(knots, most)
    return np.concatenate([np.full(len(group), group.mean()) for group in groups])[nth]


def _averaged(data: Array) -> Array:
    """Rows in ascending order of their load (the first three columns), those with the same load averaged."""
    loads, nth = np.unique(data[:, :3], axis=0, return_inverse=True)
    nth = nth.ravel()  # numpy 2.0 alone gives it a second axis
    count = np.bincount(nth)
    means = [np.bincount(nth, weights=data[:, column]) / count for column in (3, 4)]
    return np.column_stack([loads, *means])


def _with_guards(knots: Array) -> Array:
    return np.concatenate(([knots[0] - GUARD], knots, [knots[-1] + GUARD]))


def _columns(cells: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Rows of ``cells`` by (isl, osl); each ascends in concurrency because the points are sorted."""
    keys = cells[:, 0] * (cells[:, 1].max() + 1) + cells[:, 1]
    return [np.flatnonzero(keys == key) for key in np.unique(keys)]


def _between(
    cells: NDArray[np.intp], ttft: Array, tpot: Array, axes: list[Array]
) -> tuple[NDArray[np.bool_], Array, Array]:
    """Which cells are measured or between two measured concurrencies, and their TTFT and TPOT."""
    shape = tuple(len(axis) for axis in axes)
    measured, known = np.zeros(shape, dtype=np.bool_), np.zeros((2, *shape))
    for rows in _columns(cells):
        (i, j, first), last = cells[rows[0]], cells[rows[-1], 2]
        span = slice(first, last + 1)
        measured[i, j, span] = True
        for values, into in zip((ttft, tpot), known, strict=True):
            into[i, j, span] = np.interp(axes[2][span], axes[2][cells[rows, 2]], values[rows])
    return measured, known[0], known[1]


def _exponents(loads: Array, values: Array, law: Law) -> tuple[Array, Array]:
    """Exponents over (isl, osl, n) going down and going up: by least squares, each as far as the law believes it."""
    exponents = np.array(law.assumed)
    free = [axis for axis in range(3) if np.ptp(loads[:, axis]) > 0]
    rest = values - loads @ np.where([axis in free for axis in range(3)], 0.0, exponents)
    design = np.column_stack([loads[:, free], np.ones(len(loads))])
    exponents[free] = np.linalg.lstsq(design, rest, rcond=None)[0][:-1]
    down, up = (
        np.array([np.clip(e, *ends) for e, ends in zip(exponents, way, strict=True)]) for way in (law.down, law.up)
    )
    return down, up


def _fill(known: Array, measured: NDArray[np.bool_], axes: list[Array], down: Array, up: Array) -> Array:
    """Every cell: its own value if known, else the known ones carried over by the power law, the nearest first."""
    places = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    sources, values, holes = places[measured], known[measured], places[~measured]
    filled = known.copy()
    # A few hundred holes at a time: against thousands of points the distances would not fit into memory.
    filled[~measured] = np.concatenate(
        [_carried(some, sources, values, down, up) for some in np.array_split(holes, 1 + len(holes) // 300)]
    )
    return filled


def _carried(holes: Array, sources: Array, values: Array, down: Array, up: Array) -> Array:
    """By hole, the values of all sources carried over by the law, weighted by distance to the power of -4."""
    step = holes[:, None, :] - sources[None, :, :]
    weight = np.abs(step).sum(axis=2) ** -4.0
    carried = values + np.minimum(step, 0.0) @ down + np.maximum(step, 0.0) @ up
    result: Array = (weight * carried).sum(axis=1) / weight.sum(axis=1)
    return result


def _rising(values: Array, measured: NDArray[np.bool_]) -> Array:
    """``values`` with the filled cells bent, where needed, so that neither a longer prompt nor more requests help.

    Measured cells stay as they were measured.
    """
    bent = values.copy()
    for axis in (2, 0):
        cells, known = np.moveaxis(bent, axis, 0), np.moveaxis(measured, axis, 0)
        for i in range(1, len(cells)):
            cells[i] = np.where(known[i], cells[i], np.maximum(cells[i], cells[i - 1]))
        for i in range(len(cells) - 2, -1, -1):
            cells[i] = np.where(known[i], cells[i], np.minimum(cells[i], cells[i + 1]))
    return bent


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


def _band(cells: NDArray[np.intp], values: Array, n_axis: Array, assumed: float) -> float:
    """80th percentile of the relative error when each inner point is left out and interpolated from its neighbours."""
    errors = []
    for rows in _columns(cells):
        x, y = n_axis[cells[rows, 2]], values[rows]
        for i in range(1, len(rows) - 1):
            guess = np.interp(x[i], x[[i - 1, i + 1]], y[[i - 1, i + 1]])
            errors.append(abs(float(guess - y[i])))
    if len(errors) < 3:
        return assumed
    return max(LEAST_BAND, float(np.expm1(np.quantile(errors, 0.8))))
