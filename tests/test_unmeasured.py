"""The winner of a fleet of which no times are known is that of an assessment, down to every number."""

from __future__ import annotations

import math

import pytest
from fleets import OFFERS, Clock, maybe, profile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_quick import happen, happenings, tasks

from agentroute.assessment import Assessment, Late
from agentroute.fleet import Deployment, Fleet
from agentroute.inputs import There
from agentroute.policy import OBJECTIVES
from agentroute.router import Router
from agentroute.task import Slo, Task
from agentroute.unmeasured import Unmeasured

BLOCKS, WINDOWS = maybe(st.sampled_from([100, 1_000, 20_000])), maybe(st.sampled_from([2_000, 20_000]))


@st.composite
def unmeasured(draw: st.DrawFn, name: str) -> Deployment:
    made = profile(
        name,
        points=(),
        kv_blocks=draw(BLOCKS),
        window=draw(WINDOWS),
        slots=draw(maybe(st.integers(1, 32))),
        offers=draw(OFFERS),
        prefixes=draw(maybe(st.booleans())),
    )
    return Deployment(name, made)


fleets = st.tuples(*(unmeasured(name) for name in ("a", "b", "c"))).map(lambda drawn: Fleet(drawn))


def both(by: Router, asked: Task, *, room_now: bool) -> tuple[There | None, There | None]:
    assert isinstance(by.rules.quick, Unmeasured)
    ask, _, _ = by.rules.ask(asked)
    state = by._situation.state(asked, by._now())
    assessed = Assessment(by.rules.compiled, ask, state, room_now=room_now)
    best = assessed.best(OBJECTIVES["fit"])
    return by.rules.quick.best(ask, state, room_now=room_now), None if best is None else assessed.there(best)


@given(fleets, happenings, st.lists(tasks, min_size=1, max_size=4), st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_winner_is_that_of_an_assessment_of_all(
    of: Fleet, script: list[tuple[str, Task]], asked: list[Task], room_now: bool
) -> None:
    clock = Clock()
    by = Router(of, clock=clock)
    happen(by, script, clock)
    for each in asked:
        found, expected = both(by, each, room_now=room_now)
        if found is not None:
            assert expected is not None
            assert found == pytest.approx(expected, rel=0.0, abs=0.0, nan_ok=True)


def test_it_answers_where_nothing_is_refused_or_waits() -> None:
    by = Router(Fleet(Deployment(name, profile(name, points=())) for name in ("a", "b", "c")), clock=Clock())
    asked = Task(context_tokens=1_000, max_output_tokens=100)
    leases = [by.acquire(asked) for _ in range(4)]
    assert [lease.deployment.name for lease in leases] == ["a", "b", "c", "a"]
    found, _ = both(by, asked, room_now=True)
    assert found is not None
    assert (found.deployment, found.n_run, math.isnan(found.ttft_ms)) == (1, 2.0, True)


@pytest.mark.parametrize(
    ("kept_back", "asked"),
    [
        ({}, {"ttft_ms": Slo(500.0, hard=False)}),
        ({}, {"max_cost_usd": 1.0}),
        ({"window": 500}, {}),
        ({"kv_blocks": 20}, {}),
        ({"slots": 2}, {"concurrency": 3}),
        ({"kv_blocks": 150}, {"concurrency": 3}),
        ({"window": 2_000}, {"session_id": "s", "step": 1}),
    ],
    ids=["an SLO", "a budget", "a window", "a request's blocks", "slots", "blocks", "a conversation"],
)
def test_what_may_be_refused_or_wait_is_left_to_the_assessment(
    kept_back: dict[str, int], asked: dict[str, object]
) -> None:
    by = Router(Fleet([Deployment("a", profile("a", points=(), **kept_back))]), clock=Clock())  # type: ignore[arg-type]
    task = Task(context_tokens=1_000, max_output_tokens=100, **asked)  # type: ignore[arg-type]
    assert both(by, task, room_now=False)[0] is None
    assert both(by, Task(context_tokens=100, max_output_tokens=10), room_now=False)[0] is not None


def test_measured_replicated_and_shared_are_not_its_own() -> None:
    one, urls = profile("a", points=()), ("http://127.0.0.1:1", "http://127.0.0.1:2")
    for of in (
        Fleet([Deployment("a", one, urls=urls)]),
        Fleet([Deployment("a", one, pool="p"), Deployment("b", one, pool="p")]),
        Fleet([Deployment("a", one), Deployment("b", profile("b"))]),
    ):
        assert Router(of).rules.quick is None


def test_why_it_was_chosen_is_told_without_an_assessment_in_the_words_of_one() -> None:
    by = Router(Fleet(Deployment(name, profile(name, points=())) for name in ("a", "b")), clock=Clock())
    decision = by.decide(Task(context_tokens=1_000, max_output_tokens=100))
    said = decision.reason
    assert (said, decision.mean_ttft_ms) == ("no SLO to keep; best by fit: unknown, nothing is measured", None)
    assert isinstance(decision._on, Late)
    assert decision.candidates[0].standing == said, "which an assessment is made for"
    assert isinstance(decision._on, Assessment)
    asked = by.decide(Task(context_tokens=1_000, max_output_tokens=100, ttft_ms=Slo(500.0, hard=False)))
    assert asked.reason.startswith("TTFT unknown, so no SLO on it can be promised")
