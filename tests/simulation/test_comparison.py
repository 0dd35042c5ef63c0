"""What is asked of the router, on a part of what ``make simulate`` runs: two fleets, few loads, the best baselines."""

from __future__ import annotations

import pytest
from simulation.baselines import BASELINES
from simulation.grounds import GROUNDS, Ground
from simulation.measure import Make, Score, run
from simulation.report import ROUTER, SEEDS, verdict
from simulation.routed import Rules, routed

LOADS = (0.5, 0.8, 1.0, 1.25)
AGAINST = ("least in flight", "least by speed", "prefix-sticky", "sticky, bounded")
FLEET, OTHER = GROUNDS[1], GROUNDS[3]


def scored(make: Make, load: float, ground: Ground = FLEET) -> Score:
    rate = load * ground.saturation_rps
    return run(ground, make, rate, seed=SEEDS[1], warm_up_s=80.0, window_s=100.0, tail_s=20.0)


@pytest.fixture(scope="module")
def curves() -> dict[str, dict[float, Score]]:
    makes = {name: BASELINES[name] for name in AGAINST} | {ROUTER: routed(FLEET)}
    return {name: {load: scored(make, load) for load in LOADS} for name, make in makes.items()}


def test_it_is_first_at_every_load_from_half_of_saturation_on(curves: dict[str, dict[float, Score]]) -> None:
    assert verdict(curves)["least lead in attainment from 50 % on"] > 0.0


def test_it_holds_nine_of_ten_slos_up_to_a_higher_load(curves: dict[str, dict[float, Score]]) -> None:
    assert verdict(curves)["their ratio"] >= 1.25


def test_past_saturation_its_goodput_stays_level(curves: dict[str, dict[float, Score]]) -> None:
    assert verdict(curves)["goodput at 125 % over own peak"] >= 0.9


def test_it_is_first_on_another_fleet() -> None:
    best = max(scored(BASELINES[name], 1.0, OTHER).attainment for name in AGAINST[2:])
    assert scored(routed(OTHER), 1.0, OTHER).attainment > best


def test_past_saturation_it_is_first_because_those_that_are_late_yield(curves: dict[str, dict[float, Score]]) -> None:
    best = max(curves[name][1.25].attainment for name in AGAINST)
    assert curves[ROUTER][1.25].attainment > best + 0.1
    assert scored(routed(FLEET, Rules(yields=False)), 1.25).attainment < best + 0.1
