"""Up to how many requests in flight a deployment's speed holds, and which part of the time gives way first.

Without an SLO, that is the last doubling of the concurrency that still adds 10 % throughput; with SLOs, the largest
concurrency that keeps them. The limit is charged to the part that grows most; every other part gets the concurrency
that it alone would allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Literal, NamedTuple

from agentroute.latency.roofline import Roofline, Terms

RateKind = Literal["weights_bandwidth", "kv_bandwidth", "compute", "all_reduce", "all_to_all", "pipeline"]
RATE_KINDS: tuple[RateKind, ...] = (
    "compute", "kv_bandwidth", "all_to_all", "pipeline", "all_reduce", "weights_bandwidth",
)  # fmt: skip

Metric = Literal["TTFT", "TPOT", "E2E"]
METRICS: tuple[Metric, ...] = ("TTFT", "TPOT", "E2E")

WORTH = 1.1
"""A doubling of the concurrency that multiplies the throughput by less is not worth it."""

MOST = 1 << 16
"""Concurrencies above this are not looked at."""


class Parts(NamedTuple):
    """Seconds by rate, and what is the same at any load."""

    compute: float
    kv_bandwidth: float
    all_to_all: float
    pipeline: float
    all_reduce: float
    weights_bandwidth: float
    fixed: float

    @classmethod
    def of(cls, terms: Terms, by: float = 1.0) -> Parts:
        """``by`` times the terms of a roofline."""
        exchange = terms.all_to_all_inside_s + terms.all_to_all_across_s
        return cls(
            by * terms.compute_s,
            by * terms.kv_s,
            by * exchange,
            by * terms.pipeline_s,
            by * terms.all_reduce_s,
            by * terms.weights_s,
            by * terms.fixed_s,
        )

    @property
    def total_s(self) -> float:
        """As ``Terms.total_s``: reading memory and computing overlap."""
        compute, kv, exchange, pipeline, reduce, weights, fixed = self
        return max(compute, kv + weights) + exchange + pipeline + reduce + fixed

    def growing(self, now: Parts, kind: int) -> float:
        """The total seconds when only the rate number ``kind`` of ``RATE_KINDS`` has become what it is ``now``."""
        compute, kv, exchange, pipeline, reduce, weights, fixed = self
        if kind == _COMPUTE:
            compute = now[kind]
        elif kind == _KV:
            kv = now[kind]
        elif kind == _WEIGHTS:
            weights = now[kind]
        else:
            fixed += now[kind] - self[kind]
        memory = kv + weights
        return (compute if compute > memory else memory) + exchange + pipeline + reduce + fixed


_COMPUTE, _KV, _WEIGHTS = (RATE_KINDS.index(kind) for kind in ("compute", "kv_bandwidth", "weights_bandwidth"))


@dataclass(frozen=True, slots=True)
class RateLimit:
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


def times(roofline: Roofline, workload: Workload, metric: Metric) -> Callable[[int], tuple[Parts, ...]]:
    """What a metric at a concurrency is made of; it is the sum of its parts' totals.

    TTFT is that of the last of n requests that arrive at once. TPOT is that of a closed loop: in every decode step
    (n - 1) / OSL of the others end, and as many prompts are read before the next. E2E is that of a closed loop, too:
    its own prompt, and OSL - 1 such steps.
    """
    isl, osl, replicas = workload.isl, workload.osl, roofline.attention_dp
    context, rest = isl + osl / 2, osl - 1
    more, fewer = (Parts.of(roofline.prefill(isl, n=k * replicas), 1 / replicas / osl) for k in (2, 1))
    reading = [a - b for a, b in zip(more, fewer, strict=True)]

    alone = Parts.of(roofline.prefill(isl))

    def first(n: int) -> Parts:
        return Parts.of(roofline.prefill(isl, n=n))

    def step(n: int, by: float = 1.0) -> tuple[Parts, Parts]:
        return Parts.of(roofline.decode(n, context), by), Parts._make([part * (n - 1) * by for part in reading])

    made: dict[Metric, Callable[[int], tuple[Parts, ...]]] = {
        "TTFT": lambda n: (first(n),),
        "TPOT": step,
        "E2E": lambda n: (alone, *step(n, rest)),
    }
    return cache(made[metric])


def rate_limits(roofline: Roofline, workload: Workload) -> dict[RateKind, RateLimit]:
    """The limit of every part of the time that grows with the concurrency, the least first.

    Of several metrics with an SLO the one that gives way first counts.
    """
    slos = workload.slos
    metrics: Iterable[Metric] = slos or ("TPOT",)
    limits: dict[RateKind, RateLimit] = {}
    for metric in metrics:
        slo_s = slos[metric] / 1_000 if metric in slos else None
        for kind, limit in _limits(times(roofline, workload, metric), metric, workload.n, slo_s):
            if kind not in limits or limit.n_c < limits[kind].n_c:
                limits[kind] = limit
    return dict(sorted(limits.items(), key=lambda item: item[1].n_c))


def _limits(
    parts: Callable[[int], tuple[Parts, ...]], metric: Metric, n: int, slo_s: float | None
) -> list[tuple[RateKind, RateLimit]]:
    """The limits of one metric, the one that the whole is charged to first."""
    alone = parts(1)

    def whole(n: int) -> float:
        return sum([part.total_s for part in parts(n)])

    def only(kind: int) -> Callable[[int], float]:
        return lambda n: sum([one.growing(now, kind) for one, now in zip(alone, parts(n), strict=True)])

    least, start, kinds = _largest(whole, slo_s), whole(1), range(len(RATE_KINDS))
    fails = MOST if least == inf else 2 * int(least) if slo_s is None else int(least) + 1
    growth = [only(kind)(fails) - start for kind in kinds]
    # An SLO that one request alone does not keep is charged to what would have to go first.
    nothing = Parts(*(0.0,) * 7)
    weight = growth if least else [start - sum(one.growing(nothing, kind) for one in alone) for kind in kinds]
    charged = max(kinds, key=weight.__getitem__)
    found = []
    for kind in sorted(kinds, key=lambda kind: kind != charged):
        if kind != charged and growth[kind] <= 0.0:
            continue
        time = whole if kind == charged else only(kind)
        n_c = least if kind == charged else max(least, _largest(time, slo_s))
        allowed_s = slo_s if slo_s is not None else time(int(n_c)) if n_c < inf else inf
        found.append((RATE_KINDS[kind], RateLimit(n_c, metric, time(n) * 1_000, allowed_s * 1_000)))
    return found


def _largest(time_s: Callable[[int], float], slo_s: float | None) -> float:
    """The largest concurrency that keeps an SLO; without one, the last doubling that is worth it."""
    if slo_s is None:
        # From above: experts that are hit one after the other can make an early doubling not worth it.
        n = MOST
        while n > 1 and 2 * time_s(n // 2) < WORTH * time_s(n):
            n //= 2
        return n if n < MOST else inf
    n = 1
    if time_s(1) > slo_s:
        return 0
    while n < MOST and time_s(2 * n) <= slo_s:
        n *= 2
    if n >= MOST:
        return inf
    low, high = n, 2 * n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if time_s(middle) <= slo_s else (low, middle)
    return low
