"""What an engine's log said about its KV pool: one record, one line of JSON."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentroute.capacity.kv import KV_TYPES, KvType
from agentroute.capacity.memory import minor_version
from agentroute.origin import Count, Flag, Frozen, Positive, Text, Tokens

Gib = Annotated[float, Field(ge=-1_000, le=1_000_000, allow_inf_nan=False)]

_TYPES: dict[str, KvType] = {
    **{name: name for name in KV_TYPES},
    "bf16_dsa": "bf16", "f16": "fp16", "fp32": "f32",
    "fp8_dsa": "fp8", "fp8_ds_mla": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
}  # fmt: skip
"""The words of logs; ``_dsa`` and ``_ds_mla`` are the layouts of sparse latent attention."""


class Record(Frozen):
    """One start of one engine. ``None``: the log, or what was kept of it, does not say."""

    id: Annotated[str, Field(min_length=1, max_length=40)]
    """The record's name, unique in its file."""
    source_url: Text
    """Where the log stands."""
    engine: Annotated[str, Field(min_length=1, max_length=40)]
    """Which engine wrote it: vllm, sglang, trtllm, llama.cpp or a fork of it; of another, nothing is predicted."""
    engine_version: Text | None = None
    """The engine's version."""
    model: Text
    """The model as the log or its author names it."""
    arch: Annotated[str, Field(min_length=1, max_length=100)]
    """The shape: a model's name; ``-mha``: latent attention kept as plain heads."""
    gpu: Text | None = None
    """The accelerator."""
    gpu_mem_gib: Positive | None = None
    """Its memory, in GiB."""
    tp: Count = 1
    """Tensor ranks; with DP attention SGLang counts its replicas in."""
    pp: Count = 1
    """Stages; of llama.cpp, devices."""
    dp: Count = 1
    """Attention replicas."""
    ep: Flag = False
    """Whether experts are split whole."""
    dcp: Count = 1
    """Ranks that share one sequence's KV."""
    kv_dtype: Annotated[str, Field(min_length=1, max_length=40)]
    """How the KV cache is stored."""
    weights_quant: Text | None = None
    """How the weights are quantised; ``None``: not, or not said."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """vLLM's gpu_memory_utilization, SGLang's mem_fraction_static."""
    max_model_len: Tokens | None = None
    """The window, in tokens."""
    max_num_seqs: Count | None = None
    """Sequences at once."""
    max_num_batched_tokens: Tokens | None = None
    """Tokens of one step."""
    block_size: Tokens | None = None
    """Tokens of one block."""
    kv_tokens: Tokens | None = None
    """The printed size of the pool, in tokens; of llama.cpp, cells."""
    num_blocks: Tokens | None = None
    """The printed size of the pool, in blocks."""
    kv_memory_gib_per_gpu: Gib | None = None
    """KV memory in GiB: per accelerator; of llama.cpp, over all devices."""
    state_memory_gib_per_gpu: Gib | None = None
    """Memory of recurrent states, in GiB."""
    state_slots: Tokens | None = None
    """Recurrent states kept."""
    model_load_gib_per_gpu: Gib | None = None
    """Weights, in GiB per accelerator."""
    max_concurrency: Positive | None = None
    """The printed number of sequences of ``max_concurrency_len`` tokens that fit."""
    max_concurrency_len: Tokens | None = None
    """Of how many tokens."""
    estimated_max_len: Tokens | None = None
    """The longest sequence that fits, as a refusal prints it."""
    needed_kv_gib: Gib | None = None
    """GiB that one sequence of ``max_model_len`` needs, as a refusal prints it."""
    avail_before_gib: Gib | None = None
    """Free memory before loading."""
    avail_after_load_gib: Gib | None = None
    """Free memory after loading."""
    swa_tokens: Tokens | None = None
    """The printed size of the windowed layers' pool, in tokens or cells."""
    spec: Text | None = None
    """Speculative decoding: ``mtp3`` drafts three tokens with the model's own draft layer."""
    notes: Text | None = None
    """Anything a reader must know."""
    kind: Text | None = None
    """What attention the model has."""
    kv_replicated: Flag = False
    """Whether ranks hold copies of the same KV."""
    kv_dtype_inferred: Flag = False
    """Whether ``kv_dtype`` was inferred."""
    quality: Literal["A", "B", "C"] | None = None
    """A: the run is identified; C: the model was inferred."""

    @model_validator(mode="after")
    def _degrees_agree(self) -> Record:
        if self.attention_tp % self.dcp:
            raise ValueError(f"dcp must divide the tensor ranks, {self.attention_tp}, got {self.dcp}")
        return self

    @property
    def attention_tp(self) -> int:
        """Tensor ranks of one attention replica: SGLang's tp holds its replicas, vLLM's does not."""
        return max(1, self.tp // self.dp) if self.engine == "sglang" else self.tp

    @property
    def kv_types(self) -> tuple[KvType, KvType] | None:
        """How keys and values are stored; ``None`` for a word that is not known.

        On AMD, fp8 is one byte an element for sparse latent attention, too.
        """
        found = re.fullmatch(r"k:(\w+),v:(\w+)", self.kv_dtype)
        words = (found[1], found[2]) if found else (self.kv_dtype.rstrip("?"),) * 2
        if not all(word in _TYPES for word in words):
            return None
        if self.kv_dtype == "fp8" and self.on_amd:
            return "fp8_per_tensor", "fp8_per_tensor"
        return _TYPES[words[0]], _TYPES[words[1]]

    @property
    def on_amd(self) -> bool:
        """Whether the accelerator is AMD's."""
        return re.search(r"AMD|\bMI\d", self.gpu or "") is not None

    @property
    def version(self) -> tuple[int, int] | None:
        """The engine's version as (major, minor); ``None`` when not known to the minor."""
        return minor_version(self.engine_version)

    @property
    def draft_tokens(self) -> int:
        """Tokens that a built-in draft proposes; 0 without one."""
        found = re.match(r"mtp(\d*)$", self.spec or "")
        return int(found[1] or 1) if found else 0
