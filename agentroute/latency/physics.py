"""What a server's times are made of, as sums of few terms with coefficients that are not negative.

TPOT is one decode step and the prompts read in between: a + b n + c n context + d sqrt(n) + e n ISL / OSL
+ f n ISL^2 / OSL. The context is ISL + OSL / 2 on average; n ISL / OSL is what a closed loop reads of prompts in one
step, and the last term their attention: without it the roofline's 131,072 tokens bend what it says of 8,192. TTFT is
reading one's own prompt behind some of the others'. What points leave open of the coefficients is left to a ``Shape``:
the roofline's, where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.bounds import Bounds

Array = NDArray[np.float64]

THOUSAND: Final = 1_000.0
"""Tokens are counted in thousands, which keeps the terms of like size."""


def tpot_terms(
    isl: Array | float,
    osl: Array | float,
    n: Array | float,
    cached: Array | float = 0.0,
    resident: Array | float | None = None,
) -> Array:
    """The terms of TPOT, shape (..., 6). ``resident``: tokens in the KV cache, of all requests together."""
    context = n * (isl + np.divide(osl, 2.0)) if resident is None else resident
    read, pairs = _reading(isl, cached)
    # A request's own prompt is read before its first token; those of the others are, while it decodes.
    prompts = np.maximum(np.subtract(n, 1.0), 0.0) / osl
    return _stacked(1.0, n, np.divide(context, THOUSAND), np.sqrt(n), prompts * read, prompts * pairs)


def ttft_terms(isl: Array | float, n: Array | float, cached: Array | float = 0.0) -> Array:
    """The terms of TTFT, shape (..., 6); a prompt's cached prefix is not read again, but attended to."""
    read, pairs = _reading(isl, cached)
    return _stacked(1.0, read, n * read, n, pairs, np.sqrt(n) * read)


def _reading(isl: Array | float, cached: Array | float) -> tuple[Array, Array]:
    """Thousands of tokens that are read of a prompt, and of pairs (thousands of thousands, twice) that attend."""
    read = np.maximum(1.0, np.subtract(isl, cached)) / THOUSAND
    return read, read * (np.multiply(2.0, isl) / THOUSAND - read)


def _stacked(*terms: Array | float) -> Array:
    whole = sum(terms)
    stacked = np.empty((*np.shape(whole), len(terms)))
    for i, term in enumerate(terms):
        stacked[..., i] = term
    return stacked


FAR: Final[Array] = np.array(
    [
        (isl, osl, n)
        for isl in (256.0, 2_048.0, 16_384.0, 131_072.0)
        for osl in (128.0, 1_024.0)
        for n in (1.0, 16.0, 256.0)
    ]
)
"""Loads (isl, osl, n) at which a shape is asked, so that it speaks for what was not measured."""

FAR_TPOT: Final[Array] = tpot_terms(*FAR.T)
FAR_TTFT: Final[Array] = ttft_terms(FAR[:, 0], FAR[:, 2])


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Coefficients of TTFT and TPOT in milliseconds, whose proportions are believed; and where they come from."""

    ttft: Array
    tpot: Array
    bounds: Bounds | None = None
    """What no points may be carried on below; ``None``: unknown."""

    @classmethod
    def through(cls, ttft_ms: Array, tpot_ms: Array, bounds: Bounds | None = None) -> Shape:
        """The shape of times at the loads ``FAR``."""
        one = np.ones(len(FAR))
        return cls(nnls(FAR_TTFT / ttft_ms[:, None], one), nnls(FAR_TPOT / tpot_ms[:, None], one), bounds)


def nnls(matrix: Array, target: Array) -> Array:
    """The x >= 0 with the least |matrix x - target|, by Lawson and Hanson's active set (Solving Least Squares Problems,
    1974, chapter 23), on normal equations: for the few columns that there are here."""
    scale = np.sqrt(np.einsum("ij,ij->j", matrix, matrix))
    scale[scale == 0.0] = 1.0
    columns = matrix / scale
    gram, wanted = columns.T @ columns, columns.T @ target
    gram[np.diag_indices_from(gram)] += 1e-11
    count = len(wanted)
    # Mostly few are zero: without those that come out below it is a good start.
    free = np.ones(count, dtype=np.bool_)
    while free.any():
        x = _solved(gram, wanted, free)
        if (x >= 0.0).all():
            break
        free &= x > 0.0
    else:
        x = np.zeros(count)
    for _ in range(3 * count):
        slope = np.where(free, -np.inf, wanted - gram @ x)
        entering = int(slope.argmax())
        if slope[entering] <= 1e-9:
            break
        free[entering] = True
        while (leaving := free & ((solved := _solved(gram, wanted, free)) <= 0.0)).any():
            step = (x[leaving] / np.maximum(x[leaving] - solved[leaving], 1e-300)).min()
            x = x + step * (solved - x)
            free &= x > 1e-12
        x = solved
    result: Array = x / scale
    return result


def _solved(gram: Array, wanted: Array, free: NDArray[np.bool_]) -> Array:
    """The least-squares solution with all but the free ones at 0."""
    x = np.zeros(len(wanted))
    places = np.flatnonzero(free)
    x[places] = np.linalg.solve(gram[places[:, None], places], wanted[places])
    return x


TYPICAL: Final = Shape(
    ttft=np.array([0.66, 0.0394, 0.0117, 0.000464, 0.00203, 0.024]),
    tpot=np.array([0.688, 0.0, 0.00135, 0.0631, 1.6, 0.0258]),
)
"""Where there is no roofline: the median (of logarithms) of those of 109 public deployments at the loads ``FAR``, each
over its mean; of height 1 at 1,024 tokens in, 1,024 out and 16 requests in flight."""
