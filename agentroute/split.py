"""How many of N equal requests go where: the arithmetic of a fan-out, over plain arrays.

A pool runs c requests at once and takes E2E(c) for each such wave, so by the time T it has done
f(T) = max over c of c * floor((T - once) / E2E(c)) of them; the least T at which all pools together have done N is the
least makespan. The cheapest split by a deadline is a knapsack: a pool's requests cost the price of its concurrency, and
it has only so many waves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CLOSE = 1e-9
"""Times closer than this share are the same: a wave that ends at T ends by T, whatever its last bit."""
CELLS = 1 << 16
"""Most cells of the tables from which the cheapest split is read exactly; larger groups are counted in lumps."""
_NEAR = 1e-6
"""How near to the least makespan it is halved."""
_PRICE_NEAR = 1e-4
"""The same for the price of a request; what is between two prices is mended."""
_STEPS = 64
"""Halvings at most."""
_FEWEST_LUMPS = 16
"""In fewer lumps a table says too little."""


MISSES_SOFT = 2
"""The rank of an option: 0, 1 where the KV pool is unknown, 2 where a soft SLO on TTFT or TPOT is missed."""


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """Ways to use the pools, arrays of shape (o,): in the order of their pools, of a pool's sites, of ``at_once``.

    A pool is used by one of its sites. At a site neither the times nor the price of a whole wave fall as ``at_once``
    grows.
    """

    pool: Ints
    """0, 1, 2, ..., each at least once."""
    site: Ints
    at_once: Floats
    e2e_s: Floats
    """Of one request, and so of one wave."""
    once_s: Floats
    """What the first wave takes longer."""
    usd: Floats
    """For one request."""
    starts: NDArray[np.intp] = field(init=False)
    """By pool, the place of its first option."""
    site_starts: NDArray[np.intp] = field(init=False)
    """By site, in the order of the options, the place of its first."""
    gaps: NDArray[np.intp] = field(init=False)
    """Options after which numbers at once are left out; E2E and price are lines from there to the next option."""
    _gap: tuple[Floats, ...] = field(init=False, repr=False)
    """Of each gap: once_s and E2E where it begins, how many more at once a second takes, the most that are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.flatnonzero(np.diff(self.pool, prepend=-1)))
        object.__setattr__(self, "site_starts", np.flatnonzero(np.diff(self.site, prepend=-1)))
        skips = (self.at_once[1:] - self.at_once[:-1] > 1.0) & (self.site[1:] == self.site[:-1])
        low = np.flatnonzero(skips)
        wide, longer = self.at_once[low + 1] - self.at_once[low], self.e2e_s[low + 1] - self.e2e_s[low]
        per_s = wide / np.maximum(longer, CLOSE * self.e2e_s[low])
        object.__setattr__(self, "gaps", low)
        object.__setattr__(self, "_gap", (self.once_s[low], self.e2e_s[low], per_s, wide - 1.0))

    def __len__(self) -> int:
        return len(self.pool)

    def only(self, chosen: Bools) -> tuple[Options, Ints]:
        """The chosen options with their pools numbered anew, and by new number the old one."""
        if chosen.all():
            return self, np.arange(len(self.starts))
        places = np.flatnonzero(chosen)
        pool = self.pool[places]
        new = np.cumsum(np.diff(pool, prepend=pool[:1]) != 0)
        times = (array[places] for array in (self.at_once, self.e2e_s, self.once_s, self.usd))
        some = Options(new, self.site[places], *times)
        return some, pool[some.starts]

    def of_site(self, option: int) -> slice:
        """Where the options of an option's site are."""
        after = int(self.site_starts.searchsorted(option, side="right"))
        end = int(self.site_starts[after]) if after < len(self.site_starts) else len(self)
        return slice(int(self.site_starts[after - 1]), end)

    def waves(self, by_s: Floats | float) -> Floats:
        """By option, the waves that are done by a time."""
        done: Floats = np.maximum(np.floor((by_s - self.once_s) / self.e2e_s * (1.0 + CLOSE)), 0.0)
        return done

    def done(self, by_s: float, most: int) -> Floats:
        """By pool, the requests it can have done by a time, ``most`` at most: f(T)."""
        waves = self.waves(by_s)
        at_once = self.at_once
        if len(self.gaps):
            at_once = at_once.copy()
            at_once[self.gaps] += self._further(by_s, waves)
        return np.asarray(np.maximum.reduceat(np.minimum(at_once * waves, float(most)), self.starts))

    def raised(self, by_s: float) -> Options:
        """The same where each option before a gap takes as many at once as still have as many waves by a time."""
        low = self.gaps
        if not len(low):
            return self
        further = self._further(by_s, self.waves(by_s))
        share = further / (self._gap[3] + 1.0)
        at_once, e2e_s, usd = self.at_once.copy(), self.e2e_s.copy(), self.usd.copy()
        at_once[low] += further
        e2e_s[low] += share * (self.e2e_s[low + 1] - self.e2e_s[low])
        usd[low] += share * (self.usd[low + 1] - self.usd[low])
        return Options(self.pool, self.site, at_once, e2e_s, self.once_s, usd)

    def _further(self, by_s: float, waves: Floats) -> Floats:
        """By gap, how many more at once have as many waves by a time."""
        once_s, e2e_s, per_s, most = self._gap
        own = waves[self.gaps]
        spare = (by_s - once_s) / np.maximum(own, 1.0) - e2e_s
        further: Floats = np.floor(np.minimum(np.maximum(spare * per_s, 0.0), most))
        further[own < 1.0] = 0.0
        return further

    def first_s(self) -> Floats:
        """By pool, when it can have done its first request."""
        return np.asarray(np.minimum.reduceat(self.once_s + self.e2e_s, self.starts))


def least_makespan_s(options: Options, fanout: int) -> float:
    """The least time by which all pools together can have done ``fanout`` requests."""
    most = float(fanout)
    alone = options.once_s + np.ceil(most / options.at_once) * options.e2e_s
    rates = options.at_once / options.e2e_s
    low, high = most / float(np.maximum.reduceat(rates, options.starts).sum()) * (1.0 - CLOSE), float(alone.min())
    for _ in range(_STEPS):
        if high - low <= _NEAR * high:
            break
        middle = (low + high) / 2.0
        low, high = (low, middle) if options.done(middle, fanout).sum() >= most else (middle, high)
    if len(options.gaps):
        return high
    # Some wave ends at the answer, and between two ends nothing changes.
    waves = options.waves(high)
    ends = np.where(waves >= 1.0, options.once_s + waves * options.e2e_s, 0.0)
    return float(ends.max())


def filled(options: Options, by_s: float, fanout: int, order: NDArray[np.intp]) -> Ints:
    """By pool, its requests when pools are filled in ``order`` with what they can have done by a time."""
    done = options.done(by_s, fanout)[order]
    before = np.concatenate([[0.0], np.cumsum(done)[:-1]])
    requests = np.empty(len(done), dtype=np.int64)
    requests[order] = np.minimum(done, np.maximum(fanout - before, 0.0))
    return requests


def soonest(options: Options, requests: Ints) -> Ints:
    """By pool, the option by which its ``requests`` (at least one) are done first; of equals the fewest at once."""
    ends = options.once_s + np.ceil(requests[options.pool] / options.at_once) * options.e2e_s
    return _first_least(ends, options.starts, options.pool)


def least_cost(options: Options, requests: Ints, by_s: float) -> tuple[Ints, Floats]:
    """By pool, the option by which its ``requests`` cost the least and are done in time, and what they cost together.

    The cost is infinite where no option does it, and 0 for no requests.
    """
    wanted = requests[options.pool]
    costs = np.where(options.at_once * options.waves(by_s) >= wanted, _bill(options, wanted), np.inf)
    costs[wanted == 0] = 0.0
    return _first_least(costs, options.starts, options.pool), np.asarray(np.minimum.reduceat(costs, options.starts))


def cheapest(options: Options, fanout: int, by_s: float) -> Ints | None:
    """By pool, its requests in the cheapest split that is done in time; ``None``: there is none.

    Exact where pools x fanout^2 and options x fanout are at most ``CELLS``; beyond that the best of a table in lumps
    and of the Lagrangian's split, whose gap is at most what one pool costs.
    """
    pools = len(options.starts)
    options, old = options.only(options.waves(by_s) >= 1.0)
    if not len(options) or options.done(by_s, fanout).sum() < fanout:
        return None
    found = [*_priced(options, fanout, by_s), *_tabled(options, fanout, by_s)]
    best = min(found, key=lambda requests: float(least_cost(options, requests, by_s)[1].sum()))
    result = np.zeros(pools, dtype=np.int64)
    result[old] = best
    return result


def _bill(options: Options, wanted: Ints | Floats) -> Floats:
    """By option, what so many requests cost. Where they are fewer than a whole wave, they pay for the wave."""
    return np.asarray(np.maximum(wanted, options.at_once) * options.usd)


def _first_least(values: Floats, starts: NDArray[np.intp], pool: Ints) -> Ints:
    """By pool, the place of the first of its least values."""
    least = np.minimum.reduceat(values, starts)
    places = np.flatnonzero(values == least[pool])
    return np.asarray(places[pool[places].searchsorted(np.arange(len(least)))])


def _priced(options: Options, fanout: int, by_s: float) -> list[Ints]:
    """Splits by a price for a request at which pools fill themselves as far as it pays (Lagrange): the last price at
    which they take less than all, and the first at which they take enough, each mended at the pool where that costs
    the least.
    """
    pools = len(options.starts)
    full = np.minimum(options.at_once * options.waves(by_s), float(fanout))
    # Where another one of the pool does no less for no higher a price, an option never pays.
    order = np.argsort(options.pool + options.usd / (2.0 * options.usd.max() + CLOSE), kind="stable")
    rising = full[order] + options.pool[order] * (fanout + 1.0)
    order = order[rising > np.concatenate([[-1.0], np.maximum.accumulate(rising)[:-1]])]
    full, usd, pool = full[order], options.usd[order], options.pool[order]
    starts = np.flatnonzero(np.diff(pool, prepend=-1))

    def taken(price: float) -> Ints:
        gains = full * (price - usd)
        best = _first_least(-gains, starts, pool)
        return np.where(gains[best] > 0.0, full[best], 0.0).astype(np.int64)

    high = 2.0 * float(usd.min()) + CLOSE
    while taken(high).sum() < fanout:
        high *= 2.0
    low = high / 2.0
    for _ in range(_STEPS):
        if high - low <= _PRICE_NEAR * high:
            break
        middle = (low + high) / 2.0
        low, high = (low, middle) if taken(middle).sum() >= fanout else (middle, high)

    found = []
    few = taken(low)
    alone = np.diag(np.full(pools, fanout))  # each pool for itself
    for base in (few, 0 * few) if few.any() else (few,):
        missing = fanout - int(base.sum())
        more = base + missing
        costs = least_cost(options, more, by_s)[1] - least_cost(options, base, by_s)[1]
        if np.isfinite(costs.min()):
            found.append(base + alone[costs.argmin()] // fanout * missing)
    many = taken(high)
    spare = int(many.sum()) - fanout
    less = np.maximum(many - spare, 0)
    saved = least_cost(options, many, by_s)[1] - least_cost(options, less, by_s)[1]
    saved[many < spare] = -np.inf
    trimmed = many.copy()
    if np.isfinite(saved.max()):
        trimmed[saved.argmax()] -= spare
    else:
        for dear in np.argsort(-np.minimum.reduceat(usd, starts)):
            given = min(spare, int(trimmed[dear]))
            trimmed[dear], spare = trimmed[dear] - given, spare - given
    return [*found, trimmed]


def _tabled(options: Options, fanout: int, by_s: float) -> list[Ints]:
    """The cheapest split in lumps, by dynamic programming over the pools; a lump is one request for a small group."""
    pools = len(options.starts)
    lumps = min(fanout, isqrt(CELLS // pools), max(1, CELLS // len(options)))
    if lumps < min(fanout, _FEWEST_LUMPS):
        return []
    lump = -(-fanout // lumps)
    lumps = -(-fanout // lump)
    counts = np.minimum(np.arange(lumps + 1) * lump, fanout)
    done = (options.at_once * options.waves(by_s))[:, None]
    bills = np.maximum(counts, options.at_once[:, None]) * options.usd[:, None]
    costs = np.minimum.reduceat(np.where(done >= counts, bills, np.inf), options.starts, axis=0)
    costs[:, 0] = 0.0
    # best[m]: the least cost of m lumps at the pools so far; own[m, j]: with j of them at this one.
    before = np.arange(lumps + 1)[:, None] - np.arange(lumps + 1)
    possible = before >= 0
    best = np.where(np.arange(lumps + 1) == 0, 0.0, np.inf)
    chosen = np.empty((pools, lumps + 1), dtype=np.int64)
    for pool in range(pools):
        own = np.where(possible, best[before] + costs[pool], np.inf)
        chosen[pool] = own.argmin(axis=1)
        best = own.min(axis=1)
    if not np.isfinite(best[lumps]):
        return []
    left, requests = lumps, np.zeros(pools, dtype=np.int64)
    for pool in reversed(range(pools)):
        requests[pool] = counts[chosen[pool, left]]
        left -= int(chosen[pool, left])
    spare = int(requests.sum()) - fanout
    if spare > 0:  # the last lump is not a whole one
        requests[int(requests.argmax())] -= spare
    return [requests]


def with_prices(options: Options) -> Options:
    """With a price for those that have none: dearer than any."""
    if not np.isnan(options.usd).any():
        return options
    dear = 1_000.0 * np.nanmax(options.usd, initial=1.0)
    usd = np.where(np.isnan(options.usd), dear, options.usd)
    return Options(options.pool, options.site, options.at_once, options.e2e_s, options.once_s, usd)


def longest_s(options: Options, fanout: int) -> float:
    """The time by which any one option has done them all."""
    return float((options.once_s + np.ceil(fanout / options.at_once) * options.e2e_s).max())
