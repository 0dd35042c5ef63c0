"""SLOs that a task placed somewhere is expected to cost: its own, those of who is answered there, and of who comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentroute.policy import MISS_PER_SECOND

if TYPE_CHECKING:
    from agentroute.assessment import Assessment
    from agentroute.inputs import Queue

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OWN_WIDTH = 0.15
"""How unsure a prediction is against its limit: at 15 % over it, 73 of 100 miss. That is the scatter of curves."""
STALL_SHARE = 0.85
"""Of a prompt's reading time, what those that are being answered in the same pool lose: engines read prompts in the
steps that answer, which makes these longer. Assumed; engines that chunk prompts finely come nearer to a half."""
ROOM_WIDTH = 0.25
"""The same for what a request can lose while it is answered, of which less is known. Assumed."""
ROOM_LEFT = 0.15
"""Of a KV pool, the last share, which those that come and must not wait may need. Assumed."""
FULL_HARM = 0.5
"""How likely one who comes misses its SLO where all of a pool is taken. Assumed."""
HARMLESS = 0.05
"""So many SLOs of others are no reason to wait: a prediction is no better than that. Assumed."""
MOST_EXCESS = 500.0
"""Beyond that ``exp`` overflows, and a chance is none."""

# An array without an axis is a quicker operand than a number.
_ZERO, _ONE, _MOST, _OWN_WIDTH = (np.array(value) for value in (0.0, 1.0, MOST_EXCESS, OWN_WIDTH))


def own(a: Assessment) -> Floats | None:
    """How likely the task is to miss an SLO of its own; ``None``: it has none. What is unknown counts as missed."""
    if a.used is None:
        return None
    over: Floats = a.used - _ONE
    over /= _OWN_WIDTH
    chance = _chance(over)
    np.fmin(chance, _ONE, out=chance)
    return chance


def harm(a: Assessment) -> Floats | None:
    """How many others are expected to miss an SLO because of the task, soon; ``None``: nobody there has one.

    Those that are being answered lose its prompt's reading time, and a part of every step; those that come lose what is
    left of it by then.
    """
    queue, harmed = a.state.queue, None
    if queue is None:
        return None
    if queue.bound is not None and queue.budget_ms is not None and queue.lost_ms is not None:
        # Who has lost all that it could misses by half a chance; what counts is what the prompt adds to that.
        pools = len(a.state.held)
        stall = np.zeros((*a.prefill_ms.shape[:-1], pools))
        stall[..., a.pool] = np.nan_to_num(a.prefill_ms) * STALL_SHARE
        lost = queue.lost_ms / queue.budget_ms
        after = lost + stall.take(queue.bound, axis=-1) / queue.budget_ms
        more = _chance((after - 1.0) / ROOM_WIDTH)
        more -= _chance((lost - 1.0) / ROOM_WIDTH)
        harmed = _by_pool(queue.bound, more, pools).take(a.pool, axis=-1)
    if queue.turns is not None and queue.turn_room_ms is not None:
        over = a.at_pool(queue.backlog_ms) - a.at_pool(queue.turn_room_ms)
        later = np.maximum(over + a.prefill_ms, 0.0)
        later -= np.maximum(over, 0.0, out=over)
        later *= 0.001 * a.at_pool(queue.turns)
        harmed = later if harmed is None else harmed + later
    return harmed


def minds(queue: Queue | None) -> bool:
    """Whether there is anybody, here or soon, who could lose an SLO to another's prompt."""
    if queue is None:
        return False
    return (queue.bound is not None and queue.bound.size > 0) or (queue.turns is not None and bool(queue.turns.any()))


def costs_more(a: Assessment, d: int, waited_s: float) -> bool:
    """Whether the task, placed at ``d`` now, is expected to cost others more SLOs than it keeps of its own.

    Such a one had better wait. The seconds that it has waited count as they do for a task without an SLO, so that it
    does not wait for ever.
    """
    if a.harm is None:
        return False
    keeps = 0.0 if a.own_miss is None else 1.0 - float(a.own_miss[d])
    harmed = float(a.harm[d]) + _crowding(a, d) - _elsewhere(a, d)
    return harmed > max(keeps, HARMLESS + MISS_PER_SECOND * waited_s)


def _elsewhere(a: Assessment, d: int) -> float:
    """Of ``harm``, what those that come do not lose because they go elsewhere: such a share as other pools of their
    kind have time for them."""
    queue, pool = a.state.queue, int(a.pool[d])
    if queue is None or queue.turns is None or queue.turn_room_ms is None:
        return 0.0
    others = queue.turns > 0.0
    others[pool] = False
    if not (count := int(others.sum())):
        return 0.0
    room_ms = queue.turn_room_ms - queue.backlog_ms
    share = int((room_ms[others] > 0.0).sum()) / count
    over_ms = -float(room_ms[pool])
    later_ms = max(0.0, over_ms + float(np.nan_to_num(a.prefill_ms[d]))) - max(0.0, over_ms)
    return share * 0.001 * later_ms * float(queue.turns[pool])


def _crowding(a: Assessment, d: int) -> float:
    """SLOs that are expected to be missed because the task takes the last room in a KV pool: of those that have a TTFT
    to keep, and come while it is there. Of a pool that is empty the task takes what is its due, however much."""
    queue, pool, held = a.state.queue, a.pool[d], float(a.held[d])
    if queue is None or queue.turns is None or not held:
        return 0.0
    beyond = (held + float(a.units[d])) / float(a.fleet.blocks[d]) - 1.0 + ROOM_LEFT
    if beyond <= 0.0:
        return 0.0
    come = float(queue.turns[pool] * a.service_ms[d]) / 1_000.0
    return FULL_HARM * min(1.0, come) * beyond / ROOM_LEFT


def _by_pool(bound: Ints, of_requests: Floats, pools: int) -> Floats:
    """Sums by pool, shape (..., pools), of what is of each request, shape (..., r)."""
    if of_requests.ndim == 1:
        return np.bincount(bound, of_requests, pools).astype(np.float64)
    rows = len(of_requests)
    places = bound + pools * np.arange(rows)[:, None]
    sums = np.bincount(places.ravel(), of_requests.ravel(), rows * pools)
    return sums.astype(np.float64).reshape(rows, pools)


def _chance(excess: Floats) -> Floats:
    """The logistic function: a half at 0."""
    np.negative(excess, excess)
    np.minimum(excess, _MOST, out=excess)
    np.exp(excess, excess)
    excess += _ONE
    return np.reciprocal(excess, excess)
