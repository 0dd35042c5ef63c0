"""How sure the curves of many deployments are at a load of each.

Inside the measured loads a band is as wide as the points scatter about one another; beyond them every doubling adds to
it, and so does what a knee between two loads, or a memory that may hold no more, could hide.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log1p
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.bounds import Rooms
from agentroute.latency.layout import Hulls
from agentroute.latency.metric import STEPS, TPOT, TTFT, ln_physics
from agentroute.latency.queueing import Jumps
from agentroute.latency.residual import Doubts

if TYPE_CHECKING:
    from agentroute.latency.curve import Curve

Array = NDArray[np.float64]

_STEPS = STEPS[:, None]
_LONE = np.array([[TTFT.lone], [TPOT.lone]])
_DERIVED = TTFT.derived, TPOT.derived
_UNKNOWN = np.nan, np.nan


class Bands:
    """The bands of d curves; one that is ``None`` answers NaN.

    All that depends on the curves alone is worked out once.
    """

    def __init__(self, curves: Sequence[Curve | None]) -> None:
        self._curves = tuple(curves)
        measured = [one if one is not None and one.is_measured else None for one in curves]
        self._hulls = Hulls([one.hull if one else None for one in measured])
        self._jumps = Jumps([one.queues if one else None for one in measured])
        residuals = [(one.ttft.residual, one.tpot.residual) if one else None for one in measured]
        self._doubts = Doubts(residuals, (TTFT.kernel, TPOT.kernel))
        self._rooms = Rooms([one.bounds if one else None for one in curves])
        self._inside = np.array([_inside(one) for one in curves]).T
        self._step = np.array([(one.ttft.step, one.tpot.step) if one else (0.0, 0.0) for one in measured]).T
        self._noise = np.array([[log1p(noise) for noise in one.noise] if one else _UNKNOWN for one in curves]).T

    def support(self, ln_isl: float, ln_osl: float, ln_n: Array) -> Array:
        """How much of every answer at a load (logarithms; ``ln_n`` has shape (d,)) rests on measured cells, from 0.0 to
        1.0, shape (d,)."""
        return self._hulls.support(_loads(ln_isl, ln_osl, ln_n))

    def at(self, ln_isl: float, ln_osl: float, ln_n: Array) -> Array:
        """Half the 80 % band of the mean TTFT and TPOT at a load (logarithms; ``ln_n`` has shape (d,)), as fractions,
        shape (2, d): a time lies between ``mean / (1 + band)`` and ``mean * (1 + band)``."""
        loads = _loads(ln_isl, ln_osl, ln_n)
        near = self._hulls.nearest(loads)
        isl, osl, n = self._hulls.outside(loads) * _STEPS
        beyond = np.hypot(np.hypot(isl, osl), n + _LONE * self._hulls.lone(loads))
        ln_bands = self._inside * self._doubts.at(near) + self._step * beyond
        ln_bands[0] = np.hypot(ln_bands[0], self._jumps.at(loads))
        ln_bands = np.hypot(ln_bands, self._noise)
        self._add_waiting(ln_bands, loads)
        result: Array = np.expm1(ln_bands, out=ln_bands)
        return result

    def _add_waiting(self, ln_bands: Array, loads: Array) -> None:
        """By how much (logarithm) TTFT would be longer and TPOT shorter if only so many ran as were measured, or as the
        memory holds, and the others waited for them to end (Little's law)."""
        n, osl = np.exp(loads[2]), exp(loads[1, 0])
        room = self._rooms.at(exp(loads[0, 0]), osl)
        beyond = np.flatnonzero(n > room).tolist()
        known = [(d, one) for d in beyond if (one := self._curves[d]) is not None]
        seen = [one.queues.most_n(loads[:, d]) if one.is_measured else 1.0 for d, one in known]
        runs = [(d, one, most) for (d, one), most in zip(known, seen, strict=True) if n[d] > most]
        if not runs:
            return
        own, ttfts, tpots = [d for d, _, _ in runs], [one.ttft for _, one, _ in runs], [one.tpot for _, one, _ in runs]
        here, ran = loads[:, own].T, np.maximum([most for _, _, most in runs], room[own])
        fewer = here.copy()
        fewer[:, 2] = np.log(ran)
        ttft, tpot = ln_physics(ttfts, here), ln_physics(tpots, here)
        answers = 1.0 + (osl - 1.0) * np.exp(tpot - ttft)
        ln_bands[0, own] += np.log1p(np.maximum(0.0, (1.0 - ran / n[own]) * answers))
        ln_bands[1, own] += np.maximum(0.0, tpot - ln_physics(tpots, fewer))


def _inside(curve: Curve | None) -> tuple[float, float]:
    """Half the band inside the measured loads, where doubt is 1; that of a roofline alone, everywhere."""
    if curve is None:
        return _UNKNOWN
    return (curve.ttft.inside, curve.tpot.inside) if curve.is_measured else _DERIVED


def _loads(ln_isl: float, ln_osl: float, ln_n: Array) -> Array:
    loads = np.empty((3, len(ln_n)))
    loads[0], loads[1], loads[2] = ln_isl, ln_osl, ln_n
    return loads
