"""What a step reads, multiplies and sends, counted from the shape."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.capacity import kv
from agentroute.capacity.kv import KvType, Unknown
from agentroute.capacity.weights import QUANTISATIONS
from agentroute.catalogue import shipped
from agentroute.latency.work import Experts, Past, Work, count
from agentroute.shape import parameters
from agentroute.shape.model import Mla
from agentroute.shape.sharding import Sharding

WHOLE = Sharding()


def counted(model: str, sharding: Sharding = WHOLE, *, quantisation: str = "bf16", kv_type: KvType = "bf16") -> Work:
    work = count(shipped().model(model), sharding, QUANTISATIONS[quantisation], kv_type)
    assert isinstance(work, Work), work
    return work


def kv_bytes(work: Work, context_tokens: float = 1.0) -> float:
    """KV bytes that a new token reads behind ``context_tokens``."""
    return sum(past.bytes * past.read_tokens(context_tokens) for past in work.past)


def weight_bytes(work: Work, tokens: float = 1e6) -> float:
    """Weights that a step of ``tokens`` tokens reads; a million hit every expert."""
    return work.weight_bytes + sum(experts.read_bytes(tokens) for experts in work.experts)


@pytest.mark.parametrize("model", shipped().model_names)
def test_when_all_experts_are_hit_every_weight_but_what_is_looked_up_is_read(model: str) -> None:
    work, held = count(shipped().model(model), Sharding()), parameters.count(shipped().model(model))
    if isinstance(work, Unknown) or held.total is None or held.lookup is None:
        return
    assert weight_bytes(work) == pytest.approx(2 * (held.total - held.lookup), rel=0.01)


@pytest.mark.parametrize(
    ("model", "degrees", "share"),
    [
        ("llama-3.1-70b", {"tp": 8}, 1 / 8),
        ("llama-3.1-70b", {"pp": 8}, 1),
        ("mixtral-8x7b", {"tp": 8}, 1 / 8),
        ("mixtral-8x7b", {"tp": 8, "ep": 8}, 1 / 8),
        ("mixtral-8x7b", {"tp": 8, "ep": 2}, 1 / 8),
    ],
)
def test_a_split_divides_the_weights_that_one_accelerator_reads(
    model: str, degrees: dict[str, int], share: float
) -> None:
    """A layer split does not: a token passes every stage, and they read one after the other."""
    assert weight_bytes(counted(model, Sharding(**degrees))) == pytest.approx(
        share * weight_bytes(counted(model)), rel=0.002
    )


def test_replicas_read_all_of_attention_each_and_share_the_experts() -> None:
    whole, replicas = counted("deepseek-v3"), counted("deepseek-v3", Sharding(attention_dp=8, ep=8))
    assert replicas.weight_bytes == whole.weight_bytes
    assert replicas.experts[0].read_bytes(1e6) == pytest.approx(whole.experts[0].read_bytes(1e6) / 8)


@pytest.mark.parametrize(("quantisation", "bytes_"), [("bf16", 2.0), ("fp8", 1.0), ("awq-int4", 0.51953125)])
def test_a_quantised_weight_reads_fewer_bytes_but_the_output_layer_none(quantisation: str, bytes_: float) -> None:
    output = 2 * 128_256 * 8_192
    rest = counted("llama-3.1-70b").weight_bytes - output
    assert counted("llama-3.1-70b", quantisation=quantisation).weight_bytes == pytest.approx(output + rest * bytes_ / 2)


@pytest.mark.parametrize(
    ("experts", "active", "tokens", "hit"),
    [
        (256, 8, 1, 8.0),
        (256, 8, 2, 15.75),
        (128, 4, 1, 4.0),
        (16, 1, 2, 1.9375),
        (8, 8, 1, 8.0),
        (256, 8, 10_000, 256.0),
    ],
)
def test_tokens_hit_distinct_experts(experts: int, active: int, tokens: int, hit: float) -> None:
    assert Experts(experts, active, ranks=1, one_bytes=1.0).hit(tokens) == pytest.approx(hit)


def test_an_expert_rank_reads_whole_experts() -> None:
    spread = Experts(256, 8, ranks=64, one_bytes=10.0)
    assert spread.read_bytes(1) == 10.0
    assert spread.read_bytes(1e6) == pytest.approx(256 / 64 * 10.0)


@given(
    experts=st.integers(1, 512),
    data=st.data(),
    tokens=st.floats(1, 1e5),
    more=st.floats(1, 10),
    ranks=st.sampled_from([1, 4, 32]),
)
def test_more_tokens_read_more_experts_but_fewer_for_each(
    experts: int, data: st.DataObject, tokens: float, more: float, ranks: int
) -> None:
    one = Experts(experts, data.draw(st.integers(1, experts)), ranks, 1.0)
    few, many = one.read_bytes(tokens), one.read_bytes(tokens * more)
    assert few <= many * (1 + 1e-9)
    assert many / (tokens * more) <= few / tokens * (1 + 1e-9)
    assert one.hit(tokens) <= min(experts, one.active * tokens) * (1 + 1e-9)


@pytest.mark.parametrize("model", shipped().model_names)
@pytest.mark.parametrize("tp", [1, 4, 32])
def test_a_new_token_reads_every_row_that_is_kept(model: str, tp: int) -> None:
    """Layers that keep no KV of their own read the rows of others."""
    shape = shipped().model(model)
    work, kept = count(shape, Sharding(tp=tp)), kv.specs(shape, tp, "bf16", shared_too=True)
    if isinstance(work, Unknown) or isinstance(kept, Unknown):
        return
    assert sum(past.bytes for past in work.past) == pytest.approx(sum(spec.count * spec.row_bytes for spec in kept))
    assert work.state_bytes == 2 * sum(spec.count * spec.state_bytes for spec in kept)


@pytest.mark.parametrize(
    ("model", "kv_heads"), [("llama-3.1-70b", 8), ("qwen3-235b-a22b", 4), ("gpt-oss-120b", 8), ("llama-2-7b", 32)]
)
def test_tensor_split_divides_kv_until_there_are_more_ranks_than_kv_heads(model: str, kv_heads: int) -> None:
    whole = kv_bytes(counted(model), 8_000)
    for tp in (1, 2, 4, 8, 16, 32):
        assert kv_bytes(counted(model, Sharding(tp=tp)), 8_000) == pytest.approx(whole / min(tp, kv_heads))


def test_tensor_split_does_not_divide_a_latent() -> None:
    assert kv_bytes(counted("deepseek-v3", Sharding(tp=8))) == kv_bytes(counted("deepseek-v3")) == 61 * (512 + 64) * 2


def test_context_split_divides_a_latent() -> None:
    assert kv_bytes(counted("deepseek-v3", Sharding(tp=8, dcp=8))) == pytest.approx(61 * (512 + 64) * 2 / 8)


def test_layer_and_expert_split_and_replicas_leave_what_a_token_reads_as_it_is() -> None:
    whole = counted("deepseek-v3").past
    assert counted("deepseek-v3", Sharding(pp=8)).past == whole
    assert counted("deepseek-v3", Sharding(attention_dp=8, ep=8)).past == whole


@pytest.mark.parametrize(("context", "windows"), [(100, 100), (128, 128), (100_000, 128)])
def test_a_sliding_layer_reads_its_window(context: int, windows: int) -> None:
    row = 18 * 2 * 8 * 64 * 2
    assert kv_bytes(counted("gpt-oss-120b"), context) == row * (context + windows)


def test_a_chunked_layer_reads_half_of_its_chunk_on_average() -> None:
    row = 2 * 8 * 128 * 2
    assert kv_bytes(counted("llama-4-scout"), 100_000) == row * (12 * 100_000 + 36 * 8_192 / 2)


def test_a_sparse_layer_reads_every_row_of_its_indexer_but_the_top_latents_alone() -> None:
    work = counted("deepseek-v3.2", kv_type="fp8")
    assert kv_bytes(work, 1_000) == 61 * 1_000 * (656 + 132)
    assert kv_bytes(work, 100_000) == 61 * (2_048 * 656 + 100_000 * 132)


def test_a_latent_is_read_as_it_is_kept_by_a_new_token_and_as_heads_by_a_prompt_unless_it_is_sparse() -> None:
    absorbed, heads = 2 * 128 * (512 + 64 + 512), 2 * 128 * (128 + 64 + 128)
    (dense,) = counted("deepseek-v3").past
    assert (dense.decode_flops, dense.prefill_flops) == (61 * absorbed, 61 * heads)
    latents, indexer = counted("deepseek-v3.2", Sharding(tp=8)).past
    assert (latents.decode_flops, latents.prefill_flops) == (61 * absorbed / 8, 61 * absorbed / 8)
    assert indexer.decode_flops == indexer.prefill_flops == 61 * 2 * 64 * 128


def test_layers_without_an_indexer_of_their_own_read_the_top_latents_too() -> None:
    shape = shipped().model("glm-5.3")
    index = [group.count for group in shape.layers if isinstance(group.attention, Mla) and group.attention.index]
    assert kv_bytes(counted("glm-5.3", kv_type="fp8"), 1_000_000) == pytest.approx(
        shape.layer_count * 2_048 * 656 + sum(index) * 1_000_000 * 132
    )


def test_a_state_is_read_and_written_whatever_the_context() -> None:
    work = counted("qwen3-next-80b-a3b")
    assert work.state_bytes == 2 * 36 * (24_576 * 2 + 524_288 * 4)
    assert kv_bytes(work) == 12 * 2 * 2 * 256 * 2


@pytest.mark.parametrize(
    ("past", "context", "pairs"),
    [
        (Past(1, 1, 1), 10, 50.0),
        (Past(1, 1, 1, reach_tokens=4), 4, 8.0),
        (Past(1, 1, 1, reach_tokens=4), 10, 8.0 + 6 * 4),
        # Chunks of 8: a whole one has 32 pairs.
        (Past(1, 1, 1, reach_tokens=4, chunked=True), 8, 32.0),
        (Past(1, 1, 1, reach_tokens=4, chunked=True), 80, 320.0),
    ],
)
def test_a_prompt_has_pairs_of_tokens_within_reach(past: Past, context: float, pairs: float) -> None:
    assert past.pairs(context) == pairs


@given(reach=st.floats(1, 1e5) | st.just(math.inf), chunked=st.booleans(), a=st.floats(0, 1e6), b=st.floats(0, 1e6))
def test_a_longer_prompt_has_no_fewer_pairs_and_never_more_than_all(
    reach: float, chunked: bool, a: float, b: float
) -> None:
    past = Past(1, 1, 1, reach, chunked)
    assert past.pairs(min(a, b)) <= past.pairs(max(a, b)) * (1 + 1e-9) + 1e-6
    assert past.pairs(a) <= a * a / 2 * (1 + 1e-9)


def test_a_dense_model_multiplies_two_flops_for_each_weight_of_its_layers_and_its_output() -> None:
    work = counted("llama-3.1-8b")
    assert sum(work.flops.values()) == pytest.approx(2 * (8.03e9 - 128_256 * 4_096), rel=0.005)


def test_a_mixture_of_experts_multiplies_its_active_weights_alone() -> None:
    assert sum(counted("deepseek-v3").flops.values()) == pytest.approx(2 * 37e9, rel=0.03)


@pytest.mark.parametrize(
    ("degrees", "tp_reduces", "group_reduces", "expert_reduces", "exchanges"),
    [
        ({}, 0, 0, 0, 0),
        ({"tp": 8}, 2 * 61, 0, 0, 0),
        # The experts' all-to-all stands for the all-reduce behind them.
        ({"tp": 8, "ep": 8}, 61 + 3, 0, 0, 58),
        ({"attention_dp": 8, "ep": 8}, 0, 0, 0, 58),
        ({"attention_dp": 8}, 0, 58, 0, 0),
        ({"tp": 8, "ep": 4}, 61 + 3, 0, 58, 58),
    ],
)
def test_what_is_sent_in_a_step(
    degrees: dict[str, int], tp_reduces: int, group_reduces: int, expert_reduces: int, exchanges: int
) -> None:
    work = counted("deepseek-v3", Sharding(**degrees))
    assert (work.tp_reduces, work.group_reduces, work.expert_reduces) == (tp_reduces, group_reduces, expert_reduces)
    assert (work.exchanges, work.copies) == (exchanges, exchanges * 8)


def test_what_a_shape_lacks_is_named() -> None:
    shape = shipped().model("llama-3.1-8b")
    lacking = shape.model_copy(update={"hidden_size": None})
    headless = shape.layers[0].model_copy(
        update={"attention": shape.layers[0].attention.model_copy(update={"heads": None})}
    )
    for model, part in ((lacking, "hidden_size"), (shape.model_copy(update={"layers": (headless,)}), "heads")):
        reason = count(model, Sharding())
        assert isinstance(reason, Unknown)
        assert part in reason.reason


def test_a_row_that_no_whole_blocks_make_is_a_reason() -> None:
    shape = shipped().model("llama-3.1-8b")
    narrow = shape.layers[0].model_copy(
        update={"attention": shape.layers[0].attention.model_copy(update={"kv_heads": 1, "head_dim": 100})}
    )
    reason = count(shape.model_copy(update={"layers": (narrow,)}), Sharding(), kv_type="q8_0")
    assert isinstance(reason, Unknown)
    assert "multiple of 32" in reason.reason
