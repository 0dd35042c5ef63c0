"""A predicted quantity with its band and its origin, and how a time is written."""

from __future__ import annotations

import math
from typing import NamedTuple

from agentroute.origin import Origin


class Estimate(NamedTuple):
    """``mean``, and the 80 % band of that mean from ``low`` to ``high``. Not a tail: single requests scatter wider."""

    mean: float
    low: float
    high: float
    source: Origin
    extrapolated: bool = False
    """True when the load lies outside the measured ones."""
    interpolated: bool = False
    """True when it lies between them: read off the curve through the points, not off a point."""

    @property
    def kind(self) -> str:
        """The origin as a person reads it: ``measured`` is said alone only of what was measured at this very load."""
        if self.interpolated and self.source in {"measured", "reported"}:
            return f"{self.source}, between points"
        return "extrapolated" if self.extrapolated and self.source == "measured" else self.source


def milliseconds(value: float) -> str:
    """A time as a person reads it: ``850 us``, ``12.3 ms``, ``4.2 s``."""
    if math.isnan(value):
        return "unknown"
    if value < 0.9995:
        return f"{value * 1_000:.0f} us"
    if value < 99.95:
        return f"{value:.1f} ms"
    if value < 999.5:
        return f"{value:.0f} ms"
    seconds = value / 1_000
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:,.0f} s"
