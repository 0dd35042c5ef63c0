"""Many curves as one table, evaluated for all deployments at once.

Context and output are the same for every deployment of one decision, the load is not. So the table stands on the union
of all the curves' isl and osl knots, which a linear interpolation passes through unchanged, and at each of those
crossings holds every deployment's own concurrency axis, one after the other. Evaluating is one blend of four rows, then
one interpolation per deployment. Beyond the first and the last knot the line goes on: there is nothing to clamp.

A large fleet's logarithms are kept in single precision: a ten-thousandth of a per cent, at half of the memory.
"""

from __future__ import annotations

from array import array
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
"""Above any logarithm that can occur: deployment d's concurrency axis is found at ``SHIFT * d``, that of TPOT at
``SHIFT * (deployments + d)``."""

EARLY = 1e-8
"""So much before its knot a bracket begins: a load at the knot is in it, however its logarithm was rounded."""

MOST_BYTES = 25 * 1_024
"""Most memory of the rows, for each deployment. Where the union of knots would take more, the nearest are merged."""
SMALL_BYTES = 1_024 * 1_024
"""A small fleet may take so much in all: it passes through every measured point, in double precision."""

FEW = 48
"""Up to so many curves are blended in double precision, whatever they are kept in: so all at once and one by one
(``rows``) come to the same."""

_BYTES_PER_KNOT = 2 * 4


class CurveTable:
    """Curves of ``d`` deployments; a deployment without one answers NaN.

    ``_rows`` has shape (isl * osl, 2 * m) over TTFT and TPOT and the m concurrency knots of all deployments. Between
    two knots a value is a line in ln n.
    """

    def __init__(self, curves: Sequence[Curve | None]) -> None:
        self.curves = tuple(curves)
        known = [curve for curve in self.curves if curve is not None]
        axes = [_NO_AXIS if curve is None else curve.axes[2] for curve in self.curves]
        self._count = sum(map(len, axes))
        most = max(MOST_BYTES * len(axes), SMALL_BYTES)
        cells = max(4, most // (_BYTES_PER_KNOT * self._count))
        self._isl, self._osl = _union([curve.axes[0] for curve in known], [curve.axes[1] for curve in known], cells)
        self._isl_places, self._osl_places = self._isl.tolist(), self._osl.tolist()
        # Interior knots tell the brackets apart; what follows separates each deployment from the next, and leaves a
        # place for its last knot. TPOT's brackets come after those of TTFT.
        ends = [[*axis[1:-1], SHIFT / 2, SHIFT / 2] for axis in axes]
        self._knots = np.concatenate([np.array(knots) - EARLY + SHIFT * d for d, knots in enumerate(ends * 2)])
        self._shift = SHIFT * np.arange(2.0 * len(axes)).reshape(2, -1)
        self._begins = np.concatenate(axes * 2)
        """Where the bracket after each knot begins."""
        self._per_length = np.concatenate([1.0 / np.append(np.diff(axis), np.inf) for axis in axes * 2])
        """One over its length."""
        values = [self._values(curve, axis) for curve, axis in zip(self.curves, axes, strict=True)]
        rows = np.concatenate(values, axis=3).reshape(len(self._isl) * len(self._osl), -1)
        small = 2 * _BYTES_PER_KNOT * rows.shape[0] * self._count <= SMALL_BYTES
        self._real: Any = np.float64 if small else np.float32
        self._rows = np.ascontiguousarray(rows, self._real)
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
        blend = self.blend(ln_isl, ln_osl)
        if ln_n.ndim == 1:
            ln_n = np.array((ln_n, ln_n))
        places = ln_n + (self._shift if ln_n.ndim == 2 else self._shift[:, None])
        brackets = self._knots.searchsorted(places, "right")
        logarithms: Any = ln_n - self._begins.take(brackets)
        logarithms *= self._per_length.take(brackets)
        low = blend.take(brackets)
        # In double precision, as ln_n is.
        logarithms *= np.subtract(blend[1:].take(brackets), low, dtype=np.float64)
        logarithms += low
        result: Array = np.exp(logarithms, logarithms)
        if cached_tokens or resident_tokens is not None:
            result *= self._changed(exp(ln_isl), exp(ln_osl), np.exp(ln_n), cached_tokens, resident_tokens)
        return result

    def corners(self, ln_isl: float, ln_osl: float) -> tuple[int, int, float, float, float, float]:
        """Where a prompt length and output stand: at which row of the table the two crossings along osl begin, and
        those at the next isl; and what the four weigh. Beyond the knots some of that is negative."""
        isl, osl = self._isl_places, self._osl_places
        across = len(osl)
        i = bisect_right(isl, ln_isl, 1, len(isl) - 1) - 1
        j = bisect_right(osl, ln_osl, 1, across - 1) - 1
        u = (ln_isl - isl[i]) / (isl[i + 1] - isl[i])
        v = (ln_osl - osl[j]) / (osl[j + 1] - osl[j])
        first, both = i * across + j, u * v
        return first, first + across, 1.0 - u - v + both, v - both, u - both, both

    def blend(self, ln_isl: float, ln_osl: float) -> Any:
        """Logarithms at every knot of concurrency, at one prompt length and output, shape (2 * m,): TTFT before TPOT,
        of each deployment after deployment (``axes``)."""
        first, last, *shares = self.corners(ln_isl, ln_osl)
        rows, weights = self._rows, np.array(shares, np.float64 if len(self.curves) <= FEW else self._real)
        blend = weights[:2].dot(rows[first : first + 2])
        blend += weights[2:].dot(rows[last : last + 2])
        return blend

    def rows(self) -> memoryview:
        """What ``blend`` makes its answer of, crossing after crossing, each in its order. As memory, since indexing an
        array takes three times as long; in one, as a view of each crossing takes as much as what it shows."""
        return self._rows.reshape(-1).data

    def axes(self) -> list[tuple[array[float], int]]:
        """By deployment the knots between its brackets, and where its first place in ``blend`` is, for TTFT."""
        found, at = [], 0
        for d in range(len(self.curves)):
            knots = (self._knots[at:] - SHIFT * d).tolist()
            knots = knots[: next(k for k, knot in enumerate(knots) if knot > SHIFT / 4)]
            found.append((array("d", knots), at))
            at += len(knots) + 2
        return found

    def brackets(self) -> tuple[memoryview, memoryview, int]:
        """By place in ``blend`` where the bracket after it begins and one over its length, and how many places later
        TPOT's are. As memory, since indexing an array takes three times as long."""
        return self._begins.data, self._per_length.data, self._count

    def leasts_ms(self) -> Array:
        """The least TTFT and TPOT of every deployment at prompt lengths between two knots, on any knots of the other
        axes, and so between them; shape (isl - 1, 2, d)."""
        begins = [at for _, at in self.axes()]
        by_isl = self._rows.reshape(len(self._isl), len(self._osl), -1).min(axis=1)
        least = np.minimum.reduceat(by_isl, [*begins, *(self._count + at for at in begins)], axis=1)
        between: Array = np.exp(np.minimum(least[:-1], least[1:]), dtype=np.float64)
        return between.reshape(-1, 2, len(self.curves))

    @property
    def across(self) -> int:
        """Crossings of one isl knot: so many rows on begin those of the next."""
        return len(self._osl)

    def among_coefficients(self) -> list[tuple[float, float, float]]:
        """By deployment what ``among`` weighs: context, prompts read, and pairs of their tokens."""
        return [(context, read, pairs) for context, read, pairs in self._among.T.tolist()]

    def at_each(self, ln_isl: Array, ln_osl: Array, ln_n: Array, which: NDArray[np.intp] | None = None) -> Array:
        """(TTFT, TPOT) of every deployment for each of t tasks, shape (2, t, d), in milliseconds.

        ``ln_isl`` and ``ln_osl`` have shape (t,), ``ln_n`` (t, d), or (2, t, d) for a load of TTFT and one of TPOT.
        With ``which``, shape (t,), ``ln_n`` has shape (k, d) and each task meets that one of its rows.
        In the table's precision: in single, within 1e-5 of ``at``.
        """
        (i, u), (j, v) = _places(self._isl, ln_isl), _places(self._osl, ln_osl)
        row, across, both = 2 * self._count, len(self._osl), u * v
        first = ((i * across + j) * row)[:, None]
        # In the order of the corners: what is left of 1, and where each is, seen from the one before.
        weights = (1.0 - u - v + both, v - both, u - both, both)
        steps = (0, row, (across - 1) * row, row)
        if ln_n.ndim == 2:
            # The axes of TTFT and TPOT are the same.
            brackets = self._knots[: self._count].searchsorted(ln_n + self._shift[0], "right")
            share = self._share(ln_n, brackets)
            if which is not None:
                brackets, share = brackets.take(which, axis=0), share.take(which, axis=0)
            places = np.empty((2, *share.shape), np.intp)
            np.add(brackets, first, places[0])
            np.add(places[0], self._count, places[1])
        else:
            brackets = self._knots.searchsorted(ln_n + self._shift[:, None], "right")
            places, share = brackets + first, self._share(ln_n, brackets)
        values = self._rows.reshape(-1)
        # Arrays of this size are dear to make, so they are used again; "clip" takes less time than to check.
        low, high = np.zeros(places.shape, self._real), np.zeros(places.shape, self._real)
        corner = np.empty(places.shape, self._real)
        for weight, step in zip(weights, steps, strict=True):
            places += step
            part = weight.astype(self._real)[:, None]
            for total, ends in ((low, values), (high, values[1:])):
                ends.take(places, out=corner, mode="clip")
                np.multiply(corner, part, corner)
                np.add(total, corner, total)
        logarithms: Any = high
        logarithms -= low
        logarithms *= share
        logarithms += low
        times: Array = np.exp(logarithms, logarithms).astype(np.float64)
        return times

    def _share(self, ln_n: Array, brackets: NDArray[np.intp]) -> Any:
        """How far along its bracket each load is, in the table's precision."""
        share = ln_n - self._begins.take(brackets)
        share *= self._per_length.take(brackets)
        return share.astype(self._real)

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

    def _values(self, curve: Curve | None, n: Array) -> Array:
        """A curve's logarithms on the table's isl and osl knots, shape (isl, osl, 2, knots of n)."""
        if curve is None:
            return np.full((len(self._isl), len(self._osl), 2, len(n)), np.nan)
        isl, osl = interpolating(curve.axes[0], self._isl), interpolating(curve.axes[1], self._osl)
        own = np.stack([curve.ln_ttft, curve.ln_tpot], axis=2)
        by_isl = np.tensordot(isl, own, axes=1)
        values: Array = np.matmul(osl, by_isl.reshape(*by_isl.shape[:2], -1))
        return values.reshape(len(isl), len(osl), 2, -1)


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
    k = knots[1:-1].searchsorted(x, "right")
    left = knots[k]
    return k, (x - left) / (knots[k + 1] - left)


def _physics(terms: Array, coefficients: Array, least: Array) -> Array:
    """By deployment what the coefficients say, and ``Metric.least`` at the least."""
    result: Array = np.maximum((terms * coefficients).sum(axis=-1), (terms * least).sum(axis=-1))
    return result
