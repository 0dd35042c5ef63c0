"""Measured latency points: one load, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from statistics import fmean
from typing import Literal

from pydantic import Field, model_validator

from agentroute.origin import Count, Flag, Frozen, Milliseconds, Positive, Provenance, Share, Text, Tokens

Statistic = Literal["mean", "p50", "p90", "p95", "p99"]
STATISTICS: tuple[Statistic, ...] = ("mean", "p50", "p90", "p95", "p99")

Loop = Literal["closed", "open"]
"""closed: a fixed number of clients, each of which sends its next request when the last one has ended; open: requests
are sent at a rate, whatever the server does."""


class Measured(Frozen):
    """One quantity in milliseconds, under the statistic that was taken of it."""

    mean: Milliseconds | None = None
    """The mean over the run's requests."""
    p50: Milliseconds | None = None
    """The median."""
    p90: Milliseconds | None = None
    """The 90th percentile."""
    p95: Milliseconds | None = None
    """The 95th percentile."""
    p99: Milliseconds | None = None
    """The 99th percentile."""
    noise: Share | None = None
    """Half the 80 % band of the mean, as a fraction of it, for another run like this one: from how much repeats of the
    load differed. ``None``: it was not repeated."""

    @model_validator(mode="after")
    def _some_and_in_order(self) -> Measured:
        tail = [v for v in (self.p50, self.p90, self.p95, self.p99) if v is not None]
        if self.mean is None and not tail:
            raise ValueError("must hold at least one of mean, p50, p90, p95, p99")
        if tail != sorted(tail):
            raise ValueError("percentiles contradict each other; they must not fall from p50 to p99")
        return self


class Point(Frozen):
    """What was seen at one load."""

    isl: Tokens
    """Input tokens of each request."""
    osl: Tokens
    """Output tokens of each request."""
    concurrency: Count
    """Requests in flight: of a closed loop the clients, of an open loop the mean that was reached."""
    ttft_ms: Measured | None = None
    """Time to the first token, in milliseconds."""
    tpot_ms: Measured | None = None
    """Time per output token after the first, (E2E - TTFT) / (OSL - 1), in milliseconds."""
    e2e_ms: Measured | None = None
    """Time of the whole request, in milliseconds."""
    requests_per_s: Positive | None = None
    """Requests that were completed in a second; ``None`` when unknown."""
    saturated: Flag | None = None
    """Whether more was sent than the server took, so that its queue grew while it was measured and the times depend on
    how long that was; ``None`` when unknown."""

    @model_validator(mode="after")
    def _times_agree(self) -> Point:
        given = [v for v in (self.ttft_ms, self.tpot_ms, self.e2e_ms) if v is not None]
        if not given:
            raise ValueError("must hold at least one of ttft_ms, tpot_ms, e2e_ms")
        ttft, tpot, e2e = (v.mean if v else None for v in (self.ttft_ms, self.tpot_ms, self.e2e_ms))
        if e2e is not None:
            parts = (ttft or 0.0) + (self.osl - 1) * (tpot or 0.0)
            whole = ttft is not None and tpot is not None
            if parts > e2e * 1.33 or (whole and parts < e2e * 0.75):
                raise ValueError(
                    f"the times contradict each other: ttft + (osl - 1) * tpot = {parts:.1f}, e2e = {e2e:.1f}"
                )
        return self

    @property
    def load(self) -> tuple[int, int, int]:
        """(isl, osl, concurrency), the key of the point."""
        return self.isl, self.osl, self.concurrency

    def mean_ttft_ms(self) -> float | None:
        """The mean TTFT: measured, or what the other two leave."""
        if self.ttft_ms is not None:
            return self.ttft_ms.mean
        e2e, tpot = self.e2e_ms, self.tpot_ms
        if e2e is None or tpot is None or e2e.mean is None or tpot.mean is None:
            return None
        rest = e2e.mean - (self.osl - 1) * tpot.mean
        return rest if rest > 0 else None

    def mean_tpot_ms(self) -> float | None:
        """The mean TPOT: measured, or what the other two leave."""
        if self.tpot_ms is not None:
            return self.tpot_ms.mean
        e2e, ttft = self.e2e_ms, self.ttft_ms
        if e2e is None or ttft is None or e2e.mean is None or ttft.mean is None or self.osl < 2:
            return None
        rest = (e2e.mean - ttft.mean) / (self.osl - 1)
        return rest if rest > 0 else None


def noise_of(quantities: Iterable[Measured | None]) -> float:
    """The root mean square of the noise of those that have one, as a fraction; 0.0 where none has."""
    squares = [one.noise**2 for one in quantities if one is not None and one.noise is not None]
    return sqrt(fmean(squares)) if squares else 0.0


class Measurement(Frozen):
    """A block of points from one source."""

    provenance: Provenance
    """Where the points come from."""
    workload: Text | None = None
    """What was sent (``closed loop, random tokens, fixed isl and osl``); ``None`` when unknown."""
    loop: Loop | None = None
    """How the next request was timed; ``None`` when unknown."""
    prefix_hit: Share | None = None
    """Share of the prompt tokens that a prefix cache held already, 0 to 1; ``None`` when unknown."""
    points: tuple[Point, ...] = Field(min_length=1, max_length=20_000)
    """The loads that were measured."""
