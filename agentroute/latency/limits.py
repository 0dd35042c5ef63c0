"""Up to how many requests in flight a deployment's speed holds, and which part of the time gives way first.

Without an SLO, that is the last doubling of the concurrency that still adds 10 % throughput; with SLOs, the largest
concurrency that keeps them. The limit is charged to the part that grows most; every other part gets the concurrency
that it alone would allow, did all but this part stay as for a lone request.
"""

from __future__ import annotations

from functools import partial
from math import inf
from operator import itemgetter

from agentroute.latency.rates import RATE_KINDS, Metric, RateKind, RateLimit, Workload
from agentroute.latency.search import MOST, Curve, Line, doubling, kept_until, last_kept, last_worth, worth_until
from agentroute.latency.tracks import Rates, Track

Found = tuple[float, RateKind, Metric, float | None, Curve | tuple[Line, ...]]
"""``n_c``, the part, the metric, its SLO in seconds, and what it is by the concurrency, did only this part change."""


def rate_limits(rates: Rates, workload: Workload) -> dict[RateKind, RateLimit]:
    """The limit of every part of the time that grows with the concurrency, the least first.

    Of several metrics with an SLO the one that gives way first counts.
    """
    return {one[1]: limit_of(one, workload.n) for one in sorted(found(rates, workload), key=_N_C)}


def found(rates: Rates, workload: Workload) -> list[Found]:
    """The same in no order, not yet told."""
    asked = workload.asked
    if len(asked) == 1:
        ((metric, slo_s),) = asked
        return _found(rates.track(workload, metric), slo_s)
    limits: dict[RateKind, Found] = {}
    for metric, slo_s in asked:
        for one in _found(rates.track(workload, metric), slo_s):
            if one[1] not in limits or one[0] < limits[one[1]][0]:
                limits[one[1]] = one
    return list(limits.values())


def least(rates: Rates, workload: Workload) -> Found:
    """The least of ``found``, in less time: of several, the one that the whole is charged to."""
    return min(
        [_found(rates.track(workload, metric), slo_s, alone=False)[0] for metric, slo_s in workload.asked], key=_N_C
    )


_N_C = _FIRST = itemgetter(0)


def limit_of(one: Found, n: int) -> RateLimit:
    """What was found, told for ``n`` requests in flight."""
    n_c, _, metric, slo_s, curve = one
    allowed_s = slo_s if slo_s is not None else _value(curve, int(n_c)) if n_c < inf else inf
    return RateLimit(n_c, metric, _value(curve, n) * 1_000, allowed_s * 1_000)


def _value(curve: Curve | tuple[Line, ...], n: int) -> float:
    return max([first_s + each_s * n for first_s, each_s in curve]) if isinstance(curve, tuple) else curve(n)


def _found(track: Track, slo_s: float | None, *, alone: bool = True) -> list[Found]:
    """The limits of one metric, the one that the whole is charged to first; not ``alone``: that one."""
    (metric, whole, start_s, convex_from, full, far, lines, by, bends, kv, compute, busy, weights, pipeline,
     course) = track  # fmt: skip
    if slo_s is None:
        least_n = _worth(whole, lines, 1, convex_from, far)
        fails = 2 * int(least_n) if least_n < inf else MOST
    elif start_s <= slo_s:
        least_n = _kept(whole, lines, slo_s, 1, full, far)
        fails = int(least_n) + 1 if least_n < inf else MOST
    else:
        # An SLO that one request alone does not keep is charged to what would have to go first.
        spared = course().spared()
        return [(0, RATE_KINDS[spared.index(max(spared))], metric, slo_s, whole)]
    charged, most_s = 0, start_s
    growing: list[tuple[int, tuple[Line, ...], Curve | None]] = []
    for kind, less, each, first_s, each_s, more in bends:
        still, first_s, each_s = start_s - each, start_s - each + by * (first_s - less), each + by * each_s
        grown, flat_s = first_s + each_s * fails, still + each * fails
        if flat_s > grown:
            grown = flat_s
        own: tuple[Line, ...] = ((still, each), (first_s, each_s))
        if more:
            own = (own[0], *[(still + by * (a - less), each + by * b) for a, b in more], own[1])
            grown = max([a + b * fails for a, b in own])
        if grown > start_s:
            growing.append((kind, own, None))
            if grown > most_s:
                charged, most_s = kind, grown
    if pipeline is not None:
        each, bubble, terms = pipeline
        lone_s = bubble(1)

        def by_pipeline(n: int) -> float:
            return start_s + by * (bubble(n) - lone_s) + (n - 1) * each

        grown = by_pipeline(fails)
        if grown > start_s:
            still = start_s - each - by * lone_s
            growing.append((3, tuple([(still + by * a, each + by * b) for a, b in terms]), by_pipeline))
            growing.sort(key=_FIRST)
            if grown > most_s:
                charged, most_s = 3, grown
    each_weights, reading, (first_s, each_s) = weights
    if reading is not None:
        weigh = reading

        def by_weights(n: int) -> float:
            read = weigh(n) + kv
            return start_s + by * ((read if read > compute else compute) - busy) + (n - 1) * each_weights

        grown = by_weights(fails)
        if grown > start_s:
            still = start_s - each_weights - by * busy
            own = (
                (still + by * compute, each_weights),
                (still + by * (first_s + kv), each_weights + by * each_s),
            )
            growing.append((5, own, by_weights))
            if grown > most_s:
                charged, most_s = 5, grown
    elif each_weights > 0.0:
        growing.append((5, ((start_s - each_weights, each_weights),), None))
        if start_s + each_weights * (fails - 1) > most_s:
            charged = 5
    limits: list[Found] = [(least_n, RATE_KINDS[charged], metric, slo_s, whole)]
    if alone:
        low = int(least_n) if least_n < inf else MOST
        for kind, own, curve in growing:
            if kind == charged:
                continue
            if low == MOST:
                n_c: float = inf
            elif slo_s is not None:
                if curve is None:
                    until = kept_until(own, slo_s)
                    n_c = inf if until >= MOST else max(low, int(until))
                else:
                    n_c = _kept(curve, own, slo_s, low, full, far)
            elif curve is not None:
                n_c = _worth(curve, own, low, convex_from, far)
            elif len(own) > 2:
                n_c = last_worth(partial(_value, own), low, 1)
            else:
                n_c = doubling(worth_until(own[0], own[-1]))
                n_c = inf if n_c >= MOST else n_c if n_c > low else low
            limits.append((n_c, RATE_KINDS[kind], metric, slo_s, curve or own))
    return limits


def _worth(curve: Curve, lines: tuple[Line, ...], low: int, convex_from: int, far: int) -> float:
    """The last doubling that is worth it, from ``low`` on, of what is the larger of ``lines`` from ``far`` on."""
    n = doubling(worth_until(lines[0], lines[-1]))
    if n >= 2 * far:
        return inf if n >= MOST else n if n > low else low
    return last_worth(curve, low, n if n > convex_from else convex_from)


def _kept(curve: Curve, lines: tuple[Line, ...], slo_s: float, low: int, full: int, far: int) -> float:
    """The largest concurrency that keeps an SLO, as ``low`` does, of what is the larger of ``lines`` from ``far`` on.

    Where not all experts are hit yet, the lines are too high, by less and less: so they tell a concurrency that keeps
    it, and with what they are too high there, one that does not.
    """
    until = kept_until(lines, slo_s)
    if until >= far:
        return inf if until >= MOST else max(low, int(until))
    high = min(far, MOST)
    if until >= full and until > low and curve(int(until)) <= slo_s:
        low = int(until)
    if low >= full:
        above_s = max([first_s + each_s * low for first_s, each_s in lines]) - curve(low)
        beyond = kept_until(lines, slo_s + above_s) + 1.0
        if beyond < high and curve(int(beyond)) > slo_s:
            high = int(beyond)
    return last_kept(curve, slo_s, low, high)
