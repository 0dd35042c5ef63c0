"""Many curves as one table, evaluated for all deployments at once.

Context and output are the same for every deployment of one decision, the load is not. So the table stands on the union
of all the curves' isl and osl knots, which a linear interpolation passes through unchanged, and at each of those
crossings holds every deployment's own concurrency axis, one after the other. Evaluating is one blend of four rows, then
one interpolation per deployment. Beyond the first and the last knot the line goes on: there is nothing to clamp.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.curve import Curve, merged
from agentroute.latency.layout import interpolating
from agentroute.latency.physics import FAR_TPOT, FAR_TTFT, tpot_terms, ttft_terms

Array = NDArray[np.float64]

SHIFT = 1024.0
"""Above any logarithm that can occur: deployment d's concurrency axis is found at ``SHIFT * d``."""

MOST_KNOTS = 48
"""Most isl and osl values at which the curves of a fleet bend."""


class CurveTable:
    """Curves of ``d`` deployments; a deployment without one answers NaN.

    ``_rows`` has shape (isl * osl, 4 * m) over the m concurrency brackets of all deployments. In each bracket a value
    is a line in ln n: the intercepts of TTFT and TPOT, then the slopes of both.
    """

    def __init__(self, curves: Sequence[Curve | None]) -> None:
        self.curves = tuple(curves)
        known = [curve for curve in self.curves if curve is not None]
        self._isl = _union([curve.axes[0] for curve in known])
        self._osl = _union([curve.axes[1] for curve in known])
        self._isl_places, self._osl_places = self._isl.tolist(), self._osl.tolist()
        axes = [_NO_AXIS if curve is None else curve.axes[2] for curve in self.curves]
        # Interior knots tell the brackets apart; the last one of each deployment separates it from the next.
        ends = [[*axis[1:-1], SHIFT / 2] for axis in axes]
        self._knots = np.concatenate([np.array(knots) + SHIFT * d for d, knots in enumerate(ends)])
        self._shift = SHIFT * np.arange(len(axes))
        lines = [self._lines(curve, axis) for curve, axis in zip(self.curves, axes, strict=True)]
        self._rows = np.concatenate(lines, axis=3).reshape(len(self._isl) * len(self._osl), -1)
        self._coefficients, self._least = (
            (
                np.array([_NO_TTFT if curve is None else getattr(curve.ttft, name) for curve in self.curves]),
                np.array([_NO_TPOT if curve is None else getattr(curve.tpot, name) for curve in self.curves]),
            )
            for name in ("coefficients", "least")
        )

    def at(
        self,
        ln_isl: float,
        ln_osl: float,
        ln_n: Array,
        *,
        cached_tokens: Array | float = 0.0,
        resident_tokens: Array | float | None = None,
    ) -> Array:
        """(TTFT, TPOT) of every deployment, shape (2, d), in milliseconds; (2, t, d) at t loads of each.

        The load is given in logarithms; ``ln_n`` has shape (d,) or (t, d). ``cached_tokens`` of each prompt are in the
        KV cache already; ``resident_tokens`` are there of all requests together, where it is not n times the mean
        context. Both change the times by what their physics says, and may be given for each deployment.
        """
        i, u = _place(self._isl_places, ln_isl)
        j, v = _place(self._osl_places, ln_osl)
        first = i * len(self._osl_places) + j
        last = first + len(self._osl_places)
        near = np.dot(((1 - u) * (1 - v), (1 - u) * v), self._rows[first : first + 2])
        blend = (near + np.dot((u * (1 - v), u * v), self._rows[last : last + 2])).reshape(4, -1)
        lines = blend.take(self._knots.searchsorted(ln_n + self._shift, side="right"), axis=1)
        result: Array = np.exp(lines[:2] + ln_n * lines[2:])
        if resident_tokens is not None or not isinstance(cached_tokens, float) or cached_tokens:
            result *= self._changed(exp(ln_isl), exp(ln_osl), np.exp(ln_n), cached_tokens, resident_tokens)
        return result

    def at_each(self, ln_isl: Array, ln_osl: Array, ln_n: Array) -> Array:
        """(TTFT, TPOT) of every deployment for each of t tasks, shape (2, t, d), in milliseconds.

        ``ln_isl`` and ``ln_osl`` have shape (t,), ``ln_n`` (t, d).
        """
        (i, u), (j, v) = _places(self._isl, ln_isl), _places(self._osl, ln_osl)
        brackets = self._knots.searchsorted(ln_n + self._shift, side="right")
        cells = self._rows.reshape(len(self._isl), len(self._osl), 4, -1)
        lines = np.zeros((*ln_n.shape, 4))
        for x, along in ((i, 1.0 - u), (i + 1, u)):
            for y, across in ((j, 1.0 - v), (j + 1, v)):
                lines += (along * across)[:, None, None] * cells[x[:, None], y[:, None], :, brackets]
        result: Array = np.exp(np.moveaxis(lines[..., :2] + ln_n[..., None] * lines[..., 2:], -1, 0))
        return result

    def _changed(
        self, isl: float, osl: float, n: Array, cached_tokens: Array | float, resident_tokens: Array | float | None
    ) -> Array:
        """By how much the times change, shape (2, ...) over the loads ``n``."""
        after = ttft_terms(isl, n, cached_tokens), tpot_terms(isl, osl, n, cached_tokens, resident_tokens)
        before = ttft_terms(isl, n), tpot_terms(isl, osl, n)
        physics = zip(after, before, self._coefficients, self._least, strict=True)
        return np.stack([_physics(a, c, least) / _physics(b, c, least) for a, b, c, least in physics])

    def support(self, d: int, ln_isl: float, ln_osl: float, ln_n: float) -> float:
        """How much of deployment ``d``'s answer at a load rests on measured cells, from 0.0 to 1.0."""
        curve = self.curves[d]
        return 0.0 if curve is None else curve.support(ln_isl, ln_osl, ln_n)

    def _lines(self, curve: Curve | None, n: Array) -> Array:
        """A curve on the table's isl and osl knots, as intercepts and slopes, shape (isl, osl, 4, brackets)."""
        if curve is None:
            return np.full((len(self._isl), len(self._osl), 4, len(n) - 1), np.nan)
        isl, osl = interpolating(curve.axes[0], self._isl), interpolating(curve.axes[1], self._osl)
        own = np.stack([curve.ln_ttft, curve.ln_tpot], axis=2)
        by_isl = np.tensordot(isl, own, axes=1)
        values = np.matmul(osl, by_isl.reshape(*by_isl.shape[:2], -1)).reshape(len(isl), len(osl), 2, -1)
        slopes = np.diff(values, axis=3) / np.diff(n)
        return np.concatenate([values[..., :-1] - slopes * n[:-1], slopes], axis=2)


_NO_AXIS = np.array([-1.0, 0.0, 1.0])
_NO_TTFT, _NO_TPOT = np.full(FAR_TTFT.shape[1], np.nan), np.full(FAR_TPOT.shape[1], np.nan)


def _union(axes: list[Array]) -> Array:
    """The knots of all axes. They are merged where there are more than ``MOST_KNOTS``, so that the table grows with the
    deployments, not with their cube; curves then bend at the merged knots instead of at their own.
    """
    return np.unique(merged(np.concatenate(axes or [_NO_AXIS]), MOST_KNOTS))


def _place(knots: list[float], x: float) -> tuple[int, float]:
    """The bracket of ``x`` and its place in it: 0 to 1 inside, beyond that outside the first and the last."""
    k = min(max(bisect_right(knots, x) - 1, 0), len(knots) - 2)
    return k, (x - knots[k]) / (knots[k + 1] - knots[k])


def _places(knots: Array, x: Array) -> tuple[NDArray[np.intp], Array]:
    """The same for many."""
    k = np.clip(knots.searchsorted(x, side="right") - 1, 0, len(knots) - 2)
    return k, (x - knots[k]) / (knots[k + 1] - knots[k])


def _physics(terms: Array, coefficients: Array, least: Array) -> Array:
    """By deployment what the coefficients say, and ``Metric.least`` at the least."""
    result: Array = np.maximum((terms * coefficients).sum(axis=-1), (terms * least).sum(axis=-1))
    return result
