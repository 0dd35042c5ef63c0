"""The policies that a router is held against. Each sends at once; what does not run waits in the engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import blake2b
from math import log

from simulation.engine import Server, blocks
from simulation.grounds import closed_loop
from simulation.trace import Request
from simulation.world import Gauges, Placement, Policy, Result


class Baseline:
    """Chooses among the servers that can ever take the request, by what it knows of those in flight."""

    def __init__(self, servers: Sequence[Server], seed: int) -> None:
        self.servers = servers
        self.in_flight = [0] * len(servers)
        self.draw = random.Random(seed)

    def arrive(self, request: Request, now: float) -> Iterable[Placement]:
        tokens = request.prompt_tokens + request.max_output_tokens
        able = [i for i, s in enumerate(self.servers) if tokens <= s.window and blocks(tokens) <= s.blocks]
        chosen = self.choose(request, able)
        self.in_flight[chosen] += 1
        return [Placement(request, chosen)]

    def answers(self, request: Request, now: float) -> Iterable[Placement]:
        """Nothing is made of it."""
        return []

    def ended(self, request: Request, result: Result, now: float) -> Iterable[Placement]:
        assert result.server is not None
        self.in_flight[result.server] -= 1
        return []

    def given_up(self, request: Request, now: float) -> Iterable[Placement]:
        raise AssertionError("nothing is held back")

    def observe(self, gauges: Sequence[Gauges], now: float) -> Iterable[Placement]:
        return []

    def choose(self, request: Request, able: list[int]) -> int:
        raise NotImplementedError

    def least(self, able: list[int], weight: Callable[[Server], float]) -> int:
        """The one that would have the least in flight for its weight; ties by chance."""
        return min(able, key=lambda i: ((self.in_flight[i] + 1) / weight(self.servers[i]), self.draw.random()))


def by_gpus(server: Server) -> float:
    return float(server.gpus)


@cache
def by_speed(server: Server) -> float:
    """Answers per second in a closed loop of sixteen middling requests: what an operator would measure for weights."""
    n, osl = 16, 512
    ttft_s, tpot_s = closed_loop(server, 8_192, osl, n)
    return n / (ttft_s + (osl - 1) * tpot_s)


class Random(Baseline):
    def choose(self, request: Request, able: list[int]) -> int:
        return self.draw.choice(able)


class RoundRobin(Baseline):
    _turn = -1

    def choose(self, request: Request, able: list[int]) -> int:
        self._turn = next(t for t in range(self._turn + 1, self._turn + 1 + len(self.servers)) if self._at(t) in able)
        return self._at(self._turn)

    def _at(self, turn: int) -> int:
        return turn % len(self.servers)


class LeastInFlight(Baseline):
    def choose(self, request: Request, able: list[int]) -> int:
        return self.least(able, lambda server: 1.0)


class LeastByGpus(Baseline):
    """Capacity-weighted: in flight for each GPU."""

    def choose(self, request: Request, able: list[int]) -> int:
        return self.least(able, by_gpus)


class LeastBySpeed(Baseline):
    """Capacity-weighted: in flight for what was measured."""

    def choose(self, request: Request, able: list[int]) -> int:
        return self.least(able, by_speed)


class PrefixSticky(Baseline):
    """A session and a burst each have a server, by rendezvous hashing weighted with what was measured."""

    def choose(self, request: Request, able: list[int]) -> int:
        return max(able, key=lambda i: self._draw_of(request.session, i))

    def _draw_of(self, session: str, server: int) -> float:
        digest = blake2b(f"{session} {server}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest) + 1) / (2**64 + 1)
        return -by_speed(self.servers[server]) / log(uniform)


class BoundedSticky(PrefixSticky):
    """The same, passing over servers with more than a quarter above their share of what is in flight."""

    def choose(self, request: Request, able: list[int]) -> int:
        share = (sum(self.in_flight[i] for i in able) + 1) / sum(by_speed(self.servers[i]) for i in able)
        free = [i for i in able if self.in_flight[i] + 1 <= max(1.0, 1.25 * share * by_speed(self.servers[i]))]
        return super().choose(request, free or able)


BASELINES: dict[str, Callable[[Sequence[Server], int], Policy]] = {
    "random": Random,
    "round-robin": RoundRobin,
    "least in flight": LeastInFlight,
    "least by GPUs": LeastByGpus,
    "least by speed": LeastBySpeed,
    "prefix-sticky": PrefixSticky,
    "sticky, bounded": BoundedSticky,
}
