"""Prompts that no prefix cache knows, of a length that is met: random words, a new beginning for every request."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

# fmt: off
WORDS = (
    "river", "stone", "window", "paper", "garden", "engine", "copper", "winter", "music", "letter", "market",
    "bridge", "table", "water", "house", "tree", "light", "road", "school", "family", "summer", "field", "story",
    "voice", "glass", "metal", "ocean", "forest", "village", "castle", "doctor", "teacher", "student", "farmer",
    "driver", "captain", "silver", "golden", "yellow", "purple", "orange", "simple", "quiet", "strong", "early",
    "large", "small", "modern", "ancient", "public",
)
# fmt: on
"""Common words; with a space before it, each is one token of nearly every vocabulary."""

NONCE = 8
"""Words at the start that no other prompt of the run starts with: a cache that keeps blocks of 16 tokens or more finds
nothing beyond the chat template."""


class Prompts:
    """A source of prompts, usable from several threads. Two sources with different seeds share no prompt."""

    def __init__(self, seed: int | str | None = None) -> None:
        self._random = random.Random(seed)
        self._begun: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def make(self, words: int) -> str:
        """A prompt of so many words, at least one."""
        with self._lock:
            while (start := tuple(self._random.choices(WORDS, k=NONCE))) in self._begun:
                pass
            self._begun.add(start)
            rest = self._random.choices(WORDS, k=max(0, words - NONCE))
        return " ".join([*start, *rest][: max(1, words)])


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a server counts: ``tokens = template + per_word * words``."""

    template: float
    per_word: float

    @classmethod
    def of(cls, short: tuple[int, int], long: tuple[int, int]) -> Lengths:
        """From two prompts, each as (words, tokens that the server counted), the second with more words.

        A server that counts the same for both (it cuts prompts, or counts wrongly) gets a token a word.
        """
        per_word = (long[1] - short[1]) / (long[0] - short[0])
        if per_word <= 0:
            return cls(0.0, 1.0)
        return cls(short[1] - per_word * short[0], per_word)

    def tokens(self, words: int) -> float:
        """About how many tokens a prompt of so many words is."""
        return self.template + self.per_word * words

    def words(self, tokens: int) -> int:
        """How many words make a prompt of about ``tokens`` tokens; at least one."""
        return max(1, round((tokens - self.template) / self.per_word))
