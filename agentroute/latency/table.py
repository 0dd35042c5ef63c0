"""Many curves as one table, evaluated for all deployments at once.

Context and output are the same for every deployment of one decision, the load is not. So the table stands on the union
of all the curves' isl and osl knots, which a linear interpolation passes through unchanged, and at each of those
crossings holds every deployment's own concurrency axis, one after the other. Evaluating is one blend of four rows, then
one interpolation per deployment. Guard cells make every bracket valid: there is nothing to clamp.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.curve import GUARD, Curve

Array = NDArray[np.float64]

SHIFT = 1024.0
"""Above any logarithm that can occur: deployment d's concurrency axis is found at ``SHIFT * d``."""


class CurveTable:
    """Curves of ``d`` deployments; a deployment without one answers NaN.

    ``_rows`` has shape (isl, osl, 2, m): TTFT, then TPOT, over the m concurrency knots of all deployments.
    """

    def __init__(self, curves: Sequence[Curve | None]) -> None:
        self.curves = tuple(curves)
        known = [curve for curve in self.curves if curve is not None]
        self._isl = _union([curve.isl for curve in known])
        self._osl = _union([curve.osl for curve in known])
        axes = [_NO_AXIS if curve is None else curve.n for curve in self.curves]
        self._knots = np.concatenate([axis[1:-1] + SHIFT * d for d, axis in enumerate(axes)])
        self._shift = SHIFT * np.arange(len(axes))
        # The interior knots of d earlier axes precede deployment d's; each of those axes has two knots more than that,
        # and one bracket more.
        self._nth = np.arange(len(axes))
        starts = np.concatenate([[0], np.cumsum([len(axis) for axis in axes])])
        self._lower = np.concatenate([np.arange(a, b - 1) for a, b in pairwise(starts)])
        self._low = np.concatenate([axis[:-1] for axis in axes])
        self._per_width = np.concatenate([1.0 / np.diff(axis) for axis in axes])
        ttft = [self._refined(curve, curve.ln_ttft if curve else None) for curve in self.curves]
        tpot = [self._refined(curve, curve.ln_tpot if curve else None) for curve in self.curves]
        self._rows = np.stack([np.concatenate(ttft, axis=2), np.concatenate(tpot, axis=2)], axis=2)

    def at(self, ln_isl: float, ln_osl: float, ln_n: Array) -> Array:
        """(TTFT, TPOT) of every deployment, shape (2, d), in milliseconds.

        The load is given in logarithms; ``ln_n`` has shape (d,).
        """
        i, u = _place(self._isl, ln_isl)
        j, v = _place(self._osl, ln_osl)
        near = self._rows[i, j : j + 2]
        near = near + u * (self._rows[i + 1, j : j + 2] - near)
        blend = near[0] + v * (near[1] - near[0])
        bracket = self._knots.searchsorted(ln_n + self._shift, side="right")
        bracket += self._nth
        weight = (ln_n - self._low.take(bracket)) * self._per_width.take(bracket)
        lower = self._lower.take(bracket)
        below = blend.take(lower, axis=1)
        result: Array = np.exp(below + weight * (blend.take(lower + 1, axis=1) - below))
        return result

    def support(self, d: int, ln_isl: float, ln_osl: float, ln_n: float) -> float:
        """How much of deployment ``d``'s answer at a load rests on measured cells: 1.0 inside, 0.0 or less outside."""
        curve = self.curves[d]
        if curve is None:
            return 0.0
        weights = []
        for axis, x in zip((curve.isl, curve.osl, curve.n), (ln_isl, ln_osl, ln_n), strict=True):
            k, place = _place(axis.tolist(), x)
            weight = np.zeros(len(axis))
            weight[k], weight[k + 1] = 1.0 - place, place
            weights.append(weight)
        return float(np.einsum("ijk,i,j,k->", curve.measured, *weights))

    def _refined(self, curve: Curve | None, values: Array | None) -> Array:
        """``values`` of a curve on the table's isl and osl knots, shape (isl, osl, n)."""
        if curve is None or values is None:
            return np.full((len(self._isl), len(self._osl), len(_NO_AXIS)), np.nan)
        isl, osl = _weights(curve.isl, self._isl), _weights(curve.osl, self._osl)
        refined: Array = np.einsum("xi,yj,ijk->xyk", isl, osl, values)
        return refined


_NO_AXIS = np.array([-GUARD, 0.0, GUARD])


def _union(axes: list[Array]) -> list[float]:
    union = np.unique(np.concatenate(axes)) if axes else _NO_AXIS
    return [float(knot) for knot in union]


def _place(knots: list[float], x: float) -> tuple[int, float]:
    """The bracket of ``x`` and its place in it: 0 to 1 inside, beyond that outside the first and the last."""
    k = min(max(bisect_right(knots, x) - 1, 0), len(knots) - 2)
    return k, (x - knots[k]) / (knots[k + 1] - knots[k])


def _weights(own: Array, knots: list[float]) -> Array:
    """The matrix that interpolates values on the axis ``own`` at ``knots``."""
    matrix = np.zeros((len(knots), len(own)))
    for row, x in enumerate(knots):
        k, place = _place(own.tolist(), x)
        matrix[row, k], matrix[row, k + 1] = 1.0 - place, place
    return matrix
