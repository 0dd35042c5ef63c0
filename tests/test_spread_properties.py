"""A fan-out over any fleet: what holds of every plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fleets import fleets, task
from groups import requests
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentroute.catalogue import shipped
from agentroute.errors import NoFeasibleDeployment
from agentroute.fanout import counts
from agentroute.fleet import Fleet
from agentroute.router import Router
from agentroute.task import Task


@given(fleets(most=3), st.integers(2, 12))
@settings(max_examples=15, deadline=None)
def test_a_deployment_is_taken_up_from_the_group_that_is_said(fleet: Fleet, fanout: int) -> None:
    one = Router(fleet)
    try:
        plans = [one.spread(task(), fanout=n) for n in range(1, fanout + 1)]
    except NoFeasibleDeployment:
        assume(False)
    for name, first in plans[-1].spill.items():
        assert next(plan.fanout for plan in plans if name in requests(plan)) == first


@given(
    fleets(),
    st.integers(1, 40) | st.integers(100, 2_000),
    st.sampled_from(["latency", "cost"]),
    st.none() | st.floats(0.5, 60.0),
)
@settings(max_examples=60, deadline=None)
def test_a_plan_places_every_sibling_within_every_limit(
    fleet: Fleet, fanout: int, objective: str, deadline_s: float | None
) -> None:
    one = Router(fleet)
    assume(objective == "latency" or not np.isnan(one.rules.compiled.usd_per_second).all())
    try:
        spread = one.spread(replace(task(), deadline_s=deadline_s, objective=objective), fanout=fanout)
    except NoFeasibleDeployment as error:
        assert set(error.reasons) == {d.name for d in fleet.deployments}
        return
    assert sum(requests(spread).values()) == fanout
    assert set(requests(spread)) | set(spread.unused) == {d.name for d in fleet.deployments}
    assert not set(requests(spread)) & set(spread.unused)
    assert deadline_s is None or spread.makespan_s <= deadline_s * (1 + 1e-6)
    for placement in spread.placements:
        assert placement.at_once <= placement.site.most <= fanout
        assert (placement.waves - 1) * placement.at_once < placement.requests <= placement.waves * placement.at_once
    assert spread.explain() and spread == one.spread(spread.task, fanout=fanout)
    with spread.hold(one) as group:
        ledger = one._situation.ledger
        assert len(group.leases) == spread.at_once == ledger.total
        assert (ledger.held <= ledger.capacity).all()
    assert one._situation.ledger.total == 0 and not one._situation.ledger.held.any()


@given(fleets(most=3), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_another_deployment_never_makes_it_longer(fleet: Fleet, fanout: int) -> None:
    fewer = Fleet(fleet.deployments[:-1]) if len(fleet) > 1 else fleet
    try:
        before = Router(fewer).spread(task(), fanout=fanout).makespan_s
    except NoFeasibleDeployment:
        return
    assert Router(fleet).spread(task(), fanout=fanout).makespan_s <= before * (1 + 1e-6)


@given(st.integers(1, 100_000))
@settings(max_examples=60, deadline=None)
def test_the_numbers_at_once_are_few_and_never_far_apart(most: int) -> None:
    axis = counts(most)
    assert axis[0] == 1 and axis[-1] == most and (np.diff(axis) > 0).all()
    assert len(axis) < 180
    assert (axis[1:] <= np.maximum(axis[:-1] + 1, np.ceil(axis[:-1] * 1.07))).all()


@pytest.mark.parametrize("fanout", [70, 150, 1_000])
def test_what_is_left_out_of_the_numbers_at_once_costs_nothing(fanout: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("qwen3-32b/vllm-h100-tp4", "qwen3-32b/trtllm-h100-tp2", "llama-3.1-8b/trtllm-h100-tp1")
    fleet = Router(Fleet(shipped().deployment(shipped().profile(name)) for name in names))
    by_time = Task(context_tokens=5_000, max_output_tokens=500)
    deadline_s = 1.5 * fleet.spread(by_time, fanout=fanout).makespan_s
    by_price = replace(by_time, objective="cost", deadline_s=deadline_s)
    few = [fleet.spread(one, fanout=fanout) for one in (by_time, by_price)]
    monkeypatch.setattr("agentroute.fanout._EVERY", 10_000)
    every = [fleet.spread(one, fanout=fanout) for one in (by_time, by_price)]
    assert few[0].makespan_s == pytest.approx(every[0].makespan_s, rel=0.005)
    assert few[1].cost_usd == pytest.approx(every[1].cost_usd, rel=0.01)
