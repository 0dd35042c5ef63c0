"""What must hold for every shipped model, whatever its shape and split."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentroute.capacity import llamacpp, sglang, trtllm, vllm, weights
from agentroute.capacity.kv import KvType, Unknown
from agentroute.catalogue import shipped
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

MODELS = st.sampled_from(shipped().model_names).map(shipped().model)
DEGREES = st.sampled_from([1, 2, 4, 8])
TYPES: st.SearchStrategy[KvType] = st.sampled_from(["bf16", "fp8"])
GIBS = st.floats(1.0, 400.0)
LENGTHS = st.integers(1, 1_048_576)
SHARDINGS = st.builds(Sharding, tp=DEGREES, pp=DEGREES)


@given(model=MODELS, sharding=SHARDINGS, kv_type=TYPES, gib=GIBS, length=LENGTHS)
@settings(deadline=None)
def test_every_model_and_split_has_a_number_or_a_reason(
    model: Model, sharding: Sharding, kv_type: KvType, gib: float, length: int
) -> None:
    paged = vllm.layout(model, sharding, kv_type)
    slots = sglang.layout(model, sharding, kv_type)
    if isinstance(paged, Unknown):
        assert paged.reason
    else:
        assert paged.pool(gib).sequences(length) >= 0
        assert paged.needed_gib(length) > 0
    if isinstance(slots, Unknown):
        assert slots.reason
    else:
        assert slots.pool(gib, gib).sequences(length) >= 0
        assert slots.needed_gib(length) > 0
    for found in (
        trtllm.pool(model, sharding, kv_type, gib),
        llamacpp.pool(model, length, "fp16"),
        weights.gib(model, sharding),
    ):
        if isinstance(found, Unknown):
            assert found.reason


@given(model=MODELS, sharding=SHARDINGS, kv_type=TYPES, gib=GIBS, degree=st.sampled_from(["tp", "pp", "dcp"]))
@settings(deadline=None)
def test_doubling_one_degree_never_loses_more_than_one_block_per_group(
    model: Model, sharding: Sharding, kv_type: KvType, gib: float, degree: str
) -> None:
    degrees = sharding.model_dump()
    degrees[degree] *= 2
    assume(degrees["tp"] % degrees["dcp"] == 0)
    assume(degrees["pp"] <= model.layer_count)
    one, two = vllm.layout(model, sharding, kv_type), vllm.layout(model, Sharding(**degrees), kv_type)
    if isinstance(one, Unknown) or isinstance(two, Unknown):
        return
    before, after = one.pool(gib), two.pool(gib)
    longest = before.longest_tokens(10_000_000)
    assert after.units(longest) <= after.blocks + sum(group.groups for group in two.groups)


@given(model=MODELS, sharding=SHARDINGS, kv_type=TYPES, gib=GIBS, length=LENGTHS, more=st.integers(1, 100_000))
@settings(deadline=None)
def test_more_context_never_fits_more_requests(
    model: Model, sharding: Sharding, kv_type: KvType, gib: float, length: int, more: int
) -> None:
    paged = vllm.layout(model, sharding, kv_type)
    if not isinstance(paged, Unknown):
        pool = paged.pool(gib)
        assert pool.units(length + more) >= pool.units(length)
        assert pool.sequences(length + more) <= pool.sequences(length)
        assert paged.needed_gib(length + more) >= paged.needed_gib(length)
    tokens = sglang.layout(model, sharding, kv_type)
    if not isinstance(tokens, Unknown):
        pools = tokens.pool(gib, gib)
        assert pools.sequences(length + more) <= pools.sequences(length)
    cells = llamacpp.pool(model, 65_536, "fp16")
    if not isinstance(cells, Unknown):
        assert cells.sequences(length + more) <= cells.sequences(length)


@given(model=MODELS, sharding=SHARDINGS, kv_type=TYPES, gib=GIBS)
@settings(deadline=None)
def test_the_longest_sequence_fits_and_one_token_more_does_not(
    model: Model, sharding: Sharding, kv_type: KvType, gib: float
) -> None:
    layout = vllm.layout(model, sharding, kv_type)
    if isinstance(layout, Unknown):
        return
    pool = layout.pool(gib)
    longest = pool.longest_tokens(1 << 28)
    assume(longest < 1 << 28)
    if longest:
        assert pool.units(longest) <= pool.blocks
        assert pool.sequences(longest) >= 1
    assert pool.units(longest + 1) > pool.blocks


@given(model=MODELS, kv_type=TYPES, gib=GIBS)
@settings(deadline=None)
def test_layer_split_does_not_relieve_the_pool_as_a_whole(model: Model, kv_type: KvType, gib: float) -> None:
    """Two stages with half of the memory each hold no more than one accelerator with all of it."""
    one, two = vllm.layout(model, Sharding(), kv_type), vllm.layout(model, Sharding(pp=2), kv_type)
    if isinstance(one, Unknown) or isinstance(two, Unknown):
        return
    assume(len(one.groups) == 1 and model.layer_count > 1)
    assert two.pool(gib / 2).blocks <= one.pool(gib).blocks + 1
    assert two.block_bytes <= one.block_bytes


@given(model=MODELS, sharding=SHARDINGS, style=st.sampled_from(["tp", "pp"]))
@settings(deadline=None)
def test_more_ranks_never_carry_more_weight_each(model: Model, sharding: Sharding, style: str) -> None:
    degrees = sharding.model_dump()
    degrees[style] *= 2
    assume(degrees["pp"] <= model.layer_count // 4)
    one, two = weights.gib(model, sharding), weights.gib(model, Sharding(**degrees))
    if isinstance(one, Unknown) or isinstance(two, Unknown):
        return
    assert two <= one * (1 + 1e-9)


@given(model=MODELS, ep=st.sampled_from([1, 2, 4, 8]), kv_type=TYPES)
@settings(deadline=None)
def test_expert_split_changes_no_kv(model: Model, ep: int, kv_type: KvType) -> None:
    assert vllm.layout(model, Sharding(tp=8, ep=ep), kv_type) == vllm.layout(model, Sharding(tp=8), kv_type)
