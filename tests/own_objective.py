"""An objective that a configuration file of the tests names."""

from __future__ import annotations

from agentroute.assessment import Assessment
from agentroute.compiled import Floats


def busiest(assessment: Assessment) -> Floats:
    """Where the most is in flight."""
    return -assessment.in_flight
