"""A seeded trace of what agents send: sessions, long steps, bursts of siblings, batch jobs.

The shapes are assumed, after what public traces of agents and chats look like: prompts of some thousand tokens that
grow with every turn, answers of some hundred, most of a prompt seen before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from typing import Literal

from simulation.prefix_cache import Piece

Kind = Literal["session", "long", "burst", "batch"]
KINDS: tuple[Kind, ...] = ("session", "long", "burst", "batch")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Request:
    """One request. The router is told all but how long the answer will be, and what comes next."""

    number: int
    kind: Kind
    pieces: tuple[Piece, ...]
    """The prompt's messages; the last one's ``end`` is the length of the prompt."""
    answer_key: int
    output_tokens: int
    """What the model will write."""
    expected_output_tokens: int
    """The mean of its kind."""
    max_output_tokens: int
    session: str
    """Those that belong together: a conversation, a burst."""
    siblings: int = 1
    ttft_s: float | None = None
    tpot_s: float | None = None
    deadline_s: float | None = None
    give_up_s: float
    """When the agent gives up, in seconds since it asked."""
    next: Request | None = None
    think_s: float = 0.0
    """From the end of the one before until this one is asked."""

    @property
    def prompt_tokens(self) -> int:
        return self.pieces[-1].end

    def kept(self, ttft_s: float | None, e2e_s: float | None) -> bool:
        """Whether an answer with these times kept every SLO; ``None``: it never came."""
        if ttft_s is None or e2e_s is None or e2e_s > self.give_up_s:
            return False
        tpot_s = (e2e_s - ttft_s) / max(1, self.output_tokens - 1)
        return (
            (self.ttft_s is None or ttft_s <= self.ttft_s)
            and (self.tpot_s is None or tpot_s <= self.tpot_s)
            and (self.deadline_s is None or e2e_s <= self.deadline_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How the arrivals of a fleet are made up: shares of agents that start, by kind, and what they want."""

    shares: tuple[tuple[Kind, float], ...] = (("session", 0.55), ("long", 0.15), ("burst", 0.04), ("batch", 0.26))
    ttft_s: float = 2.0
    tpot_s: float = 0.06
    longest: int = 100_000


REQUESTS_PER_AGENT: dict[Kind, float] = {"session": 6.0, "long": 2.0, "burst": 26.0, "batch": 1.0}
"""Mean requests that one agent sends."""


def requests_per_agent(mix: Mix) -> float:
    """Mean requests for each agent that starts."""
    whole = sum(share for _, share in mix.shares)
    return sum(share * REQUESTS_PER_AGENT[kind] for kind, share in mix.shares) / whole


def trace(mix: Mix, requests_per_s: float, until_s: float, seed: int) -> Iterator[tuple[float, Request]]:
    """Agents that start at random times (Poisson), each with its first request: the time and the request.

    A session's later turns hang on ``Request.next``; the siblings of a burst come at the same time. The same seed at
    another rate gives the same agents, sooner or later.
    """
    made = _Maker(mix, random.Random(seed))
    agents_per_s = requests_per_s / requests_per_agent(mix)
    now, arrivals = 0.0, random.Random(seed + 1)
    kinds, weights = zip(*mix.shares, strict=True)
    while True:
        now += arrivals.expovariate(1.0) / agents_per_s
        if now > until_s:
            return
        kind: Kind = arrivals.choices(kinds, weights)[0]
        for request in made.agent(kind):
            yield now, request


class _Maker:
    """Draws agents; every draw is from one generator, so that a seed is a trace."""

    def __init__(self, mix: Mix, draw: random.Random) -> None:
        self._mix, self._draw = mix, draw
        self._numbers = 0
        self._keys = 0
        # Four applications, each with its own system prompt and tools.
        self._apps = [(self._key(), tokens) for tokens in (1_200, 2_500, 4_000, 6_000)]

    def agent(self, kind: Kind) -> list[Request]:
        """The first requests of one agent."""
        return {"session": self._session, "long": self._long, "burst": self._burst, "batch": self._batch}[kind]()

    def _session(self) -> list[Request]:
        turns = self._draw.randint(3, 9)
        return [self._turns(turns, "session", self._app(), (300, 1_500), (250, 3_000), (40, 600), think_s=10.0)]

    def _long(self) -> list[Request]:
        first = self._between(20_000, 0.9 * self._mix.longest)
        steps, app = self._draw.randint(1, 3), self._app()
        return [self._turns(steps, "long", app, (first, first), (500, 2_500), (150, 900), think_s=3.0)]

    def _turns(
        self, turns: int, kind: Kind, app: Piece, first: tuple[float, float], more: tuple[float, float],
        output: tuple[int, int], think_s: float,
    ) -> Request:  # fmt: skip
        """A conversation: each turn's prompt is the last one with its answer and some more tokens."""
        pieces, drawn = [app], []
        name = f"{kind}-{self._numbers}"
        for turn in range(turns):
            asked = round(self._between(*(more if turn else first)))
            written = round(self._between(*output))
            pieces.append(Piece(self._key(), pieces[-1].end + asked))
            if pieces[-1].end + output[1] > self._mix.longest:
                break
            answer = Piece(self._key(), pieces[-1].end + written)
            drawn.append((tuple(pieces), answer.key, written, self._draw.expovariate(1.0 / think_s) if turn else 0.0))
            pieces.append(answer)
        following: Request | None = None
        for prompt, key, written, think in reversed(drawn):
            following = self._request(kind, prompt, key, written, output, name, think_s=think, following=following)
        assert following is not None
        return following

    def _burst(self) -> list[Request]:
        siblings = self._draw.randint(12, 40)
        app = self._app()
        shared = Piece(self._key(), app.end + round(self._between(3_000, 20_000)))
        name = f"burst-{self._numbers}"
        made = []
        for _ in range(siblings):
            own = Piece(self._key(), shared.end + round(self._between(150, 1_500)))
            written = round(self._between(80, 500))
            made.append(
                self._request("burst", (app, shared, own), self._key(), written, (80, 500), name, siblings=siblings)
            )
        return made

    def _batch(self) -> list[Request]:
        prompt = (Piece(self._key(), round(self._between(800, 8_000))),)
        written = round(self._between(300, 1_500))
        return [self._request("batch", prompt, self._key(), written, (300, 1_500), f"batch-{self._numbers}")]

    def _request(
        self, kind: Kind, pieces: tuple[Piece, ...], key: int, written: int, output: tuple[int, int], name: str,
        *, siblings: int = 1, think_s: float = 0.0, following: Request | None = None,
    ) -> Request:  # fmt: skip
        self._numbers += 1
        least, most = output
        prompt = pieces[-1].end
        deadline = {"session": None, "long": 25.0 + prompt / 2_000, "burst": 40.0, "batch": 240.0}[kind]
        return Request(
            number=self._numbers, kind=kind, pieces=pieces, answer_key=key, output_tokens=written,
            expected_output_tokens=round((most - least) / log(most / least)), max_output_tokens=most, session=name,
            siblings=siblings, deadline_s=deadline, give_up_s=deadline or 90.0, think_s=think_s, next=following,
            ttft_s=self._mix.ttft_s if kind == "session" else None,
            tpot_s=self._mix.tpot_s if kind == "session" else None,
        )  # fmt: skip

    def _app(self) -> Piece:
        return Piece(*self._draw.choice(self._apps))

    def _between(self, least: float, most: float) -> float:
        """Log-uniform."""
        return exp(self._draw.uniform(log(least), log(most)))

    def _key(self) -> int:
        """Names a prompt up to here; no two are alike."""
        self._keys += 1
        return self._keys
