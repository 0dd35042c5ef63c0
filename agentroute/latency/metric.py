"""TTFT or TPOT of one deployment: coefficients, what points say beyond them, and how sure both are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.physics import FAR_TPOT, FAR_TTFT, nnls, tpot_terms, ttft_terms
from agentroute.latency.residual import Kernel, Residual, inverse

Array = NDArray[np.float64]

SHAPE_WEIGHT = 0.1
"""Weight of each of a shape's 24 loads against a measured one of 1, in the root. From 0.03 to 0.1 it costs nothing
inside the measured loads, and takes a tenth off the error beyond them."""

PRIOR_POINTS = 8.0
"""So many points' worth of the usual spread are counted with a deployment's own."""

STEPS = np.array([1.0, 0.5, 1.0])
"""What a doubling of ISL, OSL and n counts beyond the measured loads. Leaving out the greatest n, ISL or OSL of every
public deployment, 80 % were within so much (logarithm): n by 2, TTFT 0.32 and TPOT 0.10; ISL by 2, 0.32 and 0.09, by 8,
0.86 and 0.13; OSL by 2, 0.27 and 0.06, by 8, 0.37 and 0.15. So a half is enough for OSL, and TPOT is surer than
+-30 % up to two doublings."""

LEAST_SHARE = 1e-3
"""Coefficients may say 0 where all of their terms vanish; less than this share of what the shape says is not believed.
A share, not a time: a server twice as slow is twice as slow everywhere."""

_LEAST_MS = 1e-12


@dataclass(frozen=True, slots=True)
class Kind:
    """What tells TTFT and TPOT apart."""

    terms: Callable[[Array], Array]
    """The terms at loads (isl, osl, n), shape (m, 3)."""
    far: Array
    """The terms at ``physics.FAR``."""
    kernel: Kernel
    spread: float
    """The usual spread: the mean, over public points, of how far (logarithm) a point is from what the others of its
    deployment say, where those are far away."""
    inside: float
    """Half the 80 % band over spread and doubt: so far (logarithm) are 80 % of points that were left out."""
    step: float
    """Half the 80 % band (logarithm) that each doubling of the prompt or the load beyond the measured ones adds; where
    it is ``scaled``, to a deployment of the usual spread."""
    scaled: bool
    """Whether that is as much more where a deployment's own spread is more than the usual one. TPOT's is: where the
    greatest n is left out, 80 % of the tenth with the greatest spread are within 0.17, of the half with the least
    within 0.06. TTFT's hardly is."""
    lone: float
    """The doubling from one request in flight to two counts for so many doublings more where one was not measured:
    nobody else's prompt is read, and no batch formed. So the band holds 11 and 12 of 14 lone requests that were left
    out: public ones, and a llama.cpp server's (``tests/data/lone_points.csv``)."""
    derived: float
    """Half the 80 % band (logarithm) of a roofline alone."""


TTFT = Kind(
    terms=lambda loads: ttft_terms(loads[:, 0], loads[:, 2]),
    far=FAR_TTFT,
    kernel=Kernel(0.0, 0.0, isl_reach=0.5, osl_reach=2.0, n_reach=2.0, own_n_reach=2.0, smooth=False),
    spread=0.2,
    inside=1.25,
    step=0.32,
    scaled=False,
    lone=0.5,
    derived=0.78,
)
TPOT = Kind(
    terms=lambda loads: tpot_terms(loads[:, 0], loads[:, 1], loads[:, 2]),
    far=FAR_TPOT,
    kernel=Kernel(1.0, 1.0, isl_reach=0.5, osl_reach=2.0, n_reach=1.5, own_n_reach=1.0, smooth=True),
    spread=0.05,
    inside=1.55,
    step=0.085,
    scaled=True,
    lone=1.25,
    derived=0.28,
)


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One of the two, in milliseconds. ``spread`` is this deployment's own ``Kind.spread``."""

    kind: Kind
    coefficients: Array
    least: Array
    """Coefficients of what the physics say at the least: ``LEAST_SHARE`` of the shape, at the height of the points."""
    residual: Residual
    spread: float

    @classmethod
    def through(cls, kind: Kind, ln_loads: Array, ln_ms: Array, shape: Array) -> Metric:
        """The metric of points; what they leave open is as in ``shape``, whose proportions are believed."""
        inverted = inverse(kind.kernel, ln_loads)
        terms = kind.terms(np.exp(ln_loads))
        height = float(np.median(ln_ms - np.log(np.maximum(terms @ shape, _LEAST_MS))))
        # Points near one another tell less than points apart: generalised least squares.
        whiten = np.linalg.cholesky(inverted).T
        believed = np.maximum(kind.far @ shape, _LEAST_MS) * np.exp(height)
        coefficients = nnls(
            np.concatenate([whiten @ (terms / np.exp(ln_ms)[:, None]), SHAPE_WEIGHT * kind.far / believed[:, None]]),
            np.concatenate([whiten @ np.ones(len(ln_ms)), np.full(len(believed), SHAPE_WEIGHT)]),
        )
        least = LEAST_SHARE * np.exp(height) * shape
        rest = ln_ms - _ln_physics(terms, coefficients, least)
        residual = Residual.through(kind.kernel, ln_loads, rest, inverted)
        seen = np.abs(residual.surprises).sum() if len(ln_ms) > 1 else 0.0
        count = len(ln_ms) if len(ln_ms) > 1 else 0
        spread = (PRIOR_POINTS * kind.spread + seen) / (PRIOR_POINTS + count)
        return cls(kind, coefficients, least, residual, float(spread))

    def ln_physics(self, ln_loads: Array) -> Array:
        """The logarithm of what the coefficients alone say."""
        return _ln_physics(self.kind.terms(np.exp(ln_loads)), self.coefficients, self.least)

    @property
    def inside(self) -> float:
        """Half the 80 % band as a logarithm, at a load inside the measured ones, where doubt is 1."""
        return self.kind.inside * self.spread

    @property
    def step(self) -> float:
        """What each doubling beyond them adds."""
        return self.kind.step * (max(1.0, self.spread / self.kind.spread) if self.kind.scaled else 1.0)


def _ln_physics(terms: Array, coefficients: Array, least: Array) -> Array:
    result: Array = np.log(np.maximum(np.maximum(terms @ coefficients, terms @ least), _LEAST_MS))
    return result


def ln_physics(metrics: Sequence[Metric], ln_loads: Array) -> Array:
    """The logarithms of what each of several says at a load of its own, shape (m, 3), by its coefficients alone."""
    terms = metrics[0].kind.terms(np.exp(ln_loads))
    said, least = (np.array([getattr(one, name) for one in metrics]) for name in ("coefficients", "least"))
    result: Array = np.log(np.maximum(np.maximum((terms * said).sum(1), (terms * least).sum(1)), _LEAST_MS))
    return result
