"""What is asked of the router, on a part of what ``make simulate`` runs: one fleet, few loads, the best baselines."""

from __future__ import annotations

import pytest
from simulation.baselines import BASELINES
from simulation.grounds import GROUNDS
from simulation.measure import Make, Score, run
from simulation.report import ROUTER, verdict
from simulation.routed import routed

LOADS = (0.5, 0.75, 1.0, 1.25)
AGAINST = ("least in flight", "least by speed", "prefix-sticky", "sticky, bounded")


@pytest.fixture(scope="module")
def curves() -> dict[str, dict[float, Score]]:
    ground = GROUNDS[1]
    makes = {name: BASELINES[name] for name in AGAINST} | {ROUTER: routed(ground)}

    def scored(make: Make, load: float) -> Score:
        return run(ground, make, load * ground.saturation_rps, warm_up_s=60.0, window_s=100.0, tail_s=20.0)

    return {name: {load: scored(make, load) for load in LOADS} for name, make in makes.items()}


def test_it_is_first_at_every_load_from_half_of_saturation_on(curves: dict[str, dict[float, Score]]) -> None:
    assert verdict(curves)["least lead in attainment from 50 % on"] > 0.0


def test_it_holds_nine_of_ten_slos_up_to_a_higher_load(curves: dict[str, dict[float, Score]]) -> None:
    assert verdict(curves)["their ratio"] >= 1.25


def test_past_saturation_its_goodput_stays_level(curves: dict[str, dict[float, Score]]) -> None:
    assert verdict(curves)["goodput at 125 % over own peak"] >= 0.9
