"""Many tasks at once: those of one kind are assessed together, in arrays of shape (t, d)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentroute.assessment import Assessment
from agentroute.compiled import CompiledFleet
from agentroute.decision import Decision
from agentroute.inputs import Ask, State
from agentroute.policy import SLO_MARGIN, Objective
from agentroute.ranking import HARMFUL, INFEASIBLE, MISSED
from agentroute.state.corrections import context_region
from agentroute.state.situation import Situation, group_of
from agentroute.task import Slo, Task

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE, UNSURE = -1, -2
"""In place of a deployment's number: nothing is feasible; the last digits would decide."""
LEAST = 4
"""Fewer tasks of a kind are decided one by one, which is then quicker."""
NEAR = 1e-4
"""Relative difference below which times of one task and of many may compare differently: curves are blended in single
precision, in another order. Seen: 2e-6 in times, up to ten times as much in what ``fit`` makes of them."""

_FIELDS = attrgetter(
    "route", "objective", "needs", "allow", "deny", "pin", "quality._items", "max_output_tokens", "max_cost_usd",
    "ttft_ms", "tpot_ms", "deadline_s", "session_id", "parent_session_id", "prefix", "shared_prefix_tokens",
)  # fmt: skip
_KIND, _GIVEN, _SLOS, _MARKS = slice(0, 7), slice(7, 9), slice(9, 12), slice(12, 16)
_TAIL = "tail"


class Batch(NamedTuple):
    """Tasks of one kind that meet one state, or, not ``together``, tasks that each meet their own."""

    together: bool
    places: list[int]
    """Which of the tasks given they are."""
    states: dict[int, State]
    """By place; of those together, that of the first."""

    def state_of(self, place: int) -> State:
        """What the task at a place meets."""
        return self.states[self.places[0] if self.together else place]


def batched(tasks: Sequence[Task], situation: Situation, now: float) -> list[Batch]:
    """Every task in one batch. Reads the state, so it is called under the router's lock."""
    if not tasks:
        return []
    columns = list(zip(*map(_FIELDS, tasks), strict=True))
    telling: list[Sequence[Hashable]] = list(columns[_KIND])
    telling += [[value is None for value in column] for column in columns[_GIVEN] if None in column]
    slos = [_limited(column) for column in columns[_SLOS] if any(column)]
    telling += slos
    if situation.corrections.table(now) is not None:
        telling.append([context_region(task.expected_context_tokens or task.context_tokens) for task in tasks])
    varying = [column for column in telling if column.count(column[0]) < len(column)]
    alone = _alone(tasks, columns[_MARKS], slos, situation)
    found: dict[Hashable, list[int]] = {}
    if varying or alone:
        keys: Iterable[Hashable] = zip(*varying, strict=True) if varying else [()] * len(tasks)
        for i, key in enumerate(keys):
            found.setdefault(None if i in alone else key, []).append(i)
    else:
        found[()] = list(range(len(tasks)))
    batches = []
    for key, places in found.items():
        together = key is not None and len(places) >= LEAST
        batches.append(
            Batch(together, places, {i: situation.state(tasks[i], now) for i in (places[:1] if together else places)})
        )
    return batches


def _alone(
    tasks: Sequence[Task],
    marks: Sequence[Sequence[object]],
    slos: Sequence[Sequence[Hashable]],
    situation: Situation,
) -> set[int]:
    """Those whose state is their own, and those with a limit on a percentile."""
    alone = {i for column in marks if any(column) for i, mark in enumerate(column) if mark}
    alone |= {i for column in slos if _TAIL in column for i, kind in enumerate(column) if kind == _TAIL}
    if situation.ledger.total:
        siblings = situation.ledger.siblings
        alone |= {i for i, task in enumerate(tasks) if (group := task.group or group_of(task)) and siblings(group)}
    return alone


def _limited(values: Iterable[float | Slo | None]) -> list[str]:
    """What of an SLO must be equal, of each."""
    return [
        ("none" if value is None else "hard")
        if not isinstance(value, Slo)
        else _TAIL
        if value.stat != "mean"
        else "hard"
        if value.hard
        else "soft"
        for value in values
    ]


def together(
    batch: Batch,
    tasks: Sequence[Task],
    fleet: CompiledFleet,
    stacked: Ask,
    ask_of: Callable[[Task], Ask],
    objective: Objective,
    now: float,
) -> tuple[Iterable[tuple[int, Decision]], list[int]]:
    """The decisions on a batch's tasks with their places, and the places that are left: what nothing can take, or the
    last digits would decide. ``ask_of`` makes the numbers of one task, should its decision be read."""
    state, places = batch.state_of(batch.places[0]), batch.places
    chosen = best_of_each(Assessment(fleet, stacked, state, room_now=False), objective)

    def assess(task: Task) -> Assessment:
        return Assessment(fleet, ask_of(task), state, room_now=False)

    found = (chosen >= 0).tolist()
    left = [] if all(found) else [i for i, known in zip(places, found, strict=True) if not known]
    if left:
        places, tasks = list(compress(places, found)), list(compress(tasks, found))
    made = Decision.each(tasks, objective, fleet, assess, chosen[chosen >= 0].tolist(), now)
    return zip(places, made, strict=True), left


def best_of_each(a: Assessment, objective: Objective) -> Ints:
    """For each of many tasks what ``Assessment.best`` says of it alone, shape (t,); else ``NONE`` or ``UNSURE``."""
    shape = a.ttft_ms.shape
    score, rank = objective(a), np.asarray(a.known_rank if objective.weighs_slos else a.rank)
    if a.used is not None and not objective.weighs_slos:
        missed = rank >= MISSED
        if missed.any():
            score = np.where(missed, a.used, score)
    if a.feasible is not None:
        rank = np.where(a.feasible, rank, INFEASIBLE)
    least_rank = rank.min(axis=-1, keepdims=True)
    # Within the best rank the least score; where none has one (nothing is known) the less busy one is best.
    among = np.broadcast_to(np.where(rank == least_rank, score, np.nan), shape)
    least = np.fmin.reduce(among, axis=1)[:, None]
    best = among <= least
    chosen: Ints = best.argmax(axis=1)
    near = np.count_nonzero(among <= least + NEAR * np.abs(least), axis=1)
    for i in np.flatnonzero(near != 1).tolist():
        row = best[i]
        if not near[i]:
            row = np.broadcast_to(rank == least_rank, shape)[i]
        elif near[i] != np.count_nonzero(row):
            chosen[i] = UNSURE
            continue
        chosen[i] = np.where(row, a.in_flight, np.inf).argmin()
    chosen[np.broadcast_to(least_rank[..., 0], shape[:1]) >= INFEASIBLE] = NONE
    chosen[unsure(a, objective)] = UNSURE
    return chosen


def unsure(a: Assessment, objective: Objective) -> Bools:
    """Which of many tasks have a time or a cost so near to a limit that the last digits tell whether it is kept."""
    near: Bools = np.zeros(a.ttft_ms.shape, dtype=np.bool_)
    for limit in a.ask.limits:
        share = a.judged_ms(limit) / limit.limit_ms
        if not objective.weighs_slos:
            near |= np.abs((share - 1.0) * (share - (1.0 - SLO_MARGIN))) < SLO_MARGIN * NEAR
        elif limit.hard:
            near |= np.abs(share - 1.0) < NEAR
    if a.ask.max_cost_usd is not None:
        near |= np.abs(a.cost_usd / a.ask.max_cost_usd - 1.0) < NEAR
    if not objective.weighs_slos and a.harm is not None:
        near |= np.abs(a.harm - HARMFUL) < NEAR
    return np.asarray(near.any(axis=1))
