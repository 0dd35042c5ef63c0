"""Blocks of a request in every deployment at once: exactly those of the engine's own rules."""

from __future__ import annotations

import numpy as np
import pytest
from fleets import mixed
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.blocks import BlockTable, kv_pool
from agentroute.capacity import vllm
from agentroute.capacity.kv import Unknown
from agentroute.capacity.pool import KvPool, Pool
from agentroute.catalogue import shipped
from agentroute.shape.sharding import Sharding

LAYOUTS = [
    found
    for name in shipped().model_names
    for options in (vllm.Options(), vllm.Options(batched_tokens=2_048, align=False), vllm.Options(hybrid=False))
    if not isinstance(found := vllm.layout(shipped().model(name), Sharding(), "bf16", options), Unknown)
]
HYBRID = [found for found in LAYOUTS if len(found.groups) > 1]
pools = st.lists(
    st.none()
    | st.builds(Pool, st.integers(1, 10_000), st.sampled_from([1, 16, 64, 544]))
    | st.builds(vllm.VllmPool, st.sampled_from(LAYOUTS) | st.sampled_from(HYBRID), st.integers(1, 100_000)),
    min_size=1,
    max_size=6,
)


def units(pool: KvPool | None, tokens: int) -> int:
    return tokens if pool is None else pool.units(tokens)


@given(pools, st.lists(st.integers(1, 1_000_000) | st.integers(1, 20_000), min_size=1, max_size=4))
@settings(max_examples=200)
def test_blocks_are_those_of_each_engines_rules(drawn: list[KvPool | None], lengths: list[int]) -> None:
    table = BlockTable.of(drawn)
    for tokens in lengths:
        right = [units(pool, tokens) for pool in drawn]
        assert table.units(float(tokens)).tolist() == right
        assert table.units(np.full(len(drawn), float(tokens))).tolist() == right
        assert [table.units_at(d, tokens) for d in range(len(drawn))] == right
    many = table.units(np.array(lengths, dtype=np.float64)[:, None])
    assert many.tolist() == [[units(pool, tokens) for pool in drawn] for tokens in lengths]


@given(pools, st.integers(1, 200_000), st.integers(0, 200_000))
def test_what_is_shared_is_never_more_than_what_is_held(drawn: list[KvPool | None], shared: int, more: int) -> None:
    table = BlockTable.of(drawn)
    assert (table.whole(float(shared)) <= table.units(float(shared + more))).all()


def test_only_layers_that_hold_everything_share_a_prefix_for_as_long_as_they_run() -> None:
    layout = next(found for found in HYBRID if {group.kind for group in found.groups} == {"full", "sliding"})
    full = sum(group.groups for group in layout.groups if group.kind == "full")
    block = next(group.block_tokens for group in layout.groups if group.kind == "full")
    table = BlockTable.of([vllm.VllmPool(layout, 1_000)])
    assert table.whole(10.5 * block).tolist() == [10 * full]


@pytest.mark.parametrize(
    ("version", "at_window"),
    [("0.11.0", 6.6), ("0.30.0", 451_040 / 131_072), (None, 451_040 / 131_072)],
)
def test_what_a_server_printed_is_read_as_its_version_meant_it(version: str | None, at_window: float) -> None:
    """Blocks of one group to about 0.19, since then so many windows; where nobody tells, the less."""
    pool = kv_pool(mixed(version), 131_072)
    assert pool is not None
    assert pool.concurrency(131_072) == pytest.approx(at_window, rel=0.05)


def test_a_pool_that_nobody_reported_is_unknown() -> None:
    without = mixed("0.30.0").profile.model_copy(update={"limits": None})
    assert kv_pool(shipped().deployment(without), 131_072) is None
