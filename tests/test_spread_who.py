"""A fan-out over a fleet: who may take part, and what is true at that moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleets import Clock, fleet, profile, router, task
from groups import UNITS, requests
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.errors import FailureKind, NoFeasibleDeployment, PoolFull, UsageError
from agentroute.outcome import Outcome
from agentroute.router import Router
from agentroute.state.breaker import FAILURES
from agentroute.state.load import Load

# ---- who may take part


def test_an_unmeasured_deployment_is_never_promised() -> None:
    spread = router(profile("a", kv_blocks=4 * UNITS), profile("new", points=())).spread(task(), fanout=50)
    assert spread.unused == {"new": "nothing is measured or derived, so no time can be promised"}


def test_an_unknown_pool_runs_what_is_believed_and_comes_after_the_known_where_these_keep_the_deadline() -> None:
    known, unknown = profile("known", kv_blocks=4 * UNITS), profile("unknown", speed=1.5)
    fleet = router(known, unknown)
    within = fleet.spread(task(deadline_s=60.0), fanout=40)
    assert requests(within) == {"known": 40}
    assert within.unused == {"unknown": "KV unknown; those whose pool is known keep the deadline"}
    assert set(requests(fleet.spread(task(deadline_s=3.0), fanout=40))) == {"known", "unknown"}
    alone = router(unknown).spread(task(), fanout=2_000).placements[0]
    assert alone.site.most == 4 * 64 and alone.site.capped_by == "slots unknown, 256 free of 256 believed"


def test_nothing_feasible_is_said_with_every_reason() -> None:
    fleet = router(
        profile("short", window=500),
        profile("small", kv_blocks=10),
        profile("new", points=()),
        profile("slow", speed=0.01),
    )
    with pytest.raises(NoFeasibleDeployment, match="no deployment can take any of 7 siblings") as got:
        fleet.spread(task(ttft_ms=500.0), fanout=7)
    assert not isinstance(got.value, PoolFull)
    assert {name: str(reason).split()[0] for name, reason in got.value.reasons.items()} == {
        "short": "1,000", "small": "one", "new": "nothing", "slow": "TTFT",
    }  # fmt: skip


def test_a_fleet_that_is_full_now_says_so() -> None:
    full = router(profile("a", kv_blocks=UNITS))
    with full.acquire(task()), pytest.raises(PoolFull, match="siblings now") as got:
        full.spread(task(), fanout=3)
    assert {name: str(reason) for name, reason in got.value.reasons.items()} == {
        "a": f"one request needs {UNITS} KV blocks, 0 of {UNITS} are free now"
    }


@pytest.mark.parametrize("fanout", [0, -1, 1.5, True, 2_000_000])
def test_a_group_of_no_size_is_a_mistake(fanout: int) -> None:
    with pytest.raises(UsageError, match="fanout must be a whole number from 1 to 1,000,000"):
        router(profile("a")).spread(task(), fanout=fanout)


# ---- what is true now


@given(
    st.lists(st.tuples(st.integers(100, 6_000), st.integers(10, 500)), max_size=5),
    st.just(1.0) | st.floats(0.4, 2.5),
    st.integers(1, 12),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_wave_is_predicted_as_a_decision_predicts_a_group(
    others: list[tuple[int, int]], slower: float, fanout: int, foreign: bool
) -> None:
    clock = Clock()
    one = Router(fleet(profile("a", kv_blocks=4_000)), clock=clock)
    with one.acquire(task()) as first:
        assert first.decision.ttft_ms is not None and first.decision.tpot_ms is not None
        seen = [slower * time.mean for time in (first.decision.ttft_ms, first.decision.tpot_ms)]
        first.settle(Outcome(ttft_ms=seen[0], tpot_ms=seen[1], output_tokens=100))
    if foreign:
        one.observe("a", Load(running=3, kv_used=0.1))
    leases = [one.acquire(task(context, output)) for context, output in others]
    decided = one.decide(task(concurrency=fanout)).e2e_ms
    spread = one.spread(task(), fanout=fanout)
    assert decided is not None and len(spread.placements) == 1
    placement = spread.placements[0]
    assert placement.waves == 1 and placement.site.in_flight == len(others) + 3 * foreign
    # More at once are never taken to be quicker, whatever was learnt at more at once.
    assert spread.makespan_s >= decided.mean / 1_000 * (1 - 1e-6)
    if slower == 1.0:
        assert spread.makespan_s == pytest.approx(decided.mean / 1_000)
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("seconds", [0.0, 1_000.0])
def test_a_server_that_failed_takes_no_group_before_it_has_answered_one(seconds: float) -> None:
    clock = Clock()
    one = Router(fleet(profile("a", kv_blocks=400), profile("b", speed=0.5, kv_blocks=400)), clock=clock)
    whole = one.spread(task(), fanout=8)
    for _ in range(FAILURES):
        with one.acquire(replace(task(), pin="a")) as lease:
            lease.settle(Outcome(failure=FailureKind.UNAVAILABLE))
    clock.now += seconds
    spread = one.spread(task(), fanout=8)
    assert requests(spread) == {"b": 8} and spread.unused["a"].startswith("calls to it have failed")
    with pytest.raises(PoolFull) as got:
        whole.hold(one)
    assert str(got.value.reasons["a"]).startswith("calls to it have failed") and one._situation.ledger.total == 0
    with pytest.raises(PoolFull, match="siblings now"):
        one.spread(replace(task(), pin="a"), fanout=8)


def test_a_cost_that_one_sibling_must_not_pass_rules_out_who_is_dearer() -> None:
    one = router(
        profile("cheap", speed=0.5, usd_per_hour=1.0, kv_blocks=400),
        profile("dear", usd_per_hour=50.0, kv_blocks=400),
        profile("unpriced", kv_blocks=400),
    )
    alone = one.decide(replace(task(), pin="dear")).cost_usd
    assert alone is not None
    spread = one.spread(replace(task(), max_cost_usd=0.001), fanout=8)
    assert requests(spread) == {"cheap": 8} and spread.cost_usd is not None and spread.cost_usd <= 8 * 0.001
    assert spread.unused == {
        "dear": f"one sibling costs ${alone.mean:.3g} there, more than it may",
        "unpriced": "its price is unknown",
    }
