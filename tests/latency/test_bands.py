"""The bands of a fleet are those of each of its curves; a deployment without one answers unknown."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from fleets import points
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.compiled import CompiledFleet
from agentroute.fleet import Fleet
from agentroute.latency.bands import Bands
from agentroute.latency.curve import Curve
from agentroute.latency.points import Point

loads = st.tuples(st.floats(1.0, 1e6), st.floats(1.0, 1e5))


@given(st.lists(points(), min_size=1, max_size=4), loads, st.data())
@settings(max_examples=60, deadline=None)
def test_each_is_as_sure_as_it_is_alone_at_its_own_load(
    fleet: list[tuple[Point, ...]], load: tuple[float, float], data: st.DataObject
) -> None:
    curves = [*(Curve.fit(p) for p in fleet), None]
    n = np.array(data.draw(st.lists(st.floats(1.0, 1e4), min_size=len(curves), max_size=len(curves))))
    isl, osl, together = math.log(load[0]), math.log(load[1]), Bands(curves)
    bands, support = together.at(isl, osl, np.log(n)), together.support(isl, osl, np.log(n))
    for d, curve in enumerate(curves):
        own = (math.nan, math.nan) if curve is None else curve.bands((isl, osl, math.log(n[d])))
        assert bands[:, d].tolist() == pytest.approx(own, rel=1e-9, nan_ok=True)
        assert support[d] == pytest.approx(curve.support(isl, osl, math.log(n[d])) if curve else 0.0, abs=1e-9)


def test_also_where_the_memory_holds_no_more() -> None:
    """Over the shipped fleet, where some have room for a load and others have not."""
    curves, load = CompiledFleet.of(Fleet.shipped()).curves.curves, (math.log(60_000), math.log(500))
    together = Bands(curves).at(*load, np.full(len(curves), math.log(200)))
    usual = Bands([None if one is None else replace(one, bounds=None) for one in curves])
    wider = together > usual.at(*load, np.full(len(curves), math.log(200)))
    assert wider.any()
    assert not wider.all()
    for d in np.flatnonzero(wider[0]).tolist()[:5]:
        curve = curves[d]
        assert curve is not None
        assert together[:, d].tolist() == pytest.approx(curve.bands((*load, math.log(200))), rel=1e-9)
