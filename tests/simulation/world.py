"""Servers, a policy and a trace under one clock: what became of every request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, Protocol

from simulation.engine import Call, Engine, Server
from simulation.trace import Kind, Request

SCRAPE_S = 1.0
"""How often the servers' gauges are read."""


class Gauges(NamedTuple):
    """What a server says of itself, as vLLM's metrics do."""

    running: int
    waiting: int
    kv_usage: float
    """Share of the blocks that running requests stand on."""


class Placement(NamedTuple):
    """A request that goes to a server now."""

    request: Request
    server: int


class Policy(Protocol):
    """Where requests go. Each event may place any number of requests, those that waited included."""

    def arrive(self, request: Request, now: float) -> Iterable[Placement]:
        """A request has come."""

    def answers(self, request: Request, now: float) -> Iterable[Placement]:
        """The first token of a request has come."""

    def ended(self, request: Request, result: Result, now: float) -> Iterable[Placement]:
        """A request that was placed has ended, or its agent has given it up."""

    def given_up(self, request: Request, now: float) -> Iterable[Placement]:
        """A request that was never placed is no longer wanted."""

    def observe(self, gauges: Sequence[Gauges], now: float) -> Iterable[Placement]:
        """The servers' gauges, read a moment ago."""


@dataclass(slots=True)
class Result:
    """What became of a request."""

    request: Request
    asked_at: float
    placed_at: float | None = None
    server: int | None = None
    call: Call | None = None
    ended_at: float | None = None
    """When the answer was whole, or the agent gave up."""

    @property
    def ttft_s(self) -> float | None:
        """From the asking to the first token, waiting at the router included."""
        at = self.call.first_token_at if self.call else None
        return None if at is None else at - self.asked_at

    @property
    def e2e_s(self) -> float | None:
        at = self.call.done_at if self.call else None
        return None if at is None else at - self.asked_at

    @property
    def kept(self) -> bool:
        return self.request.kept(self.ttft_s, self.e2e_s)

    @property
    def kind(self) -> Kind:
        return self.request.kind


class World:
    """Runs a trace; ``results`` are in the order of asking."""

    def __init__(self, servers: Sequence[Server], policy: Policy, *, give_up: bool = True) -> None:
        self.engines = [Engine(server) for server in servers]
        self.results: list[Result] = []
        self.now = 0.0
        self._policy = policy
        self._give_up = give_up
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = count()
        self._by_request: dict[int, Result] = {}
        self._by_call: dict[Call, Result] = {}
        self._wakes: list[float | None] = [None] * len(servers)

    def run(self, arrivals: Iterable[tuple[float, Request]], until_s: float = float("inf")) -> list[Result]:
        """Everything until ``until_s``, or until nothing more happens."""
        for at, request in arrivals:
            self._at(at, "ask", request)
        self._at(SCRAPE_S, "scrape", None)
        while self._events:
            at, _, what, about = heappop(self._events)
            if at > until_s:
                break
            self.now = at
            if what == "engine":
                self._engine(about, at)
            elif what == "ask":
                self._ask(about)
            elif what == "give up":
                self._gives_up(about)
            else:
                self._place(self._policy.observe([gauges(engine) for engine in self.engines], at))
                if self._events:
                    self._at(at + SCRAPE_S, "scrape", None)
        return self.results

    def _at(self, at: float, what: str, about: object) -> None:
        heappush(self._events, (at, next(self._order), what, about))

    def _ask(self, request: Request) -> None:
        result = Result(request, self.now)
        self.results.append(result)
        self._by_request[request.number] = result
        if self._give_up:
            self._at(self.now + request.give_up_s, "give up", result)
        self._place(self._policy.arrive(request, self.now))

    def _place(self, placements: Iterable[Placement]) -> None:
        for request, server in placements:
            result = self._by_request[request.number]
            if result.ended_at is not None or result.placed_at is not None:
                raise ValueError(f"request {request.number} was placed twice, or after its end")
            call = Call(request.pieces, request.output_tokens, request.answer_key)
            result.placed_at, result.server, result.call = self.now, server, call
            self._by_call[call] = result
            self.engines[server].submit(call, self.now)
            self._wake(server)

    def _wake(self, server: int) -> None:
        at = self.engines[server].wake_at
        if at is not None and at != self._wakes[server]:
            self._wakes[server] = at
            self._at(at, "engine", server)

    def _engine(self, server: int, at: float) -> None:
        engine = self.engines[server]
        if engine.wake_at != at:
            return
        events = engine.boundary(at)
        self._wakes[server] = None
        self._wake(server)
        for call, is_end in events:
            # An answer that ends in the very step in which its agent gave up ended for nobody.
            if call not in self._by_call:
                continue
            if is_end:
                self._ended(self._by_call.pop(call))
            else:
                self._place(self._policy.answers(self._by_call[call].request, at))

    def _gives_up(self, result: Result) -> None:
        if result.ended_at is not None:
            return
        if result.call is None or result.server is None:
            result.ended_at = self.now
            self._follow(result.request)
            self._place(self._policy.given_up(result.request, self.now))
        else:
            self.engines[result.server].abort(result.call, self.now)
            self._wake(result.server)
            del self._by_call[result.call]
            self._ended(result)

    def _ended(self, result: Result) -> None:
        result.ended_at = self.now
        self._follow(result.request)
        self._place(self._policy.ended(result.request, result, self.now))

    def _follow(self, request: Request) -> None:
        if request.next is not None:
            self._at(self.now + request.next.think_s, "ask", request.next)


def gauges(engine: Engine) -> Gauges:
    """What a scrape of a server reads."""
    return Gauges(len(engine.running), len(engine.waiting), engine.used_blocks / engine.server.blocks)
