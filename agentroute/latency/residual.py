"""What points say beyond their physics: a logarithm that is interpolated between them.

Kriging: the value at a load is the mean of the values at the points, each weighted by how alike the two are. Alike is
said by a kernel over the distances in ln isl, ln osl and ln n. The same sums say how sure it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NOISE = 0.1
"""Part of a point's own that no other point shares, over the kernel's parts of 1: runs differ by as much."""

ALONE = 1e-3
"""Logarithmic distance over which that part fades: a curve passes through its points, and only there."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """How alike two loads are. Reaches are logarithms: 0.69 is a doubling.

    ``shared``: a part that all curves of a deployment have in common at a concurrency (CUDA graphs, batch sizes).
    ``by_isl``: one that curves of an ISL have in common (where a KV pool is full). ``smooth``: Matern 3/2, else 1/2.
    """

    shared: float
    by_isl: float
    isl_reach: float
    osl_reach: float
    n_reach: float
    own_n_reach: float
    smooth: bool

    @property
    def total(self) -> float:
        """What a load has in common with itself, noise included."""
        return self.shared + self.by_isl + 1.0 + NOISE

    def __call__(self, a: Array, b: Array) -> Array:
        """Without noise, shape (len(a), len(b))."""
        apart = np.abs(a[:, None, :] - b[None, :, :])
        return self.of(apart[..., 0], apart[..., 1], apart[..., 2])

    def of(self, isl: Array, osl: Array, n: Array) -> Array:
        """The same of loads that are so far apart on each axis."""
        by_isl = self._alike(isl / self.isl_reach)
        alike = by_isl * self._alike(osl / self.osl_reach) * self._alike(n / self.own_n_reach)
        if self.shared or self.by_isl:
            alike += (self.shared + self.by_isl * by_isl) * self._alike(n / self.n_reach)
        return alike

    def alike(self, isl: Array, osl: Array) -> Array:
        """How alike loads are whose isl and osl are so far apart, from 0 to 1, their concurrency left aside."""
        return self._alike(np.abs(isl) / self.isl_reach) * self._alike(np.abs(osl) / self.osl_reach)

    def _alike(self, distance: Array) -> Array:
        if not self.smooth:
            return np.exp(-distance)
        distance = distance * np.sqrt(3.0)
        alike: Array = (1.0 + distance) * np.exp(-distance)
        return alike


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """Values at loads (logarithms of isl, osl, n), and what they say of other loads."""

    kernel: Kernel
    loads: Array
    weights: Array
    """``inverse`` times the values."""
    surprises: Array
    """By point, how far its value is from what all others say of it, over how unsure they are (``Doubts``)."""

    @classmethod
    def through(cls, kernel: Kernel, loads: Array, values: Array, inverse: Array) -> Residual:
        weights, certain = inverse @ values, np.diag(inverse)
        return cls(kernel, loads, weights, weights / certain * np.sqrt(certain * kernel.total))

    @property
    def inverse(self) -> Array:
        """Of the kernel between all loads, noise included. Not kept: it is the largest, and seldom asked for."""
        return inverse(self.kernel, self.loads)

    def at(self, loads: Array) -> Array:
        """The residual at ``loads``, shape (m, 3); at its own loads exactly the values."""
        own = np.abs(loads[:, None, :] - self.loads[None, :, :]).sum(axis=2) < ALONE
        result: Array = (self.kernel(loads, self.loads) + NOISE * own) @ self.weights
        return result


class Doubts:
    """How unsure the residuals of d deployments are, each asked at a load of its own.

    A deployment has one for each of ``kernels``, all at the same loads; of ``None`` nothing is known.
    """

    def __init__(self, residuals: Sequence[tuple[Residual, ...] | None], kernels: tuple[Kernel, ...]) -> None:
        self._kernels = kernels
        counts = [0 if own is None else len(own[0].loads) for own in residuals]
        self._owners = np.repeat(np.arange(len(counts)), counts)
        self._loads = np.concatenate([np.empty((0, 3)), *(own[0].loads for own in residuals if own is not None)]).T
        self._groups = []
        firsts, sizes = np.cumsum(counts) - counts, [-(-count // _TOGETHER) * _TOGETHER for count in counts]
        for size in sorted(set(sizes) - {0}):
            numbers = [d for d, own in enumerate(sizes) if own == size]
            places = np.zeros((len(numbers), size), dtype=np.intp)
            inverses = np.zeros((len(kernels), len(numbers), size, size))
            for row, d in enumerate(numbers):
                # Where there are fewer points, weights of 0 meet any other's place.
                places[row, : counts[d]] = firsts[d] + np.arange(counts[d])
                for kind, one in enumerate(residuals[d] or ()):
                    inverses[kind, row, : counts[d], : counts[d]] = one.inverse
            self._groups.append((np.array(numbers), places, inverses))

    def at(self, loads: Array) -> Array:
        """How unsure new measurements at ``loads``, shape (3, d), are, shape (kernels, d): as a standard deviation
        where that of a lone point is 1."""
        apart = np.abs(loads.take(self._owners, axis=1) - self._loads)
        shared = np.array([kernel.of(*apart) for kernel in self._kernels])
        total = np.array([[kernel.total] for kernel in self._kernels])
        left = np.repeat(total, loads.shape[1], axis=1)
        for numbers, places, inverses in self._groups:
            each = shared.take(places, axis=1)
            left[:, numbers] -= (np.matmul(inverses, each[..., None])[..., 0] * each).sum(axis=-1)
        result: Array = np.sqrt(np.maximum(left, NOISE) / total)
        return result


_TOGETHER = 16
"""Deployments are reckoned together whose points are as many, in multiples of this."""


def inverse(kernel: Kernel, loads: Array) -> Array:
    """Of the kernel between ``loads``, noise included."""
    alike = kernel(loads, loads)
    alike[np.diag_indices_from(alike)] += NOISE
    return np.asarray(np.linalg.inv(alike), dtype=np.float64)
