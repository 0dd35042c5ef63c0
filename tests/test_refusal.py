"""A refusal is an answer: it says why, what would change it, and can be made again."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from fleets import Clock, fleets, grid, held, maybe, occupied, profile, router, task, tasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentroute.assessment import Assessment
from agentroute.decision import rejections, replay
from agentroute.errors import NoFeasibleDeployment, PoolFull
from agentroute.fleet import Fleet
from agentroute.latency.points import Statistic
from agentroute.refusal import Assessed
from agentroute.router import Router
from agentroute.task import Slo, Task
from agentroute.whatif import Change


def refused(by: Router, asked: Task) -> NoFeasibleDeployment:
    with pytest.raises(NoFeasibleDeployment) as raised:
        by.decide(asked)
    return raised.value


def taken(by: Router, refusal: NoFeasibleDeployment, changed: Task) -> str | None:
    """Who takes another task, on the state of a refusal."""
    on = refusal._on
    assert isinstance(on, Assessed)
    a = on.assessment
    best = Assessment(a.fleet, by.rules.ask(changed)[0], a.state, room_now=a.room_now).best(on.by)
    return None if best is None else a.fleet.deployments[best].name


def assert_true(by: Router, refusal: NoFeasibleDeployment, asked: Task) -> None:
    assert refusal.changes is not None
    assert len({change.field for change in refusal.changes}) == len(refusal.changes)
    for change in refusal.changes:
        assert change.deployment is not None
        assert taken(by, refusal, change.of(asked)) == change.deployment, str(change)
        assert f"{change.deployment} would take it {change}" in refusal.explain()


def assert_same(again: NoFeasibleDeployment, refusal: NoFeasibleDeployment) -> None:
    assert type(again) is type(refusal)
    assert str(again) == str(refusal)
    assert again.explain() == refusal.explain()
    assert (again.reasons, again.changes) == (refusal.reasons, refusal.changes)
    assert again.record() == refusal.record()


def read_again(refusal: NoFeasibleDeployment) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(json.dumps(refusal.record(), allow_nan=False))
    return record


LIMITS = maybe(st.floats(0.05, 50.0))
STATS: st.SearchStrategy[Statistic] = st.sampled_from(["mean", "p95"])
COSTS, SESSIONS = maybe(st.floats(1e-6, 1e-3)), maybe(st.just("s"))


@cache
@st.composite
def hard(draw: st.DrawFn) -> Task:
    """Tasks that are likely to be refused: long ones, with hard limits, some on percentiles, and a budget."""
    one = draw(tasks())
    limits: dict[str, Any] = {}
    for name in ("ttft_ms", "tpot_ms", "deadline_s"):
        value = draw(LIMITS)
        limits[name] = None if value is None else Slo(value, draw(STATS))
    expected = draw(st.none() | st.integers(1, one.max_output_tokens or 100))
    cost = draw(COSTS)
    session = draw(SESSIONS)
    return replace(one, **limits, max_cost_usd=cost, expected_output_tokens=expected, session_id=session)


@given(fleets(), hard(), st.lists(tasks(), max_size=3), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_said_to_let_one_take_it_does_and_a_record_is_refused_again(
    of: Fleet, asked: Task, busy: list[Task], learnt: bool, now: bool
) -> None:
    by = Router(of, clock=Clock())
    _kept = occupied(by, busy, learnt=learnt)
    try:
        by.acquire(asked) if now else by.decide(asked)
    except NoFeasibleDeployment as refusal:
        assert_true(by, refusal, asked)
        for other_router in (by, Router(of)):
            with pytest.raises(type(refusal)) as raised:
                replay(read_again(refusal), other_router)
            assert_same(raised.value, refusal)
        assert_same(pickle.loads(pickle.dumps(refusal)), refusal)


def only(p: Any, **fields: Any) -> dict[str, Change]:
    """By field what would let one deployment take a task of 1,000 and 100 tokens."""
    by, asked = router(p), Task(**{"context_tokens": 1_000, "max_output_tokens": 100, **fields})
    refusal = refused(by, asked)
    assert_true(by, refusal, asked)
    return {change.field: change for change in refusal.changes or ()}


def test_a_window_is_kept_by_a_shorter_prompt() -> None:
    found = only(profile(window=1_000))
    assert 890 <= found.pop("context_tokens").value <= 900
    assert found == {}, "no answer is so short that it fits"


def test_or_by_a_shorter_answer_where_that_is_long_enough() -> None:
    found = only(profile(window=1_050))
    assert set(found) == {"context_tokens", "max_output_tokens"}
    assert 940 <= found["context_tokens"].value <= 950
    assert 49 <= found["max_output_tokens"].value <= 50


def test_a_deadline_is_kept_by_more_time_or_a_shorter_answer() -> None:
    found = only(profile(points=grid()), deadline_s=0.3)
    assert {"deadline_s", "max_output_tokens"} <= set(found)
    assert found["deadline_s"].value > 0.3
    assert found["max_output_tokens"].value < 100


def test_an_answer_is_expected_to_be_shorter_by_the_same_share() -> None:
    change = only(profile(points=grid()), deadline_s=0.3, expected_output_tokens=80)["max_output_tokens"]
    changed = change.of(Task(context_tokens=1_000, max_output_tokens=100, expected_output_tokens=80))
    assert changed.expected_output_tokens == round(0.8 * change.value)


def test_fewer_siblings_keep_a_limit() -> None:
    found = only(profile(points=grid(), slots=2), concurrency=32, deadline_s=5.0)
    assert found["concurrency"].value < 32


def test_what_no_number_changes_is_said_to_be_so() -> None:
    refusal = refused(router(profile(offers={"tools": False})), Task(context_tokens=10, needs={"tools"}))
    assert refusal.changes == ()
    assert refusal.explain().endswith("no change of one number of the task would let any deployment take it")


def test_who_finds_no_room_would_with_less() -> None:
    by = router(profile(kv_blocks=100))
    held(by, task())
    with pytest.raises(PoolFull) as raised:
        by.acquire(task())
    assert_true(by, raised.value, task())
    assert raised.value.changes
    assert raised.value.changes[0].field == "context_tokens"


def test_nothing_is_worked_out_until_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Assessment] = []

    def counting(a: Assessment) -> Any:
        asked.append(a)
        return rejections(a)

    monkeypatch.setattr("agentroute.refusal.rejections", counting)
    refusal = refused(router(profile(window=100)), task())
    assert asked == []
    assert refusal.reasons is refusal.reasons
    assert len(asked) == 1


def test_one_that_no_decision_made_has_reasons_alone() -> None:
    alone = NoFeasibleDeployment("no place within 3 s", {})
    assert (alone.changes, alone.record()) == (None, None)
    assert alone.explain() == "no place within 3 s"
