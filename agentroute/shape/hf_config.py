"""Reading a ``config.json``: every key that is read is remembered, so that what was not understood can be named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from agentroute.errors import UsageError, shown
from agentroute.origin import Frozen

MAX_LAYERS = 10_000
"""More layers than any model has: what a ``config.json`` may ask for at most."""

_SHAPES = re.compile(
    r"head|expert|layer|window|chunk|lora|rank|index|linear|mamba|ssm|conv|state|kv|compress|pattern|interval|freq|_size"
    r"|_dim|moe|sparse|block|latent|share|nextn|mtp|attn|attention|router|residual|engram|memory"
)
"""A key with one of these words may change a model's shape: it must be read, or be empty, or be harmless."""

_HARMLESS = re.compile(
    r"bias$|norm$|_(dropout|eps|epsilon|dtype|act|coef|noise|scale|softcapping|multiplier|token_index|xavier_init)$"
)
_HARMLESS_KEYS = {
    # how attention and its indexer compute, not what they keep
    "query_pre_attn_scalar", "attention_value_scale", "attn_temperature_tuning", "use_bidirectional_attention",
    "_attn_implementation", "qk_head_dim", "rotary_dim", "indexer_rope_interleave", "index_topk_pattern",
    "index_share_for_mtp_iteration",
    # second names, and what is said where it does not apply
    "head_dim", "num_key_value_heads", "num_heads", "experts_per_token", "max_window_layers",
    "vocab_size_per_layer_input", "block_dim", "block_out_dim", "block_use_swiglu", "conv_dim", "conv_dim_out",
    # how kernels and engines compute
    "chunk_size", "mamba_chunk_size", "use_mamba_kernels", "use_mambapy", "ep_size", "moe_shared_expert_overlap",
    "output_router_logits", "residual_in_fp32", "rescale_prenorm_residual", "time_step_rank",
}  # fmt: skip
"""Keys of that kind that change neither layers, nor what they keep per token, nor (but for biases) their weights."""


F = TypeVar("F", bound=Frozen)


def changed(part: F, update: Mapping[str, Any]) -> F:
    """A part of a shape with some of its values changed, and checked again."""
    return type(part).model_validate({**part.model_dump(), **update})


class Config:
    """The part of a ``config.json`` that describes the language model, with its family's defaults.

    ``name`` is for messages. A key that is missing, or is not what it must be, is a ``UsageError`` that names it.
    """

    def __init__(self, name: str, data: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.name = name
        self._said = {key: value for key, value in data.items() if value is not None}
        self._data = {**defaults, **self._said}
        self._read: set[str] = set()
        self.layers = 0

    def error(self, message: str) -> UsageError:
        """What is wrong, as an error that names the model."""
        return UsageError(f"the config of {self.name!r} {message}")

    def get(self, key: str) -> Any:
        """A key's value, or ``None``."""
        self._read.add(key)
        return self._data.get(key)

    def ignore(self, *keys: str) -> None:
        """Keys that are understood, and change nothing here."""
        self._read.update(keys)

    def number(self, *keys: str) -> int | None:
        """The whole number, 0 or more, under the first of ``keys`` that is there; ``None`` without one."""
        found = None
        for key in keys:
            value = self.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise self.error(f"has {key} = {shown(value)}; it must be a whole number, 0 or more")
            found = value if found is None else found
        return found

    def need(self, *keys: str) -> int:
        """As ``number``, but one of ``keys`` must be there and above 0."""
        value = self.number(*keys)
        if not value:
            raise self.error(f"does not say {' or '.join(keys)}; its shape is unknown without it")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A yes or no."""
        value = self.get(key)
        if not isinstance(value, bool | None):
            raise self.error(f"has {key} = {shown(value)}; it must be true or false")
        return default if value is None else value

    def listed(self, key: str) -> list[Any] | None:
        """A list with one entry for each layer; ``None`` without one."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) != self.layers:
            raise self.error(f"has {key} = {shown(value)}; it must list all {self.layers} layers")
        return list(value)

    def kinds(self, key: str, known: Mapping[str, str]) -> list[str] | None:
        """A list with the kind of each layer, translated by ``known``; a kind that is not known is an error."""
        value = self.listed(key)
        strange = sorted({str(kind) for kind in value or () if not isinstance(kind, str) or kind not in known})
        if strange:
            raise self.error(f"has {key} with {', '.join(map(shown, strange))}; understood: {', '.join(known)}")
        return None if value is None else [known[kind] for kind in value]

    def count_layers(self, default: int | None = None) -> None:
        """Set ``layers`` from the config, or from ``default``."""
        self.layers = self.number("num_hidden_layers") or default or self.need("num_hidden_layers")
        if self.layers > MAX_LAYERS:
            raise self.error(f"has num_hidden_layers = {shown(self.layers)}; at most {MAX_LAYERS} are understood")

    def not_understood(self) -> list[str]:
        """The keys that look as if they changed the shape, say something, and were not read."""
        return sorted(
            f"{key} = {shown(value)}"
            for key, value in self._said.items()
            if value and key not in self._read | _HARMLESS_KEYS and _SHAPES.search(key) and not _HARMLESS.search(key)
        )
