"""Why a deployment is refused: one kind, one sentence, and what was demanded of which limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fleets import fleet, fleets, grid, held, profile, task, tasks
from hypothesis import given, settings

from agentroute.decision import Decision, rejections
from agentroute.errors import NoFeasibleDeployment
from agentroute.fleet import Fleet
from agentroute.profile import Profile
from agentroute.reasons import Reason
from agentroute.router import Router
from agentroute.task import Task


def reason(p: Profile, **fields: Any) -> Reason:
    with pytest.raises(NoFeasibleDeployment) as raised:
        Router(fleet(p)).decide(Task(**{"context_tokens": 1_000, "max_output_tokens": 100, **fields}))
    return raised.value.reasons[p.name]


@pytest.mark.parametrize(
    ("p", "fields", "kind", "demand", "limit", "unit"),
    [
        (profile(), {"deny": {"p"}}, "not_allowed", None, None, None),
        (profile(window=500), {}, "window", 1_100, 500, "tokens"),
        (profile(kv_blocks=50), {}, "request_size", 69, 50, "KV blocks"),
        (profile(offers={"tools": False}), {"needs": {"tools"}}, "capability", None, None, None),
        (profile(), {"max_cost_usd": 1.0}, "unknown", None, 1.0, "USD"),
        (profile(usd_per_million=(1e3, 1e3)), {"max_cost_usd": 1.0}, "budget", 1.1, 1.0, "USD"),
        (profile(points=()), {"ttft_ms": 10.0}, "unknown", None, 10.0, "ms"),
    ],
)
def test_a_refusal_says_what_was_demanded_of_which_limit(
    p: Profile, fields: dict[str, Any], kind: str, demand: float | None, limit: float | None, unit: str | None
) -> None:
    found = reason(p, **fields)
    assert (found.kind, found.limit, found.unit) == (kind, limit, unit)
    assert found.demand == (None if demand is None else pytest.approx(demand))
    assert str(found) == found.text


def test_one_that_is_too_slow_says_by_how_much() -> None:
    found = reason(profile(points=grid()), ttft_ms=10.0)
    assert (found.kind, found.limit, found.unit) == ("slo", 10.0, "ms")
    assert found.demand is not None
    assert found.demand > 10.0


def test_one_that_is_full_says_what_is_free() -> None:
    by = Router(fleet(profile(kv_blocks=100)))
    held(by, task())
    with pytest.raises(NoFeasibleDeployment) as raised:
        by.acquire(task())
    assert raised.value.reasons["p"] == Reason(
        "no_room", "one request needs 69 KV blocks, 31 of 100 are free now", 69.0, 31.0, "KV blocks"
    )


def test_one_that_is_down_is_not_called_full() -> None:
    by = Router(fleet(profile(kv_blocks=100), profile("other")))
    a = by.decide(task())._assessment
    a.feasible = np.array([False, True])
    a.state = a.state._replace(up=np.array([False, True]))
    assert rejections(a)["p"].kind == "down"


@given(fleets(), tasks())
@settings(max_examples=80, deadline=None)
def test_a_demand_is_over_its_limit(of: Fleet, asked: Task) -> None:
    try:
        decided: Decision | NoFeasibleDeployment = Router(of).decide(asked)
    except NoFeasibleDeployment as refused:
        decided = refused
    reasons = decided.rejected if isinstance(decided, Decision) else decided.reasons
    for found in reasons.values():
        assert (found.unit is None) == (found.limit is None)
        if found.demand is not None:
            assert found.limit is not None
            assert found.demand > found.limit
