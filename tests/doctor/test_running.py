"""What a running router has seen of its deployments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleets import Clock, profile, task

from agentroute.adapters.base import Load as Reported
from agentroute.doctor.finding import Finding
from agentroute.doctor.running import FULL_S, OVERRUNS, STALE_S, TOLD_S, at_this_moment, troubles
from agentroute.errors import FailureKind
from agentroute.fleet import Deployment, Fleet
from agentroute.outcome import Outcome
from agentroute.router import Router
from agentroute.shape.sharding import Sharding
from agentroute.state.corrections import WHOLE, Drift
from agentroute.state.health import Signs
from agentroute.state.load import Load

PLAIN = Deployment("d", profile())


def split(**degrees: int) -> Deployment:
    own = profile(gpus=None).model_copy(update={"sharding": Sharding(**degrees)})
    return Deployment("d", own)


def of(signs: Signs, deployment: Deployment = PLAIN) -> list[Finding]:
    return troubles([deployment], [(0,)], [signs], [])


FULL = Signs(full_s=FULL_S, waiting=12, kv_used=0.97, age_s=1.0)


@pytest.mark.parametrize(
    ("signs", "kind", "severity", "text"),
    [
        (Signs(closed_in_s=3.6), "breaker", "wrong", "the next one tries it in 4 s"),
        (Signs(closed_in_s=0.0), "breaker", "wrong", "in 0 s"),
        (Signs(age_s=45.2), "stale", "warning", "is 45 s old"),
        (FULL, "thrash", "warning", "97% of the KV pool are in use and 12 wait, for 10 s"),
        (Signs(overruns=OVERRUNS), "thrash", "warning", "3 times in ten minutes"),
        (
            Signs(trouble="unreachable", said="no route", age_s=1.0),
            "unreachable",
            "wrong",
            "asked: no route; noth",
        ),
        (Signs(trouble="dead", said="503", age_s=1.0, closed_in_s=60.0), "engine_dead", "wrong", "cannot serve: 503"),
        (Signs(trouble="hidden", said="403", age_s=70.0), "load_hidden", "warning", "is not seen: 403"),
        (Signs(trouble="mixed", said="2 seen", age_s=1.0), "load_mixed", "warning", "in turn (2 seen): its load"),
        (Signs(trouble="dead", said="503", age_s=TOLD_S + 1.0), "stale", "warning", "is 121 s old"),
    ],
)
def test_every_sign_is_one_finding(signs: Signs, kind: str, severity: str, text: str) -> None:
    (found,) = of(signs)
    assert (found.kind, found.severity) == (kind, severity)
    assert text in found.text


@pytest.mark.parametrize(
    "signs",
    [
        Signs(),
        Signs(age_s=STALE_S),
        Signs(overruns=OVERRUNS - 1),
        replace(FULL, full_s=FULL_S - 0.1),
        Signs(waiting=12, kv_used=0.97, age_s=1.0),
        Signs(in_flight=1.0),
    ],
)
def test_a_sign_that_is_not_there_or_is_not_enough_is_none(signs: Signs) -> None:
    assert of(signs) == []


def test_calls_that_fail_where_only_the_load_is_hidden_are_told_as_well() -> None:
    signs = Signs(trouble="hidden", said="403", age_s=1.0, closed_in_s=2.0)
    assert [found.kind for found in of(signs)] == ["load_hidden", "breaker"]


def test_a_report_that_is_stale_says_nothing_of_what_is_full_now() -> None:
    assert [found.kind for found in of(replace(FULL, age_s=STALE_S + 1.0))] == ["stale"]


@pytest.mark.parametrize(
    ("degrees", "in_flight", "idles"),
    [
        ({"pp": 4}, 1.0, 0.75),
        ({"pp": 4}, 3.0, 0.25),
        ({"pp": 4}, 4.0, None),
        ({"pp": 4}, None, None),
        ({"tp": 4}, 1.0, None),
        ({"pp": 4, "attention_dp": 2}, 4.0, 0.5),
        ({"pp": 4, "attention_dp": 2}, 8.0, None),
    ],
)
def test_a_layer_split_wants_a_batch_for_every_stage_of_every_replica(
    degrees: dict[str, int], in_flight: float | None, idles: float | None
) -> None:
    found = of(Signs(in_flight=in_flight), split(**degrees))
    assert [one.kind for one in found] == (["pipeline_idles"] if idles else [])
    if idles and in_flight:
        assert f"{idles:.0%} of decode idles" in found[0].text
        assert dict(found[0].numbers) == {"in_flight": in_flight / degrees.get("attention_dp", 1), "pp": 4}


def test_of_several_endpoints_the_one_is_named() -> None:
    deployment = Deployment("d", profile(), urls=("http://one:1", "http://two:2"))
    (found,) = troubles([deployment], [(0, 1)], [Signs(), Signs(closed_in_s=1.0)], [])
    assert found.text.startswith("at http://two:2, ")


def test_a_curve_that_drifts_as_a_whole_is_told_once_with_regions_on_the_other_side() -> None:
    region = "under 2,048 prompt tokens, under 4 in flight"
    drifts = [
        Drift(0, "ttft_ms", region, 2.0, 30),
        Drift(0, "ttft_ms", WHOLE, 1.8, 90),
        Drift(0, "ttft_ms", "another", 0.4, 25),
        Drift(0, "tpot_ms", region, 3.0, 40),
        Drift(0, "tpot_ms", "another", 0.333, 40),
    ]
    found = troubles([PLAIN], [(0,)], [Signs()], drifts)
    assert {one.kind for one in found} == {"drift"}
    assert [one.text.partition(";")[0] for one in found] == [
        "TTFT is 1.80 times what its curve says (all requests, 90 seen)",
        "TTFT is 0.40 times what its curve says (another, 25 seen)",
        f"TPOT is 3 times or more what its curve says ({region}, 40 seen)",
        "TPOT is a third or less of what its curve says (another, 40 seen)",
    ]


@pytest.mark.parametrize(
    ("load", "kinds"),
    [
        (Reported(running=64, waiting=12, kv_used=0.97), ["thrash"]),
        (Reported(running=64, waiting=0, kv_used=0.97), []),
        (Reported(running=64, waiting=12, kv_used=None), []),
        (Reported(running=1, waiting=0, kv_used=0.1), ["pipeline_idles"]),
        (Reported(running=0, waiting=0, kv_used=0.0), []),
        (Reported(), []),
    ],
)
def test_one_look_at_a_server_is_worth_a_note(load: Reported, kinds: list[str]) -> None:
    found = at_this_moment(split(pp=4), load)
    assert [(one.kind, one.severity) for one in found] == [(kind, "note") for kind in kinds]
    assert all("at this moment" in one.text for one in found)


# ---- the router itself


def run(router: Router, clock: Clock, *, times: int, seconds: float = 1.0, outcome: Outcome | None = None) -> None:
    """Requests one after the other."""
    for _ in range(times):
        with router.acquire(task()) as lease:
            clock.now += seconds
            if outcome is not None:
                lease.settle(outcome)


def kinds(router: Router) -> list[str]:
    return [found.kind for found in router.doctor()]


def test_a_router_that_has_seen_nothing_knows_of_no_trouble() -> None:
    assert Router(Fleet([split(pp=4)])).doctor() == []


def test_a_router_tells_that_a_pipeline_runs_one_request_at_a_time() -> None:
    clock = Clock()
    router = Router(Fleet([split(pp=4)]), clock=clock)
    run(router, clock, times=100)
    (found,) = router.doctor()
    assert found.kind == "pipeline_idles"
    assert found.numbers["in_flight"] == pytest.approx(1.0)
    clock.now += 7_200.0
    assert router.doctor() == []


def test_a_pipeline_that_is_filled_by_others_does_not_idle() -> None:
    clock = Clock()
    router = Router(Fleet([split(pp=4)]), clock=clock)
    for _ in range(100):
        with router.acquire(task()):
            router.observe("d", Load(running=8, waiting=0))
            clock.now += 1.0
    assert router.doctor() == []


def test_a_router_tells_of_a_curve_that_drifts() -> None:
    clock = Clock()
    router = Router(Fleet([PLAIN]), clock=clock)
    predicted = router.decide(task())
    assert predicted.ttft_ms is not None and predicted.tpot_ms is not None
    seen = Outcome(ttft_ms=2.0 * predicted.ttft_ms.mean, tpot_ms=predicted.tpot_ms.mean)
    run(router, clock, times=40, outcome=seen)
    (found,) = router.doctor()
    assert (found.kind, found.deployment) == ("drift", "d")
    assert found.numbers["ratio"] == pytest.approx(2.0, rel=0.05)


def test_a_router_tells_of_a_server_that_is_away_first() -> None:
    clock = Clock()
    router = Router(Fleet([split(pp=4)]), clock=clock)
    run(router, clock, times=100)
    run(router, clock, times=3, outcome=Outcome(failure=FailureKind.UNAVAILABLE))
    assert kinds(router) == ["breaker", "pipeline_idles"]
    clock.now += 10.0
    assert kinds(router) == ["breaker", "pipeline_idles"], "it may be tried again, but nobody has yet"
    run(router, clock, times=1, outcome=Outcome(output_tokens=10))
    assert kinds(router) == ["pipeline_idles"]


def test_a_router_tells_of_a_pool_whose_answers_outgrow_it() -> None:
    clock = Clock()
    router = Router(Fleet([Deployment("d", profile(kv_blocks=200))]), clock=clock)
    for _ in range(OVERRUNS):
        with router.acquire(task(1_000, 100)) as lease:
            assert not lease.extend(5_000)
    assert kinds(router) == ["thrash"]
    clock.now += 601.0
    assert kinds(router) == []


def test_a_router_tells_of_a_pool_that_stays_full_with_a_queue_and_then_of_reports_that_stop() -> None:
    clock = Clock()
    router = Router(Fleet([Deployment("d", profile(kv_blocks=200))]), clock=clock)
    for _ in range(11):
        router.observe("d", Load(running=60, waiting=9, kv_used=0.99))
        clock.now += 1.0
    assert kinds(router) == ["thrash"]
    clock.now += STALE_S
    assert kinds(router) == ["stale"]
    router.observe("d", Load(running=3, waiting=0, kv_used=0.2))
    assert kinds(router) == []


def test_a_router_tells_how_deployments_are_set_up() -> None:
    both = [Deployment(name, profile(), urls=("http://gpu:1",)) for name in ("one", "two")]
    (found,) = Router(Fleet(both)).doctor()
    assert (found.kind, found.deployment) == ("pool_not_shared", "two")
    assert str(found).startswith("two: wrong: http://gpu:1 is the address of one, too")
