"""Many curves as one table, evaluated for all deployments at once.

Context and output are the same for every deployment of one decision, the load is not. So the table stands on the union
of all the curves' isl and osl knots, which a linear interpolation passes through unchanged, and at each of those
crossings holds every deployment's own concurrency axis, one after the other. Evaluating is one blend of four rows, then
one interpolation per deployment. Beyond the first and the last knot the line goes on: there is nothing to clamp.

A large fleet's logarithms are kept in single precision: a ten-thousandth of a per cent, at half of the memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.curve import Curve
from agentroute.latency.layout import interpolating
from agentroute.latency.physics import FAR_TPOT, FAR_TTFT, THOUSAND, tpot_terms, ttft_terms

Array = NDArray[np.float64]

SHIFT = 1024.0
"""Above any logarithm that can occur: deployment d's concurrency axis is found at ``SHIFT * d``."""

MOST_BYTES = 46 * 1_024
"""Most memory of the rows, for each deployment. Where the union of knots would take more, the nearest are merged."""
SMALL_BYTES = 1_024 * 1_024
"""A small fleet may take so much in all: it passes through every measured point, in double precision."""

_BYTES_PER_BRACKET = 4 * 4


class CurveTable:
    """Curves of ``d`` deployments; a deployment without one answers NaN.

    ``_rows`` has shape (isl * osl, 2 * m * 2) over TTFT and TPOT and the m concurrency brackets of all deployments. In
    each bracket a value is a line in ln n: an intercept and a slope, side by side, so that they are fetched as one
    (``_pair``: the real and the imaginary part).
    """

    def __init__(self, curves: Sequence[Curve | None]) -> None:
        self.curves = tuple(curves)
        known = [curve for curve in self.curves if curve is not None]
        axes = [_NO_AXIS if curve is None else curve.axes[2] for curve in self.curves]
        self._brackets = sum(len(axis) - 1 for axis in axes)
        most = max(MOST_BYTES * len(axes), SMALL_BYTES)
        cells = max(4, most // (_BYTES_PER_BRACKET * self._brackets))
        self._isl, self._osl = _union([curve.axes[0] for curve in known], [curve.axes[1] for curve in known], cells)
        self._isl_places, self._osl_places = self._isl.tolist(), self._osl.tolist()
        # Interior knots tell the brackets apart; the last one of each deployment separates it from the next.
        ends = [[*axis[1:-1], SHIFT / 2] for axis in axes]
        self._knots = np.concatenate([np.array(knots) + SHIFT * d for d, knots in enumerate(ends)])
        self._shift = SHIFT * np.arange(len(axes))
        lines = [self._lines(curve, axis) for curve, axis in zip(self.curves, axes, strict=True)]
        rows = np.concatenate(lines, axis=3).reshape(len(self._isl) * len(self._osl), 2, 2, -1)
        small = 2 * _BYTES_PER_BRACKET * rows.shape[0] * self._brackets <= SMALL_BYTES
        self._real: Any = np.float64 if small else np.float32
        self._pair: Any = np.complex128 if small else np.complex64
        self._rows = np.ascontiguousarray(rows.transpose(0, 2, 3, 1), self._real).reshape(len(rows), -1)
        self._coefficients, self._least = (
            (
                np.array([_NO_TTFT if curve is None else getattr(curve.ttft, name) for curve in self.curves]),
                np.array([_NO_TPOT if curve is None else getattr(curve.tpot, name) for curve in self.curves]),
            )
            for name in ("coefficients", "least")
        )
        self.curves = tuple(None if curve is None else curve.without_grid() for curve in self.curves)
        self._among = np.ascontiguousarray(self._coefficients[1].T[[2, 4, 5]])
        self._lone = np.stack([self._lone_ttft(place) for place in self._isl_places])
        """Logarithms of a lone request's TTFT at the isl knots, shape (isl, d)."""

    def at(
        self,
        ln_isl: float,
        ln_osl: float,
        ln_n: Array,
        *,
        cached_tokens: float = 0.0,
        resident_tokens: Array | float | None = None,
    ) -> Array:
        """(TTFT, TPOT) of every deployment, shape (2, d), in milliseconds.

        The load is given in logarithms; ``ln_n`` has shape (d,), or (2, d) for a load of TTFT and one of TPOT, or
        (2, t, d) for t such loads at once, and then so has the answer.
        ``cached_tokens`` of each prompt are in the KV cache already; ``resident_tokens`` are there of all requests
        together, where it is not n times the mean context. Both change the times by what their physics says.
        """
        isl, osl, rows = self._isl_places, self._osl_places, self._rows
        i = min(max(bisect_right(isl, ln_isl) - 1, 0), len(isl) - 2)
        j = min(max(bisect_right(osl, ln_osl) - 1, 0), len(osl) - 2)
        u = (ln_isl - isl[i]) / (isl[i + 1] - isl[i])
        v = (ln_osl - osl[j]) / (osl[j + 1] - osl[j])
        first = i * len(osl) + j
        last = first + len(osl)
        weights = np.array((1.0 - u - v + u * v, v - u * v, u - u * v, u * v), self._real)
        blend = weights[:2].dot(rows[first : first + 2])
        blend += weights[2:].dot(rows[last : last + 2])
        if ln_n.ndim == 1:
            ln_n = np.array((ln_n, ln_n))
        brackets = self._knots.searchsorted(ln_n + self._shift, "right")
        brackets[1] += self._brackets
        lines = blend.view(self._pair).take(brackets)
        logarithms: Any = ln_n * lines.imag  # in double precision, as ln_n is
        logarithms += lines.real
        result: Array = np.exp(logarithms, out=logarithms)
        if cached_tokens or resident_tokens is not None:
            result *= self._changed(exp(ln_isl), exp(ln_osl), np.exp(ln_n), cached_tokens, resident_tokens)
        return result

    def at_each(self, ln_isl: Array, ln_osl: Array, ln_n: Array) -> Array:
        """(TTFT, TPOT) of every deployment for each of t tasks, shape (2, t, d), in milliseconds.

        ``ln_isl`` and ``ln_osl`` have shape (t,), ``ln_n`` (t, d), or (2, t, d) for a load of TTFT and one of TPOT.
        In the table's precision: in single, within 1e-5 of ``at``.
        """
        (i, u), (j, v) = _places(self._isl, ln_isl), _places(self._osl, ln_osl)
        if ln_n.ndim == 2:
            ln_n = np.array((ln_n, ln_n))
        brackets, across = 2 * self._brackets, len(self._osl)
        weights = np.stack((1.0 - u - v + u * v, v - u * v, u - u * v, u * v)).astype(self._real)
        places = self._knots.searchsorted(ln_n + self._shift, side="right")
        places[1] += self._brackets
        places += ((i * across + j) * brackets)[:, None]
        cells, flat = self._rows.reshape(-1).view(self._pair), (2, len(i), -1)
        blend = cells.take(places).view(self._real).reshape(flat)
        blend *= weights[0][:, None]
        for weight, step in zip(weights[1:], (brackets, (across - 1) * brackets, brackets), strict=True):
            places += step
            corner = cells.take(places).view(self._real).reshape(flat)
            corner *= weight[:, None]
            blend += corner
        lines = blend.view(self._pair)
        logarithms = lines.imag * ln_n.astype(self._real)
        logarithms += lines.real
        times: Array = np.exp(logarithms, out=logarithms).astype(np.float64)
        return times

    def _changed(
        self,
        isl: float,
        osl: float,
        n: Array,
        cached_tokens: float,
        resident_tokens: Array | float | None,
    ) -> Array:
        """By how much the times change at the loads ``n`` of TTFT and TPOT, both shape (2, ..., d)."""
        after = ttft_terms(isl, n[0], cached_tokens), tpot_terms(isl, osl, n[1], cached_tokens, resident_tokens)
        before = ttft_terms(isl, n[0]), tpot_terms(isl, osl, n[1])
        physics = zip(after, before, self._coefficients, self._least, strict=True)
        return np.stack([_physics(a, c, least) / _physics(b, c, least) for a, b, c, least in physics])

    def among(
        self,
        tpot_ms: Array,
        isl: Array | float,
        osl: Array | float,
        resident: Array,
        count: Array,
        reading: Array | None,
    ) -> None:
        """Change TPOT, shape (..., d), to what it is among ``count`` requests of other sizes, which are in flight.

        A closed loop of the task's own size has as many contexts like its own, and reads as many prompts like its own
        between the steps. ``resident`` is what the others really keep, in thousands of tokens; ``reading`` the share of
        its time that the server really reads prompts in, when it takes no steps; ``None``: none.
        """
        context, read, pairs = self._among
        more = resident - (isl + osl / 2.0) / THOUSAND * count
        more *= context
        thousands = isl / THOUSAND
        more -= (read * (thousands / osl) + pairs * (thousands * thousands / osl)) * count
        more = more + tpot_ms
        np.maximum(more, LEAST_AMONG * tpot_ms, out=tpot_ms)
        if reading is not None:
            tpot_ms /= 1.0 - reading

    def cached_share(self, isl: Array | float, cached_tokens: Array) -> Array:
        """TTFT of a lone prompt with ``cached_tokens`` in the KV cache already, over TTFT without; shape (..., d)."""
        left = np.maximum(1.0, isl - cached_tokens)
        share: Array = np.exp(self._ln_prefill(left) - self._ln_prefill(np.broadcast_to(isl, left.shape)))
        return share

    def _ln_prefill(self, tokens: Array) -> Array:
        """The logarithm of a lone prompt's TTFT, by deployment."""
        place = np.log(tokens)
        k = np.clip(self._isl.searchsorted(place, side="right") - 1, 0, len(self._isl) - 2)
        share = (place - self._isl[k]) / (self._isl[k + 1] - self._isl[k])
        each, deployments = self._lone, np.arange(len(self.curves))
        result: Array = each[k, deployments] * (1.0 - share) + each[k + 1, deployments] * share
        return result

    def _lone_ttft(self, ln_isl: float) -> Array:
        middle = self._osl_places[len(self._osl_places) // 2]
        alone: Array = np.log(self.at(ln_isl, middle, np.zeros(len(self.curves)))[0])
        return alone

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


LEAST_AMONG = 0.3
"""TPOT is not believed to fall below this share of what was measured among requests of the task's own size."""


_NO_AXIS = np.array([-1.0, 0.0, 1.0])
_NO_TTFT, _NO_TPOT = np.full(FAR_TTFT.shape[1], np.nan), np.full(FAR_TPOT.shape[1], np.nan)


def _union(isl: list[Array], osl: list[Array], cells: int) -> tuple[Array, Array]:
    """The knots of all isl and osl axes, with at most so many crossings: the nearest are merged until that is so.

    Curves then bend at the merged knots instead of at their own. Along osl times bend least, so its distances count
    half.
    """
    axes = [np.unique(np.concatenate(own or [_NO_AXIS])) for own in (isl, osl)]
    while len(axes[0]) * len(axes[1]) > cells and max(map(len, axes)) > 2:
        gaps = [np.diff(axis) * scale if len(axis) > 2 else _FAR for axis, scale in zip(axes, (1.0, 0.5), strict=True)]
        which = int(gaps[1].min() < gaps[0].min())
        axis, k = axes[which], int(gaps[which].argmin())
        # The ends stay, and with them what lies beyond.
        middle = axis[0] if k == 0 else axis[-1] if k == len(axis) - 2 else (axis[k] + axis[k + 1]) / 2
        axes[which] = np.concatenate([axis[:k], [middle], axis[k + 2 :]])
    return axes[0], axes[1]


_FAR = np.array([np.inf])


def _places(knots: Array, x: Array) -> tuple[NDArray[np.intp], Array]:
    """The same for many."""
    k = np.clip(knots.searchsorted(x, side="right") - 1, 0, len(knots) - 2)
    return k, (x - knots[k]) / (knots[k + 1] - knots[k])


def _physics(terms: Array, coefficients: Array, least: Array) -> Array:
    """By deployment what the coefficients say, and ``Metric.least`` at the least."""
    result: Array = np.maximum((terms * coefficients).sum(axis=-1), (terms * least).sum(axis=-1))
    return result
