"""A fingerprint learnt from the usage that a server reports: one step of recursive least squares for each prompt.

Bounded in everything: an error counts as at most ``MOST``, a weight stays within ``REACH`` times what it began as, the
covariance within the one it began with, and the margin between ``LEAST_MARGIN`` and ``MOST_MARGIN``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentroute.tokens.classes import OF_PAIR, pairs
from agentroute.tokens.count import Messages, estimate
from agentroute.tokens.fingerprint import Fingerprint, with_margin
from agentroute.tokens.messages import prompt_of

Matrix = NDArray[np.float64]

ERROR = 0.06
"""Relative error that a prompt is expected to have, as in ``bench.corpus``."""
SPREAD = 0.4
"""How far a weight may be off at first, in tokens a character."""
RENEWED = 0.002
"""How much of the first uncertainty every prompt brings back, so that a changed tokenizer is learnt, too: assumed."""
MOST = 1.0
"""A relative error beyond it is cut: a count that is twice the estimate is more likely about another prompt."""
REACH = 6.0
HELD = 0.98
"""The share of prompts that the upper bound is to hold for."""
PACE = 0.2
LEAST_MARGIN, MOST_MARGIN = 0.1, 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Learner:
    """A fingerprint and how sure it is: a value; ``learn`` returns the next one."""

    fingerprint: Fingerprint
    margin: float
    first: Fingerprint
    covariance: Matrix
    seen: int = 0

    @classmethod
    def of(cls, fingerprint: Fingerprint, *, margin: float = 0.3, name: str | None = None) -> Learner:
        """A learner that begins with a fingerprint, a model's own or ``GENERIC``; what it learns is ``name``'s."""
        begun = replace(fingerprint, name=name or fingerprint.name)
        return cls(begun, margin, begun, _fixed(np.eye(len(fingerprint.weights)) * SPREAD**2))

    def learn(self, messages: Messages, prompt_tokens: int, *, tools: Sequence[Any] = ()) -> Learner:
        """What this is after a server counted ``prompt_tokens`` in the prompt of ``messages`` and ``tools``.

        A prompt with images or audio teaches nothing, since nobody knows their part of it.
        """
        prompt = prompt_of(messages, tools)
        if prompt.assumed:
            return self
        counted = estimate(messages, tools, fingerprint=self.fingerprint)
        characters = (pairs(prompt.text) + pairs(prompt.tools)) @ OF_PAIR
        weights = np.array(self.fingerprint.weights)
        marks = counted.value - float(characters @ weights)
        of_text = prompt_tokens - marks
        if of_text < 1.0:
            return self
        a = characters / of_text
        error = min(MOST, max(-MOST, 1.0 - float(a @ weights)))
        spread = self.covariance @ a
        gain = spread / (ERROR**2 + float(a @ spread))
        first = np.array(self.first.weights)
        learnt = np.clip(weights + gain * error, first / REACH, first * REACH + SPREAD)
        covariance = (1.0 - RENEWED) * (self.covariance - np.outer(gain, spread)) + RENEWED * SPREAD**2 * np.eye(
            len(first)
        )
        margin = self._margin(prompt_tokens > counted.upper)
        new = tuple(float(weight) for weight in learnt)
        bound = self._bound(new, margin, covariance)
        fingerprint = replace(self.fingerprint, weights=new, at_most=bound)
        return replace(self, fingerprint=fingerprint, margin=margin, covariance=_fixed(covariance), seen=self.seen + 1)

    def _bound(self, weights: tuple[float, ...], margin: float, covariance: Matrix) -> tuple[float, ...]:
        """A margin above the weights; the first bound, where it was wider, fades as a weight grows sure."""
        learnt = np.array(with_margin(weights, margin))
        unsure = np.diag(covariance) / SPREAD**2
        bound = learnt + np.maximum(np.array(self.first.at_most) - learnt, 0.0) * unsure
        return tuple(float(weight) for weight in bound)

    def _margin(self, passed: bool) -> float:
        """Wider when a prompt passed the bound, else a little narrower: at rest when a share ``HELD`` does not."""
        moved = self.margin + PACE * (HELD if passed else HELD - 1.0) * self.margin
        return min(MOST_MARGIN, max(LEAST_MARGIN, moved))


def _fixed(matrix: Matrix) -> Matrix:
    matrix.flags.writeable = False
    return matrix
