"""Many curves as one table, evaluated for all deployments at once.

Context and output are the same for every deployment of one decision, the load is not. So the table stands on the union
of all the curves' isl and osl knots, which a linear interpolation passes through unchanged, and at each of those
crossings holds every deployment's own concurrency axis, one after the other. Evaluating is one blend of four rows, then
one interpolation per deployment. Guard cells make every bracket valid: there is nothing to clamp.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.curve import GUARD, Curve, merged

Array = NDArray[np.float64]

SHIFT = 1024.0
"""Above any logarithm that can occur: deployment d's concurrency axis is found at ``SHIFT * d``."""

_NEARLY_NOTHING = 1e-9
MOST_KNOTS = 24
"""Most isl and osl values at which the curves of a fleet bend."""


class CurveTable:
    """Curves of ``d`` deployments; a deployment without one answers NaN.

    ``_rows`` has shape (isl * osl, 4 * m) over the m concurrency brackets of all deployments. In each bracket a value
    is a line in ln n: the intercepts of TTFT and TPOT, then the slopes of both.
    """

    def __init__(self, curves: Sequence[Curve | None]) -> None:
        self.curves = tuple(curves)
        known = [curve for curve in self.curves if curve is not None]
        self._isl = _union([curve.isl for curve in known])
        self._osl = _union([curve.osl for curve in known])
        axes = [_NO_AXIS if curve is None else curve.n for curve in self.curves]
        # Interior knots tell the brackets apart; the last one of each deployment separates it from the next.
        ends = [[*axis[1:-1], SHIFT / 2] for axis in axes]
        self._knots = np.concatenate([np.array(knots) + SHIFT * d for d, knots in enumerate(ends)])
        self._shift = SHIFT * np.arange(len(axes))
        lines = [self._lines(curve, axis) for curve, axis in zip(self.curves, axes, strict=True)]
        self._rows = np.concatenate(lines, axis=3).reshape(len(self._isl) * len(self._osl), -1)

    def at(self, ln_isl: float, ln_osl: float, ln_n: Array) -> Array:
        """(TTFT, TPOT) of every deployment, shape (2, d), in milliseconds.

        The load is given in logarithms; ``ln_n`` has shape (d,).
        """
        i, u = _place(self._isl, ln_isl)
        j, v = _place(self._osl, ln_osl)
        first = i * len(self._osl) + j
        last = first + len(self._osl)
        near = np.dot(((1 - u) * (1 - v), (1 - u) * v), self._rows[first : first + 2])
        blend = (near + np.dot((u * (1 - v), u * v), self._rows[last : last + 2])).reshape(4, -1)
        lines = blend.take(self._knots.searchsorted(ln_n + self._shift, side="right"), axis=1)
        result: Array = np.exp(lines[:2] + ln_n * lines[2:])
        return result

    def support(self, d: int, ln_isl: float, ln_osl: float, ln_n: float) -> float:
        """How much of deployment ``d``'s answer at a load rests on measured cells, from 0.0 to 1.0."""
        curve = self.curves[d]
        load = (ln_isl, ln_osl, ln_n)
        if curve is None or curve.doublings_outside(load) > _NEARLY_NOTHING:
            return 0.0
        weights = []
        for axis, x in zip((curve.isl, curve.osl, curve.n), load, strict=True):
            k, place = _place(axis.tolist(), x)
            weight = np.zeros(len(axis))
            weight[k], weight[k + 1] = 1.0 - place, place
            weights.append(weight)
        return float(np.einsum("ijk,i,j,k->", curve.measured, *weights))

    def _lines(self, curve: Curve | None, n: Array) -> Array:
        """A curve on the table's isl and osl knots, as intercepts and slopes, shape (isl, osl, 4, brackets)."""
        if curve is None:
            return np.full((len(self._isl), len(self._osl), 4, len(n) - 1), np.nan)
        isl, osl = _weights(curve.isl, self._isl), _weights(curve.osl, self._osl)
        values = np.einsum("xi,yj,mijk->xymk", isl, osl, np.stack([curve.ln_ttft, curve.ln_tpot]))
        slopes = np.diff(values, axis=3) / np.diff(n)
        return np.concatenate([values[..., :-1] - slopes * n[:-1], slopes], axis=2)


_NO_AXIS = np.array([-GUARD, 0.0, GUARD])


def _union(axes: list[Array]) -> list[float]:
    """The measured knots of all axes between two guards; a curve has no kink at its own guards.

    Knots are merged where there are more than ``MOST_KNOTS``, so that the table grows with the deployments, not with
    their cube; curves then bend at the merged knots instead of at their own.
    """
    knots = np.unique(merged(np.concatenate([axis[1:-1] for axis in axes or [_NO_AXIS]]), MOST_KNOTS))
    return [float(knot) for knot in (knots[0] - GUARD, *knots, knots[-1] + GUARD)]


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
