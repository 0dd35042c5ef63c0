"""A task and its route as numbers: what is planned for, what applies, who is allowed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fleets import fleet, profile, task

from agentroute.asks import STEPS_AHEAD, Asks
from agentroute.compiled import BIT, CompiledFleet
from agentroute.errors import NoFeasibleDeployment, UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.inputs import Ask, Limit
from agentroute.route import Route
from agentroute.router import Router
from agentroute.task import UNSET_OUTPUT_TOKENS, Slo, Task

NAMES = ("a", "b", "c")
QUALITY = {"good": {"code": 0.9, "prose": 0.4}, "fair": {"code": 0.6}}
FLEET = Fleet(
    Deployment(name, profile(name, usd_per_million=(price, price)), served_model=model)
    for name, model, price in zip(NAMES, ("good", "fair", "unheard-of"), (10.0, 1.0, 0.1), strict=True)
)
DEFAULT = Route(name="default")


def asked(of: Task, route: Route = DEFAULT, waited_s: float = 0.0) -> Ask:
    return Asks(CompiledFleet.of(FLEET), QUALITY).of(of, route, waited_s)


def allowed(of: Task, route: Route = DEFAULT) -> set[str]:
    mask = asked(of, route).allowed
    return set(NAMES) if mask is None else {name for name, ok in zip(NAMES, mask, strict=True) if ok}


# ---- tokens


@pytest.mark.parametrize(
    ("output", "expected", "p95", "osl", "at_most", "held"),
    [
        (None, None, None, UNSET_OUTPUT_TOKENS, UNSET_OUTPUT_TOKENS, 1_000 + UNSET_OUTPUT_TOKENS),
        (None, None, 300, 300, UNSET_OUTPUT_TOKENS, 1_300),
        (None, 50, None, 50, UNSET_OUTPUT_TOKENS, 1_000 + UNSET_OUTPUT_TOKENS),
        (8_000, None, None, 8_000, 8_000, 9_000),
        (8_000, None, 300, 300, 8_000, 1_300),
        (8_000, 700, 300, 700, 8_000, 1_300),
        (100, None, 300, 100, 100, 1_100),
    ],
)
def test_what_is_expected_what_may_come_and_what_is_held(
    output: int | None, expected: int | None, p95: int | None, osl: float, at_most: float, held: float
) -> None:
    ask = asked(
        Task(context_tokens=1_000, max_output_tokens=output, expected_output_tokens=expected),
        Route(name="default", p95_output_tokens=p95),
    )
    assert (ask.osl, ask.output_tokens, ask.held_tokens) == (osl, at_most, held)
    assert ask.output_is_set is (output is not None)


def test_admission_goes_by_the_most_tokens_and_prediction_by_the_expected() -> None:
    ask = asked(Task(context_tokens=1_000, expected_context_tokens=600, max_output_tokens=100))
    assert (ask.context_tokens, ask.isl, ask.held_tokens) == (1_000, 600, 1_100)


@pytest.mark.parametrize(("step", "grown"), [(None, 2_000), (1, 1_000 * (1 + STEPS_AHEAD)), (8, 1_500), (100, 1_040)])
def test_a_conversation_is_taken_to_grow_as_it_did(step: int | None, grown: float) -> None:
    ask = asked(Task(context_tokens=1_000, max_output_tokens=100, session_id="s", step=step))
    assert ask.grown_tokens == pytest.approx(grown + 100)
    assert asked(Task(context_tokens=1_000, step=step)).grown_tokens == 0.0, "one that is none does not grow"


def test_needs_are_bits() -> None:
    assert asked(replace(task(), needs={"tools", "vision"})).needs == BIT["tools"] | BIT["vision"]


# ---- limits


def test_a_tasks_own_limit_comes_before_its_routes() -> None:
    route = Route(name="default", ttft_ms=500, deadline_s=Slo(9.0, "p95", hard=True))
    ask = asked(replace(task(), ttft_ms=Slo(800.0, hard=False), tpot_ms=20.0), route)
    assert [limit[:4] for limit in ask.limits] == [
        ("ttft_ms", 800.0, "mean", False),
        ("tpot_ms", 20.0, "mean", True),
        ("e2e_ms", 9_000.0, "p95", True),
    ]


def test_what_was_waited_is_gone_from_the_limits_on_waiting_and_not_from_the_pace() -> None:
    ask = asked(task(ttft_ms=800, tpot_ms=20, deadline_s=9), waited_s=0.5)
    assert [(limit.metric, limit.limit_ms, limit.asked_ms) for limit in ask.limits] == [
        ("ttft_ms", 300.0, 800.0),
        ("tpot_ms", 20.0, 20.0),
        ("e2e_ms", 8_500.0, 9_000.0),
    ]


def test_of_a_limit_that_has_passed_nothing_is_left_that_could_be_kept() -> None:
    (limit,) = asked(task(deadline_s=9), waited_s=100.0).limits
    assert isinstance(limit, Limit)
    assert 0.0 < limit.limit_ms < 0.01


# ---- who is allowed


@pytest.mark.parametrize(
    ("change", "route", "left"),
    [
        ({}, {}, "abc"),
        ({"allow": {"a", "b"}}, {}, "ab"),
        ({"deny": {"a"}}, {}, "bc"),
        ({"pin": "c"}, {}, "c"),
        ({"allow": {"a", "b"}, "deny": {"a"}}, {}, "b"),
        ({"pin": "a", "deny": {"a"}}, {}, ""),
        ({"allow": {"a", "b"}}, {"allow": frozenset("bc")}, "b"),
        ({"pin": "a"}, {"allow": frozenset("bc")}, ""),
        ({"quality": {"code": 0.6}}, {}, "ab"),
        ({"quality": {"code": 0.61}}, {}, "a"),
        ({"quality": {"prose": 0.1}}, {}, "a"),
        ({}, {"quality": {"code": 0.9}}, "a"),
        ({"quality": {"code": 0.5}}, {"quality": {"code": 0.9}}, "ab"),
        ({"quality": {"code": 0.5}}, {"quality": {"prose": 0.3}}, "a"),
        ({"quality": {"code": 0.5}, "deny": {"a"}}, {}, "b"),
    ],
)
def test_route_and_task_both_rule_out(change: dict[str, Any], route: dict[str, Any], left: str) -> None:
    assert allowed(replace(task(), **change), Route(name="default", **route)) == set(left)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pin": "aa"}, "there is no deployment 'aa'"),
        ({"deny": {"aa"}}, "there is no deployment 'aa'"),
        ({"allow": {"aa"}}, "there is no deployment 'aa'"),
        ({"quality": {"codes": 0.5}}, "there is no skill 'codes'; did you mean 'code'?"),
    ],
)
def test_a_name_that_is_not_there_is_a_mistake(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownNameError) as raised:
        asked(replace(task(), **change))
    assert said in str(raised.value)


def test_a_floor_without_a_table_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="quality needs a table of models and skills"):
        Router(fleet(profile())).decide(replace(task(), quality={"code": 0.5}))


def test_a_model_that_nobody_judged_keeps_no_floor() -> None:
    qualities = Asks(CompiledFleet.of(FLEET), QUALITY).quality("code")
    assert qualities[:2].tolist() == [0.9, 0.6]
    assert np.isnan(qualities[2])


# ---- through the router


def test_a_pin_a_floor_and_a_price_hold_in_every_answer() -> None:
    r = Router(FLEET, quality=QUALITY, objective="cost")
    asked = task(1_000, 1_000)
    assert r.decide(asked).deployment == "c"
    assert r.decide(replace(asked, quality={"code": 0.5})).deployment == "b"
    assert r.decide(replace(asked, pin="a")).deployment == "a"
    assert r.acquire(replace(asked, deny={"b", "c"})).deployment.name == "a"


@pytest.mark.parametrize(("max_cost_usd", "left"), [(0.1, "abc"), (0.0021, "bc"), (0.002, "bc"), (0.0019, "c")])
def test_what_costs_more_is_refused(max_cost_usd: float, left: str) -> None:
    decision = Router(FLEET).decide(replace(task(1_000, 1_000), max_cost_usd=max_cost_usd))
    assert {candidate.deployment for candidate in decision.candidates} == set(left)


def test_a_price_that_nobody_knows_cannot_be_promised() -> None:
    with pytest.raises(NoFeasibleDeployment):
        Router(fleet(profile())).decide(replace(task(), max_cost_usd=1_000.0))
