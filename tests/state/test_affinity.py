"""Affinity: where a prompt's beginning is cached, and when it is no longer."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.prefix import Mark, marks, named
from agentroute.state.affinity import Affinity

EXPIRE_S = 100.0


def affinity(*capacity: float | None, max_entries: int = 1_000) -> Affinity:
    return Affinity(capacity, max_entries=max_entries, expire_s=EXPIRE_S)


def chain(*tokens: int, name: str = "a") -> tuple[Mark, ...]:
    return tuple(named(name, str(count), count) for count in tokens)


def warm(it: Affinity, asked: tuple[Mark, ...], now: float = 0.0) -> list[float] | None:
    found = it.warm_tokens(asked, now)
    return None if found is None else found.tolist()


# ---- the longest that is known


def test_nothing_sent_nothing_warm() -> None:
    assert warm(affinity(1_000, 1_000), chain(10, 20)) is None


def test_each_pool_is_credited_with_the_longest_mark_it_has_seen() -> None:
    it = affinity(1_000, 1_000, 1_000)
    it.learn(0, chain(100, 200), 0.0, 200)
    it.learn(1, chain(100, 200, 300), 0.0, 300)
    assert warm(it, chain(100, 200, 300, 400)) == [200, 300, 0]
    assert warm(it, chain(100)) == [100, 100, 0]
    assert warm(it, chain(100, name="b")) is None
    assert warm(it, ()) is None


def test_sub_agents_share_their_parents_prefix() -> None:
    parent = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "find the bug"}]
    child = [*parent, {"role": "user", "content": "look into a.py"}]
    stranger = [parent[0], {"role": "user", "content": "write a poem"}]
    it = affinity(1_000, 1_000)
    it.learn(1, marks(parent, [400, 50]), 0.0, 450)
    assert warm(it, marks(child, [400, 50, 20])) == [0, 450]
    assert warm(it, marks(stranger, [400, 30])) == [0, 400]


def test_a_session_known_by_name_has_its_last_prompt_warm_and_no_more() -> None:
    it = affinity(100_000)
    it.learn(0, (named("session", "s", 5_000),), 0.0, 5_000)
    assert warm(it, (named("session", "s", 9_000),)) == [5_000]
    assert warm(it, (named("session", "s", 2_000),)) == [2_000]


# ---- eviction


@pytest.mark.parametrize(
    ("written_since", "left"),
    [(0, 300), (700, 300), (701, 299), (900, 100), (999, 1), (1_000, None), (5_000, None)],
)
def test_the_end_of_a_prefix_is_evicted_first_once_the_pool_was_written_over(
    written_since: int, left: int | None
) -> None:
    it = affinity(1_000)
    it.learn(0, chain(300), 0.0, 300)
    it.learn(0, (), 0.0, written_since)
    assert warm(it, chain(300)) == (None if left is None else [left])


def test_using_a_prefix_keeps_it() -> None:
    it = affinity(1_000)
    for _ in range(20):
        it.learn(0, chain(300), 0.0, 600)
    assert warm(it, chain(300)) == [300]


def test_a_shared_beginning_outlives_the_branches() -> None:
    it = affinity(1_000)
    it.learn(0, chain(200, 500), 0.0, 500)
    for branch in range(10):
        it.learn(0, chain(200) + chain(500, name=str(branch)), 0.0, 300)
    assert warm(it, chain(200, 500)) == [200]


def test_churn_elsewhere_evicts_nothing_here() -> None:
    it = affinity(1_000, 1_000)
    it.learn(0, chain(300), 0.0, 300)
    it.learn(1, (), 0.0, 10_000)
    assert warm(it, chain(300)) == [300, 0]


@pytest.mark.parametrize("capacity", [None, math.inf, math.nan])
def test_a_pool_of_unknown_size_forgets_only_by_time(capacity: float | None) -> None:
    it = affinity(capacity)
    it.learn(0, chain(300), 0.0, 300)
    it.learn(0, (), 0.0, 1e9)
    assert warm(it, chain(300), EXPIRE_S - 1) == [300]
    assert warm(it, chain(300), EXPIRE_S) is None


def test_a_pool_that_keeps_no_prefixes_is_never_warm() -> None:
    it = affinity(0)
    it.learn(0, chain(300), 0.0, 300)
    assert len(it) == 0
    assert warm(it, chain(300)) is None


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 120))
def test_the_estimate_is_exact_for_an_lru_cache_under_one_off_prompts(
    capacity: int, prefix: int, written_since: int
) -> None:
    """A true least-recently-used cache of single tokens, a prompt's last one touched first."""
    cache: dict[tuple[str, int], None] = {}
    for key in [("prefix", k) for k in reversed(range(prefix))] + [("once", k) for k in range(written_since)]:
        cache[key] = None
        if len(cache) > capacity:
            del cache[next(iter(cache))]
    truth = sum(name == "prefix" for name, _ in cache)
    it = affinity(capacity)
    it.learn(0, chain(prefix), 0.0, prefix)
    it.learn(0, (), 0.0, written_since)
    assert warm(it, chain(prefix)) == ([truth] if truth else None)


# ---- forgetting


def test_what_is_not_used_expires() -> None:
    it = affinity(1_000, 1_000)
    it.learn(0, chain(300), 0.0, 300)
    it.learn(1, chain(300), 60.0, 300)
    assert warm(it, chain(300), EXPIRE_S) == [0, 300]
    assert warm(it, chain(300), EXPIRE_S + 60.0) is None
    assert len(it) == 0


def test_a_clock_set_back_does_not_keep_it_for_longer() -> None:
    it = affinity(1_000)
    it.learn(0, chain(300), 10_000.0, 300)
    assert warm(it, chain(300), 0.0) == [300]
    assert warm(it, chain(300), EXPIRE_S) is None


@pytest.mark.parametrize("capacity", [1_000, None])
def test_a_server_that_restarted_has_nothing(capacity: float | None) -> None:
    it = affinity(capacity, 1_000)
    for pool in (0, 1):
        it.learn(pool, chain(100, 300), 0.0, 300)
    it.forget(0)
    assert warm(it, chain(100, 300)) == [0, 300]
    it.learn(0, chain(100), 0.0, 100)
    assert warm(it, chain(100, 300)) == [100, 300]


def test_memory_is_bounded_and_the_least_recently_used_go_first() -> None:
    it = affinity(10**9, max_entries=6)
    hot = chain(10, 20, name="hot")
    it.learn(0, hot, 0.0, 20)
    for k in range(50):
        it.learn(0, chain(10, 20, name=str(k)), 0.0, 20)
        it.learn(0, hot, 0.0, 0)
        assert len(it) <= 6
    assert warm(it, hot) == [20]
    assert warm(it, chain(10, 20, name="49")) == [20]
    assert warm(it, chain(10, 20, name="0")) is None


def test_of_one_prompt_the_longest_mark_goes_first() -> None:
    it = affinity(10**9, max_entries=3)
    it.learn(0, chain(10, 20, 30, 40, 50), 0.0, 50)
    assert warm(it, chain(10, 20, 30, 40, 50)) == [30]


# ---- whatever happens


class Plain:
    """The same, said plainly: every entry is asked, nothing is prepared."""

    def __init__(self, capacity: list[int]) -> None:
        self.capacity = capacity
        self.written = [0] * len(capacity)
        self.entries: dict[tuple[int, int], tuple[int, int, float]] = {}

    def learn(self, pool: int, learnt: tuple[Mark, ...], now: float, tokens: int) -> None:
        self.written[pool] += tokens
        for mark in learnt:
            self.entries[mark.hash, pool] = (mark.tokens, self.written[pool], now)

    def warm_tokens(self, asked: tuple[Mark, ...], now: float) -> list[float] | None:
        best = [0.0] * len(self.capacity)
        for mark in asked:
            for pool, capacity in enumerate(self.capacity):
                tokens, then, at = self.entries.get((mark.hash, pool), (0, 0, -math.inf))
                if now - at < EXPIRE_S:
                    best[pool] = max(best[pool], min(tokens, mark.tokens, capacity - (self.written[pool] - then)))
        return best if any(best) else None


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_it_finds_what_asking_every_entry_would(seed: int) -> None:
    dice = random.Random(seed)
    pools = dice.choice([1, 3, 9, 70])
    capacity = [dice.choice([0, 500, 2_000]) for _ in range(pools)]
    it, plain = affinity(*capacity, max_entries=10**6), Plain(capacity)
    trunk = chain(*range(50, 601, 50))
    now = 0.0
    for _ in range(dice.choice([5, 40, 150])):
        now += dice.choice([0.0, 0.0, 1.0, 30.0])
        depth = dice.randint(0, len(trunk))
        branch = tuple(Mark(mark.hash ^ dice.randint(1, 2), mark.tokens) for mark in trunk[depth:])
        prompt = (trunk[:depth] + branch)[: dice.randint(1, len(trunk))]
        if dice.random() < 0.7:
            pool, tokens = dice.randrange(pools), dice.choice([0, 100, 400])
            it.learn(pool, prompt, now, tokens)
            plain.learn(pool, prompt, now, tokens)
        assert warm(it, prompt, now) == plain.warm_tokens(prompt, now)


def test_deciding_does_not_change_what_is_warm() -> None:
    it = affinity(*[1_000] * 9)
    for pool in range(9):
        it.learn(pool, chain(100, 300), float(pool), 100 * pool)
    first = it.warm_tokens(chain(100, 300), 50.0)
    again = it.warm_tokens(chain(100, 300), 50.0)
    assert first is not None and again is not None
    assert first is not again
    assert np.array_equal(first, again)
