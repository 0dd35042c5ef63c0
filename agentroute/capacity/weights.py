"""How much weight each accelerator carries.

Rules: vLLM 0.33 ``model_executor/layers/linear.py`` (column and row parallel, replicated projections),
``layers/fused_moe``, ``layers/vocab_parallel_embedding.py``; SGLang 0.5.23 likewise. Biases and what an engine repacks
at load are not counted: a per cent or two.

``Parts`` is a model taken apart once; ``Parts.gib`` is plain arithmetic on it, for many splits of one model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from agentroute.capacity import kv
from agentroute.capacity.kv import GIB, MIB, Unknown
from agentroute.shape.model import Attention, DenseMlp, Gqa, Layers, Linear, Mla, Mlp, Model, MoeMlp
from agentroute.shape.sharding import Sharding

WIDE = 2.0
"""Bytes of an element that is not quantised: norms and routers always are of this kind."""

LARGE_BYTES, STEP_BYTES = 10 * MIB, 2 * MIB
"""A tensor of 10 MiB or more takes whole 2 MiB (PyTorch ``CUDACachingAllocator``: kMinLargeAlloc, kRoundLarge)."""

VOCABULARY_STEP = 64
"""A vocabulary is padded to a multiple of this (vLLM and SGLang: DEFAULT_VOCAB_PADDING_SIZE)."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Bytes of one element, scales included, of mixers, of what every token passes, and of routed experts.

    ``expert_width_step``: experts' inner width is padded to a multiple of this by the kernel. ``tables``: of embeddings
    and of the output layer, which only GGUF files quantise. ``four_bit_floats``: that what is below 8 bits can be
    multiplied as it is, where the accelerator can; integers are widened to 16 bits first.
    """

    attention: float = WIDE
    dense: float = WIDE
    experts: float = WIDE
    expert_width_step: int = 1
    tables: float = WIDE
    four_bit_floats: bool = False


QUANTISATIONS: dict[str, Quantisation] = {
    "bf16": Quantisation(),
    # One byte; a 4-byte scale for each block of 128 x 128 (or one for a tensor) is next to nothing.
    "fp8": Quantisation(1.0, 1.0, 1.0),
    "fp8-experts": Quantisation(experts=1.0),
    # 4 bits with a 2-byte scale and a 4-bit zero for every 128 elements.
    "awq-int4": Quantisation(*(0.5 + 2.5 / 128,) * 3),
    "w4a16": Quantisation(*(0.5 + 2 / 128,) * 3),
    # 4 bits with a 4-byte scale for every 64 elements (bitsandbytes without double quantisation).
    "bnb": Quantisation(*(0.5 + 4 / 64,) * 3),
    # Published checkpoints leave all but routed experts in 16 bits: 2-byte scale for 32, 1-byte for 16, 1-byte for 32.
    "int4-experts": Quantisation(experts=0.5 + 2 / 32),
    "nvfp4": Quantisation(experts=0.5 + 1 / 16, four_bit_floats=True),
    "nvfp4-dense": Quantisation(*(0.5 + 1 / 16,) * 3, four_bit_floats=True),
    # gpt-oss: inner width 2,880 is padded to 3,072.
    "mxfp4": Quantisation(experts=0.5 + 1 / 32, expert_width_step=256, four_bit_floats=True),
    # GGUF: blocks of 32 elements with a 2-byte scale (ggml-common.h); q4_0 files keep the output layer in 6.56 bits.
    # q4_k_m mixes block types: 4.89 bits over the whole file, as llama.cpp's quantize tells of Llama 3.1 8B (recalled).
    "q8_0": Quantisation(*(34 / 32,) * 3, tables=34 / 32),
    "q4_0": Quantisation(*(18 / 32,) * 3, tables=(18 / 32 + 6.5625 / 8) / 2),
    "q4_k_m": Quantisation(*(4.89 / 8,) * 3, tables=4.89 / 8),
}
"""By the name of the scheme; a checkpoint may deviate."""

CONVERTED = frozenset({"mi300x", "mi325x"})
"""Accelerators whose fp8 has another zero than checkpoints' (``normalize_e4m3fn_to_e4m3fnuz``)."""


def scheme(word: str, model: Model) -> str | None:
    """The name in ``QUANTISATIONS`` of what logs, profiles and people call weights of ``model``; ``None``: unknown.

    Of a scheme that checkpoints apply in part, the published part: Llama 4 keeps all but its experts in 16 bits.
    """
    match word:
        case "fp16" | "bf16":
            return "bf16"
        case "fp8" | "int8":
            return "fp8-experts" if model.name.startswith("llama-4") else "fp8"
        case "fp4" | "nvfp4":
            return "nvfp4" if model.has_experts else "nvfp4-dense"
        case "int4":
            return "int4-experts" if model.has_experts else "w4a16"
        case "gptq":
            return "w4a16"
        case "awq":
            return "awq-int4"
    known = QUANTISATIONS.get(word)
    # What quantises nothing but experts does nothing to a model without them.
    return None if known is None or (known.dense == WIDE and not model.has_experts) else word


EVERYWHERE, TENSOR, DENSE = 0, 1, 2
"""Over which ranks a tensor is split: over none, over attention's, over those of dense parts."""
MIXER, ALWAYS, PLAIN = 0, 1, 2
"""How a tensor is kept: as the quantisation keeps mixers, or what every token passes, or in 16 bits."""


class Tensor(NamedTuple):
    """One weight of one layer: ``elements`` split over ``over``, and ``head`` for each KV head that a rank holds."""

    elements: int
    over: int
    kept: int
    kv_heads: int = 0
    head: int = 0


class Routed(NamedTuple):
    """Routed experts of one layer: for each unit of their inner width ``up`` elements lead there and ``down`` back."""

    experts: int
    up: int
    down: int
    inner: int


class Part(NamedTuple):
    """One layer of a group."""

    tensors: tuple[Tensor, ...]
    routed: Routed | None
    always_bytes: float
    """What no split and no quantisation changes."""

    def bytes(self, over: tuple[int, int, int], kept: tuple[float, float, float], q: Quantisation, all_: int) -> float:
        """Bytes on one accelerator; ``over`` and ``kept`` by the numbers above, ``all_`` the ranks of experts."""
        tensors, routed, total = self
        for elements, split, kind, kv_heads, head in tensors:
            size = elements / over[split]
            if kv_heads:
                size += head * (kv_heads / over[1] if kv_heads > over[1] else 1)
            size *= kept[kind]
            total += size if size < LARGE_BYTES else -(-size // STEP_BYTES) * STEP_BYTES
        if routed is not None:
            experts, up, down, inner = routed
            width = -(-inner // q.expert_width_step) * q.expert_width_step
            total += experts * (up + down) * width * q.experts / all_
        return total


@dataclass(frozen=True, slots=True)
class Parts:
    """A model's weights, one entry for each group of layers.

    ``before``: for each group, how many of its layers stand before each layer. ``table`` and ``own`` are the elements
    of the embedding and of per-layer embeddings, ``output`` whether an output layer of its own stands on the last
    stage, and whether also when that is the first. ``encoder`` are a vision part's elements, ``positions`` those of the
    sines and cosines that every rank keeps, ``joint`` those of the projection that joins a draft's inputs.
    """

    groups: tuple[Part, ...]
    before: tuple[tuple[int, ...], ...]
    draft: tuple[tuple[int, Part], ...]
    table: int
    own: int
    output: tuple[bool, bool]
    encoder: int
    positions: int
    joint: int

    @classmethod
    def of(cls, model: Model) -> Parts | Unknown:
        """Take ``model`` apart; a reason where its shape lacks a part."""
        hidden, vocabulary, tied = model.hidden_size, model.vocab_size, model.tied_embeddings
        if hidden is None or vocabulary is None or tied is None:
            return Unknown("the model's shape lacks hidden_size, vocab_size or tied_embeddings")
        unknown: list[str] = []
        rows = -(-vocabulary // VOCABULARY_STEP) * VOCABULARY_STEP
        groups = tuple(_part(group, hidden, unknown, model.per_layer_embedding_size or 0) for group in model.layers)
        draft = tuple((group.count, _part(group, hidden, unknown)) for group in model.draft_layers)
        if unknown:
            return Unknown(f"the model's shape lacks {', '.join(dict.fromkeys(unknown))}")
        order = kv.sequence([group.count for group in model.layers])
        return cls(
            groups=groups,
            before=tuple(
                tuple(accumulate((int(kind == one) for kind in order), initial=0)) for one in range(len(groups))
            ),
            draft=draft,
            table=rows * hidden,
            own=(model.per_layer_embedding_size or 0) * model.layer_count * rows,
            output=(model.output_layer, model.output_layer and not tied),
            encoder=model.encoder_parameters or 0,
            positions=(model.max_context_tokens or 0) * sum(_rotations(model.layers)),
            joint=2 * hidden * hidden,
        )

    def expert_tensor_elements(self, sharding: Sharding) -> float:
        """Elements of the largest tensor of one layer's experts on one accelerator; 0 without experts."""
        routed = [part.routed for part in self.groups if part.routed]
        ranks = sharding.tp * sharding.attention_dp
        return max((one.experts * one.inner * max(one.up, one.down) / ranks for one in routed), default=0.0)

    def left_by_conversion_gib(self, sharding: Sharding, quantisation: Quantisation) -> float:
        """What vLLM counts as weights on ``CONVERTED`` accelerators beside them, with experts in fp8.

        On ROCm it prints how much less memory is free (``platforms/rocm.py::get_current_memory_usage``), so freed
        buffers that PyTorch keeps count; to find the bytes to change takes a mask as large as the tensor.
        """
        return self.expert_tensor_elements(sharding) / GIB if quantisation.experts == 1.0 else 0.0

    def gib(
        self,
        sharding: Sharding,
        quantisation: Quantisation = QUANTISATIONS["bf16"],
        *,
        stages: Callable[[int, int], Sequence[int]] = kv.vllm_stages,
        dense_over_replicas: bool = False,
        draft: bool = False,
    ) -> float:
        """GiB of weights on the fullest accelerator; the options are those of ``gib``."""
        tp, pp = sharding.tp, sharding.pp
        ranks = tp * sharding.attention_dp
        over, kept = (1, tp, ranks if dense_over_replicas else tp), (quantisation.attention, quantisation.dense, WIDE)
        table, always = self.table * quantisation.tables / tp, self.positions * WIDE
        first = table + (self.own + self.encoder) * WIDE / tp
        last = 0.0
        if draft:
            for count, part in self.draft:
                last += count * (part.bytes(over, kept, quantisation, ranks) + self.joint * WIDE)
        # A tied output layer is the embedding itself, unless it stands on another stage.
        last += table if self.output[0 if pp > 1 else 1] else 0.0
        if pp == 1:
            for part, before in zip(self.groups, self.before, strict=True):
                first += part.bytes(over, kept, quantisation, ranks) * before[-1]
            return (first + last + always) / GIB
        ends = [*accumulate(stages(len(self.before[0]) - 1, pp))]
        sizes = [first, *[0.0] * (pp - 2), last]
        for part, before in zip(self.groups, self.before, strict=True):
            size, start = part.bytes(over, kept, quantisation, ranks), 0
            for stage, end in enumerate(ends):
                sizes[stage] += size * (before[end] - start)
                start = before[end]
        return (max(sizes) + always) / GIB


def gib(
    model: Model | Parts,
    sharding: Sharding,
    quantisation: Quantisation = QUANTISATIONS["bf16"],
    *,
    stages: Callable[[int, int], Sequence[int]] = kv.vllm_stages,
    dense_over_replicas: bool = False,
    draft: bool = False,
) -> float | Unknown:
    """GiB of weights on the fullest accelerator.

    ``stages`` is the engine's split of layers. With attention replicas, experts are spread over all of their ranks;
    dense parts over one replica's (vLLM), or with ``dense_over_replicas`` over all (SGLang). For many splits of one
    model, take it apart once: ``Parts.of(model)``.
    """
    parts = model if isinstance(model, Parts) else Parts.of(model)
    if isinstance(parts, Unknown):
        return parts
    return parts.gib(sharding, quantisation, stages=stages, dense_over_replicas=dense_over_replicas, draft=draft)


def _rotations(layers: Sequence[Layers]) -> list[int]:
    """The width of each table of sines and cosines: one for each kind of attention, as if whole heads rotated."""
    tables: dict[tuple[str, int, bool], int] = {}
    for group in layers:
        one = group.attention
        if isinstance(one, Gqa):
            tables[one.kind, one.head_dim, one.window_tokens is None] = one.head_dim
        elif isinstance(one, Mla):
            tables[one.kind, one.qk_rope_head_dim, True] = one.qk_rope_head_dim
    return list(tables.values())


def _part(group: Layers, hidden: int, unknown: list[str], own: int = 0) -> Part:
    mixer = _mixer(group.attention, hidden, unknown, group.shares_kv)
    mlp, routed = _mlp(group.mlp, hidden, unknown)
    # Norms, and what gates a per-layer embedding and projects it back.
    rest = Tensor(2 * hidden + 3 * hidden * own, EVERYWHERE, PLAIN)
    every = [one for one in (*mixer, *mlp, rest) if one.elements or one.kv_heads]
    always = [one.elements * WIDE for one in every if (one.over, one.kept, one.kv_heads) == (EVERYWHERE, PLAIN, 0)]
    return Part(
        tuple([one for one in every if (one.over, one.kept) != (EVERYWHERE, PLAIN)]),
        routed,
        sum([size if size < LARGE_BYTES else -(-size // STEP_BYTES) * STEP_BYTES for size in always]),
    )


def _mixer(one: Attention, hidden: int, unknown: list[str], shares_kv: bool) -> tuple[Tensor, ...]:
    """Key and value heads beyond one per rank are copies. Of latent attention, what leads down to the latents and the
    whole indexer stand on every rank, and the way up from the latent is kept a second time, in 16 bits, for decoding
    (vLLM ``MLACommonImpl.process_weights_after_loading``, SGLang ``w_kc`` and ``w_vc``).
    """
    if isinstance(one, Gqa):
        heads = _known(one.heads, "attention.heads", unknown)
        values = one.v_head_dim or one.head_dim
        queries = hidden * heads * one.head_dim * (2 if one.output_gate else 1)
        kept = (0, 0) if shares_kv else (one.kv_heads, hidden * (one.head_dim + (0 if one.k_eq_v else values)))
        return Tensor(queries, TENSOR, MIXER, *kept), Tensor(heads * values * hidden, TENSOR, MIXER)
    if isinstance(one, Mla):
        heads = _known(one.heads, "attention.heads", unknown)
        nope = _known(one.qk_nope_head_dim, "attention.qk_nope_head_dim", unknown)
        values = _known(one.v_head_dim, "attention.v_head_dim", unknown)
        rank, latent, rope = one.q_lora_rank, one.kv_lora_rank, one.qk_rope_head_dim
        up = latent * heads * (nope + values)
        found = (
            Tensor(hidden * ((rank or 0) + latent + rope), EVERYWHERE, MIXER),
            Tensor((rank or hidden) * heads * (nope + rope), TENSOR, MIXER),
            Tensor(up, TENSOR, MIXER),
            Tensor(up, TENSOR, PLAIN),
            Tensor(heads * values * hidden, TENSOR, MIXER),
        )
        if one.index is None:
            return found
        queries = _known(one.index.heads, "attention.index.heads", unknown)
        index = one.index.head_dim * (hidden + queries * (rank or hidden)) + hidden * queries
        return (*found, Tensor(index, EVERYWHERE, MIXER))
    if isinstance(one, Linear):
        return (Tensor(_known(one.parameters, "attention.parameters", unknown), TENSOR, MIXER),)
    return ()


def _mlp(one: Mlp | None, hidden: int, unknown: list[str]) -> tuple[tuple[Tensor, ...], Routed | None]:
    if isinstance(one, DenseMlp):
        return _dense(hidden, one.intermediate_size, one.gated), None
    if isinstance(one, MoeMlp):
        width = one.latent_size or hidden
        latent = Tensor(2 * hidden * width if one.latent_size else 0, DENSE, ALWAYS)
        router = Tensor(hidden * one.experts, EVERYWHERE, PLAIN)
        routed = Routed(one.experts, (2 if one.gated else 1) * width, width, one.expert_intermediate_size)
        return (*_dense(hidden, one.shared_intermediate_size, one.gated), latent, router), routed
    if one is None:
        _known(None, "mlp", unknown)
    return (), None


def _dense(hidden: int, inner: int, gated: bool) -> tuple[Tensor, ...]:
    up = Tensor(hidden * inner * (2 if gated else 1), DENSE, ALWAYS)
    return up, Tensor(hidden * inner, DENSE, ALWAYS)


def _known(value: int | None, part: str, unknown: list[str]) -> int:
    if value is None:
        unknown.append(part)
        return 0
    return value
