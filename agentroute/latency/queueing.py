"""Where requests may begin to wait for one another, and how unsure that makes a time.

The time to the first token has a knee there: within a doubling of the load it can grow a hundredfold. Between two
measured loads that lie on both sides of one nobody knows where it is; beyond the greatest measured load there may be
one, where the memory holds no more requests. Both widen the band, and move no prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.metric import TTFT

Array = NDArray[np.float64]

PLAIN = -0.3
"""Between two neighbours TTFT grows so much faster (logarithm) than the load before a knee is suspected. On the public
points, each concurrency left out, 9 in 10 pairs of neighbours are below, and the usual band covers 85 % of what lies
between them."""

JUMP = 0.65
"""Of what TTFT grows beyond that, so much is half the 80 % band (logarithm) in the middle of the two."""


@dataclass(frozen=True, slots=True, eq=False)
class Queues:
    """What points say of it. All in logarithms."""

    columns: Array
    """(isl, osl, greatest measured n) of every measured (isl, osl), shape (c, 3)."""
    jumps: Array
    """(isl, osl, lower n, upper n, growth beyond ``PLAIN``) of neighbours with a knee between them, shape (j, 5)."""

    @classmethod
    def of(cls, data: Array) -> Queues:
        """Those of rows (isl, osl, n, TTFT, ...), ascending."""
        columns, jumps = [], []
        for load in np.unique(data[:, :2], axis=0):
            own = data[(data[:, :2] == load).all(axis=1)]
            columns.append((*load, own[-1, 2]))
            for low, high in pairwise(own):
                growth = (high[3] - low[3]) - (high[2] - low[2]) - PLAIN
                if growth > 0.0:
                    jumps.append((*load, low[2], high[2], growth))
        return cls(np.array(columns), np.array(jumps).reshape(-1, 5))

    def most_n(self, load: Array) -> float:
        """The greatest n measured at the isl and osl that are most like those of ``load``."""
        apart = TTFT.kernel.alike(self.columns[:, 0] - load[0], self.columns[:, 1] - load[1])
        return float(np.exp(self.columns[apart >= apart.max() - 1e-12, 2].max()))


class Jumps:
    """The jumps of d deployments, each asked at a load of its own; ``None`` has none."""

    def __init__(self, queues: Sequence[Queues | None]) -> None:
        jumps = [_NO_JUMPS if one is None else one.jumps for one in queues]
        counts = np.array([len(one) for one in jumps])
        self._owners, self._jumps = np.repeat(np.arange(len(counts)), counts), np.concatenate(jumps).T
        self._with = np.flatnonzero(counts)
        self._firsts = (counts.cumsum() - counts)[self._with]

    def at(self, loads: Array) -> Array:
        """Half the band that neighbours on both sides of ``loads``, shape (3, d), add to TTFT; 0 at measured ones."""
        added: Array = np.zeros(loads.shape[1])
        if len(self._with):
            isl, osl, low, high, growth = self._jumps
            own = loads.take(self._owners, axis=1)
            place = np.minimum(np.maximum((own[2] - low) / (high - low), 0.0), 1.0)
            width = JUMP * growth * 4.0 * place * (1.0 - place) * TTFT.kernel.alike(isl - own[0], osl - own[1])
            added[self._with] = np.maximum.reduceat(width, self._firsts)
        return added


_NO_JUMPS: Array = np.empty((0, 5))
