"""What an assessment expects of one deployment, as estimates with band and origin; and what is known of it anyway."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

from agentroute.assessment import Assessment
from agentroute.compiled import CompiledFleet, Floats
from agentroute.estimate import Estimate
from agentroute.fleet import Deployment
from agentroute.origin import ORIGINS
from agentroute.reasons import sources


class Expected(NamedTuple):
    """Of one request. ``None`` is unknown: nothing is measured or derived, or there is no price."""

    ttft_ms: Estimate | None
    tpot_ms: Estimate | None
    e2e_ms: Estimate | None
    cost_usd: Estimate | None


def expected(a: Assessment, d: int) -> Expected:
    """What is expected of deployment ``d``."""
    origin, extrapolated, at = a.origin(d), a.extrapolated(d), (True, True)
    points = known(a.fleet, d).points
    if points and not extrapolated:
        at = points.get((a.ask.isl, a.ask.osl, int(a.n_run[d])), (False, False))

    def time(ms: Floats, band: Floats, is_measured: bool) -> Estimate | None:
        mean, wide = float(ms[d]), 1.0 + float(band[d])
        if mean != mean:
            return None
        return Estimate(mean, mean / wide, mean * wide, origin, extrapolated, not is_measured)

    ttft, tpot = time(a.ttft_ms, a.bands["ttft_ms"], at[0]), time(a.tpot_ms, a.bands["tpot_ms"], at[1])
    e2e = time(a.e2e_ms, a.bands["e2e_ms"], at[0] and at[1])
    return Expected(ttft, tpot, e2e, _cost(a, d, e2e))


def _cost(a: Assessment, d: int, e2e: Estimate | None) -> Estimate | None:
    mean = float(a.cost_usd[d])
    if mean != mean:
        return None
    price = a.fleet.deployments[d].profile.price
    origin = price.provenance.origin if price else "assumed"
    if e2e is None or a.fleet.usd_per_input_token[d] == a.fleet.usd_per_input_token[d]:
        return Estimate(mean, mean, mean, origin)
    # As sure as the time that is paid for.
    wide, weaker = e2e.high / e2e.mean, max(origin, e2e.source, key=ORIGINS.index)
    return Estimate(mean, mean / wide, mean * wide, weaker, e2e.extrapolated, e2e.interpolated)


class Known:
    """What is known of a deployment whatever is asked of it, worked out when it is first asked for."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Where its numbers come from."""
        return sources(self._deployment)

    @cached_property
    def points(self) -> dict[tuple[float, float, int], tuple[bool, bool]]:
        """By measured load whether its TTFT and its TPOT were measured."""
        found: dict[tuple[float, float, int], tuple[bool, bool]] = {}
        for point in self._deployment.profile.points:
            ttft, tpot = found.get(point.load, (False, False))
            found[point.load] = ttft or point.mean_ttft_ms() is not None, tpot or point.mean_tpot_ms() is not None
        return found


def known(fleet: CompiledFleet, d: int) -> Known:
    """What is known of deployment ``d``."""
    if fleet not in _KNOWN:
        _KNOWN[fleet] = [Known(deployment) for deployment in fleet.deployments]
    return _KNOWN[fleet][d]


_KNOWN: WeakKeyDictionary[CompiledFleet, list[Known]] = WeakKeyDictionary()
