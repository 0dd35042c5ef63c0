"""Measured points: what they must hold, and which of them contradict themselves."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentroute.latency.points import Measured, Measurement, Point
from agentroute.origin import Provenance

LOAD: dict[str, Any] = {"isl": 128, "osl": 11, "concurrency": 4}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "at least one of mean, p50"),
        ({"p50": 2.0, "p99": 1.0}, "percentiles contradict each other"),
        ({"p50": 2.0, "p90": 5.0, "p95": 4.0}, "percentiles contradict each other"),
        ({"mean": 0.0}, "greater than 0"),
        ({"mean": -1.0}, "greater than 0"),
        ({"mean": float("nan")}, "greater than 0|finite"),
        ({"mean": float("inf")}, "finite|less than"),
        ({"mean": 1e10}, "less than or equal"),
        ({"mean": "5"}, "valid number"),
        ({"mean": True}, "valid number"),
        ({"mean": 1.0, "noise": 1.5}, "less than or equal to 1"),
        ({"noise": 0.1}, "must hold at least one of"),
        ({"p75": 1.0}, "Extra inputs"),
    ],
)
def test_a_measured_quantity_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Measured(**values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "at least one of ttft_ms, tpot_ms, e2e_ms"),
        ({"ttft_ms": {"mean": 100.0}, "tpot_ms": {"mean": 10.0}, "e2e_ms": {"mean": 900.0}}, "times contradict"),
        ({"ttft_ms": {"mean": 100.0}, "tpot_ms": {"mean": 10.0}, "e2e_ms": {"mean": 100.0}}, "times contradict"),
        ({"ttft_ms": {"mean": 200.0}, "e2e_ms": {"mean": 100.0}}, "contradict"),
        ({"tpot_ms": {"mean": 50.0}, "e2e_ms": {"mean": 100.0}}, "contradict"),
        ({"ttft_ms": {"mean": 1.0}, "isl": 0}, "greater than or equal to 1"),
        ({"ttft_ms": {"mean": 1.0}, "osl": -5}, "greater than or equal to 1"),
        ({"ttft_ms": {"mean": 1.0}, "concurrency": 2.0}, "valid integer"),
        ({"ttft_ms": {"mean": 1.0}, "isl": 10**12}, "less than or equal"),
        ({"ttft_ms": {"mean": 1.0}, "requests_per_s": 0.0}, "greater than 0"),
        ({"ttft_ms": {"mean": 1.0}, "saturated": "yes"}, "valid boolean"),
        ({"ttft_ms": {"mean": 1.0}, "isl": 10**5_000}, "less than or equal"),
    ],
)
def test_a_point_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Point.model_validate(LOAD | values)
    assert any(part in raised.value.errors()[0]["msg"] for part in said.split("|"))


def measured(**means: float) -> Point:
    return Point.model_validate(LOAD | {f"{name}_ms": {"mean": value} for name, value in means.items()})


@pytest.mark.parametrize(
    ("point", "ttft", "tpot"),
    [
        (measured(ttft=100.0, tpot=10.0), 100.0, 10.0),
        (measured(ttft=100.0, e2e=200.0), 100.0, 10.0),
        (measured(tpot=10.0, e2e=200.0), 100.0, 10.0),
        (measured(ttft=100.0, tpot=10.0, e2e=210.0), 100.0, 10.0),
        (measured(ttft=100.0), 100.0, None),
        (measured(e2e=200.0), None, None),
        (Point(isl=1, osl=1, concurrency=1, ttft_ms=Measured(mean=5.0), e2e_ms=Measured(mean=5.0)), 5.0, None),
    ],
)
def test_the_missing_time_is_what_the_other_two_leave(point: Point, ttft: float | None, tpot: float | None) -> None:
    assert (point.mean_ttft_ms(), point.mean_tpot_ms()) == (ttft, tpot)


def test_a_median_is_not_taken_for_a_mean() -> None:
    assert Point(isl=1, osl=2, concurrency=1, ttft_ms=Measured(p50=5.0)).mean_ttft_ms() is None


def test_the_key_of_a_point_is_its_load() -> None:
    assert measured(ttft=1.0).load == (128, 11, 4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"loop": "half"}, "'closed' or 'open'"),
        ({"prefix_hit": 1.2}, "less than or equal to 1"),
        ({"prefix_hit": -0.1}, "greater than or equal to 0"),
    ],
)
def test_how_a_block_was_measured_is_refused(values: dict[str, Any], said: str) -> None:
    block = {"provenance": Provenance(origin="measured", source="a test"), "points": (measured(ttft=1.0),)}
    with pytest.raises(ValidationError, match=said):
        Measurement.model_validate(block | values)
