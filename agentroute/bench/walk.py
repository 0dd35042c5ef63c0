"""Walking over the loads of a running server: warm up, measure a round, choose the next load, until all is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import fmean
from typing import Any

from agentroute.bench.cap import (
    SHORT,
    UNKNOWN,
    WARM_OSL,
    affordable_words,
    least_cap,
    most_prompt,
    most_round,
    too_small,
    warm_words,
)
from agentroute.bench.noise import Noise
from agentroute.bench.plan import Grid, Known, Left, Load, next_load
from agentroute.bench.prompts import Lengths, Prompts
from agentroute.bench.send import Loop, Round, ask, sample_of
from agentroute.client import Client
from agentroute.errors import BackendError, FailureKind

BODY: Mapping[str, Any] = {"temperature": 0}
EXACT: Mapping[str, Any] = {**BODY, "ignore_eos": True}
"""Answers of exactly the length that was asked for: vLLM, SGLang and llama.cpp take this field."""
UNCACHED: Mapping[str, Mapping[str, Any]] = {"llamacpp": {**EXACT, "cache_prompt": False}}
"""By wire, what also keeps a cache from knowing the chat template: llama.cpp reuses a prefix token by token."""

FAILED_ROUNDS = 2
"""A load that failed so often is given up, and so is the walk after one more failed round in a row."""

_SETTLE_S, _SETTLES = 0.2, 10
"""How long a server gets to end what was cut off before it counts as somebody else's."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What measuring may take; ``None``: no limit."""

    seconds: float | None = None
    tokens: int | None = None
    """Sent and received, with those of the warm-up: never more, whatever is left out for it.

    Only a chat template that alone takes more passes it: no one knows its length before the first answer.
    """


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the first requests told: how the server counts, and the fields that it takes."""

    lengths: Lengths
    body: Mapping[str, Any]
    tokens: int


def warm_up(client: Client, grid: Grid, prompts: Prompts, wire: str, cap: int | None = None) -> WarmUp:
    """Two requests of different lengths, which also load what a server loads late.

    They leave enough of ``cap`` tokens for the first load, if the server counts about as it is taken to. Raises
    ``BackendError`` when the server does not answer, or does not count its tokens, ``UsageError`` when ``cap`` is too
    small for how it counts.
    """
    body = UNCACHED.get(wire, EXACT)
    try:
        short = _counted(client, prompts, SHORT, body)
    except BackendError as error:
        if error.kind is not FailureKind.BAD_REQUEST:
            raise
        body = BODY  # a strict server refuses a field that it does not know
        short = _counted(client, prompts, SHORT, body)
    words = warm_words(grid)
    if cap is not None:
        left = cap - most_round(grid.anchors()[0], UNKNOWN) - short - 2 * WARM_OSL
        if affordable_words(short, left) < min(words, 2 * SHORT):
            raise too_small(cap, least_cap(grid, Lengths(float(short), short / SHORT)), grid)
        words = min(words, affordable_words(short, left))
    while True:
        try:
            long = _counted(client, prompts, words, body)
        except BackendError as error:
            if error.kind is not FailureKind.CONTEXT_OVERFLOW or words // 2 <= SHORT:
                raise
            words //= 2
        else:
            return WarmUp(Lengths.of((SHORT, short), (words, long)), body, short + long + 2 * WARM_OSL)


def _counted(client: Client, prompts: Prompts, words: int, body: Mapping[str, Any]) -> int:
    """How many tokens the server counts in a prompt of so many words."""
    reply = ask(client, prompts.make(words), Load(words, WARM_OSL, 1), osl=WARM_OSL, body=body)
    if reply is None:
        raise BackendError(FailureKind.INTERRUPTED, "the stream ended without a reply")
    return sample_of(reply).isl


@dataclass(slots=True)
class Walk:
    """Everything that was seen, load by load; it stays whole whenever the walk ends.

    ``client`` routes over exactly the server to be measured, ``wire`` is the name of its adapter.
    ``noise`` is the relative standard error of the means to reach, ``watch`` how many requests the server has by its
    own account, ``progress`` hears of every round.
    """

    client: Client
    wire: str
    grid: Grid
    prompts: Prompts
    budget: Budget
    noise: float
    watch: Callable[[], int | None] = lambda: None
    progress: Callable[[Walk, Round], None] = lambda walk, last: None
    rounds: dict[Load, list[Round]] = field(default_factory=dict)
    """The rounds that count, by load."""
    failed: dict[Load, list[Round]] = field(default_factory=dict)
    most_n: int | None = None
    """The greatest concurrency that the server bears, where it refused more."""
    strangers: dict[Load, int] = field(default_factory=dict)
    """By load, the most requests that the server had and that were not ours."""
    stopped: str | None = None
    """Why it ended before everything was known."""
    interrupted: bool = False
    """Whether it was ended by Ctrl-C."""
    tokens: int = 0
    """Sent and received, with those of the warm-up."""
    _asked: Grid = field(init=False)
    """The loads that are still asked for: of a server that refuses the most, fewer at once."""
    _began: float = field(default_factory=time.monotonic)

    _lengths: Lengths = UNKNOWN

    def __post_init__(self) -> None:
        """Raises ``UsageError`` for a token budget that does not suffice for the first load."""
        self._asked, cap = self.grid, self.budget.tokens
        if cap is not None and cap < least_cap(self.grid):
            raise too_small(cap, least_cap(self.grid), self.grid)

    def run(self) -> None:
        """Measure until every load is known well enough or the budget is spent; Ctrl-C ends it, too.

        At least one round of the first load is measured, however long it takes. Raises ``BackendError`` when not even
        that succeeds, ``UsageError`` when its tokens might be more than the budget's.
        """
        try:
            for _ in self.steps():
                pass
        except KeyboardInterrupt:
            if not self.rounds:
                raise
            self.interrupted, self.stopped = True, "it was interrupted"

    def steps(self) -> Iterator[Round]:
        """The same, a round at a time; every round is asked for before it is measured."""
        self._began = time.monotonic()
        cap = self.budget.tokens
        warm = warm_up(self.client, self.grid, self.prompts, self.wire, cap)
        self.tokens += warm.tokens
        self._lengths = warm.lengths
        if cap is not None and self.tokens + self._most_tokens(self.grid.anchors()[0]) > cap:
            raise too_small(cap, least_cap(self.grid, warm.lengths), self.grid)
        in_a_row = 0
        while (load := self._next()) is not None:
            seen = self._measure(load, warm)
            self.progress(self, seen)
            yield seen
            # A server that refuses is well, and is asked for less.
            in_a_row = in_a_row + 1 if seen.failures and not seen.is_refused else 0
            if in_a_row > FAILED_ROUNDS:
                self.stopped, self.most_n = f"{in_a_row} rounds in a row failed", None
                return
        if (left_out := self._next(replace(self._left(), seconds=None, tokens=None))) is not None:
            self.stopped = f"the budget is spent: {self._too_much(left_out)}"

    def known(self) -> dict[Load, Known]:
        """What has been seen, by load."""
        return {load: _known(rounds) for load, rounds in self.rounds.items()}

    def missing(self) -> list[str]:
        """What a whole curve would have and this one lacks, a sentence each."""
        known = self.known()
        absent = [load for load in self.grid.anchors() if load not in known]
        unsure = [load for load, seen in known.items() if seen.noise > self.noise]
        said = [f"not measured: {', '.join(map(str, absent))}"] if absent else []
        if unsure:
            said.append(f"noisier than {self.noise:.0%}: {', '.join(map(str, sorted(unsure)))}")
        return said

    def _next(self, left: Left | None = None) -> Load | None:
        return next_load(
            self._asked,
            self.known(),
            left or self._left(),
            noise=self.noise,
            is_barred=self._is_barred,
            most_tokens=self._most_tokens,
        )

    def _most_tokens(self, load: Load) -> int:
        return most_round(load, self._lengths)

    def _too_much(self, load: Load) -> str:
        """What a load would take more of than is left."""
        left, most, cap = self._left(), self._most_tokens(load), self.budget.tokens
        if left.tokens is not None and left.tokens < most:
            return f"tokens left: {left.tokens:,} of {cap:,}, and {load} may take {most:,}"
        return f"seconds left: {left.seconds or 0.0:.1f} of {self.budget.seconds or 0.0:g}, too few for {load}"

    def _measure(self, load: Load, warm: WarmUp) -> Round:
        strangers = self._settle()
        busy: list[int] = []

        def watch() -> None:
            if (count := self.watch()) is not None and count > load.concurrency:
                busy.append(count - load.concurrency)

        words, count = warm.lengths.words(load.isl), max(2, load.concurrency)
        loop = Loop(
            self.client,
            load,
            lambda: self.prompts.make(words),
            count=count,
            body=warm.body,
            most_prompt=most_prompt(words, warm.lengths),
            most_tokens=None if self.budget.tokens is None else self.budget.tokens - self.tokens,
        )
        deadline = None
        if self.rounds and self.budget.seconds is not None:
            deadline = self._began + self.budget.seconds
        seen = loop.run(deadline=deadline, watch=watch)
        self.tokens += seen.tokens
        # Once may be a request of ours that the server has not let go of yet.
        strangers = max(strangers, min(sorted(busy)[-2:]) if len(busy) > 1 else 0)
        if strangers:
            self.strangers[load] = max(strangers, self.strangers.get(load, 0))
        if seen.failures:
            self._failed(load, seen)
        elif 2 * len(seen.samples) >= count:  # else the budget cut it off too soon
            self.rounds.setdefault(load, []).append(seen)
        return seen

    def _failed(self, load: Load, seen: Round) -> None:
        if not self.rounds:
            raise seen.failures[0]
        self.failed.setdefault(load, []).append(seen)
        if seen.is_overloaded and load.concurrency > self.grid.least_n:
            self.most_n = min(load.concurrency - 1, self.most_n or load.concurrency)
            borne = [known.concurrency for known in self.rounds if known.concurrency < load.concurrency]
            between = round(sqrt(max(borne, default=self.grid.least_n) * load.concurrency))
            self._asked = replace(self._asked, most_n=max(self.grid.least_n, min(between, self.most_n)))

    def _is_barred(self, load: Load) -> bool:
        beyond = self.most_n is not None and load.concurrency > self.most_n
        failed = [other for other, rounds in self.failed.items() if len(rounds) >= FAILED_ROUNDS]
        # What failed with fewer at once is too long for the server, not too much.
        return beyond or any(
            (other.isl, other.osl) == (load.isl, load.osl) and other.concurrency <= load.concurrency for other in failed
        )

    def _settle(self) -> int:
        """Requests that the server still has though none of ours is on its way; 0 when it does not say."""
        # Somebody who was there before is not waited for again.
        for _ in range(1 if self.strangers else _SETTLES):
            count = self.watch()
            if not count:
                return 0
            time.sleep(_SETTLE_S)
        return count or 0

    def _left(self) -> Left:
        seconds, tokens = self.budget.seconds, self.budget.tokens
        shares = []
        if seconds is not None:
            seconds_left = max(0.0, self._began + seconds - time.monotonic())
            shares.append(seconds_left / seconds)
            seconds = seconds_left
        if tokens is not None:
            tokens_left = max(0, tokens - self.tokens)
            shares.append(tokens_left / tokens)
            tokens = tokens_left
        return Left(seconds, tokens, min(shares, default=1.0))


def _known(rounds: list[Round]) -> Known:
    ttft = [fmean(sample.ttft_ms for sample in seen.samples) for seen in rounds]
    return Known(
        ttft=Noise.of(ttft),
        tpot=Noise.of([round_tpot_ms(seen) or t for seen, t in zip(rounds, ttft, strict=True)]),
        seconds=max(seen.seconds for seen in rounds),
        tokens=max(seen.tokens for seen in rounds),
    )


def round_tpot_ms(seen: Round) -> float | None:
    """The mean TPOT of a round's requests; ``None`` where no answer had two tokens."""
    times = [tpot for sample in seen.samples if (tpot := sample.tpot_ms) is not None]
    return fmean(times) if times else None
