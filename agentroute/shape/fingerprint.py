"""What a tokenizer makes of text, as a weight for each kind of character and of its predecessor."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from agentroute.origin import Frozen, Name, Provenance

Feature = Literal[
    "lower_more", "cap_more", "caps", "hump", "alnum", "word_after_space", "word_after_sign", "word",
    "digit", "digit_more", "space", "spaces", "indent", "newline", "newlines",
    "joiner_after_word", "sign_after_word", "sign", "sign_more",
    "latin", "cyrillic", "cyrillic_more", "kana", "kana_more", "kanji", "kanji_more", "cjk_sign", "hangul",
    "hangul_more", "symbol", "other",
]  # fmt: skip
"""Kinds of characters by their predecessor; ``tokens.classes`` says which pairs each one is."""

FEATURES: tuple[Feature, ...] = get_args(Feature)

Weight = Annotated[float, Field(strict=True, ge=0, le=8, allow_inf_nan=False)]


class TokenWeights(Frozen):
    """A tokenizer's fingerprint: tokens of a text are about the sum of its characters' weights."""

    tokenizer: Name
    """The tokenizer's name; models with the same one have the same weights."""
    margin: Weight
    """How far above the value the upper bound stands, as a share of it."""
    message_tokens: Annotated[int, Field(strict=True, ge=0, le=1_000)] | None = None
    """Tokens that the chat template puts around one message; ``None`` when unknown."""
    template_tokens: Annotated[int, Field(strict=True, ge=0, le=10_000)] | None = None
    """Tokens that the chat template adds once; ``None`` when unknown."""
    weights: dict[Feature, Weight]
    """Tokens for one character of each kind; all must be given."""
    provenance: Provenance
    """Where the weights come from."""

    @model_validator(mode="after")
    def _every_weight_is_there(self) -> TokenWeights:
        missing = [feature for feature in FEATURES if feature not in self.weights]
        if missing:
            raise ValueError(f"weights must hold one for {missing[0]}")
        return self
