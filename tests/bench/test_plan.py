"""Which load is measured next, on servers that are formulas."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.bench.noise import Noise
from agentroute.bench.plan import KNEE, LEAST_ROUNDS, MOST_ROUNDS, Grid, Known, Left, Load, next_load
from agentroute.errors import UsageError

Times = Callable[[Load], tuple[float, float]]


@dataclass
class Model:
    """A server that takes ``times`` (TTFT and TPOT in ms) with so much noise, and what was measured of it."""

    times: Times
    noise: float = 0.0
    seconds: float | None = None
    tokens: int | None = None
    rounds: dict[Load, list[tuple[float, float]]] = field(default_factory=dict)
    order: list[Load] = field(default_factory=list)
    spent_s: float = 0.0
    spent_tokens: int = 0

    def round_s(self, load: Load) -> float:
        ttft, tpot = self.times(load)
        return (ttft + load.osl * tpot) * 3 / 1_000

    def walk(self, grid: Grid, *, noise: float = 0.05, is_barred: Callable[[Load], bool] = lambda load: False) -> None:
        draw = random.Random(0)
        while True:
            left = Left(
                None if self.seconds is None else max(0.0, self.seconds - self.spent_s),
                None if self.tokens is None else max(0, self.tokens - self.spent_tokens),
                min(
                    1.0 if self.seconds is None else max(0.0, 1.0 - self.spent_s / self.seconds),
                    1.0 if self.tokens is None else max(0.0, 1.0 - self.spent_tokens / self.tokens),
                ),
            )
            load = next_load(grid, self.known(), left, noise=noise, is_barred=is_barred, most_tokens=self.round_tokens)
            if load is None:
                return
            factor = math.exp(draw.gauss(0.0, self.noise))
            ttft, tpot = self.times(load)
            self.rounds.setdefault(load, []).append((ttft * factor, tpot * factor))
            self.order.append(load)
            self.spent_s += self.round_s(load)
            self.spent_tokens += self.round_tokens(load)

    def round_tokens(self, load: Load) -> int:
        return 3 * load.concurrency * (load.isl + load.osl)

    def known(self) -> dict[Load, Known]:
        return {
            load: Known(
                Noise.of([ttft for ttft, _ in seen]),
                Noise.of([tpot for _, tpot in seen]),
                self.round_s(load),
                self.round_tokens(load),
            )
            for load, seen in self.rounds.items()
        }


def straight(load: Load) -> tuple[float, float]:
    """Power laws: lines in the logarithms."""
    return load.isl * load.concurrency**0.5, 10.0 * load.concurrency**0.2


def kneed(load: Load) -> tuple[float, float]:
    """Above 20 requests they queue."""
    ttft, tpot = straight(load)
    return ttft * (1.0 if load.concurrency <= 20 else 200.0), tpot


GRID = Grid((128, 1_024), (64,), 1, 64)


def test_the_first_loads_are_the_ends_and_the_middle() -> None:
    assert Grid((128, 1_024), (64, 256), 1, 64).anchors() == [
        Load(128, 64, 1), Load(128, 64, 8), Load(128, 64, 64),
        Load(1_024, 64, 1), Load(1_024, 64, 64),
        Load(128, 256, 1), Load(128, 256, 64), Load(1_024, 256, 1), Load(1_024, 256, 64),
    ]  # fmt: skip


def test_the_middle_is_the_slots_where_more_than_them_is_asked_for() -> None:
    assert [load.concurrency for load in Grid((128,), (64,), 1, 64, slots=16).anchors()] == [1, 16, 64]
    assert [load.concurrency for load in Grid((128,), (64,), 1, 1).anchors()] == [1]


def test_a_straight_curve_needs_no_more_than_its_anchors_three_times_each() -> None:
    server = Model(straight)
    server.walk(GRID)
    assert set(server.rounds) == set(GRID.anchors())
    assert {len(rounds) for rounds in server.rounds.values()} == {LEAST_ROUNDS}


def test_a_knee_is_closed_in_upon() -> None:
    server = Model(kneed)
    server.walk(Grid((128,), (64,), 1, 64))
    ns = sorted(load.concurrency for load in server.rounds)
    assert 20 in ns and 21 in ns
    assert kneed(Load(128, 64, 21))[0] > KNEE * kneed(Load(128, 64, 20))[0]


def test_repeats_are_spread_over_the_run() -> None:
    server = Model(straight, noise=0.05)
    server.walk(GRID)
    first = {load: server.order.index(load) for load in server.rounds}
    last = {load: len(server.order) - server.order[::-1].index(load) for load in server.rounds}
    assert all(last[load] - first[load] > len(server.order) // 2 for load in server.rounds)


def test_a_load_is_repeated_until_it_is_sure_but_not_for_ever() -> None:
    server = Model(straight, noise=0.1)
    server.walk(GRID)
    assert all(seen.noise <= 0.05 for seen in server.known().values())
    wild = Model(straight, noise=2.0)
    wild.walk(GRID, noise=0.001)
    assert {len(rounds) for rounds in wild.rounds.values()} == {MOST_ROUNDS}


@settings(max_examples=15)
@given(seconds=st.floats(0.01, 600.0), noise=st.floats(0.0, 0.5))
def test_the_first_load_is_always_measured_and_the_time_kept_but_for_the_first(seconds: float, noise: float) -> None:
    server = Model(kneed, noise, seconds=seconds)
    server.walk(GRID)
    assert server.order[0] == Load(128, 64, 1)
    # A new load is judged by its nearest neighbour, and a knee is not foreseen by any.
    longest = max(server.round_s(load) for load in server.rounds)
    assert server.spent_s <= seconds + longest


@settings(max_examples=15)
@given(st.integers(1, 2_000_000))
def test_tokens_are_kept_but_for_the_first_load(tokens: int) -> None:
    server = Model(straight, 0.05, tokens=tokens)
    server.walk(GRID)
    first = server.round_tokens(Load(128, 64, 1))
    assert server.spent_tokens <= max(tokens, first)


def test_what_the_server_does_not_bear_is_not_asked_of_it() -> None:
    server = Model(straight)
    server.walk(GRID, is_barred=lambda load: load.concurrency > 8)
    assert {load.concurrency for load in server.rounds} == {1, 8}


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (lambda: Grid((128,), (64,), 4, 2), "must rise"),
        (lambda: Grid((128, 500), (64,), 1, 2, window=512), "take 564 tokens, but the server's window is 512"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid: Callable[[], Grid], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        grid()


def test_the_places_are_those_of_slots_and_memory() -> None:
    load = Load(100, 28, 1)
    assert Grid((100,), (28,), 1, 8).places(load) is None
    assert Grid((100,), (28,), 1, 8, slots=4).places(load) == 4
    assert Grid((100,), (28,), 1, 8, slots=4, pool_tokens=256).places(load) == 2
    assert Grid((100,), (28,), 1, 8, pool_tokens=64).places(load) == 1
