"""A lone request where only more in flight were measured: the band is wide enough, and no wider."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fleets import grid

from agentroute.errors import FileError
from agentroute.files import read_text
from agentroute.latency.accuracy import Metric, Prediction, errors, predictions
from agentroute.latency.curve import Curve
from agentroute.latency.holdout import folds
from agentroute.latency.layout import Array, Hull, Hulls
from agentroute.latency.records import parse

DATA = Path(__file__).parents[1] / "data"


@cache
def left_out() -> list[Prediction]:
    """Every lone request of both tables, predicted from two and more in flight."""
    files = [DATA / "latency_points.csv", DATA / "lone_points.csv"]
    records = [row for file in files for row in parse(read_text(file, FileError), file)]
    return list(predictions(folds(records, "lone"), lambda fold: Curve.fit(row.point() for row in fold.known)))


@pytest.mark.parametrize(("metric", "most"), [("ttft", 0.87), ("tpot", 0.87), ("e2e", 0.95)])
def test_the_band_holds_four_in_five_of_the_lone_requests_that_were_left_out(metric: Metric, most: float) -> None:
    found = errors(left_out(), metric)
    assert found["n"] == 14
    assert 0.75 <= (found["coverage"] or 0.0) <= most


def ln_band(curve: Curve, n: float) -> tuple[float, float]:
    ttft, tpot = curve.bands((math.log(1_024), math.log(512), math.log(n)))
    return math.log1p(ttft), math.log1p(tpot)


def test_the_doubling_from_one_to_two_in_flight_counts_for_more_than_the_next() -> None:
    curve = Curve.fit(grid(n=(4, 16, 64)))
    assert curve is not None
    for metric in (0, 1):
        one, two, four = (ln_band(curve, n)[metric] for n in (1, 2, 4))
        assert one - two > 1.3 * (two - four) > 0.0


def lone(measured: Array, n: float) -> float:
    return float(Hulls([Hull.of(measured)]).lone(np.log([[100.0], [10.0], [n]]))[0])


def test_where_a_lone_request_was_measured_nothing_is_added() -> None:
    assert lone(np.log([[100.0, 10.0, 1.0], [100.0, 10.0, 8.0]]), 1.0) == 0.0


@pytest.mark.parametrize(("n", "least", "expected"), [(1, 2, 1.0), (1, 16, 1.0), (2, 16, 0.0), (math.sqrt(2), 2, 0.5)])
def test_only_what_lies_between_one_and_two_in_flight_counts(n: float, least: float, expected: float) -> None:
    assert lone(np.log([[100.0, 10.0, least], [100.0, 10.0, 64.0]]), n) == pytest.approx(expected)
