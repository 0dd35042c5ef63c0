"""Leaving measured loads out."""

from __future__ import annotations

import pytest

from agentroute.latency.holdout import LeaveOut, folds, knees
from agentroute.latency.records import LatencyRecord


def row(
    n: int | None, *, isl: int = 1_024, ttft: float = 100.0, tpot: float = 10.0, run: int | None = None, of: str = "d"
) -> LatencyRecord:
    return LatencyRecord(of, "m", "g", "e", None, None, None, isl, 128, n, ttft, tpot, run=run)


def left(rows: list[LatencyRecord], how: LeaveOut) -> list[tuple[list[int], list[int]]]:
    return [(sorted(r.n or 0 for r in f.known), sorted(r.n or 0 for r in f.asked)) for f in folds(rows, how)]


FOUR = [row(n) for n in (1, 4, 16, 64)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("one", [([1, 16, 64], [4]), ([1, 4, 64], [16])]),
        ("edge", [([1, 4, 16], [64])]),
        ("lone", [([4, 16, 64], [1])]),
        ("deployment", [([], [1, 4, 16, 64])]),
    ],
)
def test_what_is_left_out_of_one_curve(how: LeaveOut, expected: list[tuple[list[int], list[int]]]) -> None:
    assert left(FOUR, how) == expected


def test_anchors_are_the_least_the_geometric_middle_and_the_greatest() -> None:
    assert left([row(n) for n in (1, 2, 8, 32, 64)], "anchors:3") == [([1, 8, 64], [2, 32])]
    assert left([row(n) for n in (1, 2, 8)], "anchors:3") == [([1, 2, 8], [])]


def test_a_curve_of_two_loads_is_known_and_never_asked_for() -> None:
    rows = [*FOUR, row(1, isl=64), row(8, isl=64)]
    assert left(rows, "edge") == [([1, 1, 4, 8, 16], [64])]
    assert all(len(known) == 5 for known, _ in left(rows, "one"))


def test_a_lone_request_is_left_out_of_every_curve_that_has_more() -> None:
    rows = [*(row(n) for n in (1, 8)), *(row(n, isl=64) for n in (1, 16)), row(1, isl=8), row(2, isl=9)]
    assert left(rows, "lone") == [([2, 8, 16], [1, 1])]


def test_the_edge_of_every_curve_of_a_deployment_goes_at_once() -> None:
    rows = [*FOUR, *(row(n, isl=64) for n in (1, 16, 256))]
    assert left(rows, "edge") == [([1, 1, 4, 16, 16], [64, 256])]


def test_rows_without_a_concurrency_are_passed_over() -> None:
    assert left([*FOUR, row(None)], "deployment") == left(FOUR, "deployment")


def test_each_run_is_fitted_apart_with_what_they_have_in_common() -> None:
    runs = [row(n, tpot=t, run=r) for n in (1, 4, 16) for r, t in ((1, 10.0), (2, 12.0))]
    rows = [*runs, *(row(n, isl=64) for n in (1, 4, 16))]
    found = list(folds(rows, "one"))
    assert sorted((f.asked[0].isl, f.asked[0].run or 0) for f in found) == [(64, 0), (1_024, 1), (1_024, 2)]
    for fold in found:
        assert len(fold.known) == 5
        assert len({r.run for r in fold.known} - {None}) == 1


def test_every_load_is_asked_for_once() -> None:
    rows = [*FOUR, *(row(n, of="other") for n in (2, 3, 5))]
    asked = [r for fold in folds(rows, "deployment") for r in fold.asked]
    assert sorted(asked, key=repr) == sorted(rows, key=repr)


@pytest.mark.parametrize(("after", "knee"), [(590.0, False), (610.0, True)])
def test_a_knee_is_where_ttft_grows_three_times_as_fast_as_the_load(after: float, knee: bool) -> None:
    rows = [row(1), row(2, ttft=after), row(4, ttft=after)]
    assert knees(rows) == ({rows[0].curve} if knee else set())
