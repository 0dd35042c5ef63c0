"""An objective that a configuration file of the tests names."""

from __future__ import annotations

from agentroute.assessment import Assessment
from agentroute.compiled import Floats


def busiest(assessment: Assessment) -> Floats:
    """Where the most is in flight."""
    return -assessment.in_flight


def of_two(assessment: Assessment, weight: float) -> Floats:
    """One that asks for more than it is given."""
    return weight * assessment.in_flight


async def later(assessment: Assessment) -> Floats:
    """One that would have to be waited for."""
    return assessment.in_flight
