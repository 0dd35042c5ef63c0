"""What holds of every answer: what is chosen is feasible, and asking for less takes no answer away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import fleets, held, profiles, tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.errors import NoFeasibleDeployment
from agentroute.fleet import Deployment, Fleet
from agentroute.profile import Profile
from agentroute.router import Router
from agentroute.task import Slo, Task

quick = settings(max_examples=80, deadline=None)


def feasible(of: Fleet, asked: Task) -> bool:
    try:
        Router(of).decide(asked)
    except NoFeasibleDeployment:
        return False
    return True


@given(fleets(), tasks(), st.sampled_from(["fit", "latency"]), st.integers(0, 6))
@quick
def test_what_is_chosen_is_feasible(of: Fleet, asked: Task, objective: str, busy: int) -> None:
    r = Router(of, objective=objective)
    for _ in range(busy):
        try:
            held(r, asked)
        except NoFeasibleDeployment as error:
            assert sorted(error.reasons) == sorted(d.name for d in of.deployments)
            return
    try:
        decision = r.decide(asked)
    except NoFeasibleDeployment:
        return
    assert decision.deployment not in decision.rejected
    profile_ = decision.chosen.profile
    limits = profile_.limits
    assert limits is not None
    needed = asked.context_tokens + (asked.max_output_tokens or 1)
    assert limits.max_model_len is None or needed <= limits.max_model_len
    headroom = decision.candidates[0].headroom
    assert profile_.pool is None or (headroom is not None and headroom.needed <= profile_.pool.blocks)
    assert not any(profile_.capabilities.offers.get(n) is False for n in asked.needs if profile_.capabilities)  # type: ignore[call-overload]
    for name, estimate in (("ttft_ms", decision.ttft_ms), ("tpot_ms", decision.tpot_ms)):
        if (limit := getattr(asked, name)) is not None:
            assert estimate is not None
            assert estimate.mean <= limit * (1 + 1e-9)


@given(fleets(), tasks())
@quick
def test_equal_questions_get_equal_answers(of: Fleet, asked: Task) -> None:
    def answer() -> str:
        try:
            return Router(of).decide(asked).explain()
        except NoFeasibleDeployment as error:
            return str(error)

    assert answer() == answer()


@given(fleets(), tasks(), st.sampled_from(["ttft_ms", "tpot_ms", "deadline_s"]), st.floats(1.0, 100.0))
@quick
def test_relaxing_a_hard_slo_never_takes_an_answer_away(of: Fleet, asked: Task, name: str, factor: float) -> None:
    limit = getattr(asked, name)
    if limit is None or not feasible(of, asked):
        return
    relaxed: dict[str, Any] = {name: limit * factor}
    dropped: dict[str, Any] = {name: None}
    softened: dict[str, Any] = {name: Slo(limit, hard=False)}
    for change in (relaxed, dropped, softened):
        assert feasible(of, replace(asked, **change))


@given(fleets(), profiles("new"), tasks())
@quick
def test_another_deployment_never_takes_an_answer_away(of: Fleet, more: Profile, asked: Task) -> None:
    if feasible(of, asked):
        assert feasible(Fleet([Deployment("new", more), *of.deployments]), asked)
        assert feasible(Fleet([*of.deployments, Deployment("new", more)]), asked)


@given(fleets(), tasks(), st.integers(1, 50_000))
@quick
def test_a_longer_prompt_never_turns_a_no_into_a_yes(of: Fleet, asked: Task, more: int) -> None:
    """But for TPOT: where longer prompts leave room for fewer at once, each of these is faster."""
    asked = replace(asked, tpot_ms=None)
    if not feasible(of, asked):
        assert not feasible(of, replace(asked, context_tokens=asked.context_tokens + more))


@given(tasks(), st.integers(1, 50_000))
@settings(max_examples=40, deadline=None)
def test_not_even_in_the_shipped_fleet(asked: Task, more: int) -> None:
    asked = replace(asked, tpot_ms=None)
    longer = replace(asked, context_tokens=asked.context_tokens + more)
    try:
        SHIPPED.decide(asked)
    except NoFeasibleDeployment:
        with pytest.raises(NoFeasibleDeployment):
            SHIPPED.decide(longer)


SHIPPED = Router.shipped()
