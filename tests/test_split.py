"""The arithmetic of a fan-out, against every split that there is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute import split
from agentroute.split import Options, cheapest, filled, least_cost, least_makespan_s, soonest

Way = tuple[int, float, float, float]
"""At once, E2E, what the first wave takes longer, US dollars for one."""
Pool = list[list[Way]]
"""By site."""


def options(pools: list[Pool]) -> Options:
    rows = []
    site = 0
    for pool, sites in enumerate(pools):
        for ways in sites:
            rows += [(pool, site, *way) for way in ways]
            site += 1
    pool_, site_, at_once, e2e_s, once_s, usd = zip(*rows, strict=True)
    return Options(np.array(pool_), np.array(site_), *(np.array(a, dtype=float) for a in (at_once, e2e_s, once_s, usd)))


@st.composite
def pools(draw: st.DrawFn, most: int = 3, cap: int = 6) -> Pool:
    """One or two sites; times do not fall with the number at once, nor does the price of a whole wave."""
    sites = []
    for _ in range(draw(st.integers(1, 2))):
        count = draw(st.integers(1, cap))
        once = draw(st.sampled_from([0.0, 0.0, 0.7]))
        e2e = sorted(draw(st.floats(0.1, 20.0)) for _ in range(count))
        waves = sorted(draw(st.floats(0.01, 10.0)) for _ in range(count))
        sites.append([(c, e2e[c - 1], once, waves[c - 1] / c) for c in range(1, count + 1)])
    return sites


def uses(pool: Pool, requests: int) -> Iterator[tuple[float, float]]:
    """Makespan and cost of every way in which a pool can do so many requests."""
    if requests == 0:
        yield 0.0, 0.0
        return
    for at_once, e2e_s, once_s, usd in (way for site in pool for way in site):
        if at_once <= requests:
            yield once_s + math.ceil(requests / at_once) * e2e_s, requests * usd


def shares(count: int, fanout: int) -> Iterator[tuple[int, ...]]:
    for some in product(range(fanout + 1), repeat=count - 1):
        if (rest := fanout - sum(some)) >= 0:
            yield (*some, rest)


fleets = st.lists(pools(), min_size=1, max_size=3)


@given(fleets, st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_the_makespan_is_the_least_of_every_split(fleet: list[Pool], fanout: int) -> None:
    exhaustive = min(
        max(min(uses(pool, requests))[0] for pool, requests in zip(fleet, share, strict=True))
        for share in shares(len(fleet), fanout)
    )
    assert least_makespan_s(options(fleet), fanout) == pytest.approx(exhaustive, rel=1e-5)


@given(fleets, st.integers(1, 9), st.data())
@settings(max_examples=100, deadline=None)
def test_filling_pools_places_every_request_and_keeps_the_makespan(
    fleet: list[Pool], fanout: int, data: st.DataObject
) -> None:
    every = options(fleet)
    order = np.array(data.draw(st.permutations(range(len(fleet)))), dtype=np.intp)
    by_s = least_makespan_s(every, fanout)
    requests = filled(every, by_s, fanout, order)
    assert requests.sum() == fanout and (requests >= 0).all()
    taken = soonest(every, requests)
    ends = every.once_s[taken] + np.ceil(requests / every.at_once[taken]) * every.e2e_s[taken]
    assert ends[requests > 0].max() == pytest.approx(by_s, rel=1e-5)
    assert (every.pool[taken] == np.arange(len(fleet))).all()


@given(fleets, st.integers(1, 9), st.floats(0.1, 60.0))
@settings(max_examples=200, deadline=None)
def test_the_cost_is_the_least_of_every_split_that_keeps_the_deadline(
    fleet: list[Pool], fanout: int, by_s: float
) -> None:
    exhaustive = math.inf
    for share in shares(len(fleet), fanout):
        cost = 0.0
        for pool, requests in zip(fleet, share, strict=True):
            cost += min((usd for end, usd in uses(pool, requests) if end <= by_s * (1 + 1e-10)), default=math.inf)
        exhaustive = min(exhaustive, cost)
    every = options(fleet)
    found = cheapest(every, fanout, by_s)
    if found is None:
        assert exhaustive == math.inf
        return
    assert found.sum() == fanout and len(found) == len(fleet)
    assert least_cost(every, found, by_s)[1].sum() == pytest.approx(exhaustive, rel=1e-5)


@pytest.mark.parametrize("by_s", [12.0, 30.0])
def test_a_group_too_large_for_the_exact_table_costs_two_per_cent_more_on_average_at_most(
    by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the exact table, which takes a second for such groups."""
    above = []
    for seed in range(6):
        random = np.random.default_rng(seed)
        fleet: list[Pool] = []
        for _ in range(20):
            slope, base, hourly = random.uniform(0.01, 0.3), random.uniform(2.0, 10.0), random.uniform(1.0, 30.0)
            e2e = [base + slope * c for c in range(1, int(random.integers(8, 65)) + 1)]
            fleet.append([[(c, e, 0.0, hourly * e / c / 3_600.0) for c, e in enumerate(e2e, 1)]])
        every = options(fleet)
        costs = []
        for cells in (split.CELLS, 1 << 40):
            monkeypatch.setattr(split, "CELLS", cells)
            requests = cheapest(every, 300, by_s)
            assert requests is not None and requests.sum() == 300
            costs.append(least_cost(every, requests, by_s)[1].sum())
        monkeypatch.undo()
        assert costs[1] <= costs[0] * (1.0 + 1e-9)
        above.append(costs[0] / costs[1] - 1.0)
    assert sum(above) / len(above) <= 0.02


def test_a_deadline_that_all_together_cannot_keep_has_no_split() -> None:
    every = options([[[(1, 2.0, 0.0, 1.0)]], [[(1, 3.0, 0.0, 1.0)]]])
    assert cheapest(every, 6, 6.0) is None
    assert cheapest(every, 5, 6.0) is not None


def test_a_pool_with_two_names_is_taken_once() -> None:
    alone = options([[[(1, 2.0, 0.0, 1.0), (2, 2.5, 0.0, 1.0)]]])
    twice = options([[[(1, 2.0, 0.0, 1.0), (2, 2.5, 0.0, 1.0)]] * 2])
    assert least_makespan_s(twice, 8) == least_makespan_s(alone, 8) == pytest.approx(10.0)
