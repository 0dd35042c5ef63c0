"""How fast a sharded deployment can be at best: the work of a step over what its accelerators and their links do.

An estimate that is not calibrated: every term stands apart, so that measured points can correct each by a factor. What
it leaves out: queueing, prefill steps between decode steps, uneven experts, speculative decoding, overlap of
communication with the rest. Numbers in, numbers out: no arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from agentroute.capacity import kv
from agentroute.capacity.kv import KvType, Unknown
from agentroute.capacity.weights import QUANTISATIONS, WIDE, Quantisation
from agentroute.latency import work
from agentroute.latency.links import ACROSS_S, ALL_TO_ALL_S, Links, experts_near
from agentroute.latency.work import ACTIVATION_BYTES, Work
from agentroute.shape.accelerator import Accelerator, Dtype
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

MEMORY_SHARE = 0.8
"""Part of the data sheet's memory bandwidth that kernels reach. PyPI aiconfigurator-core 0.12.0, systems/*.yaml:
``mem_bw_empirical_scaling_factor``, the same for 13 of 14 accelerators. Its own measurements of 16-bit products of
few tokens (data/*/gemm/vllm/0.24.0) reach 0.77 on H200 and 0.71 on B200, each kernel's start included."""

FLOPS_SHARE: dict[Dtype, float] = {"bf16": 0.75, "fp8": 0.55, "int8": 0.55, "fp4": 0.42}
"""Part of the data sheet's dense FLOP/s that large products reach: medians at 1,024 tokens and more, over weights of
4,096 x 4,096 and more, PyPI aiconfigurator-core 0.12.0, data/*/gemm/vllm/0.24.0: bf16 0.8 on H200 and 0.7 on B200; fp8
0.6 and 0.48; fp4 0.42 on B200. int8: assumed to be as fp8. Attention is taken to reach what bf16 products do: assumed.
"""

EXPERT_FLOPS_SHARE: dict[Dtype, float] = {"bf16": 0.4, "fp8": 0.24, "int8": 0.24, "fp4": 0.26}
"""The same of routed experts, whose products are many and small: medians over evenly loaded layers that one accelerator
holds whole, at 4,096 to 16,384 tokens, PyPI aiconfigurator-core 0.12.0, data/*/moe/*/*/moe_perf: bf16 0.44 on H200 and
0.35 on B200; fp8 0.28 and 0.19; fp4 0.26 on B200. Split over 8, tensor-wise or by experts of uneven popularity, they
reach about half of that, which is not counted. int8: assumed to be as fp8."""

HOP_S = 10e-6
"""Seconds of one hop between stages beyond its bytes. PyPI aiconfigurator-core 0.12.0, systems/*.yaml:
``p2p_latency`` of 13 of 14 accelerators."""

KERNEL_S = 3e-6
"""Seconds of one kernel in which nothing is read: its start and its end. PyPI aiconfigurator-core 0.12.0,
systems/*.yaml: ``mem_empirical_constant_latency``; its least 16-bit product takes 2 us."""

STEP_S = 1e-3
"""Seconds per step of scheduling, sampling and launching. Assumed."""

REQUEST_S = 30e-3
"""Seconds to the first token of a request beyond its step: HTTP, tokenising, waiting for the running step. Assumed, at
what dense models in PyPI aiconfigurator-core 0.12.0 (systems/silicon_sample.csv) take for 1,024 tokens at 4 requests in
flight beyond the rest of this estimate: 25-50 ms, whatever the accelerator."""

CHUNK_TOKENS = 8_192
"""Prompt tokens that one step reads at most: the usual default of vLLM (``max_num_batched_tokens`` on a large
accelerator), SGLang (``chunked_prefill_size``) and TensorRT-LLM (``max_num_tokens``). Recalled."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds, by what they are spent on."""

    weights_s: float
    """Reading weights."""
    kv_s: float
    """Reading the KV cache and states."""
    compute_s: float
    """Multiplying: active weights and attention."""
    all_reduce_s: float
    """Summing over tensor ranks."""
    all_to_all_inside_s: float
    """Sending tokens to experts and back inside the tight domain."""
    all_to_all_across_s: float
    """The same out of it."""
    pipeline_s: float
    """What the layer split costs: hops, stages that are longer than the mean, and in prefill the bubble."""
    fixed_s: float
    """What no token adds to: kernels' starts, and per step or request the engine's own work."""

    @property
    def total_s(self) -> float:
        """Reading (weights and KV) or multiplying, whichever takes longer, as they overlap; and all the rest."""
        read_s = self.weights_s + self.kv_s
        return (
            (read_s if read_s > self.compute_s else self.compute_s)
            + self.all_reduce_s
            + self.all_to_all_inside_s
            + self.all_to_all_across_s
            + self.pipeline_s
            + self.fixed_s
        )


Seconds = tuple[float, float, float, float, float, float, float, float]
"""The fields of ``Terms``, in their order."""

ByConcurrency = Callable[[float], Seconds]
"""Seconds at a concurrency, for requests of one size."""


class Step(NamedTuple):
    """A decode step at some concurrency, but for what the contexts of its sequences add to it, in seconds."""

    weights_s: float
    """Reading weights."""
    mine: float
    """How often what each sequence adds counts: sequences of one batch of one replica."""
    experts_s: float
    """Multiplying routed experts."""
    all_reduce_s: float
    all_to_all_inside_s: float
    all_to_all_across_s: float
    """As in ``Terms``."""
    hops_s: float
    """Hops between stages."""
    late: float
    """How many mean steps longer the stages take, as batches in flight wait for the slowest of them."""

    def seconds(self, past_s: float, token_s: float, kernels_s: float) -> Seconds:
        """The step where each sequence adds ``past_s`` of reading and ``token_s`` of multiplying."""
        weights, mine, experts, reduce, inside, across, hops, late = self
        kv, compute = mine * past_s, mine * token_s + experts
        read = weights + kv
        stage = (read if read > compute else compute) + reduce + inside + across + kernels_s
        return weights, kv, compute, reduce, inside, across, hops + late * stage, kernels_s + STEP_S

    def apart(self, kernels_s: float) -> float:
        """What a stage's part in the step takes beside reading and multiplying, summed over the stages."""
        return self.all_reduce_s + self.all_to_all_inside_s + self.all_to_all_across_s + kernels_s

    def around(self, kernels_s: float) -> tuple[float, float]:
        """How often reading or multiplying, whichever takes longer, counts in the step's total; and all the rest."""
        return 1.0 + self.late, self.apart(kernels_s) * (1.0 + self.late) + self.hops_s + STEP_S


@dataclass(frozen=True, slots=True)
class Roofline:
    """A deployment's work in seconds; everything that does not depend on the load is multiplied out.

    Sequences are spread evenly over replicas and over batches in flight, also where they do not divide: a mean, so
    that every time rises smoothly with the load. Layers follow vLLM's split.
    """

    work: Work
    slowest_stage: float
    """Layers on the stage with the most, as a part of all layers."""
    pp: int
    attention_dp: int
    byte_s: float
    """Seconds to read a byte."""
    token_s: float
    """Seconds to multiply mixers and dense parts, for one token of a replica."""
    head_s: float
    """Seconds to multiply the output layer, for one token of a replica."""
    expert_s: float
    """Seconds to multiply routed experts, for one token of the whole deployment."""
    attention_flop_s: float
    """Seconds of one FLOP of attention."""
    reduce_s: float
    """Seconds of all all-reduces of a step, of next to nothing."""
    reduce_token_s: float
    """Seconds that one token of a replica adds to them."""
    inside_s: float
    """As ``reduce_s``, of the all-to-all inside the domain."""
    inside_token_s: float
    """As ``reduce_token_s``, of the all-to-all inside the domain."""
    across_s: float
    """As ``reduce_s``, of the all-to-all out of it."""
    across_token_s: float
    """As ``reduce_token_s``, of the all-to-all out of it."""
    hops_s: float
    """As ``reduce_s``, of the hops between stages and of the one back."""
    hops_token_s: float
    """As ``reduce_token_s``, of the hops between stages."""

    @classmethod
    def of(
        cls,
        model: Model,
        accelerator: Accelerator,
        sharding: Sharding,
        *,
        quantisation: Quantisation = QUANTISATIONS["bf16"],
        kv_type: KvType = "bf16",
    ) -> Roofline | Unknown:
        """The roofline of ``model`` on accelerators of one kind, or ``Unknown`` with what is missing.

        Accelerators are numbered stage by stage, replica by replica, and fill one tight domain after the other.
        """
        counted = work.count(model, sharding, quantisation, kv_type)
        if isinstance(counted, Unknown):
            return counted
        peak = accelerator.dense_tflops
        if "bf16" not in peak:
            return Unknown(f"the accelerator {accelerator.name!r} lacks dense_tflops.bf16")
        links = Links.of(accelerator, sharding)
        if isinstance(links, Unknown):
            return links
        flop_s = {dtype: 1 / (tflops * 1e12 * FLOPS_SHARE[dtype]) for dtype, tflops in peak.items()}
        dtypes, flops = _dtypes(accelerator, quantisation), counted.flops
        pp, ep, dp = sharding.pp, sharding.ep, sharding.attention_dp
        row = counted.hidden_size * ACTIVATION_BYTES
        tensor, group, expert = (links.all_reduce(n) for n in (sharding.tp, sharding.tp * dp, sharding.tp * dp // ep))
        # A context split gathers queries and sums partial outputs in every layer; their bytes are not counted.
        tensor_reduces = counted.tp_reduces + (2 * counted.layers if sharding.dcp > 1 else 0)
        near, crossing = experts_near(sharding, links.domain), links.hops_across(sharding)
        # Its ranks hold the same tokens of a replica, and each sends its part of them.
        sent = 2 * counted.copies * row / sharding.tp / ep
        return cls(
            work=counted,
            slowest_stage=max(kv.vllm_stages(counted.layers, pp)) / counted.layers,
            pp=pp,
            attention_dp=dp,
            byte_s=1 / (accelerator.memory_gb_per_s * 1e9 * MEMORY_SHARE),
            token_s=flops["attention"] * flop_s[dtypes["attention"]] + flops["dense"] * flop_s[dtypes["dense"]],
            head_s=flops["head"] * flop_s["bf16"],
            expert_s=flops["experts"] / (peak[dtypes["experts"]] * 1e12 * EXPERT_FLOPS_SHARE[dtypes["experts"]]),
            attention_flop_s=flop_s["bf16"],
            reduce_s=tensor_reduces * tensor[0] + counted.group_reduces * group[0] + counted.expert_reduces * expert[0],
            reduce_token_s=row * counted.tp_reduces * tensor[1]
            + row * dp * (counted.group_reduces * group[1] + counted.expert_reduces * expert[1]),
            inside_s=2 * counted.exchanges * (ALL_TO_ALL_S + links.host_s) if near > 1 else 0.0,
            inside_token_s=sent * (near - 1) * links.inside_byte_s,
            across_s=2 * counted.exchanges * ACROSS_S if near < ep else 0.0,
            across_token_s=sent * (ep - near) * links.across_byte_s,
            hops_s=pp * HOP_S if pp > 1 else 0.0,
            hops_token_s=row
            / sharding.tp
            * ((pp - 1 - crossing) * links.inside_byte_s + crossing * links.across_byte_s),
        )

    def decode(self, n: float, context_tokens: float) -> Terms:
        """One output token of each of ``n`` sequences in flight, each with ``context_tokens`` in its KV.

        The sum is the time per output token. With a layer split it is a token's way through all stages, with
        ``min(n, pp)`` batches in flight of ``n / pp`` sequences, at least one: with fewer sequences than stages it does
        not get faster, stages idle (``pipeline_utilisation``). An engine need not make so many batches: what vLLM
        0.32.0 begins at once, it keeps in one, until a prompt is read in pieces (measured,
        ``tests/latency/test_splits.py``). An ``n`` below 1 is taken for 1.
        """
        return Terms(*self.decoding(context_tokens)(n))

    def decoding(self, context_tokens: float) -> ByConcurrency:
        """``decode`` at this context for many ``n``; what does not depend on ``n`` is multiplied out once."""
        past_s, token_s = self.sequence(context_tokens)
        step, kernels_s = self.step, self.work.kernels * KERNEL_S

        return lambda n: step(n).seconds(past_s, token_s, kernels_s)

    def step(self, n: float) -> Step:
        """A decode step of ``n`` sequences in flight, but for what their contexts add to it."""
        counted, pp, dp = self.work, self.pp, self.attention_dp
        batch = n / pp if n > pp else 1.0
        mine = batch / dp if batch > dp else 1.0
        weight_bytes = counted.weight_bytes
        for experts in counted.experts:
            weight_bytes += experts.read_bytes(batch)
        late = (n if n < pp else pp) * self.slowest_stage - 1.0
        return Step(
            weight_bytes * self.byte_s,
            mine,
            batch * self.expert_s,
            self.reduce_s + mine * self.reduce_token_s,
            self.inside_s + mine * self.inside_token_s,
            self.across_s + mine * self.across_token_s,
            self.hops_s + mine * self.hops_token_s,
            late if late > 0.0 else 0.0,
        )

    def sequence(self, context_tokens: float) -> tuple[float, float]:
        """Seconds that each sequence of a replica's batch adds to a decode step: reading its past, and multiplying."""
        past_bytes, past_flops = self.work.state_bytes, 0.0
        for past in self.work.past:
            tokens = past.read_tokens(context_tokens)
            past_bytes += past.bytes * tokens
            past_flops += past.decode_flops * tokens
        return past_bytes * self.byte_s, self.token_s + self.head_s + past_flops * self.attention_flop_s

    def prefill(self, tokens: float, cached_tokens: float = 0, n: float = 1) -> Terms:
        """Reading ``n`` prompts of ``tokens`` tokens that come at once, of which ``cached_tokens`` are in the KV.

        The sum is the time to first token of the last of them on a deployment that does nothing else: every replica
        reads its share of the prompts in steps of ``CHUNK_TOKENS``, and at least one token of each. With a layer split
        the steps follow one another through the stages: the terms are what one stage does, and ``pipeline_s`` holds
        the bubble, (pp - 1) / steps of it, so one step gains nothing. An ``n`` below 1 is taken for 1.
        """
        return Terms(*self.prefilling(tokens, cached_tokens)(n))

    def prefilling(self, tokens: float, cached_tokens: float = 0) -> ByConcurrency:
        """``prefill`` of such prompts for many ``n``; what does not depend on ``n`` is multiplied out once."""
        counted, byte_s, pp, dp, part = self.work, self.byte_s, self.pp, self.attention_dp, 1.0 / self.pp
        new = max(1.0, tokens - cached_tokens)
        cached = max(0.0, tokens - new)
        own_steps = max(1.0, new / CHUNK_TOKENS)
        past_bytes, past_flops = own_steps * counted.state_bytes, 0.0
        for past in counted.past:
            # Every step of a prompt reads what is before it; what it adds is written.
            past_bytes += past.bytes * (own_steps * past.read_tokens(cached + new / 2) + new)
            past_flops += past.prefill_flops * (past.pairs(cached + new) - past.pairs(cached))
        past_s = past_bytes * byte_s
        prompt_s = new * self.token_s + self.head_s + past_flops * self.attention_flop_s
        always_bytes, routed, expert_s = counted.weight_bytes, counted.experts, self.expert_s
        reduce_s, reduce_token_s = self.reduce_s, self.reduce_token_s
        inside_s, inside_token_s = self.inside_s, self.inside_token_s
        across_s, across_token_s = self.across_s, self.across_token_s
        hops_s, hops_token_s, kernel_s = self.hops_s, self.hops_token_s, counted.kernels * KERNEL_S

        def at(n: float) -> Seconds:
            prompts = n / dp if n > dp else 1.0
            mine, everyone = prompts * new, (n if n > 1.0 else 1.0) * new
            steps = mine / CHUNK_TOKENS if mine > CHUNK_TOKENS else 1.0
            weight_bytes = always_bytes
            for experts in routed:
                weight_bytes += experts.read_bytes(everyone / steps)
            weights, kv = part * steps * weight_bytes * byte_s, part * prompts * past_s
            compute = part * (prompts * prompt_s + everyone * expert_s)
            reduce = part * (steps * reduce_s + mine * reduce_token_s)
            inside = part * (steps * inside_s + mine * inside_token_s)
            across = part * (steps * across_s + mine * across_token_s)
            kernels = part * steps * kernel_s
            pipeline = 0.0
            if pp > 1:
                stage = max(weights + kv, compute) + reduce + inside + across + kernels
                pipeline = stage * (pp - 1) / steps + hops_s + mine / steps * hops_token_s
            return weights, kv, compute, reduce, inside, across, pipeline, kernels + steps * STEP_S + REQUEST_S

        return at

    def pipeline_utilisation(self, n: float) -> float:
        """The part of the stages that works while ``n`` sequences decode: 1 without a layer split."""
        return min(1.0, n / self.pp)

    def tpot_ms(self, n: float, context_tokens: float) -> float:
        """Milliseconds per output token of ``n`` sequences in flight with ``context_tokens`` each."""
        return self.decode(n, context_tokens).total_s * 1e3

    def ttft_ms(self, isl: float, n: float) -> float:
        """Milliseconds to the first token of the last of ``n`` prompts of ``isl`` tokens that come at once."""
        return self.prefill(isl, 0, n).total_s * 1e3


def _dtypes(accelerator: Accelerator, quantisation: Quantisation) -> dict[work.Part, Dtype]:
    """What each part is multiplied in: as wide as its weights where that is listed for ``accelerator``, else bf16."""
    narrow: Dtype = "fp4" if quantisation.four_bit_floats else "bf16"

    def dtype(element_bytes: float) -> Dtype:
        wanted: Dtype = "bf16" if element_bytes >= WIDE else "fp8" if element_bytes >= 1 else narrow
        return wanted if wanted in accelerator.dense_tflops else "bf16"

    return {
        "attention": dtype(quantisation.attention),
        "dense": dtype(quantisation.dense),
        "experts": dtype(quantisation.experts),
    }
