"""Up to how many requests in flight a metric holds, and which part of the time gives way first: from its numbers.

Without an SLO, that is the last doubling of the concurrency that still adds 10 % throughput; with one, the largest
concurrency that keeps it. The limit is charged to the part that grows most; every other part gets the concurrency that
it alone would allow, did all but this part stay as for a lone request.

Everything here is the larger of two lines from some concurrency on, mostly from the first, so few limits need a search.
It is asked for every load: numbers are passed one by one, as a tuple of them or an object takes longer to make than
what is done with it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from agentroute.latency.rates import RATE_KINDS, Metric, RateKind
from agentroute.latency.search import GAIN, MOST, WORTH, Curve, Line, kept_until, last_kept, last_worth, worth_until

Found = tuple[float, RateKind, Metric, float | None, Curve | None, int, float, float, float, float]
"""``n_c``, the part, the metric, its SLO in seconds; and what the metric is by the concurrency, did only this part
change: a curve, and two lines that it is the larger of from some concurrency on."""

NEVER = 1 << 62
"""No concurrency is as large."""

Bend = tuple[int, float, float, float, float, tuple[Line, ...]]
"""A part of a step that does not wait for more experts: its place in ``RATE_KINDS``; of a lone request's step, the
seconds that its growth is counted from; the seconds that every other request adds by its prompt; the line that it
follows at last, and those that it may follow before, where they are above a lone request's."""

Bubble = tuple[float, float, Curve, float, float, float, float]
"""The layer split: the seconds that every other request adds by its prompt, those of a lone request's step, those of a
step by the concurrency, and the two lines that they are the larger of at last, the flatter first."""


def told(found: Found, n: int) -> tuple[float, float]:
    """Milliseconds that the metric takes for ``n`` requests in flight, and that it may take."""
    n_c, _, _, slo_s, curve, far, a, b, c, d = found
    if curve is None or n >= far:
        now_s, other_s = a + b * n, c + d * n
        if other_s > now_s:
            now_s = other_s
    else:
        now_s = curve(n)
    if slo_s is not None:
        return now_s * 1_000, slo_s * 1_000
    if n_c == inf:
        return now_s * 1_000, inf
    return now_s * 1_000, (max(a + b * n_c, c + d * n_c) if curve is None or n_c >= far else curve(int(n_c))) * 1_000


def find(
    metric: Metric,
    slo_s: float | None,
    alone: bool,
    whole: Curve,
    start_s: float,
    flat_s: float,
    flat_each_s: float,
    steep_s: float,
    steep_each_s: float,
    convex_from: int,
    full: int,
    far: int,
    by: float,
    share: float,
    bends: list[Bend],
    kv_s: float,
    compute_s: float,
    busy_s: float,
    each_weights_s: float,
    weights: Curve | None,
    weights_s: float,
    weights_each_s: float,
    pipeline: Bubble | None,
    spared: Callable[[], list[float]],
) -> list[Found]:
    """The limits of one metric, the one that the whole is charged to first; not ``alone``: only that one.

    ``whole`` is the metric by the concurrency, ``start_s`` that of a lone request, and the two lines are what it is the
    larger of from ``far`` on. From the power of two ``convex_from`` on it is convex; from ``full`` on every batch has a
    sequence for every replica and stage. ``by`` steps count, and in each reading or multiplying
    ``share`` times, as stages wait for the slowest. Of a lone request's step: ``kv_s`` reading its KV,
    ``compute_s`` multiplying, ``busy_s`` the larger of that and all reading. ``weights`` are the seconds of a step to
    read them by the concurrency (``None``: always the same), and the line that they are from ``far`` on. ``spared``
    says, by ``RATE_KINDS``, what a lone request would be spared without each part.
    """
    if slo_s is None:
        unread = weights, by * share, weights_s
        least = _worth(whole, flat_s, flat_each_s, steep_s, steep_each_s, 1, convex_from, full, far, *unread)
        fails = 2 * int(least) if least < inf else MOST
    elif start_s <= slo_s:
        least = _kept(whole, flat_s, flat_each_s, steep_s, steep_each_s, slo_s, 1, start_s, full, far)
        fails = int(least) + 1 if least < inf else MOST
    else:
        # An SLO that one request alone does not keep is charged to what would have to go first.
        parts = spared()
        return [(0, RATE_KINDS[parts.index(max(parts))], metric, slo_s, whole, NEVER, 0.0, 0.0, 0.0, 0.0)]
    charged, most_s = 0, start_s
    growing: list[tuple[int, Curve | None, bool, float, float, float, float]] = []
    for kind, less_s, b, c, d, early in bends:
        a = start_s - b
        c, d, curve = a + by * (c - less_s), b + by * d, None
        grown_s, still_s = c + d * fails, a + b * fails
        if still_s > grown_s:
            grown_s = still_s
        if early:
            curve = _largest(((a, b), (c, d), *[(a + by * (e - less_s), b + by * f) for e, f in early]))
            grown_s = curve(fails)
        if grown_s > start_s:
            growing.append((kind, curve, True, a, b, c, d))
            if grown_s > most_s:
                charged, most_s = kind, grown_s
    if pipeline is not None:
        each_s, lone_s, bubble, a, b, c, d = pipeline

        def by_pipeline(n: int) -> float:
            return start_s + by * (bubble(n) - lone_s) + (n - 1) * each_s

        grown_s = by_pipeline(fails)
        if grown_s > start_s:
            still_s = start_s - each_s - by * lone_s
            a, b, c, d = still_s + by * a, each_s + by * b, still_s + by * c, each_s + by * d
            growing.append((3, by_pipeline, False, a, b, c, d))
            growing.sort()
            if grown_s > most_s:
                charged, most_s = 3, grown_s
    a = start_s - each_weights_s
    if weights is not None:
        reading = weights

        def by_weights(n: int) -> float:
            read_s = reading(n) + kv_s
            return start_s + by * ((read_s if read_s > compute_s else compute_s) - busy_s) + (n - 1) * each_weights_s

        grown_s = by_weights(fails)
        if grown_s > start_s:
            c, d = a + by * (weights_s + kv_s - busy_s), each_weights_s + by * weights_each_s
            growing.append((5, by_weights, False, a + by * (compute_s - busy_s), each_weights_s, c, d))
            if grown_s > most_s:
                charged = 5
    elif each_weights_s > 0.0:
        growing.append((5, None, True, a, each_weights_s, a, each_weights_s))
        if a + each_weights_s * fails > most_s:
            charged = 5
    limits: list[Found] = [
        (least, RATE_KINDS[charged], metric, slo_s, whole, far, flat_s, flat_each_s, steep_s, steep_each_s)
    ]
    if alone:
        low = int(least) if least < inf else MOST
        for kind, curve, convex, a, b, c, d in growing:
            if kind == charged:
                continue
            n_c: float
            if low == MOST:
                n_c = inf
            elif slo_s is None:
                if curve is None:
                    # ``worth_until``, without the call.
                    n_c = inf
                    if d > 0.0:
                        n_c = (2.0 * a - WORTH * c) / (WORTH * d - b)
                        if b > 0.0 and n_c * b > GAIN * a:
                            n_c = GAIN * a / b
                        if n_c * d < GAIN * c:
                            n_c = GAIN * c / d
                    n_c = inf if n_c >= MOST else 1 << int(n_c).bit_length() - 1 if n_c > low else low
                else:
                    unread = (None if convex else weights), by * (share - 1.0 if kind == 3 else 1.0), weights_s
                    n_c = _worth(curve, a, b, c, d, low, 1 if convex else convex_from, full, far, *unread)
            elif curve is None:
                n_c = kept_until(a, b, c, d, slo_s)
                n_c = inf if n_c >= MOST else int(n_c) if n_c > low else low
            else:
                n_c = _kept(curve, a, b, c, d, slo_s, low, None, full, far)
            limits.append((n_c, RATE_KINDS[kind], metric, slo_s, curve, NEVER if convex else far, a, b, c, d))
    return limits


def _largest(lines: tuple[Line, ...]) -> Curve:
    return lambda n: max([first_s + each_s * n for first_s, each_s in lines])


def _worth(
    curve: Curve,
    a: float,
    b: float,
    c: float,
    d: float,
    low: int,
    convex_from: int,
    full: int,
    far: int,
    weights: Curve | None,
    by: float,
    weights_s: float,
) -> float:
    """The last doubling that is worth it, from ``low`` on, of what is the larger of two lines from ``far`` on.

    Where not all experts are hit yet, the lines are too high, by at most ``by`` times the weights that are not read,
    which get less. If that is too little to make a doubling worth it that is not so by the lines, it is for later ones.
    """
    until = worth_until(a, b, c, d)
    if until >= MOST:
        return inf
    n = 1 << int(until).bit_length() - 1 if until > low else low
    if n >= 2 * far:
        return n
    if n < full or weights is None:
        return last_worth(curve, low, n if n > convex_from else convex_from)
    while n < convex_from:
        once_s, twice_s, other_s, twice_other_s = a + b * n, a + 2 * b * n, c + d * n, c + 2 * d * n
        gained_s = 2.0 * (once_s if once_s > other_s else other_s)
        if (
            WORTH * ((twice_s if twice_s > twice_other_s else twice_other_s) - by * (weights_s - weights(2 * n)))
            > gained_s
        ):
            break
        n *= 2
    return last_worth(curve, low, n)


def _kept(
    curve: Curve,
    a: float,
    b: float,
    c: float,
    d: float,
    slo_s: float,
    low: int,
    low_s: float | None,
    full: int,
    far: int,
) -> float:
    """The largest concurrency that keeps an SLO, as ``low`` does, of what is the larger of two lines from ``far`` on.

    Where not all experts are hit yet, the lines are too high, by less and less: so they tell a concurrency that keeps
    it, and with what they are too high there, mostly one that does not.
    """
    until = kept_until(a, b, c, d, slo_s)
    if until >= far:
        return inf if until >= MOST else int(until) if until > low else low
    high, high_s = min(far, MOST), None
    if until >= full and until > low and (kept_s := curve(int(until))) <= slo_s:
        low, low_s = int(until), kept_s
    if low >= full:
        low_s = curve(low) if low_s is None else low_s
        beyond = int(min(kept_until(a, b, c, d, slo_s + max(a + b * low, c + d * low) - low_s) + 1.0, high))
        if low < beyond < high and (beyond_s := curve(beyond)) > slo_s:
            high, high_s = beyond, beyond_s
    return last_kept(curve, slo_s, low, high, low_s=low_s, high_s=high_s) if low < high else low
