"""How fast a sharded deployment can be at best, and what its time goes to."""

from __future__ import annotations

import math
from dataclasses import astuple, fields, replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.capacity.kv import KvType, Unknown
from agentroute.capacity.weights import QUANTISATIONS
from agentroute.catalogue import shipped
from agentroute.latency import links
from agentroute.latency import roofline as constants
from agentroute.latency.roofline import Roofline, Terms
from agentroute.shape.accelerator import Dtype
from agentroute.shape.sharding import Sharding

WHOLE = Sharding()


def roofline(model: str, accelerator: str, sharding: Sharding = WHOLE, quantisation: str = "bf16") -> Roofline:
    made = Roofline.of(
        shipped().model(model),
        shipped().accelerator(accelerator),
        sharding,
        quantisation=QUANTISATIONS[quantisation],
    )
    assert isinstance(made, Roofline), made
    return made


def deepseek(sharding: Sharding = WHOLE, accelerator: str = "h200_sxm") -> Roofline:
    return roofline("deepseek-v3", accelerator, sharding, "fp8")


def llama(sharding: Sharding = WHOLE, accelerator: str = "h100_sxm") -> Roofline:
    return roofline("llama-3.1-70b", accelerator, sharding)


LAYER_WEIGHTS = 8.03e9 - 2 * 128_256 * 4_096
"""Of Llama 3.1 8B, without both embeddings."""


# What the time goes to


def test_one_sequence_waits_for_the_weights() -> None:
    terms = roofline("llama-3.1-8b", "h100_sxm").decode(1, 100)
    read = 2 * (LAYER_WEIGHTS + 128_256 * 4_096)
    assert terms.weights_s == pytest.approx(read / (3_350e9 * constants.MEMORY_SHARE), rel=0.01)
    assert terms.kv_s < 0.01 * terms.weights_s
    assert terms.compute_s < 0.1 * terms.weights_s


def test_many_long_sequences_wait_for_their_kv() -> None:
    terms = roofline("llama-3.1-8b", "h100_sxm").decode(64, 8_000)
    assert terms.kv_s == pytest.approx(64 * 8_000 * 131_072 / (3_350e9 * constants.MEMORY_SHARE))
    assert terms.kv_s > max(terms.weights_s, terms.compute_s)


def test_a_long_prompt_waits_for_the_tensor_cores() -> None:
    """2 FLOPs for each weight of a layer and token, 4 for each pair of tokens and element of a head."""
    terms = roofline("llama-3.1-8b", "h100_sxm").prefill(8_000)
    flops = 2 * LAYER_WEIGHTS * 8_000 + 4 * 32 * 32 * 128 * 8_000**2 / 2
    assert terms.compute_s == pytest.approx(flops / (989e12 * constants.FLOPS_SHARE["bf16"]), rel=0.01)
    assert terms.compute_s > 10 * (terms.weights_s + terms.kv_s)


def test_every_step_of_a_prompt_reads_the_weights_and_what_is_before_it() -> None:
    """Four steps read on average half of the prompt, and each token is written."""
    one, four = (roofline("llama-3.1-8b", "h100_sxm").prefill(n * constants.CHUNK_TOKENS) for n in (1, 4))
    assert four.weights_s == pytest.approx(4 * one.weights_s)
    rows = 4 * (4 / 2 * constants.CHUNK_TOKENS) + 4 * constants.CHUNK_TOKENS
    assert four.kv_s == pytest.approx(rows * 131_072 / (3_350e9 * constants.MEMORY_SHARE))


def test_a_burst_is_read_one_step_after_the_other_by_each_replica() -> None:
    """16 prompts multiply twice what 8 do, in twice as many steps; 8 replicas read 8 in the time of one."""
    alone, replicas = deepseek(), deepseek(Sharding(attention_dp=8, ep=8))
    tokens = constants.CHUNK_TOKENS
    many, half = alone.prefill(tokens, n=16), alone.prefill(tokens, n=8)
    assert many.compute_s == pytest.approx(2 * half.compute_s)
    assert many.fixed_s - half.fixed_s == pytest.approx(
        8 * (alone.work.kernels * constants.KERNEL_S + constants.STEP_S)
    )
    assert replicas.prefill(tokens, n=8).kv_s == replicas.prefill(tokens, n=1).kv_s


def test_reading_and_multiplying_overlap_and_the_rest_is_added() -> None:
    assert Terms(3.0, 2.0, 4.0, 0.1, 0.2, 0.3, 0.4, 0.5).total_s == pytest.approx(5.0 + 1.5)
    assert Terms(3.0, 2.0, 7.0, 0.1, 0.2, 0.3, 0.4, 0.5).total_s == pytest.approx(7.0 + 1.5)


def test_milliseconds_are_the_sum_of_the_terms() -> None:
    one = llama(Sharding(tp=4))
    assert one.tpot_ms(8, 2_000) == one.decode(8, 2_000).total_s * 1e3
    assert one.ttft_ms(2_000, 8) == one.prefill(2_000, n=8).total_s * 1e3


@pytest.mark.parametrize(
    ("accelerator", "quantisation", "dtype"),
    [
        ("h100_sxm", "bf16", "bf16"),
        ("h100_sxm", "fp8", "fp8"),
        ("a100_80gb_sxm", "fp8", "bf16"),
        ("b200_sxm", "nvfp4-dense", "fp4"),
        ("h100_sxm", "nvfp4-dense", "bf16"),
        # Integers are widened before they are multiplied.
        ("b200_sxm", "awq-int4", "bf16"),
        ("b200_sxm", "bnb", "bf16"),
    ],
)
def test_weights_are_multiplied_as_they_are_kept_where_the_accelerator_can(
    accelerator: str, quantisation: str, dtype: Dtype
) -> None:
    peak = shipped().accelerator(accelerator).dense_tflops[dtype] * 1e12 * constants.FLOPS_SHARE[dtype]
    made = roofline("llama-3.1-8b", accelerator, quantisation=quantisation)
    assert made.token_s == pytest.approx(2 * LAYER_WEIGHTS / peak, rel=0.01)


def test_only_experts_are_multiplied_in_four_bits_where_only_they_are_kept_so() -> None:
    wide, narrow = roofline("deepseek-v3", "b200_sxm"), roofline("deepseek-v3", "b200_sxm", quantisation="nvfp4")
    assert narrow.token_s == wide.token_s
    assert narrow.expert_s < 0.5 * wide.expert_s


# The same model and accelerators, split in three ways


def test_tensor_split_reads_an_eighth_and_sums_twice_a_layer() -> None:
    whole, eighth = llama().decode(16, 4_000), llama(Sharding(tp=8)).decode(16, 4_000)
    assert eighth.weights_s == pytest.approx(whole.weights_s / 8, rel=0.01)
    assert eighth.kv_s == pytest.approx(whole.kv_s / 8)
    assert eighth.compute_s == pytest.approx(whole.compute_s / 8, rel=0.02)
    sent = 16 * 160 * 2 * 7 / 8 * 8_192 * 2 / (450e9 * links.LINK_SHARE_INSIDE)
    assert eighth.all_reduce_s == pytest.approx(160 * links.ALL_REDUCE_S + sent)
    assert (whole.all_reduce_s, eighth.all_to_all_inside_s, eighth.pipeline_s) == (0, 0, 0)


def test_layer_split_makes_one_sequence_no_faster_but_eight_as_fast_as_one() -> None:
    """Stages work on a batch each: eight sequences are eight batches of one."""
    whole, stages = llama(), llama(Sharding(pp=8))
    one, eight = stages.decode(1, 4_000), stages.decode(8, 4_000)
    assert one.weights_s == eight.weights_s == whole.decode(1, 4_000).weights_s
    assert one.kv_s == eight.kv_s
    assert one.total_s == pytest.approx(eight.total_s)
    assert one.total_s > whole.decode(1, 4_000).total_s
    assert eight.total_s == pytest.approx(whole.decode(1, 4_000).total_s, rel=0.01)


@pytest.mark.parametrize(("n", "working"), [(1, 1 / 8), (4, 1 / 2), (8, 1.0), (64, 1.0)])
def test_fewer_sequences_than_stages_leave_stages_idle(n: int, working: float) -> None:
    assert llama(Sharding(pp=8)).pipeline_utilisation(n) == working
    assert llama(Sharding(tp=8)).pipeline_utilisation(n) == 1.0


def test_a_token_hops_over_every_border_of_stages_and_back() -> None:
    """The 32 layers divide evenly, so hops are all that 4 stages cost."""
    sent = 3 * 4_096 * 2 / (450e9 * links.LINK_SHARE_INSIDE)
    made = roofline("llama-3.1-8b", "h100_sxm", Sharding(pp=4))
    assert made.decode(4, 100).pipeline_s == pytest.approx(4 * constants.HOP_S + sent)


def test_stages_that_are_not_alike_wait_for_the_longest() -> None:
    """61 layers over 8 stages: the longest have 8, as if there were 64."""
    assert deepseek(Sharding(pp=8)).slowest_stage == 8 / 61
    few, full = deepseek(Sharding(pp=8)).decode(1, 1_000), deepseek(Sharding(pp=8)).decode(8, 1_000)
    stages = few.total_s - few.pipeline_s - constants.STEP_S
    assert full.pipeline_s - few.pipeline_s == pytest.approx(stages * (64 / 61 - 1))


def test_a_prompt_of_one_step_gains_nothing_from_stages_and_many_steps_almost_all() -> None:
    """The bubble is (pp - 1) / steps of what one stage does."""
    whole, stages = llama(), llama(Sharding(pp=8))
    for steps in (1, 4, 16):
        tokens = steps * constants.CHUNK_TOKENS
        stage = stages.prefill(tokens)
        work = stage.compute_s + stage.fixed_s - steps * constants.STEP_S - constants.REQUEST_S
        assert stage.compute_s == pytest.approx(whole.prefill(tokens).compute_s / 8)
        hops = 8 * constants.HOP_S + constants.CHUNK_TOKENS * stages.hops_token_s
        assert stage.pipeline_s == pytest.approx(work * 7 / steps + hops)


def test_expert_split_reads_as_much_as_tensor_split_and_sends_instead_of_summing() -> None:
    tensor, expert = deepseek(Sharding(tp=8)).decode(64, 4_000), deepseek(Sharding(tp=8, ep=8)).decode(64, 4_000)
    assert expert.weights_s == pytest.approx(tensor.weights_s)
    assert expert.kv_s == tensor.kv_s
    assert expert.all_reduce_s == pytest.approx(tensor.all_reduce_s * 64 / 122)
    assert expert.all_to_all_inside_s > 0
    assert expert.all_to_all_across_s == tensor.all_to_all_inside_s == 0


def test_a_lone_token_hits_whole_experts_so_expert_split_reads_more_of_them_than_tensor_split() -> None:
    tensor, expert = deepseek(Sharding(tp=16)).decode(1, 100), deepseek(Sharding(tp=16, ep=16)).decode(1, 100)
    assert expert.weights_s > tensor.weights_s


# The tight domain


def test_sixteen_expert_ranks_pay_across_two_boxes_and_not_in_one_rack() -> None:
    """2 x MoE layers x top-k x hidden x bytes for each of a rank's tokens; of 16 ranks, 7 others and 8 across."""
    boxes, rack = (
        deepseek(Sharding(attention_dp=16, ep=16), name).decode(256, 4_000) for name in ("h200_sxm", "gb200")
    )
    sent = 256 / 16 * 2 * 58 * 8 * 7_168 * 2
    inside, across = 450e9 * links.LINK_SHARE_INSIDE, 50e9 * links.LINK_SHARE_ACROSS
    starts = 2 * 58
    assert boxes.all_to_all_inside_s == pytest.approx(starts * links.ALL_TO_ALL_S + sent * 7 / 16 / inside)
    assert boxes.all_to_all_across_s == pytest.approx(starts * links.ACROSS_S + sent * 8 / 16 / across)
    assert rack.all_to_all_inside_s == pytest.approx(starts * links.ALL_TO_ALL_S + sent * 15 / 16 / (2 * inside))
    assert rack.all_to_all_across_s == 0


def test_across_two_boxes_the_all_to_all_grows_most_with_the_load_and_in_one_rack_it_does_not() -> None:
    for name, grows_most in (("h200_sxm", "all_to_all_across_s"), ("gb200", "compute_s")):
        made = deepseek(Sharding(attention_dp=16, ep=16), name)
        few, many = made.decode(1_024, 1_000), made.decode(4_096, 1_000)
        growth = {field.name: getattr(many, field.name) - getattr(few, field.name) for field in fields(Terms)}
        assert max(growth, key=lambda term: growth[term]) == grows_most


def test_an_all_reduce_over_two_boxes_sums_in_each_before_it_crosses() -> None:
    """Each of 8 ranks sends an eighth of the sum across: 2 x 1/2 of it."""
    two, one = llama(Sharding(tp=16)).decode(64, 1_000), llama(Sharding(tp=8)).decode(64, 1_000)
    crossing = 64 * 160 * 8_192 * 2 / 8 / (50e9 * links.LINK_SHARE_ACROSS)
    assert two.all_reduce_s - one.all_reduce_s == pytest.approx(160 * links.ACROSS_S + crossing)
    assert llama(Sharding(tp=16), "gb200").decode(1, 1).all_reduce_s < two.all_reduce_s


@pytest.mark.parametrize(
    ("degrees", "crossing"),
    [
        ({"pp": 8}, 0),
        ({"pp": 16}, 1),
        ({"tp": 4, "pp": 4}, 1),
        ({"tp": 8, "pp": 4}, 3),
        ({"tp": 3, "pp": 4}, 2),
    ],
)
def test_hops_cross_where_the_next_stage_stands_in_another_domain(degrees: dict[str, int], crossing: int) -> None:
    made = llama(Sharding(**degrees))
    inside, across = 1 / (450e9 * links.LINK_SHARE_INSIDE), 1 / (50e9 * links.LINK_SHARE_ACROSS)
    hops = degrees["pp"] - 1
    bytes_ = 8_192 * 2 / degrees.get("tp", 1)
    assert made.hops_token_s == pytest.approx(bytes_ * (crossing * across + (hops - crossing) * inside))


def test_the_expert_rank_in_the_smaller_part_sends_most_across() -> None:
    """Of 12 ranks 8 stand in one box and 4 in the other, where 3 others are near and 8 are not."""
    made = deepseek(Sharding(attention_dp=12, ep=12))
    inside, across = 450e9 * links.LINK_SHARE_INSIDE, 50e9 * links.LINK_SHARE_ACROSS
    assert made.across_token_s / made.inside_token_s == pytest.approx(8 / across / (3 / inside))


# KV heads


@pytest.mark.parametrize(("model", "kv_heads"), [("llama-3.1-70b", 8), ("qwen3-235b-a22b", 4)])
def test_doubling_tp_halves_the_kv_read_until_there_are_more_ranks_than_kv_heads(model: str, kv_heads: int) -> None:
    read = {tp: roofline(model, "gb200", Sharding(tp=tp)).decode(32, 8_000).kv_s for tp in (1, 2, 4, 8, 16, 32)}
    for tp in (1, 2, 4, 8, 16):
        assert read[2 * tp] == pytest.approx(read[tp] / 2 if 2 * tp <= kv_heads else read[tp])


def test_a_latent_is_read_whole_by_every_tensor_rank_and_divided_by_replicas_and_context_ranks() -> None:
    whole = deepseek().decode(64, 8_000).kv_s
    assert deepseek(Sharding(tp=8)).decode(64, 8_000).kv_s == whole
    assert deepseek(Sharding(tp=8, dcp=8)).decode(64, 8_000).kv_s == pytest.approx(whole / 8)
    assert deepseek(Sharding(attention_dp=8, ep=8)).decode(64, 8_000).kv_s == pytest.approx(whole / 8)


def test_context_ranks_gather_queries_and_sum_outputs_in_every_layer() -> None:
    one, four = deepseek(Sharding(tp=8)).decode(1, 1), deepseek(Sharding(tp=8, dcp=4)).decode(1, 1)
    assert four.all_reduce_s - one.all_reduce_s == pytest.approx(2 * 61 * links.ALL_REDUCE_S)


def test_a_lone_sequence_gains_nothing_from_replicas() -> None:
    assert deepseek(Sharding(attention_dp=8, ep=8)).decode(1, 8_000).kv_s == deepseek().decode(1, 8_000).kv_s


# What must hold for all

MODELS = st.sampled_from(
    ["llama-3.1-70b", "deepseek-v3", "deepseek-v3.2", "gpt-oss-120b", "qwen3-next-80b-a3b", "gemma-3n-e4b",
     "llama-4-scout", "nemotron-3-super-120b-a12b"]
)  # fmt: skip
SPLITS = st.sampled_from(
    [Sharding(), Sharding(tp=8), Sharding(pp=8), Sharding(tp=8, ep=8), Sharding(attention_dp=16, ep=16),
     Sharding(tp=4, pp=4), Sharding(tp=2, attention_dp=4, ep=4), Sharding(tp=16)]
)  # fmt: skip
ACCELERATORS = st.sampled_from(["h200_sxm", "gb200", "mi300x"])
N = st.floats(1, 4_096)
CONTEXT = st.floats(1, 1_000_000)
FACTOR = st.floats(1, 20)
SLACK = 1 + 1e-9


@st.composite
def rooflines(draw: st.DrawFn) -> Roofline:
    made = Roofline.of(shipped().model(draw(MODELS)), shipped().accelerator(draw(ACCELERATORS)), draw(SPLITS))
    assert isinstance(made, Roofline), made
    return made


@given(made=rooflines(), n=N, context=CONTEXT, more=FACTOR)
@settings(deadline=None)
def test_more_context_is_never_faster(made: Roofline, n: float, context: float, more: float) -> None:
    """But for a first token behind stages: longer prompts make more steps, which fill the stages better."""
    assert made.tpot_ms(n, context) <= made.tpot_ms(n, context * more) * SLACK
    if made.pp == 1:
        assert made.ttft_ms(context, n) <= made.ttft_ms(context * more, n) * SLACK


@given(made=rooflines(), n=N, context=CONTEXT, more=FACTOR)
@settings(deadline=None)
def test_more_sequences_are_never_faster_and_never_write_fewer_tokens(
    made: Roofline, n: float, context: float, more: float
) -> None:
    one, many = made.decode(n, context), made.decode(n * more, context)
    assert all(a <= b * SLACK for a, b in zip(astuple(one), astuple(many), strict=True))
    assert n / one.total_s <= n * more / many.total_s * SLACK
    assert made.ttft_ms(context, n) <= made.ttft_ms(context, n * more) * SLACK


@given(made=rooflines(), n=st.integers(1, 64), tokens=st.floats(2, 200_000), cached=st.floats(0, 1))
@settings(deadline=None)
def test_a_warm_prompt_takes_no_longer_than_a_cold_one_and_longer_than_its_new_tokens_alone(
    made: Roofline, n: int, tokens: float, cached: float
) -> None:
    # With stages, a step more fills them better: a slightly longer prompt can be a little faster.
    slack = SLACK if made.pp == 1 else 1.01
    warm = made.prefill(tokens, cached * tokens, n).total_s
    assert warm <= made.prefill(tokens, 0, n).total_s * slack
    assert warm >= made.prefill(tokens - cached * tokens, 0, n).total_s / slack


@given(made=rooflines(), n=N, context=CONTEXT)
@settings(deadline=None)
def test_no_term_is_lost_in_the_sum(made: Roofline, n: float, context: float) -> None:
    for terms in (made.decode(n, context), made.prefill(context, n=n)):
        for field in fields(Terms):
            assert getattr(terms, field.name) <= terms.total_s
        overlapped = replace(terms, compute_s=0.0).total_s, replace(terms, weights_s=0.0, kv_s=0.0).total_s
        assert terms.total_s == max(overlapped)


EVERY_SPLIT = [
    Sharding(), Sharding(tp=8), Sharding(pp=8), Sharding(tp=8, ep=8), Sharding(attention_dp=16, ep=16),
    Sharding(tp=3, pp=5),
]  # fmt: skip
ALL_ACCELERATORS = [shipped().accelerator(name) for name in ("h200_sxm", "gb200", "a100_40gb_sxm", "l4", "h100_nvl")]
KEPT: list[tuple[str, KvType]] = [("bf16", "bf16"), ("fp8", "fp8"), ("nvfp4", "q8_0")]


@pytest.mark.parametrize("model", shipped().model_names)
def test_every_model_accelerator_and_split_has_times_or_a_reason(model: str) -> None:
    shape = shipped().model(model)
    for accelerator, sharding, (quantisation, kv_type) in product(ALL_ACCELERATORS, EVERY_SPLIT, KEPT):
        weights = QUANTISATIONS[quantisation]
        made = Roofline.of(shape, accelerator, sharding, quantisation=weights, kv_type=kv_type)
        if isinstance(made, Unknown):
            assert made.reason
            continue
        for terms in (made.decode(1, 1), made.decode(300, 50_000), made.prefill(1), made.prefill(50_000, 10_000, 30)):
            assert all(math.isfinite(seconds) and seconds >= 0 for seconds in astuple(terms))
            assert min(terms.weights_s, terms.compute_s, terms.fixed_s) > 0


@pytest.mark.parametrize(
    ("missing", "degrees", "named"),
    [
        ({"link_gb_per_s_inside": None}, {"tp": 2}, "link_gb_per_s_inside, and tp2 needs it"),
        ({"link_gb_per_s_across": None}, {"tp": 8, "pp": 2}, "link_gb_per_s_across, and tp8 pp2 needs it"),
        ({"dense_tflops": {"fp8": 1_979.0}}, {}, "dense_tflops.bf16"),
    ],
)
def test_what_an_accelerator_lacks_is_named_where_it_is_needed(
    missing: dict[str, object], degrees: dict[str, int], named: str
) -> None:
    model, lacking = shipped().model("llama-3.1-8b"), shipped().accelerator("h200_sxm").model_copy(update=missing)
    made = Roofline.of(model, lacking, Sharding(**degrees))
    assert isinstance(made, Unknown)
    assert named in made.reason
    assert "h200_sxm" in made.reason


def test_links_that_are_not_needed_need_not_be_known() -> None:
    update: dict[str, object] = {"link_gb_per_s_inside": None, "link_gb_per_s_across": None}
    alone = shipped().accelerator("h200_sxm").model_copy(update=update)
    assert isinstance(Roofline.of(shipped().model("llama-3.1-8b"), alone, Sharding()), Roofline)
