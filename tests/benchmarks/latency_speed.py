"""How fast curves are fitted and asked: one JSON line for each, in thread CPU time."""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from math import log
from pathlib import Path

import numpy as np
from timing import line, per_call

from agentroute.cli.validate_latency import Rooflines
from agentroute.latency.curve import Curve
from agentroute.latency.holdout import Fold
from agentroute.latency.records import LatencyRecord, parse
from agentroute.latency.table import CurveTable

POINTS = Path(__file__).parents[1] / "data" / "latency_points.csv"
DEPLOYMENTS, TASKS = 150, 1_000


def known() -> list[Fold]:
    """The public deployments with the most points, each with a roofline to lean on."""
    rows: dict[str, list[LatencyRecord]] = defaultdict(list)
    for one in parse(POINTS.read_text(), POINTS):
        if one.n is not None and one.run is None:
            rows[one.deployment].append(one)
    most = sorted(rows.values(), key=len, reverse=True)[:DEPLOYMENTS]
    return [Fold(tuple(own), ()) for own in most]


def fit() -> list[Curve | None]:
    """A fleet as it is loaded: what its rooflines say, its curves, its table; without reading files."""
    folds, rooflines = known(), Rooflines()
    rooflines.missing([one for fold in folds for one in fold.known])
    start = time.thread_time()
    curves = [rooflines.curve(fold) for fold in folds]
    CurveTable(curves)
    line("fit_fleet", len(curves), seconds=round(time.thread_time() - start, 3))
    return curves


def ask(curves: list[Curve | None]) -> None:
    """One task for all deployments, many tasks at once, and the band of one deployment."""
    table, random = CurveTable(curves), np.random.default_rng(7)
    sizes = np.log(random.integers(200, 9_000, size=(64, 2)))
    n = np.log(random.integers(1, 128, size=(64, len(curves))).astype(np.float64))
    asked = [partial(table.at, float(isl), float(osl), load) for (isl, osl), load in zip(sizes, n, strict=True)]
    per_call("table_at", asked)
    many = np.log(random.integers(200, 9_000, size=(TASKS, 2)))
    loads = np.log(random.integers(1, 128, size=(TASKS, len(curves))).astype(np.float64))
    start = time.thread_time()
    table.at_each(many[:, 0], many[:, 1], loads)
    line("table_at_each", TASKS * len(curves), us_each=round((time.thread_time() - start) / loads.size * 1e6, 3))
    first = next(curve for curve in curves if curve is not None)
    per_call("bands", [lambda: first.bands((log(3_000), log(300), log(12)))])


if __name__ == "__main__":
    ask(fit())
