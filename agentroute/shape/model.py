"""A model's shape: its layers by kind of attention, its experts, its size."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentroute.origin import Count, Flag, Frozen, Name, Positive, Provenance, Text, Tokens

Attention = Literal["gqa", "mla", "sliding", "linear"]
"""gqa: grouped queries over full context (MHA is gqa with as many KV heads as heads); mla: one latent per token;
sliding: gqa over the last ``window_tokens`` only; linear: a state of fixed size, no KV per token."""

Capability = Literal["tools", "parallel_tools", "json_schema", "vision", "audio", "reasoning", "logprobs"]
"""What a task may need and a deployment may offer."""


class Layers(Frozen):
    """A group of layers with the same kind of attention."""

    count: Count
    """How many layers are in the group."""
    attention: Attention
    """The kind of attention, which decides what the layer keeps per token."""
    kv_heads: Count | None = None
    """KV heads of one layer; gqa and sliding only."""
    head_dim: Count | None = None
    """Elements in one head; gqa and sliding only."""
    window_tokens: Tokens | None = None
    """How far back a sliding layer sees, in tokens."""
    kv_lora_rank: Count | None = None
    """Elements of the latent of one token; mla only."""
    qk_rope_head_dim: Count | None = None
    """Rotary elements kept beside the latent; mla only."""

    @model_validator(mode="after")
    def _carries_what_its_kind_needs(self) -> Layers:
        needed = {
            "gqa": {"kv_heads", "head_dim"},
            "sliding": {"kv_heads", "head_dim", "window_tokens"},
            "mla": {"kv_lora_rank", "qk_rope_head_dim"},
            "linear": set(),
        }[self.attention]
        given = {name for name in type(self).model_fields if getattr(self, name) is not None}
        given -= {"count", "attention"}
        if needed != given:
            raise ValueError(
                f"{self.attention} layers are described by {sorted(needed) or 'their count alone'}, got {sorted(given)}"
            )
        return self


class Experts(Frozen):
    """The routed part of a mixture-of-experts model."""

    total: Count
    """Routed experts in one MoE layer."""
    active: Count
    """Routed experts that one token passes through (top-k)."""
    shared: Annotated[int, Field(strict=True, ge=0, le=1_000)] = 0
    """Experts that every token passes through; default 0."""
    layers: Count
    """Layers that hold experts."""

    @model_validator(mode="after")
    def _no_more_active_than_there_are(self) -> Experts:
        if self.active > self.total:
            raise ValueError(f"active experts cannot exceed the total of {self.total}, got {self.active}")
        return self


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
    hidden_size: Count
    """Width of the residual stream, in elements."""
    vocab_size: Count
    """Tokens in the vocabulary."""
    max_context_tokens: Tokens | None = None
    """The longest context the model was made for, in tokens; ``None`` when unknown."""
    parameters: Parameters | None = None
    """Published or counted size; ``None`` when unknown."""
    layers: tuple[Layers, ...] = Field(min_length=1)
    """Groups of layers by kind of attention."""
    experts: Experts | None = None
    """Routed experts; ``None`` for a dense model."""
    capabilities: dict[Capability, Flag] = Field(default_factory=dict)
    """What the model itself can do; a capability that is not listed is unknown."""
    provenance: Provenance
    """Where the shape comes from."""
    notes: Text | None = None
    """Anything a reader must know."""

    @property
    def layer_count(self) -> int:
        """All layers, of every kind."""
        return sum(group.count for group in self.layers)
