"""The smallest change of a task that would have changed the answer, on the same state.

One field at a time is varied: prompt tokens, concurrency, each limit on a latency that applies, the budget where there
is one. Its values stand on a geometric ladder, each rung twice the one before, up to 1,024 times more or less; between
the rung at which a deployment first wins and the one before, two finer ladders follow. So the smallest change is found
to about 1 % of the value (a whole token, a whole request), unless an answer comes and goes between two rungs.
All values of a ladder are assessed at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from agentroute.asks import NO_TIME_MS
from agentroute.assessment import Assessment
from agentroute.estimate import milliseconds
from agentroute.inputs import Ask, Limit, Metric
from agentroute.many import NONE, UNSURE, best_of_each
from agentroute.policy import OBJECTIVES, Objective
from agentroute.task import MAX_CONCURRENCY, MAX_TOKENS, Slo, Task

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RUNGS = 10
"""Doublings and halvings that are looked at."""
STEPS = 8
"""Into how many a rung is divided, and each of these again."""
RESOLUTION = 2.0 ** (1.0 / STEPS**2) - 1.0
"""How near a change is to the smallest, as a share of the field's value."""
FINEST = STEPS**2
"""The smallest steps to a doubling."""
DIGITS = 5
"""Significant digits of a value that is not whole."""

Field = Literal["context_tokens", "concurrency", "ttft_ms", "tpot_ms", "deadline_s", "max_cost_usd"]
_OF_METRIC: dict[Metric, tuple[Field, float]] = {
    "ttft_ms": ("ttft_ms", 1.0),
    "tpot_ms": ("tpot_ms", 1.0),
    "e2e_ms": ("deadline_s", 1_000.0),
}
_VARIED = (
    "context_tokens", "isl", "held_tokens", "shared_tokens", "concurrency", "max_cost_usd", "grown_tokens",
)  # fmt: skip
"""The fields of ``Ask``, beside its limits, that a change may change."""
_WHOLE = {"context_tokens": MAX_TOKENS, "concurrency": MAX_CONCURRENCY}


@dataclass(frozen=True, slots=True)
class Change:
    """With ``field`` at ``value``, the answer would have been ``deployment``; ``None``: that nothing can take it."""

    field: Field
    value: float
    deployment: str | None
    _limit: Slo | None = None

    def of(self, task: Task) -> Task:
        """The changed task."""
        if self.field == "context_tokens":
            context = int(self.value)
            expected = task.expected_context_tokens
            return replace(
                task,
                context_tokens=context,
                expected_context_tokens=expected and int(_expected(expected, task.context_tokens, context)),
                shared_prefix_tokens=min(task.shared_prefix_tokens, context),
            )
        if self.field == "concurrency":
            return replace(task, concurrency=int(self.value))
        if self.field == "max_cost_usd":
            return replace(task, max_cost_usd=self.value)
        assert self._limit is not None
        limit = replace(self._limit, value=self.value)
        match self.field:
            case "ttft_ms":
                return replace(task, ttft_ms=limit)
            case "tpot_ms":
                return replace(task, tpot_ms=limit)
            case "deadline_s":
                return replace(task, deadline_s=limit)

    def __str__(self) -> str:
        match self.field:
            case "context_tokens":
                return f"with {self.value:,.0f} context tokens"
            case "concurrency":
                return f"with {self.value:,.0f} in flight"
            case "max_cost_usd":
                return f"with a budget of ${self.value:.4g}"
            case "deadline_s":
                return f"with a deadline of {milliseconds(self.value * 1_000.0)}"
            case field:
                return f"with a {field[:4].upper()} limit of {milliseconds(self.value)}"


@dataclass(frozen=True, slots=True)
class Changes:
    """``answer``: the smallest change that changes the answer at all; ``wins``: what makes each of the others win.

    What no single change achieves is not there.
    """

    answer: Change | None
    wins: Mapping[str, Change]


class _Varied(NamedTuple):
    field: Field
    base: float
    slo: Slo | None = None


_Place = tuple[int, int]
"""A place on a ladder: the number of its way (a field, up or down) and how many of the smallest steps along it."""
_Row = tuple[int, float]
"""The number of a field and its value."""


def changes(a: Assessment, objective: Objective, best: int) -> Changes:
    """The smallest changes to what was assessed, where deployment number ``best`` was chosen."""
    ladders = _Ladders(a, objective)
    found: dict[str | None, Change] = {}
    for d, place in sorted(ladders.climb(best).items(), key=lambda one: (one[1][1], one[0])):
        name = None if d == NONE else a.fleet.deployments[d].name
        number, value = ladders.row(place)
        varied = ladders.varied[number]
        found[name] = Change(varied.field, value, name, varied.slo)
    wins = {name: change for name, change in found.items() if name is not None}
    return Changes(next(iter(found.values()), None), wins)


class _Ladders:
    """The ladders of every field that may be varied, and what was answered on their places.

    Way 2 i leads up field i, way 2 i + 1 down.
    """

    def __init__(self, a: Assessment, objective: Objective) -> None:
        self._a, self._objective = a, objective
        self.varied = tuple(_varied(a.ask))
        self._judged = [_over_mean(a, limit) for limit in a.ask.limits]
        self._bases = np.array([one.base for one in self.varied])
        self._most = np.array([_WHOLE.get(one.field, 0.0) for one in self.varied])
        self._answers: dict[_Row, int] = {}
        self._rows: dict[_Place, _Row] = {}

    def row(self, place: _Place) -> _Row:
        """The field and its value at a place that was asked for."""
        return self._rows[place]

    def climb(self, best: int) -> dict[int, _Place]:
        """By deployment the nearest place at which it wins instead of ``best``; of equally near ones the first."""
        step, ways = FINEST, range(2 * len(self.varied))
        rungs = [(way, far) for far in range(step, step * RUNGS + 1, step) for way in ways]
        nearest: dict[int, list[_Place]] = {}
        for place, d in zip(rungs, self._answered(rungs), strict=True):
            if d is not None and d != best and d != UNSURE and (d not in nearest or nearest[d][0][1] == place[1]):
                nearest.setdefault(d, []).append(place)
        while step > 1:
            finer = step // STEPS
            inner = {
                (way, far): [(way, nearer) for nearer in range(far - step + finer, far, finer)]
                for way, far in set(chain(*nearest.values()))
            }
            answers = dict(zip(inner, _parted(self._answered(list(chain(*inner.values()))), STEPS - 1), strict=True))
            for d, places in nearest.items():
                first = [
                    inner[place][answers[place].index(d)] if d in answers[place] else place for place in places
                ]
                far = min(place[1] for place in first)
                nearest[d] = [place for place in first if place[1] == far]
            step = finer
        return {d: places[0] for d, places in nearest.items() if self._holds(places[0], d)}

    def _answered(self, places: list[_Place]) -> list[int | None]:
        """What is answered at each place; ``None`` where the value is not another, or none that a task may have."""
        if not places:
            return []
        ways, fars = np.array(places).T
        fields = ways >> 1
        values = self._values(fields, np.where(ways & 1, -fars, fars)).tolist()
        rows = list(zip(fields.tolist(), values, strict=True))
        self._rows.update(zip(places, rows, strict=True))
        new = sorted({row for row in rows if row[1] == row[1]} - self._answers.keys())
        if new:
            a = self._a
            if OBJECTIVES.get(self._objective.name) is not self._objective:
                # An objective of the user's own need not understand many tasks at once.
                self._answers.update({row: self._alone(row) for row in new})
            else:
                many = Assessment(a.fleet, self._stacked(new), a.state, room_now=a.room_now)
                self._answers.update(zip(new, best_of_each(many, self._objective).tolist(), strict=True))
        return [self._answers.get(row) for row in rows]

    def _values(self, fields: Ints, along: Ints) -> Floats:
        """The values of fields so many of the smallest steps up (or down); NaN where ``_answered`` says ``None``."""
        base, most = self._bases.take(fields), self._most.take(fields)
        value = base * 2.0 ** (along / FINEST)
        power = np.floor(np.log10(value)) + 1.0 - DIGITS
        scale = 10.0 ** np.abs(power)
        rounded = np.where(power > 0.0, np.rint(value / scale) * scale, np.rint(value * scale) / scale)
        whole, count = most > 0.0, np.rint(value)
        good = np.where(whole, (count != base) & (count >= 1.0) & (count <= most), (rounded >= 1e-9) & (rounded < 1e12))
        return np.where(good, np.where(whole, count, rounded), np.nan)

    def _stacked(self, rows: Sequence[_Row]) -> Ask:
        """The task with one field changed in each row, as arrays of shape (t, 1); rows in ascending order."""
        ask, fields = self._a.ask, [number for number, _ in rows]
        values, of = np.array([value for _, value in rows]), {}
        for number, one in enumerate(self.varied):
            first = bisect_left(fields, number)
            of[one.field] = slice(first, bisect_right(fields, number, first))

        def column(field: Field, base: float, to: Callable[[Any], Any] = np.asarray) -> Any:
            filled = np.full(len(rows), base)
            filled[of[field]] = to(values[of[field]])
            return filled[:, None]

        context, budget = column("context_tokens", ask.context_tokens), None
        if ask.max_cost_usd is not None:
            budget = column("max_cost_usd", ask.max_cost_usd)
        limits = []
        for limit, judged in zip(ask.limits, self._judged, strict=True):
            field, _ = _OF_METRIC[limit.metric]
            left = column(field, limit.limit_ms, partial(_left, limit, field))
            limits.append(limit._replace(limit_ms=left / judged, stat="mean"))
        return ask._replace(
            context_tokens=context,
            isl=column("context_tokens", ask.isl, partial(_expected, ask.isl, ask.context_tokens)),
            osl=cast(Any, np.full((len(rows), 1), ask.osl)),
            held_tokens=context + (ask.held_tokens - ask.context_tokens),
            shared_tokens=np.minimum(context, ask.shared_tokens),
            concurrency=column("concurrency", ask.concurrency),
            limits=tuple(limits),
            max_cost_usd=budget,
            grown_tokens=column("context_tokens", ask.grown_tokens, partial(_grown, ask)),
        )

    def _alone(self, row: _Row) -> int:
        """The answer to the task with one field changed."""
        a, many, field, value = self._a, self._stacked([row]), self.varied[row[0]].field, row[1]
        left = [float(_left(limit, field, value)) for limit in a.ask.limits]
        limits = [limit._replace(limit_ms=ms) for limit, ms in zip(a.ask.limits, left, strict=True)]
        ask = a.ask._replace(limits=tuple(limits))
        scalars: dict[str, Any] = {}
        for name in _VARIED:
            if (column := getattr(many, name)) is not None:
                scalars[name] = float(column[0, 0])
        answer = Assessment(a.fleet, ask._replace(**scalars), a.state, room_now=a.room_now).best(self._objective)
        return NONE if answer is None else answer

    def _holds(self, place: _Place, d: int) -> bool:
        """Whether the change does so alone. Asked only where a band judges, since another load changes the band."""
        return all(limit.stat == "mean" for limit in self._a.ask.limits) or self._alone(self._rows[place]) == d


def _left(limit: Limit, field: Field, value: Any) -> Any:
    """What is left of a limit, in milliseconds, with a field at another value, or at each of several."""
    own, ms = _OF_METRIC[limit.metric]
    return np.maximum(value * ms - limit.waited_ms, NO_TIME_MS) if own == field else limit.limit_ms


def _parted(answers: list[int | None], size: int) -> list[list[int | None]]:
    return [answers[i : i + size] for i in range(0, len(answers), size)]


def _varied(ask: Ask) -> Iterator[_Varied]:
    yield _Varied("context_tokens", ask.context_tokens)
    yield _Varied("concurrency", ask.concurrency)
    for limit in ask.limits:
        field, ms = _OF_METRIC[limit.metric]
        asked = (limit.limit_ms if limit.asked_ms is None else limit.asked_ms) / ms
        yield _Varied(field, asked, Slo(asked, limit.stat, limit.hard, limit.from_itl))
    if ask.max_cost_usd is not None:
        yield _Varied("max_cost_usd", ask.max_cost_usd)


def _expected(expected: float, context: float, changed: Any) -> Any:
    """What is expected of a changed prompt: the same share of its upper bound."""
    return np.maximum(1.0, np.minimum(changed, np.rint(expected * changed / context)))


def _grown(ask: Ask, changed: Any) -> Any:
    """``Ask.grown_tokens`` with a changed prompt: it grows by the same share."""
    if not ask.grown_tokens:
        return 0.0
    return (ask.grown_tokens - ask.output_tokens) / ask.context_tokens * changed + ask.output_tokens


def _over_mean(a: Assessment, limit: Limit) -> Any:
    """By deployment what a limit is judged by, over the mean; 1 where nothing is known."""
    if limit.stat == "mean":
        return 1.0
    share = a.judged_ms(limit) / getattr(a, limit.metric)
    return np.where(np.isnan(share), 1.0, share)
