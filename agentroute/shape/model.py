"""A model's shape: its layers by kind of attention, its experts, its size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentroute.errors import UsageError, shown
from agentroute.origin import Count, Flag, Frozen, Name, Positive, Provenance, Text, Tokens
from agentroute.shape.fingerprint import TokenWeights

Capability = Literal["tools", "parallel_tools", "json_schema", "vision", "audio", "reasoning", "logprobs"]
"""What a task may need and a deployment may offer."""


class Gqa(Frozen):
    """Grouped-query attention; with as many KV heads as heads it is plain multi-head attention."""

    kind: Literal["gqa"]
    """gqa."""
    heads: Count | None = None
    """Query heads; ``None`` when unknown, which leaves the weights unknown."""
    kv_heads: Count
    """KV heads of one layer."""
    head_dim: Count
    """Elements in one head's key."""
    v_head_dim: Count | None = None
    """Elements in one head's value; ``None``: as in its key."""
    window_tokens: Tokens | None = None
    """Sliding: how far back a token sees, in tokens; ``None``: everything."""
    chunk_tokens: Tokens | None = None
    """Chunked: the size of the chunk that a token sees, in tokens; ``None``: everything."""
    k_eq_v: Flag = False
    """Whether values are made from the keys' projection, which changes the weights and not the KV; default false."""
    output_gate: Flag = False
    """Whether the output has a gate as wide as the queries, which changes the weights and not the KV; default false."""


class Index(Frozen):
    """A sparse attention's indexer, which keeps a row of its own for every token."""

    heads: Count | None = None
    """Its query heads; ``None`` when unknown."""
    head_dim: Count
    """Elements in its key."""
    top_k: Count | None = None
    """Tokens that it lets attention see; ``None`` when unknown."""


class Mla(Frozen):
    """Latent attention: one compressed latent and a rotary part per token, whatever the number of heads."""

    kind: Literal["mla"]
    """mla."""
    heads: Count | None = None
    """Query heads; ``None`` when unknown, which leaves the weights unknown."""
    q_lora_rank: Count | None = None
    """Elements of the compressed query; ``None``: queries are not compressed."""
    kv_lora_rank: Count
    """Elements of the latent of one token."""
    qk_nope_head_dim: Count | None = None
    """Elements of a head's key without rotation; ``None`` when unknown."""
    qk_rope_head_dim: Count
    """Rotary elements kept beside the latent."""
    v_head_dim: Count | None = None
    """Elements of a head's value; ``None`` when unknown."""
    index: Index | None = None
    """Its indexer, when it is sparse and this layer keeps one."""


class Linear(Frozen):
    """Linear attention, a state-space layer or a short convolution: a state of fixed size instead of KV."""

    kind: Literal["linear"]
    """linear."""
    conv_elements: Count | None = None
    """Elements of the convolution's state of one sequence in one layer; ``None`` when unknown."""
    ssm_elements: Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)] | None = None
    """Elements of the recurrent state of one sequence in one layer; 0 without one, ``None`` when unknown."""
    parameters: Annotated[int, Field(strict=True, ge=1, le=1_000_000_000_000)] | None = None
    """Weights of one layer's mixer, in elements; ``None`` when unknown."""


class NoAttention(Frozen):
    """A layer that only has an MLP."""

    kind: Literal["none"]
    """none."""


class DenseMlp(Frozen):
    """One MLP that every token passes."""

    kind: Literal["dense"]
    """dense."""
    intermediate_size: Count
    """Its inner width, in elements."""
    gated: Flag = True
    """Whether it has a gate: three matrices instead of two; default true."""


class NoMlp(Frozen):
    """A layer that only mixes tokens."""

    kind: Literal["none"]
    """none."""


class MoeMlp(Frozen):
    """Experts of which every token passes some."""

    kind: Literal["moe"]
    """moe."""
    experts: Count
    """Routed experts in one layer."""
    active: Count
    """Routed experts that one token passes (top-k)."""
    expert_intermediate_size: Count
    """Inner width of one routed expert, in elements."""
    shared_intermediate_size: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 0
    """Inner width of what every token passes besides, all shared experts together; default 0: none."""
    latent_size: Count | None = None
    """Width of what the routed experts read and write, when it is not the residual stream; ``None``: it is."""
    gated: Flag = True
    """Whether the experts have a gate; default true."""

    @model_validator(mode="after")
    def _no_more_active_than_there_are(self) -> MoeMlp:
        if self.active > self.experts:
            raise ValueError(f"active experts cannot exceed the {self.experts} there are, got {self.active}")
        return self


Attention = Annotated[Gqa | Mla | Linear | NoAttention, Field(discriminator="kind")]
Mlp = Annotated[DenseMlp | MoeMlp | NoMlp, Field(discriminator="kind")]


class Layers(Frozen):
    """A group of layers that are alike."""

    count: Count
    """How many layers are in the group."""
    attention: Attention
    """What mixes tokens: gqa, mla, linear or none."""
    mlp: Mlp | None = None
    """What follows it: dense, moe or none; ``None`` when it is unknown."""
    shares_kv: Flag = False
    """True: these layers read the KV of earlier ones and keep none of their own; default false."""


class Parameters(Frozen):
    """How large the model is, in billions of parameters."""

    total_b: Positive
    """All parameters, in billions: what the domain's memory must hold."""
    active_b: Positive
    """Parameters that one token passes through, in billions: what compute must carry; equals the total when dense."""
    provenance: Provenance
    """Where the two figures come from."""

    @model_validator(mode="after")
    def _active_is_part_of_total(self) -> Parameters:
        if self.active_b > self.total_b:
            raise ValueError(f"active_b cannot exceed total_b = {self.total_b:g}, got {self.active_b:g}")
        return self


class Model(Frozen):
    """A model's shape and capabilities; one file in ``profiles/models``."""

    format: Literal[1]
    """The version of this file format: 1."""
    name: Name
    """The name by which profiles refer to it; equals the file's stem."""
    hf_ids: tuple[Name, ...] = ()
    """Hub ids that share this shape; default none."""
    hidden_size: Count | None = None
    """Width of the residual stream, in elements; ``None`` when unknown, which leaves the weights unknown."""
    vocab_size: Count | None = None
    """Tokens in the vocabulary; ``None`` when unknown."""
    tied_embeddings: Flag | None = None
    """Whether the output layer is the embedding itself; ``None`` when unknown."""
    per_layer_embedding_size: Count | None = None
    """Elements that a token looks up anew in every layer (Gemma 3n, Gemma 4 E); ``None``: it does not."""
    output_layer: Flag = True
    """Whether there is an output layer; a model that only embeds has none. Default true."""
    encoder_parameters: Annotated[int, Field(strict=True, ge=1, le=1_000_000_000_000)] | None = None
    """Weights of the blocks of a vision or audio encoder beside the language model, in elements, which engines split
    over the tensor ranks; ``None``: without one, or of unknown size, which leaves it out of the weights."""
    max_context_tokens: Tokens | None = None
    """The longest context the model was made for, in tokens; ``None`` when unknown."""
    checkpoint_weights: Name | None = None
    """How the published checkpoint (of several hub ids: the first one's) keeps its weights, by the names of
    ``capacity.weights.QUANTISATIONS``, such as fp8 or mxfp4; from its config.json's ``quantization_config``. ``None``:
    in 16 bits, or in a way that has no name there, which ``notes`` then say."""
    parameters: Parameters | None = None
    """Published or counted size; ``None`` when unknown."""
    layers: tuple[Layers, ...] = Field(min_length=1)
    """Groups of layers that are alike, in any order."""
    draft_layers: tuple[Layers, ...] = ()
    """Layers of a built-in draft (multi-token prediction), counted only when it is in use; default none."""
    capabilities: dict[Capability, Flag] = Field(default_factory=dict)
    """What the model itself can do; a capability that is not listed is unknown."""
    tokens: TokenWeights | None = None
    """Its tokenizer's fingerprint; ``None`` when unknown, and a generic one serves."""
    provenance: Provenance
    """Where the shape comes from."""
    notes: Text | None = None
    """Anything a reader must know."""

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any] | str | Path, *, name: str | None = None) -> Model:
        """The model that a ``config.json`` describes: its contents, its path, or the folder that holds it.

        ``UsageError`` (a file: ``ProfileError``) names what is not understood and may change the shape; ``notes`` name
        other keys that are not understood. Nothing is guessed.
        """
        from agentroute.shape.hf import from_config, from_file

        if isinstance(config, Mapping):
            return from_config(config, name=name)
        if isinstance(config, str | Path):
            return from_file(Path(config), name=name)
        raise UsageError(f"the config must be the contents of a config.json or its path, not {shown(config)}")

    @property
    def has_experts(self) -> bool:
        """Whether a token passes only some of the weights of some layer."""
        return "moe" in [group.mlp.kind for group in self.layers if group.mlp]

    @property
    def layer_count(self) -> int:
        """All layers, of every kind."""
        return sum([group.count for group in self.layers])
