"""A change that is said to change the answer does so, and is the smallest on its ladder."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from fleets import Clock, fleets, held, maybe, occupied, profile, router, task, tasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentroute.decision import Decision
from agentroute.errors import NoFeasibleDeployment
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.points import Statistic
from agentroute.outcome import Outcome
from agentroute.policy import OBJECTIVES
from agentroute.router import Router
from agentroute.task import Slo, Task
from agentroute.whatif import RESOLUTION, Change


def decided(by: Router, one: Task) -> str | None:
    """What is decided on a task now, with all that the router knows of it."""
    try:
        return by.decide(one).deployment
    except NoFeasibleDeployment:
        return None


def assert_true(by: Router, decision: Decision) -> None:
    found = decision.changes
    assert decision.deployment not in found.wins
    for name, change in found.wins.items():
        assert change.deployment == name
        assert decided(by, change.of(decision.task)) == name, str(change)
    if found.answer is not None:
        assert found.answer.deployment != decision.deployment
        assert decided(by, found.answer.of(decision.task)) == found.answer.deployment


objectives = st.sampled_from(sorted(set(OBJECTIVES) - {"cost", "quality"}))


STATS: tuple[Statistic, ...] = ("mean", "p95")

STAT = st.sampled_from(STATS)
DEADLINES = maybe(st.builds(Slo, st.floats(1.0, 60.0), STAT, st.booleans()))


@cache
@st.composite
def asked(draw: st.DrawFn) -> Task:
    """Any task, with soft limits, percentiles, a budget and an expected length, too."""
    one = draw(tasks())
    slos: dict[str, Any] = {}
    for name in ("ttft_ms", "tpot_ms", "deadline_s"):
        if (value := getattr(one, name)) is not None and draw(st.booleans()):
            slos[name] = Slo(value, draw(STAT), draw(st.booleans()))
    one = replace(one, **slos)
    expected = draw(st.none() | st.integers(1, one.context_tokens))
    return replace(one, max_cost_usd=draw(maybe(st.floats(1e-6, 1.0))), expected_context_tokens=expected)


@given(fleets(), asked(), st.lists(tasks(), max_size=3), objectives, st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_change_applied_changes_the_answer(
    of: Fleet, one: Task, busy: list[Task], objective: str, learnt: bool
) -> None:
    by = Router(of, objective=objective, clock=Clock())
    _kept = occupied(by, busy, learnt=learnt)
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

WINDOWS = (3_000, 9_000, 40_000)
"""Prompts that stand in different context regions of the corrections."""


def cached(name: str, speed: float, blocks: int | None) -> Any:
    return profile(name, speed=speed, kv_blocks=blocks, prefixes=True, window=50_000)


@cache
@st.composite
def known(draw: st.DrawFn) -> Task:
    """A task of a conversation, of a group, of both or of neither."""
    context = draw(st.integers(1, 20_000))
    return Task(
        context_tokens=context,
        expected_context_tokens=draw(st.none() | st.just(max(1, context // 2))),
        max_output_tokens=draw(st.sampled_from((20, 200))),
        concurrency=draw(st.sampled_from((1, 1, 2, 6))),
        ttft_ms=draw(maybe(st.floats(50.0, 5_000.0))),
        deadline_s=draw(DEADLINES),
        session_id=draw(st.sampled_from((None, "s", "t"))),
        parent_session_id=draw(st.sampled_from((None, None, "s"))),
        group=draw(st.sampled_from((None, "g", "h"))),
        shared_prefix_tokens=draw(st.sampled_from((0, 1, context // 2))),
        prefix=draw(st.sampled_from(((), ((5, 300), (6, 900))))),
    )


ENDINGS = st.none() | st.builds(Outcome, ttft_ms=st.floats(5.0, 3_000.0), tpot_ms=st.floats(1.0, 60.0))
"""How a call ends: not yet, or as was seen."""


@given(
    st.lists(st.tuples(st.floats(0.3, 4.0), st.sampled_from((None, 300, 3_000))), min_size=2, max_size=4),
    st.lists(st.tuples(known(), st.none() | st.sampled_from(WINDOWS), ENDINGS), min_size=1, max_size=8),
    st.lists(known(), min_size=1, max_size=3),
    st.sampled_from(("fit", "fit", "latency")),
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_decided_anew_a_changed_task_has_the_answer_that_was_named(
    speeds: list[tuple[float, int | None]],
    before: list[tuple[Task, int | None, Outcome | None]],
    asked: list[Task],
    objective: str,
) -> None:
    """On the same router at the same moment: with other corrections where the prompt has another length, more of its
    conversation cached, siblings of its group in flight that a lone one has not."""
    by = Router(Fleet(Deployment(f"d{i}", cached(f"p{i}", *one)) for i, one in enumerate(speeds)), clock=Clock(),
                objective=objective)  # fmt: skip
    leases = []
    for one, context, ends in before:
        if context is not None:
            one = replace(one, context_tokens=context, expected_context_tokens=None, shared_prefix_tokens=1)
        try:
            lease = by.acquire(replace(one, ttft_ms=None, deadline_s=None))
        except NoFeasibleDeployment:
            continue
        if ends is None:
            leases.append(lease)
        else:
            lease.settle(ends)
    for one in asked:
        try:
            found = by.decide(one).changes
        except NoFeasibleDeployment as refused:
            for change in refused.changes or ():
                assert decided(by, change.of(one)) == change.deployment, str(change)
            continue
        for change in (*found.wins.values(), *([found.answer] if found.answer else [])):
            assert decided(by, change.of(one)) == change.deployment, str(change)


def test_a_longer_prompt_is_corrected_as_prompts_of_its_length_are() -> None:
    by = router(profile("a"), profile("b", speed=1.5), objective="latency")
    for context, slower in ((3_000, 3.0), (1_000, 1.0)) * 8:
        lease = by.acquire(replace(task(context), pin="b"))
        ttft_ms, tpot_ms = lease._placed.curve_ms if lease._placed else (0.0, 0.0)
        lease.settle(Outcome(ttft_ms=slower * ttft_ms, tpot_ms=slower * tpot_ms))
    decision = by.decide(task(1_000))
    assert decision.deployment == "b"
    within(decision.changes.wins["a"], "context_tokens", 2_048, above=True)
    assert decided(by, decision.changes.wins["a"].of(decision.task)) == "a"


def test_one_of_several_meets_the_siblings_of_its_group() -> None:
    by = router(profile("a", kv_blocks=400), profile("b", kv_blocks=4_000, speed=0.7))
    of_group = replace(task(2_000, concurrency=6), group="g")
    leases = [by.acquire(replace(of_group, pin="a")) for _ in range(2)]
    decision = by.decide(replace(of_group, concurrency=1))
    assert decision._assessment.state.siblings == 0
    assert decision._assessment.state.otherwise is not None
    assert decision._assessment.state.otherwise.siblings == len(leases)
    for change in decision.changes.wins.values():
        assert decided(by, change.of(decision.task)) == change.deployment


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


def test_an_equal_task_in_flight_is_no_sibling_of_a_changed_one() -> None:
    by = router(profile("few", slots=2), profile("many", slots=8))
    one = Task(context_tokens=100, max_output_tokens=92, concurrency=2, tpot_ms=15.0, deadline_s=3.0)
    held(by, one)
    decision = by.decide(one)
    assert decision.changes.wins["many"].field == "concurrency"
    assert_true(by, decision)


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
