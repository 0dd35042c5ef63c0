"""What a walk found, as points: how repeats become a mean, percentiles, noise, and a wider band."""

from __future__ import annotations

from statistics import fmean

import pytest
from servers import deployment, router

from agentroute.bench.noise import between_runs, pooled
from agentroute.bench.plan import Grid, Load
from agentroute.bench.prompts import Prompts
from agentroute.bench.result import measurement, notes_of, points
from agentroute.bench.send import Round, Sample
from agentroute.bench.walk import Budget, Walk
from agentroute.client import Client
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.points import Measured, noise_of
from agentroute.profile import Engine, Profile
from agentroute.router import Router
from agentroute.task import Task

LOW, MIDDLE, HIGH = Load(64, 11, 1), Load(64, 11, 4), Load(64, 11, 16)


def walked(rounds: dict[Load, list[list[float]]], *, isl: int = 64) -> Walk:
    """A walk whose requests had these TTFTs, round by round, and a TPOT of a tenth of them."""
    client = Client(router(deployment("http://127.0.0.1:9")))
    walk = Walk(client, "openai", Grid((64,), (11,), 1, 16), Prompts(1), Budget(), noise=0.05)
    for load, each in rounds.items():
        walk.rounds[load] = [
            Round(load, [Sample(isl + i % 2, 11, ms, 2 * ms) for i, ms in enumerate(seen)], requests_per_s=2.0)
            for seen in each
        ]
    return walk


def test_every_round_counts_alike_however_many_requests_it_had() -> None:
    (point,) = points(walked({LOW: [[100.0], [200.0, 200.0, 200.0]]}))
    assert point.mean_ttft_ms() == pytest.approx(150.0)
    assert point.mean_tpot_ms() == pytest.approx(15.0)
    assert point.e2e_ms is not None and point.e2e_ms.mean == pytest.approx(300.0)
    assert point.requests_per_s == 2.0


def test_percentiles_are_given_where_there_are_requests_enough() -> None:
    (few,) = points(walked({LOW: [[float(ms) for ms in range(100, 109)]]}))
    assert few.ttft_ms and few.ttft_ms.p50 == 104.0 and few.ttft_ms.p90 is None
    (many,) = points(walked({LOW: [[float(ms) for ms in range(100, 120)]]}))
    assert many.ttft_ms and (many.ttft_ms.p90, many.ttft_ms.p95, many.ttft_ms.p99) == (117.0, 118.0, None)


def test_the_noise_is_pooled_over_loads_and_falls_with_the_rounds() -> None:
    walk = walked({LOW: [[100.0], [120.0]], HIGH: [[1_000.0], [1_200.0], [1_000.0], [1_200.0]], MIDDLE: [[300.0]]})
    spread = pooled([[100.0, 120.0], [1_000.0, 1_200.0, 1_000.0, 1_200.0]])
    assert spread is not None
    found = {point.concurrency: point.ttft_ms.noise for point in points(walk) if point.ttft_ms}
    assert found == {
        1: pytest.approx(between_runs(spread, 2), abs=1e-4),
        4: pytest.approx(between_runs(spread, 1), abs=1e-4),
        16: pytest.approx(between_runs(spread, 4), abs=1e-4),
    }


def test_without_repeats_the_noise_is_unknown_and_the_notes_say_so() -> None:
    walk = walked({LOW: [[100.0]], HIGH: [[300.0]]})
    assert all(point.ttft_ms and point.ttft_ms.noise is None for point in points(walk))
    assert notes_of(walk)[0].startswith("standard error of the means: unknown where a load has one round")


@pytest.mark.parametrize(("counted", "said"), [(63, 64), (64, 64), (70, 70), (50, 50)])
def test_a_length_that_was_missed_is_said_as_the_server_counted_it(counted: int, said: int) -> None:
    assert [point.isl for point in points(walked({LOW: [[100.0]]}, isl=counted))] == [said]


def test_prompts_that_come_out_alike_are_one_point() -> None:
    walk = walked({Load(8, 11, 1): [[100.0]], Load(16, 11, 1): [[100.0]]}, isl=40)
    assert [point.load for point in points(walk)] == [(40, 11, 1)]


def test_drift_is_told() -> None:
    walk = walked({LOW: [[ms] for ms in (100.0, 101.0, 99.0, 150.0, 151.0, 149.0)]})
    assert any("times drifted by up to +50% between the halves of the run" in note for note in notes_of(walk))


def test_noise_widens_the_band_of_a_decision_and_no_noise_leaves_it() -> None:
    def band(noise: float | None) -> float:
        block = measurement(walked({LOW: [[100.0]], MIDDLE: [[200.0]], HIGH: [[400.0]]}), "x", engine_version=None)
        noisy = tuple(
            point.model_copy(update={"ttft_ms": Measured(mean=point.mean_ttft_ms(), noise=noise)})
            for point in block.points
        )
        measured = block.model_copy(update={"points": noisy})
        profile = Profile(format=1, name="m", engine=Engine(name="other"), measurements=(measured,))
        decision = Router(Fleet([Deployment(name="m", profile=profile)])).decide(
            Task(context_tokens=64, max_output_tokens=11, concurrency=4)
        )
        assert decision.ttft_ms is not None
        return decision.ttft_ms.high / decision.ttft_ms.mean

    assert band(None) == band(0.0) < band(0.4) < band(0.8)


def test_the_noise_of_points_is_their_root_mean_square() -> None:
    assert noise_of([None, Measured(mean=1.0)]) == 0.0
    assert noise_of([Measured(mean=1.0, noise=0.3), Measured(mean=1.0, noise=0.4), None]) == pytest.approx(
        fmean([0.09, 0.16]) ** 0.5
    )
