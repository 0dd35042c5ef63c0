"""What every run is asked: each way of getting a number wrong that the field knows is found, or the run is honest."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.bench.importers.checks import Judged, Refused, judge
from agentroute.bench.importers.run import Facts, Run
from agentroute.shape.sharding import Sharding

TTFT, TPOT, OSL, CLIENTS = 200.0, 10.0, 101, 16
E2E = TTFT + (OSL - 1) * TPOT
RATE = CLIENTS / E2E * 1_000


def run(**changes: Any) -> Run:
    """An honest closed loop, but for what is changed."""
    honest = Run(
        where="",
        isl=1_000,
        osl=OSL,
        clients=CLIENTS,
        loop="closed",
        requests_per_s=RATE,
        ttft_ms={"mean": TTFT},
        tpot_ms={"mean": TPOT},
        e2e_ms={"mean": E2E},
        completed=320,
        failed=0,
    )
    return replace(honest, **changes)


def taken(one: Run) -> Judged:
    judged = judge(one)
    assert isinstance(judged, Judged), judged.why
    return judged


def test_an_honest_run_is_a_point_without_a_flag() -> None:
    judged = taken(run())
    assert judged.point.load == (1_000, OSL, CLIENTS)
    assert judged.flags == ()
    assert judged.point.requests_per_s == pytest.approx(RATE, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"tpot_ms": {"mean": TPOT / 1_000}}, "TPOT would be 0.01 ms; is it in seconds", id="tpot in s"),
        pytest.param({"ttft_ms": {"mean": TTFT / 1_000}}, "TTFT would be 0.2 ms; is it in seconds", id="ttft in s"),
        pytest.param({"e2e_ms": {"mean": E2E / 1_000}}, "the E2E seems to be in another unit", id="e2e in s"),
        pytest.param({"ttft_ms": {"mean": TTFT * 1_000}}, "the TTFT seems to be in another unit", id="ttft in us"),
        pytest.param(
            {"tpot_ms": {"mean": TPOT * 1_000}}, "the E2E or the TPOT seems to be in another", id="tpot in us"
        ),
        pytest.param({"e2e_ms": {"mean": E2E * 1_000}}, "the E2E or the TPOT seems to be in another", id="e2e in us"),
        pytest.param({"tpot_ms": {"mean": 2e7}}, "is it in microseconds", id="tpot in ns"),
        pytest.param(
            {"ttft_ms": {"mean": 0.2}, "tpot_ms": {"mean": 0.01}, "e2e_ms": {"mean": 1.2}},
            "is it in seconds",
            id="all s",
        ),
        pytest.param({"tpot_ms": {}, "ttft_ms": {"mean": 2 * E2E}}, "longer than its E2E", id="ttft over e2e"),
        pytest.param({"tpot_ms": {"mean": 3 * TPOT}}, "its times contradict each other", id="times contradict"),
        pytest.param(
            {"tpot_ms": {"mean": 4 * TPOT}, "e2e_ms": {}},
            "only 16 could be in flight; are its tokens chunks",
            id="chunks",
        ),
        pytest.param({"requests_per_s": RATE * 1_000}, "is a time in another unit", id="rate a thousandfold"),
        pytest.param({"requests_per_s": RATE / 4}, "16 were in flight all the time", id="rate too small"),
        pytest.param(
            {"requests_per_s": RATE / 8, "facts": Facts(sharding=Sharding(tp=8, ep=8))},
            "divided by tp x ep",
            id="tp x ep",
        ),
        pytest.param({"in_flight": 3.0}, "the tool counted 3 in flight", id="in flight otherwise"),
        pytest.param({"failed": 40}, "40 of 360 requests failed", id="failures"),
        pytest.param({"completed": 0}, "no request was completed", id="nothing completed"),
        pytest.param({"clients": 0}, "it says that 0 requests could be in flight", id="no clients"),
        pytest.param({"osl": 0}, "its answers hold 0 tokens", id="no output tokens"),
        pytest.param({"isl": 0}, "its prompts hold 0 tokens", id="no prompt tokens"),
        pytest.param({"isl": math.nan}, "its prompts hold nan tokens", id="nan tokens"),
        pytest.param({"osl": None}, "does not say how many tokens", id="unknown sizes"),
        pytest.param({"ttft_ms": {}, "tpot_ms": {}, "e2e_ms": {}}, "holds no times", id="no times"),
        pytest.param({"ttft_ms": {"mean": -1.0}}, "its TTFT is not above zero", id="negative"),
        pytest.param(
            {"ttft_ms": {"p50": 9.0, "p99": 5.0}}, "percentiles of its TTFT contradict", id="percentiles fall"
        ),
        pytest.param(
            {"clients": None, "loop": None, "requests_per_s": None},
            "says neither how many requests",
            id="no concurrency",
        ),
        pytest.param({"isl": 1e12}, "its isl must be less than or equal to", id="absurd size"),
    ],
)
def test_a_run_that_contradicts_itself_is_refused(changes: dict[str, Any], why: str) -> None:
    refused = judge(run(**changes))
    assert isinstance(refused, Refused)
    assert why in refused.why


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        pytest.param({"tpot_ms": {"mean": E2E / OSL}}, "is E2E / OSL, which includes the TTFT", id="includes ttft"),
        pytest.param({"tpot_ms": {"mean": TPOT / 2}}, "half of what E2E and TTFT leave", id="halved"),
        pytest.param(
            {"osl": 1, "e2e_ms": {"mean": TTFT}, "requests_per_s": 80.0}, "answers of one token", id="one token"
        ),
        pytest.param({"ttft_ms": {"mean": E2E}, "tpot_ms": {"mean": 0.2}}, "were not streamed", id="not streamed"),
    ],
)
def test_a_wrong_tpot_is_left_out_where_the_rest_makes_a_point(changes: dict[str, Any], flag: str) -> None:
    judged = taken(run(**changes))
    assert judged.point.tpot_ms is None
    assert any(flag in said for said in judged.flags)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"failed": 4}, "4 of 324 requests failed"),
        ({"failed": -4}, "its count of failed requests, -4, is none"),
        ({"requests_per_s": -2.5}, "its rate, -2.5 requests a second, is none"),
        ({"prefix_hit": 0.4}, "40% of the prompt tokens came from a prefix cache"),
        ({"prefix_hit": 40.0}, "its share of cached prompt tokens, 40, is none"),
        ({"tpot_ms": {"mean": 1.25 * TPOT}}, "TTFT \\+ \\(OSL - 1\\) x TPOT is 1.21 of the E2E"),
        ({"ttft_ms": {}, "tpot_ms": {}}, "only the E2E was measured"),
        ({"loop": "open", "clients": None, "offered_per_s": math.inf}, "all requests were sent at once"),
        ({"loop": "open", "clients": None, "offered_per_s": 3 * RATE}, "requests a second: .* were sent"),
        ({"completed": 20, "requests_per_s": RATE / 2}, "only 8 of 16 clients had a request in flight"),
    ],
)
def test_what_a_reader_must_know_is_said(changes: dict[str, Any], flag: str) -> None:
    (said,) = taken(run(**changes)).flags
    assert re.search(flag, said)


def test_an_open_loop_stands_at_the_concurrency_that_it_reached() -> None:
    judged = taken(run(loop="open", clients=None, offered_per_s=RATE, requests_per_s=RATE * 0.99))
    assert (judged.point.concurrency, judged.point.saturated) == (CLIENTS, False)


@pytest.mark.parametrize(("offered", "saturated"), [(RATE, False), (3 * RATE, True), (math.inf, True)])
def test_an_open_loop_that_sends_more_than_is_taken_is_saturated(offered: float, saturated: bool) -> None:
    judged = taken(run(loop="open", clients=None, offered_per_s=offered))
    assert judged.point.saturated is saturated


def test_a_few_requests_at_a_low_rate_do_not_saturate() -> None:
    judged = taken(run(loop="open", clients=None, offered_per_s=2.0, requests_per_s=0.4, completed=2))
    assert (judged.point.saturated, judged.point.concurrency) == (False, 1)


def test_a_short_run_stands_at_the_concurrency_that_it_reached() -> None:
    assert taken(run(completed=20, requests_per_s=RATE / 2)).point.concurrency == CLIENTS // 2


@given(
    ttft=st.floats(5.0, 60_000.0),
    tpot=st.floats(1.0, 500.0),
    osl=st.integers(2, 4_000),
    clients=st.integers(1, 2_000),
    busy=st.floats(0.85, 1.0),
)
def test_an_honest_run_is_never_refused(ttft: float, tpot: float, osl: int, clients: int, busy: float) -> None:
    e2e = ttft + (osl - 1) * tpot
    honest = run(
        osl=osl,
        clients=clients,
        ttft_ms={"mean": ttft},
        tpot_ms={"mean": tpot},
        e2e_ms={"mean": e2e},
        requests_per_s=busy * clients / e2e * 1_000,
        completed=20 * clients,
    )
    point = taken(honest).point
    assert point.concurrency == clients
    assert point.mean_tpot_ms() == pytest.approx(tpot, rel=1e-3)


@given(tpot=st.floats(2.0, 90.0), osl=st.integers(50, 4_000), ttft=st.floats(20.0, 400.0))
def test_a_tpot_in_seconds_is_never_taken(tpot: float, osl: int, ttft: float) -> None:
    e2e = ttft + (osl - 1) * tpot
    wrong = run(
        osl=osl, ttft_ms={"mean": ttft}, tpot_ms={"mean": tpot / 1_000}, e2e_ms={"mean": e2e}, requests_per_s=None
    )
    assert isinstance(judge(wrong), Refused)
