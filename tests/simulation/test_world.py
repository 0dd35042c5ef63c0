"""A trace and its world: the same for everybody, and every request comes to one end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from simulation.baselines import BASELINES, LeastInFlight
from simulation.engine import Server
from simulation.grounds import GROUNDS, Ground, measured, profiles
from simulation.measure import run
from simulation.routed import Rules, routed
from simulation.trace import KINDS, Mix, Request, requests_per_agent, trace
from simulation.world import Placement, World


def chain(first: Request) -> list[Request]:
    found = [first]
    while (following := found[-1].next) is not None:
        found.append(following)
    return found


def test_a_trace_is_its_seed() -> None:
    def shape(seed: int) -> list[tuple[float, int, str]]:
        return [(at, r.prompt_tokens, r.kind) for at, r in trace(Mix(), 5.0, 60.0, seed)]

    assert shape(1) == shape(1)
    assert shape(1) != shape(2)


def test_a_trace_has_the_rate_and_the_kinds_that_were_asked_for() -> None:
    requests = [r for _, first in trace(Mix(), 10.0, 2_000.0, 3) for r in chain(first)]
    assert len(requests) / 2_000.0 == pytest.approx(10.0, rel=0.1)
    assert {r.kind for r in requests} == set(KINDS)
    assert requests_per_agent(Mix()) > 1


def test_a_turn_begins_with_the_turn_before_and_its_answer() -> None:
    for _, first in trace(Mix(), 10.0, 100.0, 4):
        for one, following in zip(chain(first), chain(first)[1:], strict=False):
            n = len(one.pieces)
            assert following.pieces[:n] == one.pieces
            assert following.pieces[n].key == one.answer_key
            assert following.pieces[n].end == one.prompt_tokens + one.output_tokens
            assert following.prompt_tokens > following.pieces[n].end


@pytest.mark.parametrize("ground", GROUNDS, ids=lambda ground: ground.name)
def test_every_request_comes_to_one_end(ground: Ground) -> None:
    makes = {"router": routed(ground), **BASELINES}
    for make in makes.values():
        world = World(ground.true, make(ground.true, 1))
        results = world.run(trace(ground.mix, ground.saturation_rps, 30.0, 5))
        assert all(r.ended_at is not None for r in results)
        assert len({r.request.number for r in results}) == len(results)
        for r in results:
            assert r.ended_at is not None
            assert r.ended_at <= r.asked_at + r.request.give_up_s + 1e-9
            assert r.e2e_s is not None or not r.kept
        assert all(engine.used_blocks == 0 and not engine.running and not engine.waiting for engine in world.engines)


class OneGivesWay(LeastInFlight):
    """Holds everything back until somebody gives up, whose place the next one has."""

    def __init__(self, servers: Sequence[Server], seed: int) -> None:
        super().__init__(servers, seed)
        self.held: list[Request] = []

    def arrive(self, request: Request, now: float) -> Iterable[Placement]:
        self.held.append(request)
        return ()

    def given_up(self, request: Request, now: float) -> Iterable[Placement]:
        self.held.remove(request)
        next_one, self.held = self.held[:1], self.held[1:]
        self.in_flight[0] += len(next_one)
        return [Placement(one, 0) for one in next_one]


def test_who_gives_up_makes_room_for_the_next_at_once() -> None:
    ground = GROUNDS[0]
    (_, one), (_, other), *_ = trace(ground.mix, 10.0, 30.0, 5)
    first = replace(one, next=None, give_up_s=1.0)
    second = replace(other, next=None, give_up_s=1_000.0)
    results = World(ground.true, OneGivesWay(ground.true, 1)).run([(0.0, first), (0.5, second)])
    assert [result.placed_at for result in results] == [None, 1.0]
    assert results[1].e2e_s is not None


@pytest.mark.parametrize("name", ["agentroute", *BASELINES])
def test_equal_seeds_give_equal_scores(name: str) -> None:
    ground = GROUNDS[0]
    make = routed(ground, Rules()) if name == "agentroute" else BASELINES[name]
    once, again = (run(ground, make, 4.0, seed=6, warm_up_s=10.0, window_s=30.0) for _ in range(2))
    assert once == again


@pytest.mark.parametrize("ground", GROUNDS, ids=lambda ground: ground.name)
def test_the_router_is_told_of_servers_that_are_not_quite_so(ground: Ground) -> None:
    """Each curve is the truth of one request size, off by at most a quarter, and seldom right."""
    offs = set()
    for known, (_, server) in zip(profiles(ground, 7), ground.servers, strict=True):
        truth = {(isl, osl, n): (ttft, tpot) for isl, osl, n, ttft, tpot in measured(server)}
        for point in known.points:
            assert point.ttft_ms is not None
            assert point.tpot_ms is not None
            for seen, true in zip((point.ttft_ms.mean, point.tpot_ms.mean), truth[point.load], strict=True):
                assert seen is not None
                offs.add(round(seen / (1e3 * true), 6))
    assert len(offs) == 2 * len(ground.servers)
    assert all(0.75 <= off <= 1.25 for off in offs)
