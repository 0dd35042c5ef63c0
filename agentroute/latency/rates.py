"""Up to how many requests in flight a deployment's speed holds, and which part of the time gives way first.

Without an SLO, that is the last doubling of the concurrency that still adds 10 % throughput; with SLOs, the largest
concurrency that keeps them. The limit is charged to the part that grows most; every other part gets the concurrency
that it alone would allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, inf, log, log1p, log2
from typing import Literal, NamedTuple

from agentroute.latency.roofline import ByConcurrency, Roofline, Seconds, Terms
from agentroute.latency.search import MOST, Curve, last_kept, last_worth

RateKind = Literal["weights_bandwidth", "kv_bandwidth", "compute", "all_reduce", "all_to_all", "pipeline"]
RATE_KINDS: tuple[RateKind, ...] = (
    "compute", "kv_bandwidth", "all_to_all", "pipeline", "all_reduce", "weights_bandwidth",
)  # fmt: skip

CONVEX: tuple[bool, ...] = tuple(kind not in ("pipeline", "weights_bandwidth") for kind in RATE_KINDS)
"""Whether a rate's curve is convex from one request on: all but those that wait for more and more experts."""

Metric = Literal["TTFT", "TPOT", "E2E"]
METRICS: tuple[Metric, ...] = ("TTFT", "TPOT", "E2E")

LAST_BIT = log(2.0**-54)
"""Of what is smaller than this part (logarithm), a float of 53 bits loses everything."""

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


class Seen(dict[int, Seconds]):
    """Seconds by the concurrency, worked out once. (``functools.cache`` takes longer to make than most of its use.)"""

    def __init__(self, at: ByConcurrency) -> None:
        self.at = at

    def __missing__(self, n: int) -> Seconds:
        self[n] = found = self.at(n)
        return found


class Course(NamedTuple):
    """How a metric goes with the concurrency n: ``always``, and ``by`` times ``at[n]``, and n - 1 times ``others``.

    TTFT is that of the last of n requests that arrive at once. TPOT is that of a closed loop: in every decode step
    (n - 1) / OSL of the others end, and as many prompts are read before the next. E2E is that of a closed loop, too:
    its own prompt, and OSL - 1 such steps.
    """

    at: Seen
    by: float = 1.0
    others: Seconds = NOTHING
    always: Seconds = NOTHING

    @classmethod
    def of(cls, roofline: Roofline, workload: Workload, metric: Metric) -> Course:
        """That of requests of the size of ``workload``."""
        isl, osl, replicas = workload.isl, workload.osl, roofline.attention_dp
        reading = roofline.prefilling(isl)
        if metric == "TTFT":
            return cls(Seen(reading))
        step, by = Seen(roofline.decoding(isl + osl / 2)), osl - 1.0 if metric == "E2E" else 1.0
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
        parts = ((1.0, self.always), (self.by, self.at[n]), (n - 1.0, self.others))
        return tuple(Terms(*[by * seconds for seconds in part]) for by, part in parts)

    def curves(self) -> tuple[Curve, tuple[Curve, ...]]:
        """The metric; and by ``RATE_KINDS`` what it were, did all but this part stay as for a lone request."""
        at, by, others, always = self
        always_s, others_s = total_s(always), total_s(others)

        def whole(n: int) -> float:
            weights, kv, compute, reduce, inside, across, pipeline, fixed = at[n]
            memory = weights + kv
            here_s = (memory if memory > compute else compute) + reduce + inside + across + pipeline + fixed
            return always_s + by * here_s + (n - 1) * others_s

        start = whole(1)
        weights, kv, compute, reduce, inside, across, pipeline, _ = at[1]
        memory, exchange = weights + kv, inside + across
        busy = memory if memory > compute else compute
        weights_each, kv_each, compute_each, reduce_each, inside_each, across_each, pipeline_each, _ = others
        exchange_each = inside_each + across_each

        def by_compute(n: int) -> float:
            now = at[n][2]
            return start + by * ((now if now > memory else memory) - busy) + (n - 1) * compute_each

        def by_kv(n: int) -> float:
            now = weights + at[n][1]
            return start + by * ((now if now > compute else compute) - busy) + (n - 1) * kv_each

        def by_exchange(n: int) -> float:
            now = at[n]
            return start + by * (now[4] + now[5] - exchange) + (n - 1) * exchange_each

        def by_pipeline(n: int) -> float:
            return start + by * (at[n][6] - pipeline) + (n - 1) * pipeline_each

        def by_reduce(n: int) -> float:
            return start + by * (at[n][3] - reduce) + (n - 1) * reduce_each

        def by_weights(n: int) -> float:
            now = at[n][0] + kv
            return start + by * ((now if now > compute else compute) - busy) + (n - 1) * weights_each

        return whole, (by_compute, by_kv, by_exchange, by_pipeline, by_reduce, by_weights)

    def spared(self) -> list[float]:
        """By ``RATE_KINDS``: what a lone request would be spared, did this part take no time."""
        found = [0.0] * len(RATE_KINDS)
        for by, (weights, kv, compute, reduce, inside, across, pipeline, _) in (
            (1.0, self.always),
            (self.by, self.at[1]),
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


def rate_limits(roofline: Roofline, workload: Workload) -> dict[RateKind, RateLimit]:
    """The limit of every part of the time that grows with the concurrency, the least first.

    Of several metrics with an SLO the one that gives way first counts.
    """
    limits: dict[RateKind, RateLimit] = {}
    for metric, slo_s in _asked(workload):
        for kind, limit in _limits(roofline, workload, metric, slo_s):
            if kind not in limits or limit.n_c < limits[kind].n_c:
                limits[kind] = limit
    return dict(sorted(limits.items(), key=_n_c))


def least_limit(roofline: Roofline, workload: Workload) -> tuple[RateKind, RateLimit]:
    """The least of ``rate_limits``, in half of their time: of several, the one that the whole is charged to."""
    return min((next(_limits(roofline, workload, *asked)) for asked in _asked(workload)), key=_n_c)


def _n_c(found: tuple[RateKind, RateLimit]) -> float:
    return found[1].n_c


def _asked(workload: Workload) -> list[tuple[Metric, float | None]]:
    """The metrics that count, each with its SLO in seconds."""
    return [(metric, ms / 1_000) for metric, ms in workload.slos.items()] or [("TPOT", None)]


def settled(roofline: Roofline) -> int:
    """A power of two from which on every expert is hit, to the last bit of a float, and every stage works.

    From there on, every part of a decode step is a line or the larger of two, so the whole is convex.
    """
    n = 1.0
    for experts in roofline.work.experts:
        if experts.active < experts.experts:
            n = max(n, LAST_BIT / log1p(-experts.active / experts.experts))
    return min(MOST, 1 << ceil(log2(n * roofline.pp)))


def _limits(
    roofline: Roofline, workload: Workload, metric: Metric, slo_s: float | None
) -> Iterator[tuple[RateKind, RateLimit]]:
    """The limits of one metric, the one that the whole is charged to first."""
    course, n = Course.of(roofline, workload, metric), workload.n
    whole, alone = course.curves()
    start, convex_from = whole(1), 1
    if slo_s is None:
        convex_from = settled(roofline)
        least = last_worth(whole, 1, convex_from)
        fails = 2 * int(least) if least < inf else MOST
    else:
        least = last_kept(whole, slo_s, 1) if start <= slo_s else 0
        fails = int(least) + 1 if least < inf else MOST
    growth = [curve(fails) - start for curve in alone]
    # An SLO that one request alone does not keep is charged to what would have to go first.
    weight = growth if least else course.spared()
    charged = weight.index(max(weight))
    yield RATE_KINDS[charged], _limit(whole, least, metric, n, slo_s)
    for kind, curve in enumerate(alone):
        if kind == charged or growth[kind] <= 0.0:
            continue
        n_c = inf
        if least < inf and slo_s is None:
            n_c = last_worth(curve, int(least), 1 if CONVEX[kind] else convex_from)
        elif least < inf and slo_s is not None:
            n_c = last_kept(curve, slo_s, int(least))
        yield RATE_KINDS[kind], _limit(curve, n_c, metric, n, slo_s)


def _limit(curve: Curve, n_c: float, metric: Metric, n: int, slo_s: float | None) -> RateLimit:
    allowed_s = slo_s if slo_s is not None else curve(int(n_c)) if n_c < inf else inf
    return RateLimit(n_c, metric, curve(n) * 1_000, allowed_s * 1_000)
