"""A roofline in a closed loop, of workers together and apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentroute.catalogue import shipped
from agentroute.latency.closed_loop import DERIVED, ClosedLoop
from agentroute.latency.physics import FAR, FAR_TPOT, FAR_TTFT
from agentroute.latency.table import CurveTable
from agentroute.serving import loop_of
from agentroute.shape.sharding import Disaggregated, Sharding, Workers

MODELS = {"llama-3.1-70b": "fp8", "deepseek-v3": "fp8", "gpt-oss-120b": "mxfp4"}


def loop(
    model: str = "llama-3.1-70b", split: Sharding | Disaggregated | None = None, gpu: str = "h200_sxm"
) -> ClosedLoop:
    found = loop_of(shipped().model(model), shipped().accelerator(gpu), split or Sharding(tp=8), MODELS[model])
    assert isinstance(found, ClosedLoop)
    return found


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("model", MODELS)
def test_neither_a_longer_prompt_nor_more_requests_help(model: str, axis: int) -> None:
    more = FAR.copy()
    more[:, axis] *= 2
    for before, after in zip(loop(model).times_ms(FAR), loop(model).times_ms(more), strict=True):
        assert (after >= before * (1 - 1e-9)).all()


def test_where_prompts_are_read_elsewhere_they_do_not_slow_the_answers() -> None:
    tp8 = Workers(sharding=Sharding(tp=8))
    together, apart = loop(), loop(split=Disaggregated(prefill=tp8, decode=tp8))
    load = np.array([(8_192.0, 128.0, 64.0)])
    assert apart.times_ms(load)[1][0] < together.times_ms(load)[1][0]
    wider = loop(split=Disaggregated(prefill=Workers(workers=4, sharding=Sharding(tp=8)), decode=tp8))
    assert wider.times_ms(load)[0][0] < apart.times_ms(load)[0][0]


@pytest.mark.parametrize("model", MODELS)
def test_its_shape_follows_it(model: str) -> None:
    """Six terms cannot hold every bend of a roofline over four powers of ten, but its course."""
    ttft, tpot = loop(model).times_ms(FAR)
    shape = loop(model).shape()
    assert np.median(np.abs(FAR_TTFT @ shape.ttft / ttft - 1)) < 0.15
    assert np.median(np.abs(FAR_TPOT @ shape.tpot / tpot - 1)) < 0.25


@pytest.mark.parametrize("model", MODELS)
def test_its_curve_passes_through_it_and_is_not_measured(model: str) -> None:
    of = loop(model)
    curve, times = of.curve(), of.times_ms(DERIVED)
    table = CurveTable([curve])
    for load, ttft, tpot in zip(np.log(DERIVED), *times, strict=True):
        assert table.at(load[0], load[1], load[2:])[:, 0] == pytest.approx((ttft, tpot), rel=1e-6)
    assert not curve.is_measured
    assert curve.support(math.log(1_024), math.log(128), math.log(4)) == 0.0
    assert all(band > 0.25 for band in curve.bands((math.log(1_024), math.log(128), math.log(4))))
