"""How long a request takes by how many are in flight, part by part: what limits a deployment's speed is read off that.

``compiled`` finds those limits for many loads of one deployment, ``limits`` says what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agentroute.latency.roofline import ByConcurrency, Roofline, Seconds, Terms

RateKind = Literal["weights_bandwidth", "kv_bandwidth", "compute", "all_reduce", "all_to_all", "pipeline"]
RATE_KINDS: tuple[RateKind, ...] = (
    "compute", "kv_bandwidth", "all_to_all", "pipeline", "all_reduce", "weights_bandwidth",
)  # fmt: skip

Metric = Literal["TTFT", "TPOT", "E2E"]
METRICS: tuple[Metric, ...] = ("TTFT", "TPOT", "E2E")

NOTHING: Seconds = (0.0,) * 8


class RateLimit(NamedTuple):
    """``n_c`` is the largest concurrency that this part of the time allows; infinite: none is too large.

    ``demand_ms`` is what the metric takes at the load's own concurrency, ``limit_ms`` what it may take: the SLO, or
    without one what it takes at ``n_c``.
    """

    n_c: float
    metric: Metric
    demand_ms: float
    limit_ms: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of ``isl`` prompt and ``osl`` answer tokens, ``n`` of them in flight, and how long they may take."""

    isl: int
    osl: int
    n: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def slos(self) -> dict[Metric, float]:
        """The limits that are set, in milliseconds."""
        given: dict[Metric, float | None] = {"TTFT": self.ttft_ms, "TPOT": self.tpot_ms, "E2E": self.e2e_ms}
        return {metric: limit for metric, limit in given.items() if limit is not None}

    @property
    def asked(self) -> list[tuple[Metric, float | None]]:
        """The metrics that count, each with its SLO in seconds; without one TPOT."""
        found: list[tuple[Metric, float | None]] = [(metric, ms / 1_000) for metric, ms in self.slos.items()]
        return found or [("TPOT", None)]


class Course(NamedTuple):
    """How a metric goes with the concurrency n: ``always``, and ``by`` times ``at(n)``, and n - 1 times ``others``.

    TTFT is that of the last of n requests that arrive at once. TPOT is that of a closed loop: in every decode step
    (n - 1) / OSL of the others end, and as many prompts are read before the next. E2E is that of a closed loop, too:
    its own prompt, and OSL - 1 such steps.
    """

    at: ByConcurrency
    by: float = 1.0
    others: Seconds = NOTHING
    always: Seconds = NOTHING

    @classmethod
    def of(cls, roofline: Roofline, workload: Workload, metric: Metric) -> Course:
        """That of requests of the size of ``workload``."""
        isl, osl, replicas = workload.isl, workload.osl, roofline.attention_dp
        reading = roofline.prefilling(isl)
        if metric == "TTFT":
            return cls(reading)
        step, by = roofline.decoding(isl + osl / 2), osl - 1.0 if metric == "E2E" else 1.0
        w, k, c, r, i, a, p, f = reading(replicas)
        weights, kv, compute, reduce, inside, across, pipeline, fixed = reading(2 * replicas)
        each = by / replicas / osl
        others = (
            (weights - w) * each,
            (kv - k) * each,
            (compute - c) * each,
            (reduce - r) * each,
            (inside - i) * each,
            (across - a) * each,
            (pipeline - p) * each,
            (fixed - f) * each,
        )
        return cls(step, by, others, reading(1) if metric == "E2E" else NOTHING)

    def terms(self, n: int) -> tuple[Terms, ...]:
        """What the metric at ``n`` is made of; it is the sum of their totals."""
        parts = ((1.0, self.always), (self.by, self.at(n)), (n - 1.0, self.others))
        return tuple(Terms(*[by * seconds for seconds in part]) for by, part in parts)

    def spared(self) -> list[float]:
        """By ``RATE_KINDS``: what a lone request would be spared, did this part take no time."""
        found = [0.0] * len(RATE_KINDS)
        for by, (weights, kv, compute, reduce, inside, across, pipeline, _) in (
            (1.0, self.always),
            (self.by, self.at(1)),
        ):
            busy = max(compute, weights + kv)
            without = weights + kv, max(compute, weights), max(compute, kv)
            here = busy - without[0], busy - without[1], inside + across, pipeline, reduce, busy - without[2]
            found = [one + by * more for one, more in zip(found, here, strict=True)]
        return found


def total_s(seconds: Seconds) -> float:
    """As ``Terms.total_s``: reading memory and computing overlap."""
    weights, kv, compute, reduce, inside, across, pipeline, fixed = seconds
    return max(weights + kv, compute) + reduce + inside + across + pipeline + fixed


def times(roofline: Roofline, workload: Workload, metric: Metric) -> Callable[[int], tuple[Terms, ...]]:
    """What a metric is made of at a concurrency; it is the sum of its parts' totals."""
    return Course.of(roofline, workload, metric).terms
