"""What one layer keeps per token or per sequence on one accelerator, and which layers stand on which stage.

Rules that every engine shares: vLLM 0.33 (``v1/kv_cache_interface.py``, ``config/model.py``, ``distributed/utils.py``),
SGLang 0.5.23 (``model_executor/pool_configurator.py``, ``distributed/utils.py``), llama.cpp (``llama-kv-cache.cpp``,
``llama-model.cpp``) and TensorRT-LLM (``mapping.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Literal, get_args

from agentroute.errors import UsageError
from agentroute.shape.model import Gqa, Layers, Linear, Mla, Model, NoAttention

GIB = 1 << 30
MIB = 1 << 20

KvType = Literal["f32", "bf16", "fp16", "fp8", "fp8_per_tensor", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
"""How one element of the KV cache is stored. ``fp8`` is what an engine makes of that word (see ``row_bytes``),
``fp8_per_tensor`` one byte an element whatever the attention; ``q..`` are llama.cpp's blocks of 32 elements."""

KV_TYPES: tuple[KvType, ...] = get_args(KvType)

_BYTES_OF_32: dict[KvType, int] = {
    "f32": 128, "bf16": 64, "fp16": 64, "fp8": 32, "fp8_per_tensor": 32,
    "q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18,
}  # fmt: skip
"""Bytes of 32 elements; a llama.cpp block holds its scale beside them (ggml-common.h)."""

_LATENT_TILE = 128
"""Elements of a sparse latent or of an indexer's key that share one 4-byte scale (flashmla_sparse.py)."""

Kind = Literal["full", "sliding", "chunked", "state"]


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is no number, for one named reason."""

    reason: str


COMPRESSED = "deepseek-v4"
"""Models whose name begins like this compress their cache by layer."""

NO_COMPRESSED_RULE = Unknown("DeepSeek-V4 compresses its cache by layer, and no engine's rule for that is known here")
"""What one log of vLLM before 0.23 printed (6.66 GiB needed for 30,000 tokens, 13,528 tokens in 5.44 GiB) would follow
from rows of 584 B, indexer rows of 132 B for every 4 tokens and five groups that share pages, with 16,384 tokens in
flight; later versions pack the cache closer, and no log shows how. One log is not enough to claim numbers."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What ``count`` alike layers keep on one accelerator.

    ``row_bytes`` is what one layer keeps for one token, ``state_bytes`` what it keeps for one sequence whatever its
    length, ``span_tokens`` how far a windowed layer looks back, or the size of a chunk.
    """

    kind: Kind
    count: int
    row_bytes: int = 0
    state_bytes: int = 0
    span_tokens: int | None = None


def elements_bytes(elements: int, kv_type: KvType) -> int:
    """Bytes of ``elements`` elements; a quantised row is made of whole blocks of 32."""
    if kv_type.startswith("q") and elements % 32:
        raise UsageError(f"a row of {kv_type} must be a multiple of 32 elements, got {elements}")
    return elements * _BYTES_OF_32[kv_type] // 32


def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    """KV heads that one tensor rank holds: beyond one head per rank they are replicated.

    vLLM ``ModelConfig.get_num_kv_heads``, SGLang ``ModelConfig.get_num_kv_heads``: max(1, total // tp).
    """
    return max(1, kv_heads // tp)


def kv_heads(model: Model) -> tuple[int, ...]:
    """KV heads of a layer, by group of layers that keep KV; a latent counts as one head."""
    kept = (group.attention for group in model.layers if isinstance(group.attention, Gqa | Mla))
    return tuple(attention.kv_heads if isinstance(attention, Gqa) else 1 for attention in kept)


def row_bytes(attention: Gqa | Mla, kv_type: KvType, tp: int, v_type: KvType | None = None) -> int:
    """Bytes that one layer keeps for one token on one accelerator of ``tp``.

    Grouped-query attention: heads on this rank x (key + value). Latent attention: latent + rotary part, on every rank
    whole. A sparse one (with indexers) under ``fp8`` keeps 1 byte for each of the latent's elements, 4 bytes of scale
    for every 128 of them, and the rotary part in 16 bits: 512 + 16 + 128 = 656 B for DeepSeek-V3.2. Its indexer adds
    a key of 8 bits with 4 bytes of scale: 132 B, on every rank whole, too.
    """
    if isinstance(attention, Gqa):
        heads = kv_heads_per_rank(attention.kv_heads, tp)
        value = attention.v_head_dim or attention.head_dim
        return elements_bytes(heads * attention.head_dim, kv_type) + elements_bytes(heads * value, v_type or kv_type)
    latent, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
    return elements_bytes(latent + rope, kv_type) + index_bytes(attention)


def sparse_row_bytes(attention: Mla) -> int:
    """Bytes of one token in one layer of a sparse latent cache under ``fp8``, its indexer's row included."""
    latent, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
    return latent + 4 * -(-latent // _LATENT_TILE) + 2 * rope + index_bytes(attention)


def index_bytes(attention: Mla) -> int:
    """Bytes of one token's row in the indexer of one layer; 0 where the layer keeps none."""
    if attention.index is None:
        return 0
    return attention.index.head_dim + 4 * -(-attention.index.head_dim // _LATENT_TILE)


def state_bytes(
    linear: Linear, tp: int, *, conv_bytes: int = 2, ssm_bytes: int = 4, speculative_tokens: int = 0
) -> int | Unknown:
    """Bytes that one layer keeps for one sequence on one rank: the convolution's inputs and the recurrent state.

    Both are divided by ``tp``. Every speculated token adds one input to the convolution, which keeps 3 (its kernel is
    4 in every hybrid so far; vLLM ``MambaStateShapeCalculator``).
    """
    if linear.conv_elements is None or linear.ssm_elements is None:
        return Unknown("the size of a recurrent state is not in the model's shape")
    conv = linear.conv_elements * (3 + speculative_tokens) // 3
    return -(-conv // tp) * conv_bytes + -(-linear.ssm_elements // tp) * ssm_bytes


def specs(
    model: Model,
    tp: int,
    kv_type: KvType,
    *,
    draft: bool = False,
    shared_too: bool = False,
    conv_bytes: int = 2,
    ssm_bytes: int = 4,
    speculative_tokens: int = 0,
) -> tuple[Spec, ...] | Unknown:
    """What every layer of ``model`` keeps on one of ``tp`` ranks, alike layers together.

    ``draft`` counts the built-in draft's layers, ``shared_too`` gives layers that read earlier ones' KV their own
    (SGLang allocates it all the same).
    """
    if model.name.startswith(COMPRESSED):
        return NO_COMPRESSED_RULE
    layers, more = _Same(model.layers), _Same(model.draft_layers) if draft else None
    return _specs(layers, more, tp, kv_type, shared_too, conv_bytes, ssm_bytes, speculative_tokens)


class _Same:
    """Layers as a key, the same for the same object: to look at all of their fields takes longer than the rest."""

    __slots__ = ("layers",)

    def __init__(self, layers: tuple[Layers, ...]) -> None:
        self.layers = layers

    def __hash__(self) -> int:
        return id(self.layers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.layers is other.layers


@lru_cache(maxsize=1_024)
def _specs(
    own: _Same,
    draft: _Same | None,
    tp: int,
    kv_type: KvType,
    shared_too: bool,
    conv_bytes: int,
    ssm_bytes: int,
    speculative_tokens: int,
) -> tuple[Spec, ...] | Unknown:
    layers = own.layers if draft is None else (*own.layers, *draft.layers)
    sparse = kv_type == "fp8" and any(isinstance(g.attention, Mla) and g.attention.index for g in layers)
    found: dict[tuple[Kind, int, int, int | None], int] = {}
    for group in layers:
        attention = group.attention
        if isinstance(attention, NoAttention) or (group.shares_kv and not shared_too):
            continue
        kind: Kind = "full"
        row, state, span = 0, 0, None
        if isinstance(attention, Linear):
            size = state_bytes(
                attention, tp, conv_bytes=conv_bytes, ssm_bytes=ssm_bytes, speculative_tokens=speculative_tokens
            )
            if isinstance(size, Unknown):
                return size
            kind, state = "state", size
        elif isinstance(attention, Mla):
            row = sparse_row_bytes(attention) if sparse else row_bytes(attention, kv_type, tp)
        else:
            row, span = row_bytes(attention, kv_type, tp), attention.window_tokens or attention.chunk_tokens
            kind = "sliding" if attention.window_tokens else "chunked" if attention.chunk_tokens else "full"
        key = (kind, row, state, span)
        found[key] = found.get(key, 0) + group.count
    return tuple(Spec(kind, count, row, state, span) for (kind, row, state, span), count in found.items())


def sequence(counts: Sequence[int]) -> tuple[int, ...]:
    """The group of every layer, groups spread evenly: a model's file does not say in which order its layers stand.

    In every published hybrid, kinds alternate with a fixed period, which this reproduces up to a shift. With a layer
    split, the shift can put one layer of a kind on the neighbouring stage, so that the fullest stage is off by one of
    the about count / pp layers of that kind that it holds (10 full layers on 4 stages: 1 of 3). Without a layer split
    the order changes nothing. Layers that stand apart (a draft's, at the end) are spread like the others.
    """
    total = sum(counts)
    places = [((i + 0.5) * total / count, group) for group, count in enumerate(counts) for i in range(count)]
    return tuple(group for _, group in sorted(places))


def dot(sizes: Sequence[int], counts: Sequence[int]) -> int:
    """The bytes of ``counts`` layers of each kind, of ``sizes`` bytes each."""
    total: int = sum(map(mul, sizes, counts))
    return total


@lru_cache(maxsize=1_024)
def stage_counts(counts: tuple[int, ...], parts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """How many layers of each kind stand on each stage, for ``counts`` layers of each kind and ``parts`` per stage."""
    order, start, stages = sequence(counts), 0, []
    for part in parts:
        here = order[start : start + part]
        stages.append(tuple(here.count(kind) for kind in range(len(counts))))
        start += part
    return tuple(stages)


@lru_cache(maxsize=1_024)
def vllm_stages(layers: int, pp: int) -> tuple[int, ...]:
    """Layers on each of ``pp`` stages; what is left over goes to the stages counted back from the second-last.

    vLLM ``distributed/utils.py::get_pp_indices``.
    """
    parts = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        parts[-i] += 1
    return tuple(parts)


@lru_cache(maxsize=1_024)
def sglang_stages(layers: int, pp: int) -> tuple[int, ...]:
    """Layers on each of ``pp`` stages; the last stages take what is left over.

    SGLang ``distributed/utils.py::get_pp_indices``.
    """
    base, left = divmod(layers, pp)
    return (base,) * (pp - left) + (base + 1,) * left


@lru_cache(maxsize=1_024)
def trtllm_stages(layers: int, pp: int) -> tuple[int, ...]:
    """Layers on each of ``pp`` stages; the first stages take what is left over (TensorRT-LLM ``Mapping.pp_layers``)."""
    base, left = divmod(layers, pp)
    return (base + 1,) * left + (base,) * (pp - left)


def llamacpp_stages(layers: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Layers on each device by its share (``--tensor-split``, or free memory); the output counts as one more layer.

    llama.cpp ``llama_model::load_tensors``: layer i goes to the first device whose cumulative share exceeds
    i / (layers + 1).
    """
    total, upto, parts, done = sum(shares), 0.0, [], 0
    for share in shares:
        upto += share
        end = min(layers, -int(-(layers + 1) * upto // total))
        parts.append(end - done)
        done = end
    return tuple(parts)
