"""What a profile says of how a model is served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fleets import SOURCE, point

from agentroute.capacity.kv import Unknown
from agentroute.catalogue import shipped
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.bounds import Rooms
from agentroute.latency.closed_loop import ClosedLoop
from agentroute.latency.points import Measurement
from agentroute.profile import Engine, KvPool, Limits, Precision, Profile
from agentroute.router import Router
from agentroute.serving import closed_loop, roofline
from agentroute.shape.sharding import Disaggregated, Sharding, Workers
from agentroute.task import Task

TP8 = Workers(sharding=Sharding(tp=8))


def deployment(
    *, weights: str | None = "fp8", split: Sharding | Disaggregated | None = TP8.sharding, engine: str = "vllm",
    model: str | None = "llama-3.1-70b", measurements: tuple[Measurement, ...] = (),
) -> Deployment:  # fmt: skip
    profile = Profile(
        format=1,
        name="p",
        model=model,
        accelerator="h200_sxm",
        engine=Engine(name=engine),  # type: ignore[arg-type]
        precision=Precision(weights=weights),  # type: ignore[arg-type]
        sharding=split if isinstance(split, Sharding) else None,
        disaggregated=split if isinstance(split, Disaggregated) else None,
        measurements=measurements,
    )
    return shipped().deployment(profile)


def test_a_known_shape_has_a_roofline_together_and_apart() -> None:
    assert isinstance(closed_loop(deployment()), ClosedLoop)
    apart = closed_loop(deployment(split=Disaggregated(prefill=TP8, decode=TP8)))
    assert isinstance(apart, ClosedLoop)
    assert apart.apart
    assert isinstance(roofline(deployment(split=Disaggregated(prefill=TP8, decode=TP8))), Unknown)


def test_where_the_pool_is_known_no_other_memory_is_estimated() -> None:
    pool = KvPool(tokens=160_000, block_tokens=16)
    known = replace(
        deployment(),
        profile=deployment().profile.model_copy(update={"limits": Limits(kv_pool=pool, provenance=SOURCE)}),
    )
    guessed, told = closed_loop(deployment()), closed_loop(known)
    assert isinstance(guessed, ClosedLoop)
    assert isinstance(told, ClosedLoop)
    few, any_number = Rooms([guessed.bounds, told.bounds]).at(8_192, 1_024)
    assert few < np.inf == any_number
    assert (guessed.bounds.ttft_ms(np.array([8_192.0])) == told.bounds.ttft_ms(np.array([8_192.0]))).all()


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        ({"weights": None}, "does not say how its weights are kept"),
        ({"weights": "gguf"}, "does not say how its weights are kept"),
        ({"split": None}, "does not say its model, its accelerator or its sharding"),
        ({"model": None}, "does not say its model, its accelerator or its sharding"),
    ],
)
def test_what_is_missing_is_named(without: dict[str, object], reason: str) -> None:
    found = closed_loop(deployment(**without))  # type: ignore[arg-type]
    assert isinstance(found, Unknown)
    assert reason in found.reason


def test_without_points_a_decision_says_that_its_times_are_derived() -> None:
    decision = Router(Fleet([deployment()])).decide(Task(context_tokens=4_000, max_output_tokens=200, concurrency=4))
    for estimate in (decision.ttft_ms, decision.tpot_ms, decision.e2e_ms):
        assert estimate is not None
        assert (estimate.source, estimate.extrapolated) == ("derived", True)
        assert estimate.low < estimate.mean < estimate.high
    assert "latency: derived, from the roofline of llama-3.1-70b on h200_sxm, tp8" in decision.explain()


def test_a_few_points_move_the_roofline_to_their_height() -> None:
    """One load measured at twice what is derived: everything else follows it, not a typical server."""
    task = Task(context_tokens=16_000, max_output_tokens=500, concurrency=16)
    derived = Router(Fleet([deployment()])).decide(task)
    found = closed_loop(deployment())
    assert isinstance(found, ClosedLoop)
    ttft, tpot = (2 * float(v[0]) for v in found.times_ms(np.array([(2_000.0, 500.0, 4.0)])))
    measured = (Measurement(provenance=SOURCE, points=(point(2_000, 500, 4, ttft, tpot),)),)
    moved = Router(Fleet([deployment(measurements=measured)])).decide(task)
    assert derived.tpot_ms is not None
    assert moved.tpot_ms is not None
    assert moved.tpot_ms.source == "measured"
    assert moved.tpot_ms.extrapolated
    assert moved.tpot_ms.mean / derived.tpot_ms.mean == pytest.approx(2.0, rel=0.3)
