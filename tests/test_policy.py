"""Objectives: which of the deployments that keep the SLOs equally well is best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from fleets import fleet, profile, router, task
from numpy.typing import NDArray

from agentroute.assessment import Assessment
from agentroute.errors import UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.inputs import Metric
from agentroute.policy import OBJECTIVES, SLO_MARGIN, blend, cost, latency, objective, within
from agentroute.reasons import NAMES
from agentroute.route import Route
from agentroute.router import Router
from agentroute.task import Slo, Task


def test_an_objective_is_found_by_name() -> None:
    assert {name: objective(name) for name in OBJECTIVES} == dict(OBJECTIVES)
    assert set(OBJECTIVES) == {"cost", "fit", "latency", "quality"}
    assert set(NAMES) == set(get_args(Metric))


@pytest.mark.parametrize("wrong", ["fits", "goodput", "Fit"])
def test_a_wrong_objective_is_a_name_that_is_not_there(wrong: str) -> None:
    with pytest.raises(UnknownNameError, match=f"there is no objective '{wrong}'"):
        router(profile(), objective=wrong)
    with pytest.raises(UnknownNameError, match=f"there is no objective '{wrong}'"):
        Router(fleet(profile()), routes=[Route(name="r", objective=wrong)])
    with pytest.raises(UnknownNameError, match=f"there is no objective '{wrong}'"):
        router(profile()).decide(Task(context_tokens=1, objective=wrong))


def test_fit_takes_the_pool_of_which_the_task_is_the_smallest_share() -> None:
    assert router(profile("small", kv_blocks=200), profile("large", kv_blocks=900)).decide(task()).deployment == "large"


def test_fit_takes_the_fewest_gpu_seconds_where_no_pool_is_known() -> None:
    many, few = profile("many", gpus=8, speed=2.0), profile("few", gpus=1, speed=1.0)
    assert router(many, few).decide(task()).deployment == "few"


def test_latency_takes_the_fastest_answer() -> None:
    many, few = profile("many", gpus=8, speed=2.0), profile("few", gpus=1, speed=1.0)
    assert router(few, many, objective="latency").decide(task()).deployment == "many"


def test_cost_takes_the_cheapest_answer() -> None:
    dear = profile("dear", usd_per_hour=10.0, speed=2.0)
    cheap = profile("cheap", usd_per_hour=2.0)
    assert router(dear, cheap, objective="cost").decide(task()).deployment == "cheap"


def test_cost_by_the_hour_is_the_share_of_the_time_at_this_load() -> None:
    decision = router(profile(usd_per_hour=3.6, gpus=2)).decide(task(concurrency=4))
    assert decision.cost_usd is not None
    assert decision.e2e_ms is not None
    assert decision.cost_usd.mean == pytest.approx(2 * 3.6 / 3_600 * decision.e2e_ms.mean / 1_000 / 4)


def test_cost_by_the_token_is_the_price_of_its_tokens() -> None:
    decision = router(profile(usd_per_million=(2.0, 8.0), points=())).decide(task(context=1_000, output=100))
    assert decision.cost_usd is not None
    assert decision.cost_usd.mean == pytest.approx(0.0028)
    assert decision.cost_usd.low == decision.cost_usd.mean == decision.cost_usd.high


def test_what_has_no_price_comes_after_what_has_one() -> None:
    free, priced = profile("unpriced", speed=5.0), profile("priced", usd_per_hour=9.0)
    decision = router(free, priced, objective="cost").decide(task())
    assert [c.deployment for c in decision.candidates] == ["priced", "unpriced"]


@pytest.mark.parametrize("where", ["router", "route", "task"])
def test_cost_without_any_price_is_a_mistake(where: str) -> None:
    with pytest.raises(UsageError, match="the objective 'cost' needs a price"):
        match where:
            case "router":
                router(profile(), objective="cost")
            case "route":
                Router(fleet(profile()), routes=[Route(name="r", objective="cost")])
            case _:
                router(profile()).decide(Task(context_tokens=1, objective="cost"))


def test_a_task_comes_before_its_route_and_a_route_before_the_router() -> None:
    made = Router(fleet(profile(usd_per_hour=1.0)), objective="fit", routes=[Route(name="r", objective="cost")])
    assert made.decide(Task(context_tokens=1)).objective == "fit"
    assert made.decide(Task(context_tokens=1, route="r")).objective == "cost"
    assert made.decide(Task(context_tokens=1, route="r", objective="latency")).objective == "latency"


QUALITY = {"large": {"code": 0.9, "prose": 0.2}, "small": {"code": 0.4, "prose": 0.6}}


def served(*models: str, **options: Any) -> Router:
    """A deployment of each model, alike in all else; an unknown one has none."""
    deployments = [Deployment(name, profile(name), served_model=name) for name in models]
    return Router(Fleet(deployments), **options)


@pytest.mark.parametrize(
    ("floors", "best"),
    [
        pytest.param({"code": 0.1}, "large", id="the skill that is named"),
        pytest.param({"prose": 0.1}, "small", id="another"),
        pytest.param({}, "large", id="all of them, on average"),
    ],
)
def test_quality_takes_the_model_that_is_best_at_what_is_asked_for(floors: dict[str, float], best: str) -> None:
    r = served("small", "unheard-of", "large", objective="quality", quality=QUALITY)
    assert r.decide(Task(context_tokens=100, quality=floors)).deployment == best


def test_quality_without_a_table_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="needs a table of models and skills"):
        served("large", objective="quality").decide(task())


@pytest.mark.parametrize(("floor", "left"), [(0.3, {"large", "small"}), (0.5, {"large"})])
def test_a_model_below_a_floor_is_refused(floor: float, left: set[str]) -> None:
    decision = served("small", "unheard-of", "large", quality=QUALITY).decide(
        Task(context_tokens=100, quality={"code": floor})
    )
    assert {candidate.deployment for candidate in decision.candidates} == left


def test_an_objective_of_ones_own_is_a_function_with_a_name() -> None:
    def alphabetical(a: Assessment) -> NDArray[np.float64]:
        names = [deployment.name for deployment in a.fleet.deployments]
        return np.argsort(np.argsort(names)).astype(float)

    r = served("b", "a", "c", objective="abc", objectives={"abc": alphabetical})
    assert r.decide(task()).deployment == "a"


def test_objectives_can_be_blended_and_narrowed() -> None:
    cheap, fast = profile("cheap", usd_per_hour=1.0), profile("fast", speed=2.0, usd_per_hour=4.0)
    middle = profile("middle", speed=1.6, usd_per_hour=1.7)
    objectives = {
        "both": blend((cost, 1.0), (latency, 1.0)),
        "thrifty": within(0.2, cost, latency),
        "lavish": within(9.0, cost, latency),
    }
    r = Router(fleet(cheap, fast, middle), objectives=objectives)
    chosen = {name: r.decide(replace(task(), objective=name)).deployment for name in objectives}
    assert chosen == {"both": "middle", "thrifty": "middle", "lavish": "fast"}


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"quality"}))
def test_an_objective_scores_every_deployment(name: str) -> None:
    deployments = fleet(profile("a", kv_blocks=500), profile("b", points=()), profile("c", usd_per_hour=1.0))
    decision = Router(deployments).decide(task())
    assert np.asarray(OBJECTIVES[name](decision._assessment)).shape == (3,)


def test_an_objective_never_trades_an_slo_away() -> None:
    cheap_but_late, dear_but_early = profile("late", usd_per_hour=0.1), profile("early", usd_per_hour=50.0, speed=10.0)
    limit = Slo(50.0, hard=False)
    made = router(cheap_but_late, dear_but_early, objective="cost")
    assert made.decide(Task(context_tokens=1_000, max_output_tokens=100, ttft_ms=limit)).deployment == "early"


@pytest.mark.parametrize(("share", "winner"), [(0.6, "cheap"), (0.8, "fast")])
def test_an_slo_should_be_kept_with_a_margin(share: float, winner: str) -> None:
    cheap, fast = profile("cheap", usd_per_hour=0.1), profile("fast", usd_per_hour=50.0, speed=10.0)
    e2e = router(cheap).decide(task()).e2e_ms
    assert e2e is not None
    assert 0.6 < 1 - SLO_MARGIN < 0.8
    asked = Task(context_tokens=1_000, max_output_tokens=100, deadline_s=Slo(e2e.mean / share / 1_000, hard=False))
    assert router(cheap, fast, objective="cost").decide(asked).deployment == winner
