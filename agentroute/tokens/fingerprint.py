"""A tokenizer's fingerprint at work: a value and an upper bound from a text's characters, without tokenising."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentroute.shape.fingerprint import FEATURES, Feature, TokenWeights
from agentroute.shape.model import Model
from agentroute.tokens.classes import OF_PAIR, Pairs
from agentroute.tokens.generic import AT_MOST, MARGIN, WEIGHTS

FLOORS: dict[Feature, float] = {
    "lower_more": 0.15, "caps": 0.6, "hump": 0.8, "alnum": 0.8, "sign_more": 0.7, "sign": 1.0,
    "latin": 1.0, "cyrillic": 1.0, "cyrillic_more": 1.0, "symbol": 2.0, "other": 2.31,
}  # fmt: skip
"""An upper bound counts at least so much for a character, since text differs from what weights were learnt from.

Measured with the tokenizers of ``tests/data/tokens`` on names, runs of signs, Greek, emoji (four tokens each, two of
them a UTF-16 unit) and Burmese (up to 2.1 a character).
"""
GENERIC_FLOORS = 1.3
"""How much higher they are where the tokenizer is unknown: SmolLM2, of 49k tokens, makes three of a Burmese character,
one a byte, and 0.9 of a sign."""

LONG_WORD, LONG_WORD_TOKENS = 8, 0.35
"""Letters after the first beyond eight a word, and what the upper bound adds for each: no language has such words on
average, but sequences and ids do, which are half a token a letter with some tokenizers (measured: 0.5 to 0.57)."""
_STARTS = [
    FEATURES.index(name) for name in ("word", "word_after_space", "word_after_sign", "cap_more", "hump", "alnum")
]
_LETTERS = FEATURES.index("lower_more")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Weights in the order of ``FEATURES``: of the value and, not less, of the upper bound.

    ``message_tokens`` and ``template_tokens`` are what the chat template adds to every message and once; ``None`` when
    it is not known.
    """

    name: str
    weights: tuple[float, ...]
    at_most: tuple[float, ...]
    message_tokens: int | None = None
    template_tokens: int | None = None
    _by_pair: NDArray[np.float64] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def source(self) -> Literal["fingerprint", "generic fingerprint"]:
        """Whether it is the model's own."""
        return "generic fingerprint" if self.name == "generic" else "fingerprint"

    def tokens(self, pairs: Pairs) -> tuple[float, float]:
        """Tokens of a text by its histogram: a value and an upper bound."""
        if (by_pair := self._by_pair) is None:  # made once: it takes longer than to use it
            by_pair = _by_pair(self.weights, self.at_most)
            object.__setattr__(self, "_by_pair", by_pair)
        value, upper, beyond = (pairs @ by_pair).tolist()
        return value, upper + max(0.0, LONG_WORD_TOKENS * beyond)


def _by_pair(weights: tuple[float, ...], at_most: tuple[float, ...]) -> NDArray[np.float64]:
    beyond = np.zeros(len(FEATURES))
    beyond[_LETTERS], beyond[_STARTS] = 1.0, -LONG_WORD
    return np.ascontiguousarray(OF_PAIR @ np.array([weights, at_most, beyond]).T)


def with_margin(weights: tuple[float, ...], margin: float, floors: float = 1.0) -> tuple[float, ...]:
    """Weights of an upper bound: a margin above the value's, and at least ``floors`` times the floors."""
    return tuple(
        max(weight * (1.0 + margin), floors * FLOORS.get(feature, 0.0))
        for feature, weight in zip(FEATURES, weights, strict=True)
    )


def of_table(table: TokenWeights) -> Fingerprint:
    """The fingerprint that a model file holds."""
    weights = tuple(table.weights[feature] for feature in FEATURES)
    at_most = with_margin(weights, table.margin)
    return Fingerprint(table.tokenizer, weights, at_most, table.message_tokens, table.template_tokens)


GENERIC = Fingerprint("generic", WEIGHTS, with_margin(AT_MOST, MARGIN, GENERIC_FLOORS))
"""Of no tokenizer in particular: the value is the mean of those with a large vocabulary, the bound that of the most."""


def of_model(model: Model | None) -> Fingerprint:
    """A model's own fingerprint; ``GENERIC`` where it has none."""
    return GENERIC if model is None or model.tokens is None else of_table(model.tokens)
