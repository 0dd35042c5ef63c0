"""Which characters a text has, each by its class and that of its predecessor: all that a fingerprint needs to know.

Sixteen classes make 256 pairs, so that one pass over a text and one histogram serve every tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from agentroute.shape.fingerprint import FEATURES, Feature

Pairs = NDArray[np.int64]
"""How often each pair of classes stands in a text, by 16 x the first's class + the second's; 256 counts."""

LOWER, UPPER, DIGIT, SPACE, NEWLINE, CONTROL, JOINER, SIGN = range(8)
LATIN, CYRILLIC, KANA, KANJI, CJK_SIGN, HANGUL, SYMBOL, OTHER = range(8, 16)

JOINERS = "_-/.:,"
"""Signs that join words and numbers; the other ASCII signs are ``SIGN``."""

_RANGES = (
    (0x00, 0x20, CONTROL), (0x20, 0x21, SPACE), (0x21, 0x30, SIGN), (0x30, 0x3A, DIGIT), (0x3A, 0x41, SIGN),
    (0x41, 0x5B, UPPER), (0x5B, 0x61, SIGN), (0x61, 0x7B, LOWER), (0x7B, 0x7F, SIGN), (0x7F, 0x80, CONTROL),
    (0x80, 0xC0, SYMBOL), (0xC0, 0x250, LATIN), (0x1E00, 0x1F00, LATIN),
    (0x370, 0x530, CYRILLIC),
    (0x3040, 0x3100, KANA), (0x31F0, 0x3200, KANA),
    (0x3400, 0x4DC0, KANJI), (0x4E00, 0xA000, KANJI), (0xF900, 0xFB00, KANJI),
    (0x3000, 0x3040, CJK_SIGN), (0xFF00, 0xFFF0, CJK_SIGN),
    (0x1100, 0x1200, HANGUL), (0x3130, 0x3190, HANGUL), (0xAC00, 0xD7B0, HANGUL),
    (0x2000, 0x2C00, SYMBOL),
)  # fmt: skip
"""Classes of the characters of Unicode's blocks; the rest, surrogates too, is ``OTHER``."""


def _by_unit() -> NDArray[np.uint8]:
    """The class of every UTF-16 unit."""
    table = np.full(0x10000, OTHER, np.uint8)
    for first, end, kind in _RANGES:
        table[first:end] = kind
    table[[ord(sign) for sign in "\r\n"]] = NEWLINE
    table[[ord(sign) for sign in JOINERS]] = JOINER
    return table


_UNIT = _by_unit()
_BYTE = _UNIT[:256].copy()
# Two ASCII characters, read as one little-endian number, to the pair of their classes.
_TWO = ((_BYTE[np.newaxis, :] << 4) | _BYTE[:, np.newaxis]).reshape(-1).astype(np.uint8)


def pairs(text: str) -> Pairs:
    """The histogram of a text, as if a newline stood before it."""
    if text.isascii():
        raw = b"\n" + text.encode("ascii")
        # A number at every byte, of it and the next: pairs of neighbours, without an array of classes in between.
        both = np.ndarray((len(raw) - 1,), "<u2", raw, 0, (1,))
        return np.bincount(_TWO.take(both), minlength=256)
    units = np.frombuffer(("\n" + text).encode("utf-16-le", "surrogatepass"), "<u2")
    kinds = _UNIT.take(units)
    return np.bincount((kinds[:-1] << 4) | kinds[1:], minlength=256)


_ALL = frozenset(range(16))
_LETTERS = frozenset({LOWER, UPPER})
_SIGNS = frozenset({JOINER, SIGN})
_WHITE = frozenset({NEWLINE, CONTROL})

_FIRST_THAT_FITS: tuple[tuple[Feature, Iterable[int], Iterable[int]], ...] = (
    ("lower_more", {LOWER}, {LOWER}), ("cap_more", {UPPER}, {LOWER}), ("caps", {UPPER}, {UPPER}),
    ("hump", {LOWER}, {UPPER}), ("alnum", {DIGIT}, _LETTERS), ("alnum", _LETTERS, {DIGIT}),
    ("word_after_space", {SPACE}, _LETTERS), ("word_after_sign", _SIGNS, _LETTERS), ("latin", {LATIN}, _LETTERS),
    ("word", _ALL, _LETTERS),
    ("digit_more", {DIGIT}, {DIGIT}), ("digit", _ALL, {DIGIT}),
    ("spaces", {SPACE}, {SPACE}), ("indent", _WHITE, {SPACE}), ("space", _ALL, {SPACE}),
    ("newlines", {NEWLINE}, _WHITE), ("newline", _ALL, _WHITE),
    ("joiner_after_word", _LETTERS | {DIGIT}, {JOINER}), ("sign_after_word", _LETTERS | {DIGIT}, {SIGN}),
    ("sign_more", _SIGNS, _SIGNS), ("sign", _ALL, _SIGNS),
    ("latin", _ALL, {LATIN}), ("cyrillic_more", {CYRILLIC}, {CYRILLIC}), ("cyrillic", _ALL, {CYRILLIC}),
    ("kana_more", {KANA}, {KANA}), ("kana", _ALL, {KANA}), ("kanji_more", {KANJI}, {KANJI}), ("kanji", _ALL, {KANJI}),
    ("cjk_sign", _ALL, {CJK_SIGN}), ("hangul_more", {HANGUL}, {HANGUL}), ("hangul", _ALL, {HANGUL}),
    ("symbol", _ALL, {SYMBOL}), ("other", _ALL, {OTHER}),
)  # fmt: skip
"""Features by the classes of the predecessor and of the character; a pair belongs to the first that fits."""


def _features() -> NDArray[np.float64]:
    table = np.zeros((256, len(FEATURES)))
    for before in range(16):
        for kind in range(16):
            feature = next(name for name, first, second in _FIRST_THAT_FITS if before in first and kind in second)
            table[16 * before + kind, FEATURES.index(feature)] = 1.0
    return table


OF_PAIR = _features()
"""Which feature a pair is: 256 x the features, a 1 in every row."""
