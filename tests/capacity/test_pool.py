"""A KV pool hands out whole blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.capacity.pool import Pool


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (160, 10), (161, 11)])
def test_a_sequence_occupies_whole_blocks(tokens: int, blocks: int) -> None:
    assert Pool(100, 16).units(tokens) == blocks


@pytest.mark.parametrize(("tokens", "sequences"), [(1, 10), (16, 10), (17, 5), (48, 3), (160, 1), (161, 0)])
def test_so_many_sequences_fit_at_once(tokens: int, sequences: int) -> None:
    assert Pool(10, 16).sequences(tokens) == sequences


@pytest.mark.parametrize(("tokens", "concurrency"), [(16, 10.0), (17, 5.0), (40, 10 / 3), (161, 10 / 11)])
def test_concurrency_counts_the_fraction_too(tokens: int, concurrency: float) -> None:
    assert Pool(10, 16).concurrency(tokens) == pytest.approx(concurrency)


def test_the_longest_sequence_is_all_of_the_pool_or_the_limit() -> None:
    assert (Pool(10, 16).longest_tokens(), Pool(10, 16).longest_tokens(100)) == (160, 100)
    assert Pool(0, 16).longest_tokens() == 0


@given(st.integers(1, 10_000), st.integers(1, 512), st.integers(1, 1_000_000))
def test_the_sequences_that_fit_do_fit_and_one_more_does_not(blocks: int, block_tokens: int, tokens: int) -> None:
    pool = Pool(blocks, block_tokens)
    assert pool.sequences(tokens) * pool.units(tokens) <= blocks < (pool.sequences(tokens) + 1) * pool.units(tokens)


@given(st.integers(1, 10_000), st.integers(1, 512))
def test_one_sequence_of_all_its_tokens_fills_a_pool_exactly(blocks: int, block_tokens: int) -> None:
    pool = Pool(blocks, block_tokens)
    assert pool.units(pool.tokens) == blocks
    assert pool.units(pool.tokens + 1) == blocks + 1
