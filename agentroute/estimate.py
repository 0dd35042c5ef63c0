"""A predicted quantity with its band and its origin."""

from __future__ import annotations

from dataclasses import dataclass

from agentroute.origin import Origin


@dataclass(frozen=True, slots=True)
class Estimate:
    """``mean``, and the 80 % band of that mean from ``low`` to ``high``. Not a tail: single requests scatter wider."""

    mean: float
    low: float
    high: float
    source: Origin
    extrapolated: bool = False
    """True when the load lies outside the measured ones."""
