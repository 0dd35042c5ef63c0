"""A recorded decision is made again with exactly the same numbers; anything else is refused in one sentence."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from fleets import Clock, fleet, fleets, grid, held, occupied, profile, task, tasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentroute.decision import Decision, replay
from agentroute.errors import NoFeasibleDeployment, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.outcome import Outcome
from agentroute.policy import OBJECTIVES
from agentroute.replay import digest_of
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import Slo, Task


def read_again(decision: Decision) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(json.dumps(decision.record(), allow_nan=False))
    return record


def assert_same(again: Decision, decision: Decision) -> None:
    assert again == decision
    assert again.decided_at == decision.decided_at
    assert again.candidates == decision.candidates
    assert again.rejected == decision.rejected
    assert again.explain() == decision.explain()


@given(fleets(), tasks(), st.lists(tasks(), max_size=3), st.sampled_from(sorted(set(OBJECTIVES) - {"cost", "quality"})))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_record_is_decided_identically(of: Fleet, asked: Task, busy: list[Task], objective: str) -> None:
    by = Router(of, objective=objective, clock=Clock())
    _kept = occupied(by, busy)
    try:
        decision = by.decide(asked)
    except NoFeasibleDeployment:
        return
    record = read_again(decision)
    assert_same(replay(record, by), decision)
    assert replay(record, Router(of)).candidates == decision.candidates


def busy_router() -> Router:
    """One with everything in its state: holds, others' load, what is warm, what was learnt, promises, a breaker."""
    profiles = [profile(name, kv_blocks=2_000, usd_per_hour=2.0, speed=1.0 + k) for k, name in enumerate("abc")]
    caching = {"prefix_caching": True}
    profiles = [p.model_copy(update={"limits": p.limits and p.limits.model_copy(update=caching)}) for p in profiles]
    by = Router(fleet(*profiles), clock=Clock(), quality={"m": {"code": 1.0}})
    conversation = task(2_000, ttft_ms=5_000.0, tpot_ms=100.0)
    by.acquire(replace(conversation, session_id="s")).settle(Outcome(ttft_ms=700.0, tpot_ms=20.0, output_tokens=50))
    held(by, replace(conversation, concurrency=4, shared_prefix_tokens=500, group="g"))
    by.observe("b", Load(running=3, waiting=1, kv_used=0.4))
    return by


FULL = Task(
    context_tokens=3_000, expected_context_tokens=2_500, max_output_tokens=200, expected_output_tokens=80,
    concurrency=4, ttft_ms=Slo(9_000, hard=False), tpot_ms=200.0, deadline_s=Slo(90.0, "p95", False),
    max_cost_usd=1.0, priority="batch", deny={"c"}, session_id="s", step=2, shared_prefix_tokens=500, group="g",
    prefix=((-5, 100), (2**62, 900)), context_source="fingerprint",
)  # fmt: skip


def test_a_record_of_a_busy_router_holds_all_of_its_state() -> None:
    by = busy_router()
    decision = by.decide(FULL)
    record = read_again(decision)
    missing = {name for name, value in record["state"].items() if value is None}
    assert missing <= {"up"}
    assert_same(replay(record, by), decision)
    assert replay(record, by).task == FULL


def test_a_lease_is_recorded_as_one_for_now() -> None:
    by = busy_router()
    decision = held(by, task(2_000)).decision
    record = read_again(decision)
    assert record["room_now"] is True
    assert_same(replay(record, by), decision)


def test_a_decision_among_many_is_recorded_as_alone() -> None:
    by = busy_router()
    many = by.decide_many([task(100 * k + 1) for k in range(8)])
    for decision, one in zip(many, (by.decide(task(100 * k + 1)) for k in range(8)), strict=True):
        assert isinstance(decision, Decision)
        assert decision.record() == one.record()


def test_a_task_of_another_size_would_be_another_record() -> None:
    by = busy_router()
    one, other = by.decide(task(100)).record(), by.decide(task(101)).record()
    assert {key for key in one if one[key] != other[key]} == {"task", "ask", "answer"}


# ---- another fleet


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ([profile("a"), profile("b", window=9_000)], "deployment 'b' has changed since"),
        ([profile("a"), profile("b", points=grid(1.01))], "deployment 'b' has changed since"),
        ([profile("a")], "here is no deployment 'b'"),
        ([profile("a"), profile("b"), profile("c")], "it has no deployment 'c'"),
        ([profile("b"), profile("a")], "where the record has 'a', at place 1, here is 'b'"),
    ],
)
def test_a_record_of_another_fleet_is_refused(others: list[Any], says: str) -> None:
    record = Router(fleet(profile("a"), profile("b"))).decide(task()).record()
    with pytest.raises(UsageError, match=says) as raised:
        replay(record, fleet(*others))
    assert "\n" not in str(raised.value)


def test_a_digest_knows_a_profile_from_its_address() -> None:
    p = profile()
    one, moved = Deployment("a", p, urls=("http://a",)), Deployment("a", p, urls=("http://b",))
    two = Deployment("a", p, urls=("http://a", "http://b"))
    assert digest_of(one) == digest_of(moved) != digest_of(two)


# ---- what is no record

BROKEN = [
    pytest.param(lambda r: r.update(schema_version=2), "schema_version must be 1, got 2", id="another version"),
    pytest.param(lambda r: r.pop("schema_version"), "schema_version must be 1, got None", id="no version"),
    pytest.param(lambda r: r["state"].update(held=[1.0]), "state.held must have 3 values", id="too short"),
    pytest.param(lambda r: r["state"].update(held=[1.0] * 5_000), "state.held", id="too long"),
    pytest.param(lambda r: r["state"].update(own=None), "must both be there, or both be null", id="half of our own"),
    pytest.param(lambda r: r["state"]["queue"].update(lost_ms=None), "must all be there, or all be null", id="no loss"),
    pytest.param(lambda r: r["state"]["queue"]["budget_ms"].pop(), "queue.budget_ms must have", id="a budget too few"),
    pytest.param(lambda r: r["state"]["queue"]["bound"].__setitem__(0, 3), "pools from 0 to 2, got 3", id="no pool"),
    pytest.param(lambda r: r["state"]["queue"]["bound"].__setitem__(0, 0.5), "queue.bound", id="half a pool"),
    pytest.param(lambda r: r["state"]["queue"].update(reading=[1.0] * 3), "queue.reading", id="only reading"),
    pytest.param(lambda r: r["state"]["factors"][0].pop(), "as many deployments", id="ragged factors"),
    pytest.param(lambda r: r["state"]["otherwise"]["factors"][3][1].pop(), "otherwise.factors", id="ragged tables"),
    pytest.param(lambda r: r["state"]["otherwise"]["factors"].pop(), "otherwise.factors", id="a region too few"),
    pytest.param(lambda r: r["state"]["otherwise"]["talk_tokens"].pop(), "otherwise.talk_tokens", id="a talk too few"),
    pytest.param(lambda r: r["state"]["otherwise"]["shared"][0][1].pop(), "otherwise.shared.0", id="shared too few"),
    pytest.param(lambda r: r["state"].update(in_flight=[-1.0] * 3), "state.in_flight", id="negative"),
    pytest.param(lambda r: r["ask"].update(isl=0.0), "ask.isl: must be greater", id="no prompt"),
    pytest.param(lambda r: r["ask"].update(isl=float("nan")), "ask.isl", id="not a number"),
    pytest.param(lambda r: r["ask"].update(allowed=[True]), "ask.allowed must have 3 values", id="a short mask"),
    pytest.param(lambda r: r.update(objective="nice"), "no objective 'nice'", id="unknown objective"),
    pytest.param(lambda r: r["task"].update(context_tokens="many"), "task.context_tokens", id="a word"),
    pytest.param(lambda r: r["task"].update(needs=["magic"]), "no capability 'magic'", id="unknown need"),
    pytest.param(lambda r: r.update(more=1), "more", id="unknown key"),
    pytest.param(lambda r: r.update(fleet=[]), "fleet", id="no fleet"),
]


@pytest.mark.parametrize(("spoil", "says"), BROKEN)
def test_a_broken_record_is_refused_in_one_sentence(spoil: Any, says: str) -> None:
    by = busy_router()
    record = read_again(by.decide(FULL))
    spoil(record)
    with pytest.raises(UsageError, match=says) as raised:
        replay(record, by)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("record", [None, [], "x", 3])
def test_what_is_no_mapping_is_no_record(record: Any) -> None:
    with pytest.raises(UsageError, match="a record must be a mapping"):
        replay(record, busy_router())


BUSY = busy_router()
GOOD = read_again(BUSY.decide(FULL))
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**9) | st.floats() | st.text(max_size=5) | st.just("inf"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@st.composite
def spoiled(draw: st.DrawFn) -> Any:
    """A good record with one thing in it replaced, taken out, or given twice."""
    record: Any = copy.deepcopy(GOOD)
    here = record
    while True:
        places = sorted(here) if isinstance(here, dict) else list(range(len(here)))
        place = draw(st.sampled_from(places))
        inner = here[place]
        if isinstance(inner, dict | list) and inner and draw(st.integers(0, 3)):
            here = inner
            continue
        break
    match draw(st.sampled_from(["replace", "remove", "double"])):
        case "remove":
            del here[place]
        case "double" if isinstance(here, list):
            here.append(copy.deepcopy(inner))
        case _:
            here[place] = draw(anything)
    return record


@given(spoiled())
@settings(max_examples=300, deadline=None)
def test_whatever_is_in_a_record_it_is_decided_or_refused(record: Any) -> None:
    try:
        decision = replay(record, BUSY)
    except (UsageError, NoFeasibleDeployment) as refused:
        assert isinstance(refused, NoFeasibleDeployment) or "\n" not in str(refused)
        return
    assert decision.deployment in {"a", "b", "c"}
    assert decision.explain()
