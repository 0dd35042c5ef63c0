"""SLOs that a task placed somewhere is expected to cost: its own, those of who is answered there, and of who comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from agentroute.assessment import Assessment

Floats = NDArray[np.float64]

OWN_WIDTH = 0.15
"""How unsure a prediction is against its limit: at 15 % over it, 73 of 100 miss. That is the scatter of curves."""
STALL_SHARE = 0.85
"""Of a prompt's reading time, what those that are being answered in the same pool lose: engines read prompts in the
steps that answer, which makes these longer. Assumed; engines that chunk prompts finely come nearer to a half."""
ROOM_WIDTH = 0.25
"""The same for what a request can lose while it is answered, of which less is known. Assumed."""
_LEAST_ROOM_MS = 1.0


def own(a: Assessment) -> Floats | None:
    """How likely the task is to miss an SLO of its own; ``None``: it has none. What is unknown counts as missed."""
    return None if a.used is None else np.fmin(_chance((a.used - 1.0) / OWN_WIDTH), 1.0)


def harm(a: Assessment) -> Floats | None:
    """How many others are expected to miss an SLO because of the task, soon; ``None``: nobody there has one.

    Those that are being answered lose its prompt's reading time, and a part of every step; those that come lose what is
    left of it by then.
    """
    queue, promised, harmed = a.state.queue, a.state.tpot_ms, None
    if queue is None:
        return None
    if queue.bound is not None and queue.room_ms is not None and promised is not None:
        # The prompt takes a share of what they can still lose: at the whole of it, half of them miss.
        stall = a.prefill_ms * STALL_SHARE
        stall /= np.maximum(a.at_pool(queue.room_ms), _LEAST_ROOM_MS)
        stall -= 1.0
        stall /= ROOM_WIDTH
        slower = a.tpot_ms / a.at_pool(promised)
        slower -= 1.0
        slower /= OWN_WIDTH
        harmed = _chance(np.maximum(stall, slower, out=stall))
        harmed *= a.at_pool(queue.bound)
    if queue.turns is not None and queue.turn_room_ms is not None:
        over = a.at_pool(queue.backlog_ms) - a.at_pool(queue.turn_room_ms)
        later = np.maximum(over + a.prefill_ms, 0.0)
        later -= np.maximum(over, 0.0, out=over)
        later *= 0.001 * a.at_pool(queue.turns)
        harmed = later if harmed is None else harmed + later
    return harmed


def _chance(excess: Floats) -> Floats:
    """The logistic function: a half at 0."""
    np.negative(excess, out=excess)
    np.minimum(excess, 500.0, out=excess)
    np.exp(excess, out=excess)
    excess += 1.0
    return np.reciprocal(excess, out=excess)
