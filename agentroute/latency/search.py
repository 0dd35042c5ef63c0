"""The largest concurrency at which a time is still worth it, or keeps an SLO, in as few looks as may be."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt

WORTH = 1.1
"""A doubling of the concurrency that multiplies the throughput by less is not worth it."""

MOST = 1 << 16
"""Concurrencies above this are not looked at."""

Curve = Callable[[int], float]
"""Seconds by the concurrency; more requests are never faster."""

Line = tuple[float, float]
"""Seconds at no request, and what each adds."""

GAIN = (2.0 - WORTH) / (WORTH - 1.0)
"""A doubling of a line ``a + b n`` is worth it up to ``GAIN a / b``."""


def last_worth(curve: Curve, least: int, convex_from: int) -> float:
    """The last doubling that is worth it, from ``least`` on; infinite: all are. Both are powers of two.

    Of a convex curve no doubling is worth it after one that is not, so the search goes up from there. Before, experts
    that are hit one after the other can make an early doubling not worth it, so there it goes down. A ``convex_from``
    that is near the answer saves looks.
    """
    n = start = min(MOST, max(least, convex_from))
    now_s = curve(n)
    while n < MOST and 2 * now_s >= WORTH * (next_s := curve(2 * n)):
        n, now_s = 2 * n, next_s
    while least < n <= start and 2 * (half_s := curve(n // 2)) < WORTH * now_s:
        n, now_s = n // 2, half_s
    return n if n < MOST else inf


def worth_until(flat_s: float, flat_each_s: float, steep_s: float, steep_each_s: float) -> float:
    """Of the larger of two lines: the concurrency up to which doubling it, to there, is worth it.

    2 f(n / 2) >= WORTH f(n) holds where it does for one line at n / 2 against both at n. Where the flat one is the
    larger at n / 2, either may be at n; where the steep one is, it is at n, too.
    """
    if steep_each_s <= 0.0:
        return inf
    until = (2.0 * flat_s - WORTH * steep_s) / (WORTH * steep_each_s - flat_each_s)
    if flat_each_s > 0.0 and until * flat_each_s > GAIN * flat_s:
        until = GAIN * flat_s / flat_each_s
    beyond = GAIN * steep_s / steep_each_s
    return beyond if beyond > until else until


def kept_until(flat_s: float, flat_each_s: float, steep_s: float, steep_each_s: float, slo_s: float) -> float:
    """Of the larger of two lines: the concurrency up to which it keeps an SLO."""
    until = inf if steep_s <= slo_s else 0.0
    if steep_each_s > 0.0:
        until = (slo_s - steep_s) / steep_each_s
    within = inf if flat_s <= slo_s else 0.0
    if flat_each_s > 0.0:
        within = (slo_s - flat_s) / flat_each_s
    return within if within < until else until


def last_kept(
    curve: Curve, slo_s: float, low: int, high: int = MOST, *, low_s: float | None = None, high_s: float | None = None
) -> float:
    """The largest concurrency below ``high`` that keeps an SLO, as ``low`` does; infinite: ``high`` does, too.

    Nearly every curve is a line from some concurrency on, so the next look is where a line through both ends would
    break the SLO. Where two of them leave more than half, the geometric middle is next. ``low_s`` and ``high_s`` are
    the curve's there, if that was looked at before.
    """
    low_s = curve(low) if low_s is None else low_s
    high_s = curve(high) if high_s is None else high_s
    if high_s <= slo_s:
        return inf
    slow = 0
    while (gap := high - low) > 1:
        middle = low + int(gap * (slo_s - low_s) / (high_s - low_s)) if slow < 2 else int(sqrt(low * high))
        middle = low + 1 if middle <= low else high - 1 if middle >= high else middle
        middle_s = curve(middle)
        if middle_s <= slo_s:
            low, low_s = middle, middle_s
        else:
            high, high_s = middle, middle_s
        slow = slow + 1 if slow < 2 and 2 * (high - low) > gap else 0
    return low
