"""Many tasks at once are decided as each alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fleets import Clock, fleet, fleets, grid, held, occupied, profile, task, tasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentroute.asks import Asks
from agentroute.compiled import CompiledFleet
from agentroute.decision import Decision
from agentroute.errors import NoFeasibleDeployment, UnknownNameError
from agentroute.fleet import Deployment, Fleet
from agentroute.inputs import Ask
from agentroute.many import LEAST
from agentroute.policy import OBJECTIVES
from agentroute.route import Route
from agentroute.router import Router
from agentroute.task import Slo, Task


def alone(by: Router, asked: Task) -> Decision | NoFeasibleDeployment:
    try:
        return by.decide(asked)
    except NoFeasibleDeployment as refused:
        return refused


def assert_alike(by: Router, asked: list[Task]) -> None:
    for together, one in zip(by.decide_many(asked), (alone(by, each) for each in asked), strict=True):
        if isinstance(one, Decision):
            assert together == one
            assert isinstance(together, Decision)
            assert together.ttft_ms == one.ttft_ms
            assert together.e2e_ms == one.e2e_ms
        else:
            assert type(together) is type(one)
            assert str(together) == str(one)


@st.composite
def more(draw: st.DrawFn, one: Task) -> list[Task]:
    """Tasks some of which are of one kind with ``one``."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        other = draw(tasks())
        same = draw(st.booleans())
        found.append(
            replace(one, context_tokens=other.context_tokens, concurrency=other.concurrency) if same else other
        )
    return found


objectives = st.sampled_from(sorted(set(OBJECTIVES) - {"cost", "quality"}))


@given(fleets(), tasks().flatmap(more), objectives, st.lists(tasks(), max_size=4), st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_many_are_decided_as_each_alone(
    of: Fleet, asked: list[Task], objective: str, busy: list[Task], learnt: bool
) -> None:
    by = Router(of, objective=objective, clock=Clock())
    _kept = occupied(by, busy, learnt=learnt)
    assert_alike(by, asked)


@given(st.lists(tasks(), min_size=LEAST, max_size=30), st.sampled_from(sorted(set(OBJECTIVES) - {"quality"})))
@settings(max_examples=25, deadline=None)
def test_over_the_shipped_fleet_too(asked: list[Task], objective: str) -> None:
    assert_alike(SHIPPED, [replace(each, objective=objective, needs=frozenset()) for each in asked])


SHIPPED = Router.shipped()

KINDS = [
    pytest.param({}, id="nothing asked"),
    pytest.param({"ttft_ms": 200.0}, id="a hard limit"),
    pytest.param({"ttft_ms": Slo(100, hard=False), "deadline_s": 2.0}, id="a soft and a hard limit"),
    pytest.param({"tpot_ms": Slo(12, "p95")}, id="a percentile"),
    pytest.param({"max_cost_usd": 1e-4}, id="a budget"),
    pytest.param({"session_id": "s"}, id="a conversation"),
    pytest.param({"shared_prefix_tokens": 50, "group": "g"}, id="a shared prefix"),
    pytest.param({"deny": {"b"}}, id="one denied"),
    pytest.param({"route": "short"}, id="a route with limits of its own"),
    pytest.param({"quality": {"code": 2.0}}, id="a quality floor"),
    pytest.param({"objective": "quality"}, id="the best model"),
    pytest.param({"expected_context_tokens": 60, "expected_output_tokens": 20}, id="less is expected"),
    pytest.param({"max_output_tokens": None}, id="an answer of unknown length"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pools", [1, 2])
def test_tasks_of_every_kind(kind: dict[str, object], pools: int) -> None:
    profiles = (
        profile("a", kv_blocks=900, usd_per_hour=2.0),
        profile("b", speed=2.0, slots=16, usd_per_hour=5.0),
        profile("c", speed=3.0, points=grid(3.0), kv_blocks=3_000, window=8_000, usd_per_hour=9.0),
    )
    urls = tuple(f"http://127.0.0.1:{port}" for port in range(9_001, 9_001 + pools))
    of = Fleet(Deployment(p.name, p, urls=urls) for p in profiles)
    route = Route(name="short", ttft_ms=150.0, p95_output_tokens=40, allow=frozenset({"a", "c"}))
    by = Router(of, routes=[route], quality={"m": {"code": 3.0}}, clock=Clock())
    for busy in (0, 3):
        for _ in range(busy):
            held(by, task(context=2_000, concurrency=2))
        sizes = [(100 + 613 * k, 1 + k % 7) for k in range(12)]
        base = Task(context_tokens=1_000, **{"max_output_tokens": 100, **kind})  # type: ignore[arg-type]
        assert_alike(by, [replace(base, context_tokens=c, concurrency=n) for c, n in sizes])


def test_tasks_of_one_kind_are_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    stack = Asks.stack

    def counted(self: Asks, tasks: list[Task], *rest: object) -> object:
        sizes.append(len(tasks))
        return stack(self, tasks, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Asks, "stack", counted)
    kinds = [{}, {"ttft_ms": 300.0}, {"ttft_ms": Slo(300.0)}, {"ttft_ms": Slo(300.0, hard=False)}]
    Router(fleet(profile())).decide_many([task(100 * k + 1, **kind) for kind in kinds for k in range(5)])  # type: ignore[arg-type]
    assert sorted(sizes) == [5, 5, 10]


def test_a_stack_says_of_every_task_what_its_own_numbers_say() -> None:
    asks, route = Asks(CompiledFleet.of(fleet(profile())), {}), Route(name="default", p95_output_tokens=40)
    made = [
        Task(
            context_tokens=1_000 * k, concurrency=k, max_output_tokens=30 * k, ttft_ms=100.0 * k, max_cost_usd=0.1 * k,
            session_id="s", step=k, shared_prefix_tokens=10 * k,
        )
        for k in range(1, 5)
    ]  # fmt: skip
    alone = [asks.of(each, route) for each in made]
    stacked = asks.stack(made, route, alone[0])
    for field in set(Ask._fields) - {"output_is_set", "needs", "limits", "allowed", "quality"}:
        assert getattr(stacked, field)[:, 0].tolist() == [getattr(ask, field) for ask in alone], field
    assert np.ravel(stacked.limits[0].limit_ms).tolist() == [ask.limits[0].limit_ms for ask in alone]


def test_none_is_none() -> None:
    assert Router(fleet(profile())).decide_many([]) == []


def test_an_unknown_name_is_the_callers_mistake() -> None:
    with pytest.raises(UnknownNameError, match="no route 'x'"):
        Router(fleet(profile())).decide_many([Task(context_tokens=1, route="x")] * 9)
