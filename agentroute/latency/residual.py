"""What points say beyond their physics: a logarithm that is interpolated between them.

Kriging: the value at a load is the mean of the values at the points, each weighted by how alike the two are. Alike is
said by a kernel over the distances in ln isl, ln osl and ln n. The same sums say how sure it is.
"""

from __future__ import annotations

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
        isl, osl = self._alike(apart[..., 0] / self.isl_reach), self._alike(apart[..., 1] / self.osl_reach)
        alike = isl * osl * self._alike(apart[..., 2] / self.own_n_reach)
        if self.shared or self.by_isl:
            alike += (self.shared + self.by_isl * isl) * self._alike(apart[..., 2] / self.n_reach)
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
    inverse: Array
    """Of the kernel between all loads, noise included."""
    weights: Array
    """``inverse`` times the values."""

    @classmethod
    def through(cls, kernel: Kernel, loads: Array, values: Array, inverse: Array) -> Residual:
        return cls(kernel, loads, inverse, inverse @ values)

    def at(self, loads: Array) -> Array:
        """The residual at ``loads``, shape (m, 3); at its own loads exactly the values."""
        own = np.abs(loads[:, None, :] - self.loads[None, :, :]).sum(axis=2) < ALONE
        result: Array = (self.kernel(loads, self.loads) + NOISE * own) @ self.weights
        return result

    def doubt(self, load: Array) -> float:
        """How unsure a new measurement at ``load`` is, as a standard deviation where that of a lone point is 1."""
        shared = self.kernel(load[None, :], self.loads)[0]
        left = self.kernel.total - float(shared @ self.inverse @ shared)
        return float(np.sqrt(max(left, NOISE) / self.kernel.total))

    @property
    def surprises(self) -> Array:
        """By point, how far its value is from what all others say of it, over how unsure they are (``doubt``)."""
        certain = np.diag(self.inverse)
        result: Array = self.weights / certain * np.sqrt(certain * self.kernel.total)
        return result


def inverse(kernel: Kernel, loads: Array) -> Array:
    """Of the kernel between ``loads``, noise included."""
    alike = kernel(loads, loads)
    alike[np.diag_indices_from(alike)] += NOISE
    return np.asarray(np.linalg.inv(alike), dtype=np.float64)
