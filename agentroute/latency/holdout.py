"""Leaving measured loads out: what a curve would have to predict, and what it may know of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Literal

from agentroute.latency.records import LatencyRecord

LeaveOut = Literal["one", "edge", "lone", "anchors:3", "deployment"]
WAYS: dict[LeaveOut, str] = {
    "one": "each concurrency between others, of curves with at least three",
    "edge": "the greatest concurrency of every curve with at least three, all of a deployment at once",
    "lone": "one request in flight, of every curve with more, all of a deployment at once",
    "anchors:3": "all but the least, the geometric middle and the greatest concurrency of curves with at least four",
    "deployment": "all of a deployment",
}

KNEE = 3.0
"""Between two neighbours TTFT grows by more than this times as much as the concurrency: queueing starts."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A curve is fitted to ``known`` and asked for ``asked``, all of one deployment."""

    known: tuple[LatencyRecord, ...]
    asked: tuple[LatencyRecord, ...]


def folds(records: Sequence[LatencyRecord], how: LeaveOut) -> Iterator[Fold]:
    """Every fold of ``records``; rows without a concurrency are passed over.

    Where a deployment has several runs of one load, each run is fitted apart, with the rows that all have in common.
    """
    for rows, own in _series(records):
        curves = _curves(rows)
        match how:
            case "deployment":
                yield Fold((), tuple(row for row in rows if row in own))
            case "one":
                for curve in curves:
                    for row in curve[1:-1]:
                        if row in own:
                            yield Fold(tuple(other for other in rows if other is not row), (row,))
            case "edge":
                left = {curve[-1] for curve in curves if len(curve) >= 3}
                yield Fold(tuple(row for row in rows if row not in left), tuple(left & own))
            case "lone":
                left = {curve[0] for curve in curves if curve[0].n == 1}
                known = tuple(row for row in rows if row not in left)
                yield Fold(known, tuple(row for row in left & own if any(row.curve == other.curve for other in known)))
            case "anchors:3":
                kept = {row for curve in curves for row in _anchors(curve)}
                yield Fold(
                    tuple(row for row in rows if row in kept),
                    tuple(row for row in rows if row in own and row not in kept),
                )


def knees(records: Sequence[LatencyRecord]) -> set[tuple[str, int, int, int | None]]:
    """The curves whose TTFT has a knee, of those with at least three loads."""
    return {
        curve[0].curve
        for curve in _curves([row for row in records if row.n is not None])
        if len(curve) >= 3 and any(b.ttft_ms / a.ttft_ms > KNEE * (b.n or 0) / (a.n or 1) for a, b in pairwise(curve))
    }


def _series(records: Sequence[LatencyRecord]) -> Iterator[tuple[list[LatencyRecord], set[LatencyRecord]]]:
    """The rows to fit together, and those of them that are to be predicted here."""
    deployments: dict[str, list[LatencyRecord]] = defaultdict(list)
    for row in records:
        if row.n is not None:
            deployments[row.deployment].append(row)
    for rows in deployments.values():
        runs: list[int | None] = [*sorted({row.run for row in rows if row.run is not None})] or [None]
        for run in runs:
            together = [row for row in rows if row.run in {None, run}]
            first = run == runs[0]
            yield together, {row for row in together if first or row.run is not None}


def _curves(rows: Sequence[LatencyRecord]) -> list[list[LatencyRecord]]:
    """By curve its rows, ascending in concurrency."""
    curves: dict[tuple[str, int, int, int | None], list[LatencyRecord]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.n or 0):
        curves[row.curve].append(row)
    return list(curves.values())


def _anchors(curve: list[LatencyRecord]) -> list[LatencyRecord]:
    if len(curve) < 4:
        return curve
    middle = sqrt((curve[0].n or 1) * (curve[-1].n or 1))
    return [curve[0], min(curve[1:-1], key=lambda row: max((row.n or 1) / middle, middle / (row.n or 1))), curve[-1]]
