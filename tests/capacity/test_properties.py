"""What must hold for every shipped model under every engine, whatever its shape and split."""

from __future__ import annotations

from typing import Literal, get_args

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from agentroute.capacity import llamacpp, sglang, trtllm, vllm, weights
from agentroute.capacity.kv import GIB, KvType, Unknown
from agentroute.capacity.pool import KvLayout, KvPool
from agentroute.catalogue import shipped
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

Engine = Literal["vllm", "sglang", "trtllm", "llamacpp"]

MODELS = st.sampled_from(shipped().model_names).map(shipped().model)
ENGINES = st.sampled_from(get_args(Engine))
DEGREES = st.sampled_from([1, 2, 4, 8])
TYPES: st.SearchStrategy[KvType] = st.sampled_from(["bf16", "fp8"])
GIBS = st.floats(0.01, 1.0) | st.floats(1.0, 400.0)
LENGTHS = st.integers(1, 1_048_576)
SHARDINGS = st.builds(Sharding, tp=DEGREES, pp=DEGREES)
FAR = 1 << 28


def laid_out(engine: Engine, model: Model, sharding: Sharding, kv_type: KvType = "bf16") -> KvLayout | Unknown:
    """One engine's layout; TensorRT-LLM's and llama.cpp's with windows kept whole, where only that is known."""
    match engine:
        case "vllm":
            return vllm.layout(model, sharding, kv_type)
        case "sglang":
            return sglang.layout(model, sharding, kv_type)
        case "trtllm":
            return trtllm.layout(model, sharding, kv_type, trtllm.Options(windows=False))
        case "llamacpp":
            return llamacpp.layout(model, sharding, "fp16" if kv_type == "bf16" else "q8_0")


def slack(layout: KvLayout) -> int:
    """Blocks that rounding may cost: one a group, and for llama.cpp the cells that a context is rounded to."""
    if isinstance(layout, vllm.Layout):
        return sum(group.groups for group in layout.groups)
    if isinstance(layout, sglang.Layout):
        return 2
    return layout.options.pad_tokens if isinstance(layout, llamacpp.Layout) else 1


SPLITS = [
    Sharding(),
    Sharding(tp=2),
    Sharding(tp=8),
    Sharding(tp=8, ep=8),
    Sharding(pp=2),
    Sharding(pp=8),
    Sharding(tp=4, pp=2),
    Sharding(tp=8, dcp=8),
    Sharding(tp=1, attention_dp=8, ep=8),
]


@pytest.mark.parametrize("engine", get_args(Engine))
def test_every_model_accelerator_and_split_has_a_number_or_a_named_reason(engine: Engine) -> None:
    memories = sorted({shipped().accelerator(name).memory_gib for name in shipped().accelerator_names})
    numbers = 0
    for name in shipped().model_names:
        for split in SPLITS:
            layout = laid_out(engine, shipped().model(name), split)
            if isinstance(layout, Unknown):
                assert len(layout.reason.split()) > 3
                continue
            assert layout.needed_gib(8_192) > 0
            pools = [layout.pool_of(0.5 * gib) for gib in memories]
            assert all(pool.blocks > 0 and pool.sequences(8_192) >= 0 for pool in pools)
            assert [pool.blocks for pool in pools] == sorted(pool.blocks for pool in pools)
            numbers += 1
    assert numbers > len(shipped().model_names)


@given(model=MODELS, engine=ENGINES, sharding=SHARDINGS, kv_type=TYPES, gib=GIBS, degree=st.sampled_from(["tp", "pp"]))
@settings(deadline=None)
def test_doubling_one_degree_never_loses_more_than_one_block_per_group(
    model: Model, engine: Engine, sharding: Sharding, kv_type: KvType, gib: float, degree: str
) -> None:
    """Every accelerator has the same memory before and after."""
    degrees = sharding.model_dump()
    degrees[degree] *= 2
    assume(degrees["pp"] <= model.layer_count)
    assume(engine != "llamacpp" or degrees["pp"] * degrees["tp"] <= model.layer_count)
    one, two = laid_out(engine, model, sharding, kv_type), laid_out(engine, model, Sharding(**degrees), kv_type)
    if isinstance(one, Unknown) or isinstance(two, Unknown):
        return
    before, after = one.pool_of(gib), two.pool_of(gib)
    held = before.longest_tokens(10_000_000)
    assume(held > 0)
    assert after.units(held) <= after.blocks + slack(two)


@given(model=MODELS, sharding=SHARDINGS, kv_type=TYPES, gib=GIBS)
@settings(deadline=None)
def test_doubling_the_decode_context_split_never_loses_more_than_one_block_per_group(
    model: Model, sharding: Sharding, kv_type: KvType, gib: float
) -> None:
    assume(sharding.tp > 1)
    split = Sharding(**{**sharding.model_dump(), "dcp": 2})
    one, two = vllm.layout(model, sharding, kv_type), vllm.layout(model, split, kv_type)
    if isinstance(one, Unknown) or isinstance(two, Unknown):
        return
    before, after = one.pool(gib), two.pool(gib)
    held = before.longest_tokens(10_000_000)
    assume(held > 0)
    assert after.units(held) <= after.blocks + slack(two)


@given(model=MODELS, engine=ENGINES, sharding=SHARDINGS, kv_type=TYPES, dp=DEGREES, ep=st.sampled_from([1, 2, 4, 8]))
@settings(deadline=None)
def test_neither_replicas_nor_an_expert_split_change_one_replicas_pool(
    model: Model, engine: Engine, sharding: Sharding, kv_type: KvType, dp: int, ep: int
) -> None:
    """So doubling the replicas doubles what all of them hold."""
    assume(sharding.tp * dp % ep == 0)
    split = Sharding(tp=sharding.tp, pp=sharding.pp, attention_dp=dp, ep=ep)
    assert laid_out(engine, model, split, kv_type) == laid_out(engine, model, sharding, kv_type)


@given(
    model=MODELS,
    engine=ENGINES,
    sharding=SHARDINGS,
    kv_type=TYPES,
    gib=GIBS,
    length=LENGTHS,
    more=st.integers(1, 100_000),
)
@settings(deadline=None)
def test_more_context_never_fits_more_requests(
    model: Model, engine: Engine, sharding: Sharding, kv_type: KvType, gib: float, length: int, more: int
) -> None:
    layout = laid_out(engine, model, sharding, kv_type)
    if isinstance(layout, Unknown):
        return
    pool = layout.pool_of(gib)
    assert pool.units(length + more) >= pool.units(length)
    assert pool.concurrency(length + more) <= pool.concurrency(length)
    keeps_one = isinstance(pool, vllm.VllmPool)
    fit = pool.blocks // pool.units(length) if keeps_one else int(pool.concurrency(length))
    assert pool.sequences(length + more) <= pool.sequences(length) == fit
    assert layout.needed_gib(length + more) >= layout.needed_gib(length)


@given(model=MODELS, engine=ENGINES, sharding=SHARDINGS, kv_type=TYPES, gib=GIBS, limit=st.sampled_from([8_192, FAR]))
@example(shipped().model("gemma-4-26b-a4b"), "sglang", Sharding(), "bf16", 0.1, FAR)
@settings(deadline=None)
def test_the_longest_sequence_fits_and_one_token_more_does_not(
    model: Model, engine: Engine, sharding: Sharding, kv_type: KvType, gib: float, limit: int
) -> None:
    layout = laid_out(engine, model, sharding, kv_type)
    if isinstance(layout, Unknown):
        return
    pool = layout.pool_of(gib)
    longest = pool.longest_tokens(limit)
    assert longest <= limit
    if longest:
        assert pool.units(longest) <= pool.blocks
        assert pool.sequences(longest) >= 1
    if longest < limit:
        assert pool.sequences(longest + 1) == 0


@given(model=MODELS, engine=st.sampled_from(["vllm", "trtllm"]), kv_type=TYPES, sharding=SHARDINGS, gib=GIBS)
@settings(deadline=None)
def test_units_round_trip(model: Model, engine: Engine, kv_type: KvType, sharding: Sharding, gib: float) -> None:
    """The blocks of the longest sequence are no more than the pool has, and those of one token more are."""
    layout = laid_out(engine, model, sharding, kv_type)
    if isinstance(layout, Unknown):
        return
    pool = layout.pool_of(gib)
    longest = pool.longest_tokens(FAR)
    assume(0 < longest < FAR)
    assert pool.units(longest) <= pool.blocks < pool.units(longest + 1)


GROUPS = st.builds(
    vllm.Group,
    kind=st.sampled_from(["full", "sliding", "chunked"]),
    groups=st.integers(1, 9),
    block_tokens=st.sampled_from([4, 8, 16, 32, 64, 256]),
    held_tokens=st.integers(1, 20_000),
    fixed_blocks=st.integers(0, 3),
)
STATES = st.builds(vllm.Group, st.just("state"), st.integers(1, 9), st.just(16), st.none(), st.integers(1, 4))


@given(
    groups=st.lists(GROUPS | STATES, min_size=1, max_size=5),
    blocks=st.integers(0, 200) | st.integers(0, 1_000_000),
    limit=st.integers(0, 100) | st.integers(0, FAR),
)
@settings(max_examples=500)
@example([vllm.Group("full", 1, 16), vllm.Group("sliding", 6, 16, 9_215, 1)], 4_000, 1 << 20)
@example([vllm.Group("full", 1, 32), vllm.Group("full", 1, 16)], 1_000, 1 << 20)
@example([vllm.Group("sliding", 1, 16, 4_095, 1)], 258, 1 << 20)
def test_the_longest_sequence_is_what_a_search_over_units_finds(
    groups: list[vllm.Group], blocks: int, limit: int
) -> None:
    layout = vllm.Layout(tuple(groups), 1, ())
    pool = vllm.VllmPool(layout, blocks)
    assert pool.longest_tokens(limit) == vllm.longest(layout.units, pool.blocks, limit)


@given(model=MODELS, devices=DEGREES, gib=GIBS, sequences=st.sampled_from([1, 4]), unified=st.booleans())
@settings(deadline=None)
def test_llamacpps_largest_context_fits_every_device_and_the_next_does_not(
    model: Model, devices: int, gib: float, sequences: int, unified: bool
) -> None:
    options = llamacpp.Options(sequences=sequences, unified=unified)
    layout = llamacpp.layout(model, Sharding(pp=devices), "fp16", options)
    if isinstance(layout, Unknown):
        return
    pool = layout.pool(gib)
    assume(pool.cells < llamacpp.MOST_CELLS)
    if pool.cells:
        assert max(pool.device_mib([1.0] * devices)) / 1_024 <= gib
        assert layout.needed_gib(pool.cells) == pytest.approx(max(pool.device_mib([1.0] * devices)) / 1_024)
    assert max(layout.of_context(pool.cells + 1).device_mib([1.0] * devices)) / 1_024 > gib


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


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("name", "tp8", "pp8"),
    [
        ("llama-3.1-70b", 80 * 512, 10 * 4_096),  # 8 KV heads: one on each rank
        ("qwen3-235b-a22b", 94 * 512, 12 * 2_048),  # 4 KV heads: each on two ranks
        ("deepseek-v3", 61 * 1_152, 8 * 1_152),  # latent: all of it on every rank
    ],
)
def test_one_model_on_eight_accelerators_keeps_what_its_split_says(
    engine: Engine, name: str, tp8: int, pp8: int
) -> None:
    """Bytes of a token per accelerator: heads divide until each rank has one, layers divide, experts change nothing."""
    model = shipped().model(name)
    for split, size in ((Sharding(tp=8), tp8), (Sharding(pp=8), pp8), (Sharding(tp=8, ep=8), tp8)):
        layout = laid_out(engine, model, split)
        assert not isinstance(layout, Unknown)
        assert layout.needed_gib(6_400) * GIB == pytest.approx(6_400 * size)


def _pool(model: Model, sharding: Sharding, gib: float, options: vllm.Options) -> KvPool:
    layout = vllm.layout(model, sharding, "bf16", options)
    assert not isinstance(layout, Unknown)
    return layout.pool_of(gib)


def test_batches_that_fill_a_pipeline_share_one_pool() -> None:
    """Eight stages hold as many sequences as eight tensor ranks, so each of eight batches has an eighth of them.

    Where layers have windows, each batch in flight also keeps its tokens beside them, so fewer fit.
    """
    plain = shipped().model("llama-3.1-70b")
    tp8, pp8 = Sharding(tp=8), Sharding(pp=8)
    full = vllm.Options(batches_in_flight=8)
    assert _pool(plain, tp8, 20.1, vllm.Options()).sequences(8_192) == 64
    assert _pool(plain, pp8, 20.1, full).sequences(8_192) == 64
    windowed = shipped().model("gpt-oss-120b")
    alone, filled = _pool(windowed, pp8, 20.0, vllm.Options()), _pool(windowed, pp8, 20.0, full)
    assert alone.blocks == filled.blocks
    assert filled.units(131_072) - alone.units(131_072) == 7 * 8_192 // 16
    assert filled.sequences(131_072) < alone.sequences(131_072)


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


@given(model=MODELS, sharding=SHARDINGS)
@settings(deadline=None)
def test_every_models_weights_have_a_number_or_a_reason(model: Model, sharding: Sharding) -> None:
    found = weights.gib(model, sharding)
    assert found.reason if isinstance(found, Unknown) else found > 0
