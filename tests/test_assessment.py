"""A task against every deployment: what would run, what would wait, and how sure the numbers are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fleets import fleet, fleets, grid, point, profile, router, task, tasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentroute.assessment import Assessment
from agentroute.compiled import VERSION_BAND, CompiledFleet
from agentroute.decision import Candidate
from agentroute.errors import NoFeasibleDeployment
from agentroute.estimate import Estimate
from agentroute.fleet import Fleet
from agentroute.inputs import Ask, Limit, State
from agentroute.policy import OBJECTIVES
from agentroute.profile import Profile
from agentroute.router import Router
from agentroute.task import Task


def assess(
    of: Fleet, limits: tuple[Limit, ...] = (), *, busy: tuple[int, ...] = (), context: float = 1_000.0
) -> Assessment:
    compiled = CompiledFleet.of(of)
    pools = len(compiled.pool_blocks)
    ask = Ask(context, context, 100.0, 100.0, context + 100.0, 0.0, True, 1.0, 0, limits)
    in_flight = np.array([*busy, *[0] * pools][:pools], dtype=np.float64)
    return Assessment(compiled, ask, State(np.zeros(pools), in_flight, 0, int(in_flight.sum())), room_now=False)


def only(p: Profile, asked: Task) -> Candidate:
    return router(p).decide(asked).candidates[0]


def known(estimate: Estimate | None) -> Estimate:
    assert estimate is not None
    return estimate


# ---- waiting


@pytest.mark.parametrize(
    ("kv_blocks", "slots", "concurrency", "n_run"),
    [
        pytest.param(4 * 69, None, 10, 4, id="KV binds"),
        pytest.param(4 * 69 + 68, None, 10, 4, id="KV binds, with some to spare"),
        pytest.param(None, 3, 10, 3, id="slots bind"),
        pytest.param(4 * 69, 3, 10, 3, id="slots bind before KV"),
        pytest.param(4 * 69, 64, 4, 4, id="nothing binds"),
        pytest.param(None, None, 10, 10, id="nothing is known to bind"),
    ],
)
def test_what_does_not_run_at_once_waits(
    kv_blocks: int | None, slots: int | None, concurrency: int, n_run: int
) -> None:
    p = profile(kv_blocks=kv_blocks, slots=slots)
    alone, together = only(p, task(concurrency=n_run)), only(p, task(concurrency=concurrency))
    service = known(alone.e2e_ms).mean
    wait = (concurrency - n_run) / n_run * service
    assert (together.n, together.n_run) == (concurrency, n_run)
    assert together.wait_ms == pytest.approx(wait)
    assert known(together.ttft_ms).mean == pytest.approx(known(alone.ttft_ms).mean + wait)
    assert known(together.e2e_ms).mean == pytest.approx(service + wait)
    assert known(together.tpot_ms).mean == pytest.approx(known(alone.tpot_ms).mean)


def test_the_whole_answer_is_the_first_token_and_the_gaps_after_it() -> None:
    c = only(profile(), task(output=100))
    assert known(c.e2e_ms).mean == pytest.approx(known(c.ttft_ms).mean + 99 * known(c.tpot_ms).mean)


def test_an_answer_of_one_token_takes_the_time_to_the_first() -> None:
    c = only(profile(), task(output=1))
    assert known(c.e2e_ms).mean == pytest.approx(known(c.ttft_ms).mean)


def test_points_above_the_slots_are_no_service_times() -> None:
    queued = (*grid(n=(1, 4, 16)), point(1_024, 512, 64, 90_000, 6))
    with_queue, without = profile(points=queued, slots=16), profile(points=grid(n=(1, 4, 16)), slots=16)
    asked = task(context=1_024, output=512, concurrency=64)
    assert only(with_queue, asked).ttft_ms == only(without, asked).ttft_ms


def test_points_above_the_slots_are_not_used_when_there_are_no_others_either() -> None:
    queued = profile(points=(point(1_024, 100, 64, 90_000, 6),), slots=16)
    c = only(queued, task(context=1_024, concurrency=16))
    assert c.ttft_ms is None or c.ttft_ms.extrapolated


# ---- bands


def test_inside_the_measured_loads_nothing_is_extrapolated() -> None:
    c = only(profile(), task(context=1_024, output=512, concurrency=4))
    for estimate in (c.ttft_ms, c.tpot_ms, c.e2e_ms):
        assert not known(estimate).extrapolated


OUTSIDE = [
    pytest.param([{"context": 8_192 * 2**k} for k in range(1, 6)], id="prompt"),
    pytest.param([{"output": 512 * 2**k} for k in range(1, 6)], id="answer"),
    pytest.param([{"concurrency": 64 * 2**k} for k in range(1, 3)], id="in flight"),
    pytest.param([{"context": 128 // 2**k} for k in range(1, 6)], id="short prompt"),
]


@pytest.mark.parametrize("ladder", OUTSIDE)
def test_outside_it_is_extrapolated_and_less_sure_with_every_step(ladder: list[dict[str, int]]) -> None:
    inside = {"context": 1_024, "output": 512, "concurrency": 4}
    sure = known(only(profile(), task(**inside)).ttft_ms)
    before = sure.high / sure.mean - 1
    for step in ladder:
        c = only(profile(), task(**inside | step))
        for estimate in (known(c.ttft_ms), known(c.tpot_ms)):
            assert estimate.extrapolated
        band = known(c.ttft_ms).high / known(c.ttft_ms).mean - 1
        assert band >= before + 1e-9
        before = band


def test_far_beyond_the_most_that_was_measured_requests_wait() -> None:
    c = only(profile(), task(context=1_024, output=512, concurrency=10_000))
    assert (c.n, c.n_run) == (10_000, 4 * 64)
    assert c.wait_ms is not None
    assert c.wait_ms > 30 * (known(c.e2e_ms).mean - c.wait_ms)


@pytest.mark.parametrize("without", [{"version": None}, {"version": "2.0", "kv": "bf16"}, {"version": "1.0"}])
def test_another_or_unknown_engine_version_or_kv_type_widens_every_band(without: dict[str, Any]) -> None:
    asked = task(context=1_024, output=512)
    sure, unsure = only(profile(version="1.0", kv="bf16"), asked), only(profile(**without, points=grid()), asked)
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        a, b = known(getattr(sure, name)), known(getattr(unsure, name))
        assert b.mean == a.mean
        assert b.high / b.mean == pytest.approx(a.high / a.mean + VERSION_BAND)


@pytest.mark.parametrize("origin", ["measured", "reported", "derived", "assumed"])
def test_an_estimate_is_as_good_as_the_points_it_rests_on(origin: str) -> None:
    c = only(profile(origin=origin), task())  # type: ignore[arg-type]
    assert known(c.ttft_ms).source == origin


@given(fleets(), tasks())
@settings(max_examples=60, deadline=None)
def test_low_is_below_mean_is_below_high(of: Fleet, asked: Task) -> None:
    try:
        decision = Router(of).decide(asked)
    except NoFeasibleDeployment:
        return
    for c in decision.candidates:
        for estimate in (c.ttft_ms, c.tpot_ms, c.e2e_ms, c.cost_usd):
            if estimate is not None:
                assert 0 <= estimate.low <= estimate.mean <= estimate.high < math.inf


# ---- ranking


@given(
    fleets(),
    st.lists(
        st.builds(
            Limit,
            st.sampled_from(["ttft_ms", "tpot_ms", "e2e_ms"]),
            st.floats(1.0, 100_000.0),
            st.sampled_from(["mean", "p95"]),
            st.booleans(),
        ),
        max_size=3,
    ),
    st.lists(st.integers(0, 50), min_size=10, max_size=10),
    st.sampled_from(sorted(set(OBJECTIVES) - {"quality"})),
    st.integers(1, 50_000),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_best_is_the_first_of_the_order(
    of: Fleet, limits: list[Limit], busy: list[int], objective: str, context: int
) -> None:
    a = assess(of, tuple(limits), busy=tuple(busy), context=context)
    order = a.order(OBJECTIVES[objective])
    assert a.best(OBJECTIVES[objective]) == (order[0] if len(order) else None)
    assert set(order.tolist()) == {d for d in range(len(of)) if a.is_feasible(d)}


def soft(ttft_ms: float) -> tuple[Limit, ...]:
    return (Limit("ttft_ms", ttft_ms, "mean", False),)


@pytest.mark.parametrize("measured_first", [True, False])
def test_one_that_misses_an_slo_by_a_known_share_is_better_than_an_unmeasured_one(measured_first: bool) -> None:
    a, b = profile("measured"), profile("unmeasured", points=())
    deployments = fleet(a, b) if measured_first else fleet(b, a)
    best = assess(deployments, soft(1.0)).best(OBJECTIVES["fit"])
    assert best is not None
    assert deployments.deployments[best].name == "measured"


def test_an_unmeasured_deployment_never_makes_an_infeasible_one_best() -> None:
    deployments = fleet(profile("small", window=100), profile("unmeasured", points=()))
    assert assess(deployments, soft(1_000.0)).best(OBJECTIVES["fit"]) == 1


@pytest.mark.parametrize("objective", ["fit", "cost"])
def test_of_two_that_score_alike_the_less_busy_one_is_best(objective: str) -> None:
    alike = [profile(name, kv_blocks=1_000, usd_per_million=(1.0, 2.0)) for name in ("a", "b")]
    a = assess(fleet(*alike), busy=(5, 2))
    assert a.best(OBJECTIVES[objective]) == 1
    assert a.order(OBJECTIVES[objective]).tolist() == [1, 0]


def test_when_every_slo_is_missed_the_one_nearest_to_keeping_it_is_best() -> None:
    deployments = fleet(profile("far", speed=0.1), profile("near", speed=1.0), profile("nearer", speed=2.0))
    order = assess(deployments, soft(1.0)).order(OBJECTIVES["fit"])
    assert [deployments.deployments[d].name for d in order] == ["nearer", "near", "far"]


@pytest.mark.parametrize(("n", "waits"), [(8, False), (200, False), (300, True)])
def test_a_short_curve_does_not_make_an_engine_run_fewer_at_once_than_it_does_untold(n: int, waits: bool) -> None:
    """One point at one request in flight: vLLM runs 256 all the same, and each of them a little slower."""
    only = router(profile("one", points=(point(1_024, 128, 1, 50, 8),)))
    chosen = only.decide(task(1_024, 128, concurrency=n)).candidates[0]
    assert (chosen.n_run < chosen.n) is waits
    assert chosen.wait_ms is not None
    assert (chosen.wait_ms > 0) is waits


@given(fleets(), tasks())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_the_best_is_the_first_of_the_order_however_few_are_left(of: Fleet, asked: Task) -> None:
    rules = Router(of).rules
    fit = OBJECTIVES["fit"]
    for names in ([one.name] for one in of.deployments):
        ask = rules.ask(replace(asked, allow=frozenset(names), route="default"))[0]
        pools = len(rules.compiled.pool_blocks)
        here = Assessment(rules.compiled, ask, State(np.zeros(pools), np.zeros(pools), 0, 0), room_now=False)
        ordered = here.order(fit)
        assert here.best(fit) == (int(ordered[0]) if len(ordered) else None)
