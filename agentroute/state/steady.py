"""Time that never goes back, whatever the clock does: what ages is aged by it."""

from __future__ import annotations

import math
from dataclasses import dataclass

JUMP_S = 1.0
"""A step back of at least so many seconds is a clock that was set; less is two threads that read it out of order."""


@dataclass(slots=True)
class Steady:
    """Seconds that stand still at worst.

    After a clock was set back they run on from where they were, so that nothing lives longer by the jump; a jump
    forward cannot be told from time that passed.
    """

    last: float = -math.inf
    """The last time that was asked for."""
    _offset: float = 0.0

    def __call__(self, now: float) -> float:
        """``now``, in seconds by the clock, as seconds that never go back."""
        at = now + self._offset
        if at < self.last:
            if self.last - at >= JUMP_S:
                self._offset += self.last - at
            return self.last
        self.last = at
        return at
