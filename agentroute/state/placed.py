"""What a lease has in hand: where its request is, and what was predicted of it."""

from __future__ import annotations

from typing import NamedTuple

from agentroute.prefix import Mark
from agentroute.state.ledger import Hold
from agentroute.state.prefills import Reading
from agentroute.state.throttle import Sent


class Placed(NamedTuple):
    """A request at a deployment: what it holds there, and what was predicted of it."""

    deployment: int
    hold: Hold
    reading: Reading
    marks: tuple[Mark, ...]
    probe: bool
    """Whether it is the one by which a half-open breaker finds out."""
    isl: float
    n: float
    curve_ms: tuple[float, float]
    """TTFT and TPOT as the curves say, without the wait and before any correction."""
    sent: Sent
    """What the throttle noted of it."""
