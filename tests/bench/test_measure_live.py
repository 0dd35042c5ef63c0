"""Measuring a real llama.cpp server: a curve predicts another run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from agentroute.bench.plan import Grid, Load
from agentroute.bench.prompts import Prompts
from agentroute.bench.result import measurement, points
from agentroute.bench.send import Round
from agentroute.bench.walk import Budget, Walk
from agentroute.bench.watch import Watch
from agentroute.client import Client, Retry
from agentroute.demo.embedded import EmbeddedServer
from agentroute.demo.run import adirect
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.points import Point
from agentroute.profile import Engine, Profile
from agentroute.router import Router
from agentroute.task import Task

FIRST = Grid((40, 64), (8,), 1, 2, slots=4, window=512)
SECOND = Grid((52,), (8,), 1, 2, slots=4, window=512)
"""Lengths that the first run did not measure. One thread of a shared core reads about 100 tokens in a second."""


@contextmanager
def walk(server: EmbeddedServer, grid: Grid, *, seed: int, seconds: float) -> Iterator[Walk]:
    profile = Profile(format=1, name="measured", engine=Engine(name="llamacpp"))
    alone = Deployment(name="measured", profile=profile, urls=(server.url,), adapter="llamacpp")
    with (
        Client(Router(Fleet([alone])), retry=Retry(attempts=1), transport=adirect()) as client,
        Watch(server.url, "llamacpp", transport=httpx.HTTPTransport()) as watch,
    ):
        yield Walk(client, "llamacpp", grid, Prompts(seed), Budget(seconds), noise=0.10, watch=watch)


def in_turn(*walks: Walk) -> None:
    """A round of each after the other, so that all of them meet the machine as it is then: fast, or shared."""
    going: list[Iterator[Round]] = [one.steps() for one in walks]
    while going:
        going = [one for one in going if next(one, None) is not None]


def held(profile: Profile, seen: tuple[Point, ...]) -> list[bool]:
    """Whether each mean TTFT and TPOT lies in the band of a decision for its load."""
    router = Router(Fleet([Deployment(name="measured", profile=profile)]))
    found = []
    for point in seen:
        asked = Task(context_tokens=point.isl, max_output_tokens=point.osl, concurrency=point.concurrency)
        decision = router.decide(asked)
        for said, mean in ((decision.ttft_ms, point.mean_ttft_ms()), (decision.tpot_ms, point.mean_tpot_ms())):
            assert said is not None and mean is not None
            found.append(said.low <= mean <= said.high)
    return found


@pytest.mark.alone
def test_a_measured_curve_predicts_a_second_run_within_its_band(llama_split: EmbeddedServer) -> None:
    with (
        walk(llama_split, FIRST, seed=1, seconds=40.0) as first,
        walk(llama_split, SECOND, seed=2, seconds=40.0) as second,
    ):
        in_turn(first, second)
    assert set(first.rounds) >= {Load(isl, 8, n) for isl in FIRST.isls for n in (1, 2)}
    block = measurement(first, "the test's own server", engine_version=None)
    assert not {point.load for point in block.points} & {point.load for point in points(second)}
    # The length that was asked for is met within a token; so short a prompt is mostly chat template.
    assert {abs(point.isl - asked) <= 1 for point, asked in zip(points(second), (52, 52), strict=True)} == {True}
    profile = Profile(format=1, name="measured", engine=Engine(name="llamacpp"), measurements=(block,))
    hits = held(profile, points(second))
    assert sum(hits) >= 0.75 * len(hits), (block.points, points(second))
