"""Which load to measure next: anchors, then where the curve bends, then again what is not sure yet. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, sqrt

from agentroute.bench.noise import Noise
from agentroute.errors import UsageError

KNEE = 3.0
"""A knee: between two neighbours TTFT grows this many times as fast as the concurrency."""

BEND = 0.10
"""A load is added between two neighbours while leaving out one of them would miss by more than this."""

LEAST_ROUNDS, MOST_ROUNDS = 3, 24
"""Every load is measured so often, where the budget allows it; a noise that does not fall is not waited for."""

WALK_SHARE = 0.5
"""Of the budget, for finding loads; the rest is for repeating them."""


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """What to send: ``concurrency`` requests of about ``isl`` prompt tokens at once, ``osl`` answer tokens each."""

    isl: int
    osl: int
    concurrency: int

    def __str__(self) -> str:
        """In a few characters: ``512+64 x 4``."""
        return f"{self.isl}+{self.osl} x {self.concurrency}"


def requests(load: Load) -> int:
    """How many requests a round of a load sends, where the server keeps its clients in step.

    The first of each client, one of each that counts, and those that are still at work then; a single client sends two.
    """
    return 2 if load.concurrency == 1 else 3 * load.concurrency


@dataclass(frozen=True, slots=True)
class Grid:
    """The loads that may be measured. Raises ``UsageError`` when one of them does not fit into the window."""

    isls: tuple[int, ...]
    osls: tuple[int, ...]
    least_n: int
    most_n: int
    slots: int | None = None
    """Requests that the server runs at once; ``None``: unknown."""
    window: int | None = None
    """Prompt and answer of one request, in tokens; ``None``: unknown."""
    pool_tokens: int | None = None
    """The KV memory of all requests, in tokens; ``None``: unknown."""

    def __post_init__(self) -> None:
        if not 1 <= self.least_n <= self.most_n:
            raise UsageError(f"--concurrency must rise, such as 1-16, got {self.least_n}-{self.most_n}")
        longest = max(self.isls) + max(self.osls)
        if self.window is not None and longest > self.window:
            raise UsageError(
                f"an ISL of {max(self.isls)} and an OSL of {max(self.osls)} take {longest} tokens, but the server's "
                f"window is {self.window}; give a shorter --isl or --osl"
            )

    def places(self, load: Load) -> int | None:
        """How many requests of a load run at once, by slots and by memory; ``None``: neither is known."""
        by_pool = max(1, self.pool_tokens // (load.isl + load.osl)) if self.pool_tokens else None
        return min((places for places in (self.slots, by_pool) if places is not None), default=None)

    def anchors(self) -> list[Load]:
        """The loads to begin with. At the shortest prompt: the least, the middle and the greatest concurrency.

        Then every other prompt and answer length at the least and at the greatest.
        """
        ends = sorted({self.least_n, self.most_n})
        middle = self.slots if self.slots and self.least_n < self.slots < self.most_n else None
        first = sorted({*ends, middle or max(1, round(sqrt(self.least_n * self.most_n)))})
        loads = [Load(self.isls[0], self.osls[0], n) for n in first]
        loads += [Load(isl, self.osls[0], n) for isl in self.isls[1:] for n in ends]
        return loads + [Load(isl, osl, n) for osl in self.osls[1:] for isl in self.isls for n in ends]


@dataclass(frozen=True, slots=True)
class Known:
    """What has been seen at one load so far."""

    ttft: Noise
    tpot: Noise
    seconds: float
    """How long its longest round took."""
    tokens: int
    """How many tokens its largest round sent and received."""

    @property
    def rounds(self) -> int:
        """How often it was measured."""
        return self.ttft.rounds

    @property
    def noise(self) -> float:
        """The relative standard error of TTFT or TPOT, the greater."""
        return max(self.ttft.relative, self.tpot.relative)


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the budget; ``None``: no limit."""

    seconds: float | None
    tokens: int | None
    share: float
    """What is left of what there was, 0 to 1: of time or of tokens, the less."""


def next_load(
    grid: Grid,
    known: Mapping[Load, Known],
    left: Left,
    *,
    noise: float,
    is_barred: Callable[[Load], bool] = lambda load: False,
    most_tokens: Callable[[Load], int] = lambda load: requests(load) * (load.isl + load.osl),
) -> Load | None:
    """The load to measure next, or ``None`` when all is known well enough, or what is left does not suffice.

    ``noise`` is the relative standard error to reach; ``is_barred`` says which loads the server does not bear,
    ``most_tokens`` what a round of one may take. The first load of all is not held against what is left.
    """
    fresh = [load for load in grid.anchors() if load not in known and not is_barred(load)]
    if not known:
        return fresh[0] if fresh else None
    candidates = list(fresh)
    if not fresh and left.share > 1.0 - WALK_SHARE:
        candidates += [load for load in _bends(known) if not is_barred(load)]
    open_ = [load for load, seen in known.items() if seen.rounds < MOST_ROUNDS and not _sure(seen, noise)]
    unsure = [load for load in open_ if not is_barred(load)]
    # The least measured first: repeats of one load are then spread over the whole run, and so is a machine that is
    # slow for a while. Of those measured equally often, the least sure.
    candidates += sorted(unsure, key=lambda load: (known[load].rounds, -known[load].noise))
    return next((load for load in candidates if _affordable(load, known, left, most_tokens)), None)


def _sure(seen: Known, noise: float) -> bool:
    return seen.rounds >= LEAST_ROUNDS and seen.noise <= noise


def _bends(known: Mapping[Load, Known]) -> list[Load]:
    """Loads between measured neighbours over concurrency: across a knee first, then where the curve bends most."""
    found: list[tuple[float, Load]] = []
    columns: dict[tuple[int, int], list[Load]] = {}
    for load in sorted(known):
        columns.setdefault((load.isl, load.osl), []).append(load)
    for loads in columns.values():
        bends = _misses(loads, known)
        for i, (low, high) in enumerate(pairwise(loads)):
            middle = round(sqrt(low.concurrency * high.concurrency))
            if not low.concurrency < middle < high.concurrency:
                continue
            steps = known[high].ttft.mean / known[low].ttft.mean, high.concurrency / low.concurrency
            knee = steps[0] > KNEE * steps[1]
            miss = max(bends[i], bends[i + 1])
            if knee or miss > BEND:
                found.append(((100.0 if knee else 0.0) + miss, Load(low.isl, low.osl, middle)))
    return [load for _, load in sorted(found, key=lambda pair: -pair[0])]


def _misses(loads: Sequence[Load], known: Mapping[Load, Known]) -> list[float]:
    """By load, how far (logarithm) a line between its neighbours misses it; the ends have none, so 0."""
    misses = [0.0] * len(loads)
    x = [log(load.concurrency) for load in loads]
    for times in ([log(known[load].ttft.mean) for load in loads], [log(known[load].tpot.mean) for load in loads]):
        for i in range(1, len(loads) - 1):
            place = (x[i] - x[i - 1]) / (x[i + 1] - x[i - 1])
            guess = times[i - 1] + place * (times[i + 1] - times[i - 1])
            misses[i] = max(misses[i], abs(guess - times[i]))
    return misses


def _affordable(load: Load, known: Mapping[Load, Known], left: Left, most_tokens: Callable[[Load], int]) -> bool:
    """Whether what is left suffices. Tokens: the most that a round may take. Time: going by the same load, else by the
    nearest one times how much more is sent."""
    if left.tokens is not None and left.tokens < max(most_tokens(load), known[load].tokens if load in known else 0):
        return False
    if load in known:
        seconds = known[load].seconds
    else:
        nearest = min(known, key=lambda other: _distance(load, other))
        more = max(1.0, load.concurrency / nearest.concurrency)
        seconds = known[nearest].seconds * more * max(1.0, _tokens(load) / _tokens(nearest))
    return left.seconds is None or seconds <= left.seconds


def _distance(a: Load, b: Load) -> float:
    return abs(log(a.isl / b.isl)) + abs(log(a.osl / b.osl)) + abs(log(a.concurrency / b.concurrency))


def _tokens(load: Load) -> int:
    return load.isl + load.osl
