"""Where waiting may begin the band of TTFT is wide, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from fleets import point

from agentroute.catalogue import shipped
from agentroute.latency.bounds import Rooms
from agentroute.latency.closed_loop import ClosedLoop
from agentroute.latency.curve import Curve
from agentroute.latency.points import Point
from agentroute.latency.queueing import Jumps
from agentroute.serving import loop_of
from agentroute.shape.sharding import Sharding

LOADS = (8, 16, 32, 64)


def knee(after: float = 6_000.0, isl: int = 1_024) -> list[Point]:
    """Between 16 and 32 in flight TTFT grows to ``after``; elsewhere slowly."""
    return [point(isl, 512, n, 100 + n if n <= 16 else after + n, 10 + n / 10) for n in LOADS]


def ln_bands(
    points: Sequence[Point], n: float, isl: float = 1_024, of: ClosedLoop | None = None
) -> tuple[float, float]:
    curve = Curve.fit(points, of.shape() if of else None)
    assert curve is not None
    ttft, tpot = curve.bands((math.log(isl), math.log(512), math.log(n)))
    return math.log1p(ttft), math.log1p(tpot)


def added(points: Sequence[Point], n: float, isl: float = 1_024) -> float:
    """What ``Queues`` adds to half the band of TTFT."""
    curve = Curve.fit(points)
    assert curve is not None
    return float(Jumps([curve.queues]).at(np.log(np.array([[isl], [512.0], [n]])))[0])


def test_between_two_loads_with_a_knee_between_them_the_band_reaches_for_both() -> None:
    """From 116 ms to 6 s: the middle could be either."""
    middle = ln_bands(knee(), 22.6)[0]
    assert 0.4 * math.log(6_000 / 116) < middle < math.log(6_000 / 116)


@pytest.mark.parametrize("n", [8, 11, 16, 32, 45, 64])
def test_neither_at_a_measured_load_nor_beside_the_knee_is_anything_added(n: float) -> None:
    assert added(knee(), n) == pytest.approx(0.0, abs=1e-9)


def test_what_is_added_grows_with_the_jump_and_is_nothing_for_one_in_proportion_to_the_load() -> None:
    jumps = [added(knee(after), 22.6) for after in (110.0, 600.0, 2_000.0, 6_000.0)]
    assert jumps[0] == 0.0
    assert jumps == sorted(jumps)
    assert jumps[1] > 0.0


def test_a_knee_of_one_prompt_length_tells_less_of_another() -> None:
    same, longer, far = (added(knee(), 22.6, isl) for isl in (1_024, 1_400, 30_000))
    assert same > longer > far > 0.0
    assert far < 0.01 * same


def derived(isl: int) -> tuple[ClosedLoop, float]:
    """Llama 3.1 70B in 8 bits on one H200, which leaves little memory, and how many requests fit."""
    found = loop_of(shipped().model("llama-3.1-70b"), shipped().accelerator("h200_sxm"), Sharding(), "fp8")
    assert isinstance(found, ClosedLoop)
    return found, float(Rooms([found.bounds]).at(isl, 512)[0])


def smooth(isl: int, most: int) -> list[Point]:
    return [point(isl, 512, n, 100 + 10 * n, 10 + n / 10) for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= most]


def test_beyond_what_the_memory_holds_ttft_may_be_a_wait_for_others_to_end() -> None:
    loop, room = derived(8_192)
    assert 8 < room < 32
    points = smooth(8_192, 16)
    inside, beyond = ln_bands(points, 16, 8_192, loop), ln_bands(points, 64, 8_192, loop)
    without = replace(loop.shape(), bounds=None)
    curve = Curve.fit(points, without)
    assert curve is not None
    usual = math.log1p(curve.bands((math.log(8_192), math.log(512), math.log(64)))[0])
    # Half of them wait for answers of more than 5 s, where the first token took 0.7 s.
    assert beyond[0] > usual + math.log(3)
    assert beyond[1] > inside[1]


def test_where_the_memory_holds_all_nothing_is_added() -> None:
    loop, _ = derived(256)
    points = smooth(256, 16)
    curve, without = Curve.fit(points, loop.shape()), Curve.fit(points, replace(loop.shape(), bounds=None))
    assert curve is not None
    assert without is not None
    load = math.log(256), math.log(512), math.log(32)
    assert curve.bands(load) == pytest.approx(without.bands(load))


def test_what_was_measured_beyond_the_memory_is_believed() -> None:
    """The estimate of the memory may be wrong; where more were seen to run it says nothing."""
    loop, room = derived(8_192)
    assert room < 64
    few, many = (ln_bands(smooth(8_192, most), 128, 8_192, loop)[0] for most in (8, 128))
    assert many < 0.5 < few


def test_a_roofline_alone_does_not_know_the_wait_either() -> None:
    loop, room = derived(8_192)
    curve = loop.curve()
    inside, beyond = (curve.bands((math.log(8_192), math.log(512), math.log(n)))[0] for n in (room / 2, room * 4))
    assert beyond > 2 * inside
