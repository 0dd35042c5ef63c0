"""How far predictions are from measurements: errors, coverage of bands, order of deployments, SLO decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot, log
from typing import Literal

import numpy as np

from agentroute.latency.bands import Bands
from agentroute.latency.curve import Curve
from agentroute.latency.holdout import Fold
from agentroute.latency.records import LatencyRecord
from agentroute.latency.table import CurveTable

Metric = Literal["tpot", "ttft", "e2e"]
METRICS: tuple[Metric, ...] = ("tpot", "ttft", "e2e")

APART = 1.15
"""Two deployments whose times differ by less are not worth ordering."""

SLOS: dict[Metric, tuple[float, ...]] = {
    "tpot": (10.0, 20.0, 30.0, 50.0, 100.0),
    "ttft": (200.0, 500.0, 1_000.0, 2_000.0, 5_000.0),
    "e2e": (2_000.0, 5_000.0, 10_000.0, 30_000.0, 60_000.0),
}
"""Usual limits in milliseconds, at which a prediction and a measurement are asked whether they are kept. Assumed."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was predicted for a row, in milliseconds, and the half-widths of the bands as fractions."""

    row: LatencyRecord
    ttft_ms: float
    tpot_ms: float
    ttft_band: float
    tpot_band: float

    @property
    def predicted(self) -> dict[Metric, float]:
        e2e = self.ttft_ms + (self.row.osl - 1) * self.tpot_ms
        return {"tpot": self.tpot_ms, "ttft": self.ttft_ms, "e2e": e2e}

    @property
    def measured(self) -> dict[Metric, float]:
        """As measured; E2E follows from the other two."""
        e2e = self.row.ttft_ms + (self.row.osl - 1) * self.row.tpot_ms
        return {"tpot": self.row.tpot_ms, "ttft": self.row.ttft_ms, "e2e": e2e}

    @property
    def bands(self) -> dict[Metric, float]:
        predicted = self.predicted
        share = predicted["ttft"] / predicted["e2e"]
        return {
            "tpot": self.tpot_band,
            "ttft": self.ttft_band,
            "e2e": hypot(share * self.ttft_band, (1.0 - share) * self.tpot_band),
        }


def predictions(
    all_: Iterable[Fold], fit: Callable[[Fold], Curve | None], done: Callable[[], None] = lambda: None
) -> Iterator[Prediction]:
    """What the curve of each fold says of the rows that it does not know; none where there is no curve.

    ``done`` is called after every fold.
    """
    for fold in all_:
        curve = fit(fold) if fold.asked else None
        if curve is not None:
            table, bands = CurveTable([curve]), Bands([curve])
            for row in fold.asked:
                load = log(row.isl), log(row.osl), np.array([log(row.n or 1)])
                (ttft,), (tpot,) = table.at(*load)
                yield Prediction(row, float(ttft), float(tpot), *bands.at(*load)[:, 0].tolist())
        done()


def errors(of: Sequence[Prediction], metric: Metric) -> dict[str, float | int | None]:
    """``n``, and as fractions: mean, median and 90th percentile of |predicted / measured - 1|, and the coverage of the
    80 % band."""
    if not of:
        return {"n": 0, "mean": None, "median": None, "p90": None, "coverage": None}
    ratio = np.array([one.predicted[metric] / one.measured[metric] for one in of])
    band = np.array([1.0 + one.bands[metric] for one in of])
    off = np.abs(ratio - 1.0)
    inside = (ratio <= band) & (ratio >= 1.0 / band)
    mean, median, p90 = float(off.mean()), float(np.median(off)), float(np.quantile(off, 0.9))
    return {"n": len(of), "mean": mean, "median": median, "p90": p90, "coverage": float(inside.mean())}


def slo_wrong(of: Sequence[Prediction]) -> float | None:
    """The share of SLO decisions that would have been wrong: kept by the prediction, not by the measurement, or the
    other way round; over all limits of ``SLOS``."""
    if not of:
        return None
    wrong = [
        (one.predicted[metric] <= limit) != (one.measured[metric] <= limit)
        for one in of
        for metric, limits in SLOS.items()
        for limit in limits
    ]
    return sum(wrong) / len(wrong)


@dataclass(frozen=True, slots=True)
class Order:
    """Pairs of deployments of one model at one load whose measured times differ by more than 15 %."""

    pairs: int
    right: int
    """Those that the predictions put into the measured order."""

    @property
    def share(self) -> float | None:
        """The part of them that is right; ``None`` without a pair."""
        return self.right / self.pairs if self.pairs else None

    @property
    def correlation(self) -> float | None:
        """Kendall's rank correlation over these pairs: from -1, all wrong, to 1."""
        return 2.0 * self.right / self.pairs - 1.0 if self.pairs else None


def orders(of: Sequence[Prediction], metric: Metric) -> tuple[Order, dict[str, Order]]:
    """How well deployments of one model are put into order: over all pairs, and by deployment against the others."""
    loads: dict[tuple[str, int, int, int], list[Prediction]] = defaultdict(list)
    for one in of:
        loads[one.row.model, one.row.isl, one.row.osl, one.row.n or 1].append(one)
    whole, apart = [0, 0], defaultdict[str, list[int]](lambda: [0, 0])
    for alike in loads.values():
        known = [(one.row.deployment, one.predicted[metric], one.measured[metric]) for one in alike]
        for (a, predicted, measured), (b, other, truly) in combinations(known, 2):
            if a != b and max(measured / truly, truly / measured) > APART:
                right = (predicted > other) == (measured > truly)
                for counted in (whole, apart[a], apart[b]):
                    counted[0] += 1
                    counted[1] += right
    return Order(*whole), {name: Order(*counted) for name, counted in apart.items()}
