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


def last_worth(curve: Curve, least: int, convex_from: int) -> float:
    """The last doubling that is worth it, from ``least`` on; infinite: all are. Both are powers of two.

    Of a convex curve no doubling is worth it after one that is not, so the search goes up from there. Before, experts
    that are hit one after the other can make an early doubling not worth it, so there it goes down.
    """
    n = start = min(MOST, max(least, convex_from))
    now_s = curve(n)
    while n < MOST and 2 * now_s >= WORTH * (next_s := curve(2 * n)):
        n, now_s = 2 * n, next_s
    while least < n <= start and 2 * (half_s := curve(n // 2)) < WORTH * now_s:
        n, now_s = n // 2, half_s
    return n if n < MOST else inf


def last_kept(curve: Curve, slo_s: float, low: int) -> float:
    """The largest concurrency that keeps an SLO, as ``low`` does; infinite: all do.

    Nearly every curve is a line from some concurrency on, so the next look is where a line through both ends would
    break the SLO. Where two of them leave more than half, the geometric middle is next.
    """
    low_s, high, high_s = curve(low), MOST, curve(MOST)
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
