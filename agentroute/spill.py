"""Why a fan-out is spread as it is: which deployments are taken up when, why others are not; and its text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentroute.estimate import Estimate, milliseconds
from agentroute.explain import table
from agentroute.reasons import Reason
from agentroute.split import CLOSE, MISSES_SOFT, Ints, Options, longest_s, with_prices

if TYPE_CHECKING:
    from agentroute.spread import Field, Placement, Spread

COLUMNS = ("deployment", "siblings", "waves", "each", "makespan", "USD", "at most at once", "contexts that stay hot")


def order(over: Field) -> NDArray[np.intp]:
    """In which order pools are filled: the known ones first, of those the quickest."""
    unknown = np.minimum.reduceat(over.rank, over.options.starts) > 0
    return np.lexsort((over.options.first_s(), unknown))


def late(over: Field, deadline_s: float, fanout: int) -> dict[str, Reason]:
    """What each deployment could have done by the deadline."""
    options = over.options
    requests = np.minimum(options.at_once * options.waves(deadline_s), float(fanout))
    done: dict[str, float] = {}
    least: dict[str, float] = {}
    for number, site in enumerate(over.sites):
        own = options.site == number
        if own.any():
            done[site.deployment] = done.get(site.deployment, 0.0) + float(requests[own].max())
            first_s = float((options.once_s + options.e2e_s)[own].min())
            least[site.deployment] = min(first_s, least.get(site.deployment, np.inf))
    reasons = {
        name: Reason("slo", f"it can have done {count:,.0f} of {fanout:,} by then", float(fanout), count, "siblings")
        if count
        else Reason(
            "slo",
            f"one answer takes {seconds(least[name])} there",
            1_000.0 * least[name],
            1_000.0 * deadline_s,
            "ms",
        )
        for name, count in done.items()
    }
    return reasons | dict(over.refused)


def unused(spread: Spread) -> dict[str, str]:
    """Why deployments with options take none, then those without."""
    over, chosen, options = spread._over, spread._chosen, spread._over.options
    used = {placement.deployment for placement in spread.placements}
    takers = {placement.site.pool: placement.deployment for placement in spread.placements}
    allowed = set(chosen.options.site.tolist())
    found: dict[str, str] = {}
    for start in options.site_starts.tolist():
        number, own = int(options.site[start]), options.of_site(start)
        site = over.sites[number]
        if site.deployment in used or site.deployment in found:
            continue
        first_s, least_usd = float(options.once_s[start] + options.e2e_s[start]), float(options.usd[own].min())
        if site.pool in takers:
            found[site.deployment] = f"it shares its KV pool with {takers[site.pool]}, which takes it"
        elif number not in allowed:
            missed = over.rank[own].min() >= MISSES_SOFT
            known = "KV unknown; those whose pool is known keep the deadline"
            found[site.deployment] = "it misses a soft SLO that others keep" if missed else known
        elif first_s > spread._by_s * (1.0 + CLOSE):
            until = f"the group is done in {seconds(spread._by_s)}" if spread.aim == "latency" else "too late"
            found[site.deployment] = f"one answer takes {seconds(first_s)} there, {until}"
        elif spread.aim == "cost":
            priced = least_usd == least_usd
            found[site.deployment] = f"{usd(least_usd)} for one at its fullest" if priced else "its price is unknown"
        else:
            found[site.deployment] = "the others are done no later without it"
    return found | {name: str(reason) for name, reason in over.refused.items()}


def spilling(spread: Spread) -> dict[str, int]:
    """The deployments in use in the order of taking up, each with the least group that does so."""
    over, fanout = spread._chosen, spread.fanout
    names = {placement.deployment for placement in spread.placements}
    options, pools = over.options, len(over.options.starts)
    names_of = [{over.sites[site].deployment for site in options.site[options.pool == pool]} for pool in range(pools)]
    if spread.aim == "latency":
        from_fanout = _from_by_time(over, fanout)
    else:
        from_fanout = _from_by_price(with_prices(options), fanout, spread.deadline_s)
    first: dict[str, int] = {}
    for pool in np.argsort(from_fanout, kind="stable"):
        number = int(from_fanout[pool])
        for name in names_of[pool] & names:
            # By price, what is used last need not be what is cheapest next.
            first.setdefault(name, min(number, fanout))
    return first


def _from_by_time(over: Field, fanout: int) -> Ints:
    """By pool, the least group that takes it up: more than all others have done when it has done its first."""
    options = over.options
    first_s = options.first_s()
    pools = order(over)
    result = np.empty(len(pools), dtype=np.int64)
    for place, pool in enumerate(pools):
        before = options.done(float(first_s[pool]) * (1.0 - 2.0 * CLOSE), fanout)
        earlier = options.done(float(first_s[pool]), fanout)[pools[:place]]
        result[pool] = 1 + max(before.sum() - before[pool], earlier.sum())
    return result


def _from_by_price(options: Options, fanout: int, deadline_s: float | None) -> Ints:
    """By pool, the least group that takes it up: one more than those that are cheaper do by the deadline."""
    by_s = np.inf if deadline_s is None else deadline_s
    by_s = min(by_s, longest_s(options, fanout))
    able = options.waves(by_s) >= 1.0
    price = np.minimum.reduceat(np.where(able, options.usd, np.inf), options.starts)
    done = options.done(by_s, fanout)
    pools = np.lexsort((options.first_s(), price))
    result = np.empty(len(pools), dtype=np.int64)
    result[pools] = 1 + np.concatenate([[0.0], np.cumsum(done[pools])[:-1]])
    return result


def lines(spread: Spread) -> Iterator[str]:
    """The whole plan."""
    yield from summary(spread)
    yield ""
    yield from table([COLUMNS, *rows(spread)])
    yield ""
    yield from order_and_unused(spread)


def summary(spread: Spread) -> Iterator[str]:
    """How long the group takes and what it costs, and whether the deadline is kept."""
    stat = spread.stat
    where = len({placement.deployment for placement in spread.placements})
    yield (
        f"{spread.fanout:,} siblings on {where:,} deployment{'s' if where > 1 else ''}, {spread.at_once:,} at once: "
        f"done in {span(spread.makespan)}{'' if stat == 'mean' else f' ({stat})'}, {usd(spread.cost_usd)}"
    )
    if spread.deadline_s is not None:
        kept = spread.makespan_s <= spread.deadline_s * (1.0 + CLOSE)
        yield f"the deadline of {seconds(spread.deadline_s)} is {'kept' if kept else 'missed'}"


def rows(spread: Spread) -> Iterator[tuple[str, ...]]:
    """The cells of every placement, in the order of ``COLUMNS``."""
    for placement in spread.placements:
        site, own = placement.site, spread.estimate(placement)
        there = f", {site.in_flight:,} in flight" if site.in_flight else ""
        yield (
            f"{site.deployment} ({site.endpoint + 1})" if site.endpoint else site.deployment,
            f"{placement.requests:,}",
            f"{placement.waves:,} x {placement.at_once:,}",
            seconds(placement.e2e_s),
            f"{span(own)} {own.kind}",
            usd(placement.cost_usd),
            f"{site.most:,}: {site.capped_by}{there}",
            hot(placement),
        )


def order_and_unused(spread: Spread, most: int | None = None) -> Iterator[str]:
    """In which order deployments are taken up, and why the others, ``most`` of them, are not."""
    if any(spread.estimate(placement).extrapolated for placement in spread.placements):
        yield "* outside the measured loads: extrapolated, with a wider band"
    yield f"taken up as the group grows: {', '.join(f'{name} from {n:,}' for name, n in spread.spill.items())}"
    others = spread.unused
    if others:
        yield "not used:"
    yield from (f"    {deployment}: {reason}" for deployment, reason in list(others.items())[:most])
    if most is not None and len(others) > most:
        yield f"    ... and {len(others) - most:,} more"


def hot(placement: Placement) -> str:
    """Whether the contexts of a placement stay in the pool between steps, in words."""
    site = placement.site
    if site.hot is None:
        return "KV unknown"
    return f"all {placement.requests:,}" if placement.requests <= site.hot else f"{site.hot:,}"


def span(estimate: Estimate) -> str:
    """A time in seconds with its band, with a star when extrapolated."""
    star = "*" if estimate.extrapolated else ""
    return f"{seconds(estimate.mean)}{star} ({seconds(estimate.low)}-{seconds(estimate.high)})"


def usd(value: float | None) -> str:
    """An amount of money."""
    return "price unknown" if value is None else f"${value:.3g}"


def seconds(value: float) -> str:
    """A time as a person reads it."""
    return milliseconds(value * 1_000.0)
