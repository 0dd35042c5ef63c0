"""Samples of text and how many tokens real tokenizers made of them; fingerprints fitted to them, and how far off.

A corpus is a table, ``counts.csv``, with a column a tokenizer, its samples as ``.txt`` files beside it, and
``tokenizers.toml``, which says where the tokenizers are from and which models they are of.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentroute.errors import FileError
from agentroute.files import read_text
from agentroute.shape.fingerprint import FEATURES, Feature
from agentroute.tokens.classes import OF_PAIR, pairs
from agentroute.tokens.fingerprint import GENERIC_FLOORS, with_margin

Matrix = NDArray[np.float64]

MARGIN = 0.30
"""Above the value, of a tokenizer's own upper bound. Held out, text had up to 22 % more tokens than its value."""
GENERIC_MARGIN = 0.15
"""Above the largest of all tokenizers' weights, which is a margin already."""
LARGE = 100_000
"""Tokens in a vocabulary from which on it counts for the generic value, as nearly all open models' do since 2024."""

ASSUMED: dict[Feature, float] = {
    "lower_more": 0.1, "cap_more": 0.2, "caps": 0.35, "hump": 0.8, "alnum": 0.8,
    "word_after_space": 1.0, "word_after_sign": 0.7, "word": 1.0,
    "digit": 1.0, "digit_more": 0.6, "space": 0.3, "spaces": 0.05, "indent": 0.6, "newline": 0.6, "newlines": 0.3,
    "joiner_after_word": 0.8, "sign_after_word": 0.8, "sign": 0.8, "sign_more": 0.4,
    "latin": 0.8, "cyrillic": 0.8, "cyrillic_more": 0.25, "kana": 0.7, "kana_more": 0.5, "kanji": 0.8,
    "kanji_more": 0.7, "cjk_sign": 0.9, "hangul": 0.9, "hangul_more": 0.5, "symbol": 1.0, "other": 1.0,
}  # fmt: skip
"""Weights before anything was counted, assumed: a word, a sign and a foreign letter are about a token each."""

ERROR = 0.06
"""Relative error of a sample that a fit expects; about what it has held out."""
SPREAD, OWN_SPREAD = 0.5, 0.4
"""How far, in tokens a character, all tokenizers' weights may be from the assumed, and one tokenizer's from theirs."""


@dataclass(frozen=True)
class Corpus:
    """``counts``: samples x tokenizers. ``about``: tokenizers.toml."""

    samples: tuple[str, ...]
    texts: tuple[str, ...]
    tokenizers: tuple[str, ...]
    counts: Matrix
    about: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Corpus:
        """The corpus whose table is ``path``; ``FileError`` names what is wrong."""
        rows = list(csv.reader(read_text(path, FileError).splitlines()))
        if len(rows) < 3 or rows[0][:1] != ["sample"] or len(rows[0]) < 2:
            raise FileError("must be a table with a column sample and one a tokenizer, and two samples", path=path)
        for line, row in enumerate(rows[1:], 2):
            if len(row) != len(rows[0]) or not all(cell.isdecimal() and int(cell) for cell in row[1:]):
                raise FileError("must hold a sample and a count above 0 for each tokenizer", path=path, line=line)
        texts = tuple(read_text(path.with_name(f"{row[0]}.txt"), FileError) for row in rows[1:])
        if not all(texts):
            raise FileError(f"names {rows[1 + texts.index('')][0]}.txt, which is empty", path=path)
        beside = path.with_name("tokenizers.toml")
        about = tomllib.loads(read_text(beside, FileError)) if beside.exists() else {}
        counts = np.array([[float(cell) for cell in row[1:]] for row in rows[1:]])
        return cls(tuple(row[0] for row in rows[1:]), texts, tuple(rows[0][1:]), counts, about)

    @property
    def classes(self) -> tuple[str, ...]:
        """What kind of text each sample is: its name up to the first dash."""
        return tuple(name.partition("-")[0] for name in self.samples)

    @cached_property
    def characters(self) -> Matrix:
        """Samples x ``FEATURES``."""
        return np.array([pairs(text) @ OF_PAIR for text in self.texts])

    @property
    def sizes(self) -> Matrix:
        """Bytes of each sample."""
        return np.array([float(len(text.encode())) for text in self.texts])

    @property
    def large(self) -> list[int]:
        """Tokenizers whose vocabulary counts for the generic value; those of unknown size do."""
        return [
            number
            for number, name in enumerate(self.tokenizers)
            if self.about.get(name, {}).get("vocabulary", LARGE) >= LARGE
        ]


def together(corpus: Corpus, samples: Sequence[int], tokenizers: Sequence[int]) -> Matrix:
    """One set of weights for several tokenizers."""
    prior = np.array([ASSUMED[feature] for feature in FEATURES])
    return fit(corpus.characters[samples], corpus.counts[np.ix_(samples, tokenizers)], prior, SPREAD)


def own(corpus: Corpus, samples: Sequence[int], tokenizer: int, prior: Matrix) -> Matrix:
    """One tokenizer's weights; where its samples say little, they stay near ``prior``."""
    return fit(corpus.characters[samples], corpus.counts[np.ix_(samples, [tokenizer])], prior, OWN_SPREAD)


def fit(x: Matrix, tokens: Matrix, prior: Matrix, spread: float) -> Matrix:
    """Weights, none below 0, that make ``x @ weights`` near every column of ``tokens`` (samples x tokenizers).

    They are the most likely ones when each sample has a relative error of ``ERROR``, which all tokenizers share, and
    each weight is ``spread`` from ``prior``.

    Solved as non-negative least squares by the active set: Lawson and Hanson, Solving Least Squares Problems (1974).
    """
    hold = (ERROR / spread) ** 2
    inverse = 1.0 / tokens
    g = (x * (inverse**2).mean(axis=1)[:, np.newaxis]).T @ x + hold * np.eye(len(prior))
    r = x.T @ inverse.mean(axis=1) + hold * prior
    scale = np.sqrt(np.diag(g))
    g, r = g / np.outer(scale, scale), r / scale
    free = np.ones(len(r), dtype=bool)
    weights = np.zeros(len(r))
    for _ in range(10 * len(r)):
        weights[:] = 0.0
        weights[free] = np.linalg.solve(g[np.ix_(free, free)], r[free])
        if (weights < 0.0).any():
            free &= weights > 0.0
            continue
        pull = np.where(free, 0.0, r - g @ weights)
        if pull.max() <= 1e-9:
            break
        free[pull.argmax()] = True
    return np.maximum(weights, 0.0) / scale


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Predictions for samples that were no part of the fit, samples x tokenizers, and what real tokenizers said.

    ``generic``: of a fit that has seen neither the sample nor the tokenizer. ``by_size``: a token every four
    characters.
    """

    own: Matrix
    own_upper: Matrix
    generic: Matrix
    generic_upper: Matrix
    by_size: Matrix
    counts: Matrix


def held_out(corpus: Corpus) -> HeldOut:
    """Every sample predicted by fits to all the others."""
    shape = corpus.counts.shape
    made = {name: np.zeros(shape) for name in ("own", "own_upper", "generic", "generic_upper")}
    everyone = range(shape[1])
    for sample, x in enumerate(corpus.characters):
        others = [other for other in range(shape[0]) if other != sample]
        prior = together(corpus, others, everyone)
        for tokenizer in everyone:
            weights = own(corpus, others, tokenizer, prior)
            made["own"][sample, tokenizer] = x @ weights
            made["own_upper"][sample, tokenizer] = x @ with_margin(tuple(weights), MARGIN)
            rest = [other for other in everyone if other != tokenizer] or [tokenizer]
            value, most = _generic(corpus, others, rest)
            made["generic"][sample, tokenizer] = x @ value
            made["generic_upper"][sample, tokenizer] = x @ with_margin(tuple(most), GENERIC_MARGIN, GENERIC_FLOORS)
    characters = np.array([float(len(text)) for text in corpus.texts])
    by_size = np.repeat(characters[:, np.newaxis] / 4.0, shape[1], axis=1)
    return HeldOut(**made, by_size=by_size, counts=corpus.counts)


def fingerprints(corpus: Corpus) -> dict[str, tuple[float, ...]]:
    """Weights of every tokenizer, fitted to all samples and rounded to four places."""
    samples, everyone = range(len(corpus.samples)), range(len(corpus.tokenizers))
    prior = together(corpus, samples, everyone)
    return {name: _rounded(own(corpus, samples, number, prior)) for number, name in enumerate(corpus.tokenizers)}


def generic(corpus: Corpus) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The generic weights: of the value, and the largest of any tokenizer's."""
    value, most = _generic(corpus, range(len(corpus.samples)), range(len(corpus.tokenizers)))
    return _rounded(value), _rounded(most)


def _generic(corpus: Corpus, samples: Sequence[int], tokenizers: Sequence[int]) -> tuple[Matrix, Matrix]:
    prior = together(corpus, samples, tokenizers)
    most = np.max([own(corpus, samples, tokenizer, prior) for tokenizer in tokenizers], axis=0)
    large = [tokenizer for tokenizer in tokenizers if tokenizer in corpus.large] or tokenizers
    return together(corpus, samples, large), most


def _rounded(weights: Matrix) -> tuple[float, ...]:
    return tuple(round(float(weight), 4) for weight in weights)
