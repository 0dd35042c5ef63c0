"""The grid that a curve stands on, and its times there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.bounds import Bounds
from agentroute.latency.metric import TTFT, Metric

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Axes = tuple[Array, Array, Array]

_LN2 = float(np.log(2.0))

ISL_KNOTS: Array = _LN2 * np.arange(4, 21, 1.0)
OSL_KNOTS: Array = _LN2 * np.arange(0, 18, 2.0)
N_KNOTS: Array = _LN2 * np.array([*range(0, 11), 13, 16], dtype=np.float64)
"""Where curves bend besides their measured loads: every doubling of the prompt from 16 tokens to a million, every
second one of the answer from 1 to 65,536, and, beyond the measured ones, every doubling of the concurrency up to 1,024.
All curves have these in common, so that a fleet's table stays small."""

APART = 0.05
"""A knot as near as this to a measured load (logarithm) is left out."""

PIECE, MOST_PIECES = _LN2 / 2, 6
"""Two measured concurrencies are parted into pieces of this width (logarithm), at most so many."""

FEW: Array = _LN2 * np.array([1.0, 1.5, 2.0, 2.5])
"""From 2 to 6 in flight, where the prompts of others begin to count: pieces end here, too, however wide the gap is."""


@dataclass(frozen=True, slots=True, eq=False)
class Hull:
    """The loads that were measured: their values on each axis, as logarithms. Concurrencies are parted into pieces.

    ``measured`` over them is True where a cell was measured, or lies between two measured concurrencies.
    """

    axes: Axes
    measured: Bools

    @classmethod
    def of(cls, ln_loads: Array) -> Hull:
        """That of loads (isl, osl, n)."""
        isl, osl, n = (np.unique(ln_loads[:, axis]) for axis in range(3))
        n = _parted(n)
        measured = np.zeros((len(isl), len(osl), len(n)), dtype=np.bool_)
        for i, j, span in _columns(ln_loads, (isl, osl, n)):
            measured[i, j, span[0] : span[-1] + 1] = True
        return cls((isl, osl, n), measured)


class Hulls:
    """The hulls of d deployments, each asked at a load of its own: ``loads`` of shape (3, d), logarithms of (isl, osl,
    n). Outside of ``None`` lies nothing, and nothing rests on it."""

    def __init__(self, hulls: Sequence[Hull | None]) -> None:
        axes = [_NO_AXES if hull is None else hull.axes for hull in hulls]
        ends = [_ENDLESS if hull is None else [(axis[0], axis[-1]) for axis in hull.axes] for hull in hulls]
        self._first, self._last = np.array(ends).transpose(2, 1, 0)
        # Knots of all axes in one row, isl of every deployment first; each axis is found at a shift of its own.
        every = [one[axis] for axis in range(3) for one in axes]
        lengths = np.array([len(axis) for axis in every]).reshape(3, -1)
        self._knots = np.concatenate(every)
        self._shift = _SHIFT * np.arange(lengths.size).reshape(lengths.shape)
        self._shifted = self._knots + np.repeat(self._shift.ravel(), lengths.ravel())
        self._begins = lengths.cumsum().reshape(lengths.shape) - lengths
        self._gaps = lengths - 1
        cells = [np.zeros((1, 1, 1), dtype=np.bool_) if hull is None else hull.measured for hull in hulls]
        sizes = np.array([one.size for one in cells])
        self._cells, self._cell = np.concatenate([one.ravel() for one in cells]), sizes.cumsum() - sizes
        self._stride = np.stack([lengths[1] * lengths[2], lengths[2], np.ones_like(lengths[2])])

    def nearest(self, loads: Array) -> Array:
        """``loads``, brought inside."""
        result: Array = np.minimum(np.maximum(loads, self._first), self._last)
        return result

    def outside(self, loads: Array) -> Array:
        """How far ``loads`` lie outside on each axis, in doublings, shape (3, d)."""
        result: Array = np.abs(loads - self.nearest(loads)) / _LN2
        return result

    def lone(self, loads: Array) -> Array:
        """How much of the doubling from one request in flight to two lies between ``loads`` and the measured ones,
        shape (d,): 1.0 for a lone request where only more were measured."""
        below = (np.minimum(self._first[2], _LN2) - loads[2]) / _LN2
        result: Array = np.minimum(np.maximum(below, 0.0), 1.0)
        return result

    def support(self, loads: Array) -> Array:
        """How much of a linear interpolation at ``loads`` would rest on measured cells, shape (d,), from 0.0 to 1.0."""
        place = self._shifted.searchsorted(loads + self._shift, side="right") - 1 - self._begins
        place = np.minimum(np.maximum(place, 0), np.maximum(self._gaps - 1, 0))
        further = np.minimum(place + 1, self._gaps)
        below, above = self._knots.take(self._begins + place), self._knots.take(self._begins + further)
        share = (loads - below) / np.where(above > below, above - below, 1.0)
        share = np.where(above > below, share, 0.0)
        weights, places = np.stack([1.0 - share, share]), np.stack([place, further]) * self._stride
        corners = places[:, None, None, 0] + places[None, :, None, 1] + places[None, None, :, 2] + self._cell
        rests = weights[:, None, None, 0] * weights[None, :, None, 1] * weights[None, None, :, 2]
        result: Array = (rests * self._cells.take(corners)).sum(axis=(0, 1, 2))
        result[self.outside(loads).max(axis=0) > 1e-9] = 0.0
        return result


_SHIFT = 1024.0
"""Above any logarithm that can occur."""
_ENDLESS = [(-np.inf, np.inf)] * 3
_NO_AXES = (np.zeros(1),) * 3


def knots(hull: Hull) -> Axes:
    """The axes of a curve."""
    isl, osl, n = hull.axes
    outside = N_KNOTS[(n[0] > N_KNOTS) | (n[-1] < N_KNOTS)]
    return _joined(isl, ISL_KNOTS), _joined(osl, OSL_KNOTS), _joined(n, outside)


def lay_out(metrics: tuple[Metric, Metric], hull: Hull, data: Array, axes: Axes, bounds: Bounds | None) -> Array:
    """The logarithms of TTFT and TPOT on ``axes``, shape (2, isl, osl, n), through ``data``: their points, rows of
    (isl, osl, n, TTFT, TPOT), in logarithms, too.

    Inside the measured loads TTFT is a line in the logarithms, TPOT its physics times such a line. Outside, the nearest
    one is carried on by the ratio of the physics, and on the grid never below ``bounds``; what lies between follows for
    TTFT, and for the weights and a request's own KV in TPOT, as both are convex in the logarithms.
    """
    ln_loads = data[:, :3]
    clipped = tuple(np.clip(b, a[0], a[-1]) for a, b in zip(hull.axes, axes, strict=True))
    ways = [interpolating(a, b) for a, b in zip(hull.axes, clipped, strict=True)]
    shape, loads, own = [len(axis) for axis in axes], _cells(axes), _cells(hull.axes)
    values = np.empty((2, *shape))
    for into, metric in zip(values, metrics, strict=True):
        there = metric.ln_physics(own)
        inside = (there + metric.residual.at(own)).reshape(hull.measured.shape)
        inside = _between(inside, ln_loads, hull.axes)
        if metric.kind is TTFT:
            nearest = metric.ln_physics(_cells(clipped))
            into[:] = _spread(inside, ways) + (metric.ln_physics(loads) - nearest).reshape(shape)
        else:
            into[:] = _spread(inside - there.reshape(inside.shape), ways) + metric.ln_physics(loads).reshape(shape)
    if bounds is not None:
        _lift(values, bounds, data, axes)
    measured = np.zeros(shape, dtype=np.bool_)
    measured[np.ix_(*(np.searchsorted(b, a) for a, b in zip(hull.axes, axes, strict=True)))] = hull.measured
    return _rising(values, measured)


def interpolating(axis: Array, at: Array) -> Array:
    """The matrix that interpolates values on ``axis`` linearly at ``at``; beyond its ends the line goes on."""
    matrix = np.zeros((len(at), len(axis)))
    if len(axis) == 1:
        matrix[:] = 1.0
        return matrix
    k = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2)
    place, rows = (at - axis[k]) / (axis[k + 1] - axis[k]), np.arange(len(at))
    matrix[rows, k], matrix[rows, k + 1] = 1.0 - place, place
    return matrix


def _spread(values: Array, ways: list[Array]) -> Array:
    isl, osl, n = ways
    result: Array = np.tensordot(isl, osl @ (values @ n.T), axes=1)
    return result


def _cells(axes: tuple[Array, ...]) -> Array:
    """All loads of a grid, shape (cells, 3)."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def _joined(own: Array, more: Array) -> Array:
    apart = np.abs(more[:, None] - own[None, :]).min(axis=1) > APART
    return np.sort(np.concatenate([own, more[apart]]))


def _parted(n: Array) -> Array:
    parts = [n[:1]]
    for low, high in pairwise(n):
        pieces = int(np.clip(round((high - low) / PIECE), 1, MOST_PIECES))
        parts.append(np.linspace(low, high, pieces + 1)[1:])
        parts[-1][-1] = high
    parted = np.concatenate(parts)
    return _joined(parted, FEW[(n[0] < FEW) & (n[-1] > FEW)])


def _columns(ln_loads: Array, axes: Axes) -> list[tuple[int, int, NDArray[np.intp]]]:
    """By measured (isl, osl) its place, and the places of its concurrencies, ascending."""
    i, j, k = (np.searchsorted(axis, ln_loads[:, number]) for number, axis in enumerate(axes))
    keys = i * len(axes[1]) + j
    return [(int(i[keys == key][0]), int(j[keys == key][0]), np.sort(k[keys == key])) for key in np.unique(keys)]


def _between(values: Array, ln_loads: Array, axes: Axes) -> Array:
    """``values`` bent so that between two measured concurrencies a time lies between theirs, and goes one way."""
    bent = values.copy()
    for i, j, places in _columns(ln_loads, axes):
        for first, last in pairwise(places):
            piece = bent[i, j, first : last + 1]
            low, high = sorted((piece[0], piece[-1]))
            way = np.maximum if piece[-1] >= piece[0] else np.minimum
            bent[i, j, first : last + 1] = way.accumulate(np.clip(piece, low, high))
    return bent


def _lift(values: Array, bounds: Bounds, data: Array, axes: Axes) -> None:
    """Brings ``values`` up to what the accelerators can do. Where points are faster than that, the bound is wrong for
    this deployment, or they are: it counts for as much less, so that no point is bent."""
    rows = np.exp(data)
    faster = bounds.faster(rows[:, :3], rows[:, 3], rows[:, 4]).max(axis=1)
    isl, osl, n = np.ix_(*(np.exp(axis) for axis in axes))
    least = np.log(bounds.ttft_ms(isl.ravel())).reshape(isl.shape)
    np.maximum(values[0], least - faster[0], out=values[0])
    least = np.log(bounds.tpot_ms(isl, osl, n, np.exp(values[0])))
    np.maximum(values[1], least - faster[1], out=values[1])


def _rising(values: Array, measured: Bools) -> Array:
    """``values`` with the cells that are not measured bent, where needed, so that neither a longer prompt nor more
    requests help. Measured cells stay as they are."""
    filled = np.broadcast_to(~measured, values.shape)
    for axis in (3, 1):
        cells, bends = np.moveaxis(values, axis, 0), np.moveaxis(filled, axis, 0)
        for i in range(1, len(cells)):
            np.maximum(cells[i], cells[i - 1], out=cells[i], where=bends[i])
        for i in range(len(cells) - 2, -1, -1):
            np.minimum(cells[i], cells[i + 1], out=cells[i], where=bends[i])
    return values
