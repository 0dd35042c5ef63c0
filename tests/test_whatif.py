"""A change that is said to change the answer does so, and is the smallest on its ladder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import Clock, fleets, held, profile, router, task, tasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentroute.assessment import Assessment
from agentroute.decision import Decision
from agentroute.errors import NoFeasibleDeployment
from agentroute.fleet import Fleet
from agentroute.latency.points import Statistic
from agentroute.outcome import Outcome
from agentroute.policy import OBJECTIVES
from agentroute.router import Router
from agentroute.task import Slo, Task
from agentroute.whatif import RESOLUTION, Change


def answer(by: Router, decision: Decision, changed: Task) -> str | None:
    """What is decided on another task, on the state of a decision."""
    a = decision._assessment
    ask, _, objective = by.rules.ask(changed)
    best = Assessment(a.fleet, ask, a.state, room_now=a.room_now).best(objective)
    return None if best is None else a.fleet.deployments[best].name


def assert_true(by: Router, decision: Decision) -> None:
    found = decision.changes
    assert decision.deployment not in found.wins
    for name, change in found.wins.items():
        assert change.deployment == name
        assert answer(by, decision, change.of(decision.task)) == name, str(change)
    if found.answer is not None:
        assert found.answer.deployment != decision.deployment
        assert answer(by, decision, found.answer.of(decision.task)) == found.answer.deployment


objectives = st.sampled_from(sorted(set(OBJECTIVES) - {"cost", "quality"}))


STATS: tuple[Statistic, ...] = ("mean", "p95")


@st.composite
def asked(draw: st.DrawFn) -> Task:
    """Any task, with soft limits, percentiles, a budget and an expected length, too."""
    one = draw(tasks())
    slos: dict[str, Any] = {}
    for name in ("ttft_ms", "tpot_ms", "deadline_s"):
        if (value := getattr(one, name)) is not None and draw(st.booleans()):
            slos[name] = Slo(value, draw(st.sampled_from(STATS)), draw(st.booleans()))
    one = replace(one, **slos)
    expected = draw(st.none() | st.integers(1, one.context_tokens))
    return replace(one, max_cost_usd=draw(st.none() | st.floats(1e-6, 1.0)), expected_context_tokens=expected)


@given(fleets(), asked(), st.lists(tasks(), max_size=3), objectives, st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_change_applied_changes_the_answer(
    of: Fleet, one: Task, busy: list[Task], objective: str, learnt: bool
) -> None:
    by, leases = Router(of, objective=objective, clock=Clock()), []
    for other in busy:
        try:
            leases.append(by.acquire(other))
        except NoFeasibleDeployment:
            continue
    if learnt and leases:
        leases.pop().settle(Outcome(ttft_ms=900.0, tpot_ms=30.0))
    try:
        decision = by.decide(one)
    except NoFeasibleDeployment:
        return
    assert_true(by, decision)


@given(asked(), st.sampled_from(sorted(set(OBJECTIVES) - {"quality"})))
@settings(max_examples=15, deadline=None)
def test_over_the_shipped_fleet_too(one: Task, objective: str) -> None:
    try:
        decision = SHIPPED.decide(replace(one, objective=objective, needs=frozenset()))
    except NoFeasibleDeployment:
        return
    assert_true(SHIPPED, decision)


SHIPPED = Router.shipped()


def within(change: Change | None, field: str, edge: float, *, above: bool) -> None:
    """The change is to ``field``, to ``edge`` or at most the resolution beyond it."""
    assert change is not None
    assert change.field == field
    least, most = (edge, edge * (1 + RESOLUTION)) if above else (edge / (1 + RESOLUTION), edge)
    assert least <= change.value <= most


BIG, FAST = profile("big", kv_blocks=4_000), profile("fast", speed=3.0, kv_blocks=300, window=2_000)


def test_the_smallest_change_is_found() -> None:
    decision = router(BIG, FAST, objective="latency").decide(Task(context_tokens=3_000, max_output_tokens=100))
    assert decision.deployment == "big"
    within(decision.changes.wins["fast"], "context_tokens", 1_900, above=False)


def test_the_next_steps_of_a_longer_conversation_must_fit_too() -> None:
    # Its first step would leave room for four more as long: with 100 for the answer, up to 780 tokens each.
    by = router(profile("long"), profile("short", speed=2.0, window=4_000), objective="latency")
    decision = by.decide(Task(context_tokens=500, max_output_tokens=100, session_id="s", step=1))
    assert decision.deployment == "short"
    within(decision.changes.wins["long"], "context_tokens", 781, above=True)
    assert_true(by, decision)


def test_a_limit_that_the_loser_alone_keeps_makes_it_win() -> None:
    dear, cheap = (9.0, 9.0), (1.0, 1.0)
    big, fast = profile("big", usd_per_million=cheap), profile("fast", speed=3.0, usd_per_million=dear)
    by = router(big, fast, objective="cost")
    decision = by.decide(task(1_000, ttft_ms=10_000.0))
    assert decision.deployment == "big"
    kept = decision.ttft_ms
    assert kept is not None
    # With less than the margin wanted to spare it ranks after one that has it.
    within(decision.changes.wins["fast"], "ttft_ms", kept.mean / 0.7, above=False)
    assert str(decision.changes.wins["fast"]).startswith("with a TTFT limit of ")


def test_a_change_can_leave_nothing() -> None:
    decision = router(profile(window=1_000)).decide(task(500))
    within(decision.changes.answer, "context_tokens", 901, above=True)
    assert decision.changes.answer is not None
    assert decision.changes.answer.deployment is None
    assert decision.changes.wins == {}


def test_what_no_change_does_is_not_there() -> None:
    changes = router(profile()).decide(task()).changes
    assert (changes.answer, changes.wins) == (None, {})


def test_a_budget_and_the_state_are_taken_as_they_are() -> None:
    dear, cheap = (profile(name, usd_per_million=(usd, usd), kv_blocks=1_000) for name, usd in (("d", 9.0), ("c", 1.0)))
    by = router(dear, cheap)
    held(by, task(8_000))
    name = by.decide(task()).deployment
    decision = by.decide(replace(task(), max_cost_usd=1.0))
    assert decision.deployment == name
    assert_true(by, decision)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Change("context_tokens", 12_000, "a"), "with 12,000 context tokens"),
        (Change("concurrency", 4, "a"), "with 4 in flight"),
        (Change("ttft_ms", 1_500, "a", Slo(1)), "with a TTFT limit of 1.50 s"),
        (Change("tpot_ms", 12.5, "a", Slo(1)), "with a TPOT limit of 12.5 ms"),
        (Change("deadline_s", 30.0, "a", Slo(1)), "with a deadline of 30.0 s"),
        (Change("max_cost_usd", 0.00125, "a"), "with a budget of $0.00125"),
    ],
)
def test_a_change_reads_like_this(change: Change, says: str) -> None:
    assert str(change) == says
