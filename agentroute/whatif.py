"""The smallest change of a task that would have changed the answer, on the same state.

One field at a time is varied: prompt tokens, concurrency, each limit on a latency that applies, the budget where there
is one; of a task that nothing can take also the most tokens of its answer, downwards. Its values stand on a geometric
ladder, each rung twice the one before, up to 1,024 times more or less; between the rung at which a deployment first
wins and the one before, two finer ladders follow. So the smallest change is found to about 1 % of the value (a whole
token, a whole request), unless an answer comes and goes between two rungs.
All values of a ladder are assessed at once, each with what such a task meets (``agentroute.otherwise``). A task that
names no group has equal tasks for siblings: with another number it is taken to have none in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from agentroute.asks import NO_TIME_MS
from agentroute.assessment import Assessment
from agentroute.estimate import milliseconds
from agentroute.inputs import Ask, Limit, Metric
from agentroute.many import NONE, UNSURE, best_of_each
from agentroute.otherwise import alone, met
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

Field = Literal[
    "context_tokens", "max_output_tokens", "concurrency", "ttft_ms", "tpot_ms", "deadline_s", "max_cost_usd"
]
_OF_METRIC: dict[Metric, tuple[Field, float]] = {
    "ttft_ms": ("ttft_ms", 1.0),
    "tpot_ms": ("tpot_ms", 1.0),
    "e2e_ms": ("deadline_s", 1_000.0),
}
_VARIED = (
    "context_tokens", "isl", "osl", "output_tokens", "held_tokens", "shared_tokens", "concurrency", "max_cost_usd",
    "grown_tokens",
)  # fmt: skip
"""The fields of ``Ask``, beside its limits, that a change may change."""


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
                expected_context_tokens=expected and int(_share(expected, task.context_tokens, context)),
                shared_prefix_tokens=min(task.shared_prefix_tokens, context),
            )
        if self.field == "max_output_tokens":
            output, expected = int(self.value), task.expected_output_tokens
            assert task.max_output_tokens is not None
            expected = expected and int(_share(expected, task.max_output_tokens, output))
            return replace(task, max_output_tokens=output, expected_output_tokens=expected)
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
            case "max_output_tokens":
                return f"with {self.value:,.0f} output tokens"
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


_Goal = Callable[[int, "int | None"], "int | None"]
"""Which goal an answer at a place reaches, by number; ``None``: none."""


class _Varied(NamedTuple):
    field: Field
    base: float
    slo: Slo | None = None
    most: float = 0.0
    """Of one that is whole: the most that it may be. 0: it is not whole."""


def changes(a: Assessment, objective: Objective, best: int, task: Task) -> Changes:
    """The smallest changes to ``task`` as it was assessed, where deployment number ``best`` was chosen."""

    def other(_: int, answer: int | None) -> int | None:
        return None if answer in (best, UNSURE) else answer

    found = _found(_Ladders(a, objective, task), other)
    wins = {change.deployment: change for change in found if change.deployment is not None}
    return Changes(next(iter(found), None), wins)


def lets(a: Assessment, objective: Objective, task: Task) -> tuple[Change, ...]:
    """By field the smallest change that lets some deployment take a task which nothing can take as it is, the smallest
    of all first."""
    ladders = _Ladders(a, objective, task, refused=True)

    def taken(place: int, answer: int | None) -> int | None:
        return None if answer is None or answer < 0 else ladders.field(place)

    return tuple(_found(ladders, taken))


def _found(ladders: _Ladders, goal: _Goal) -> list[Change]:
    """What the ladders found, the smallest first."""
    found = sorted(ladders.climb(goal).items(), key=lambda one: (ladders.far(one[1][0]), one[0]))
    return [ladders.change(place, answer) for _, (place, answer) in found]


class _Ladders:
    """The ladders of every field that may be varied, and what was answered on their places.

    There are two ways for each field, up (even) and down (odd). A place is one number, ``far * ways + way``: so many of
    the smallest steps along a way. So the nearer ones come first, and nothing is allocated for one.
    """

    def __init__(self, a: Assessment, objective: Objective, task: Task, *, refused: bool = False) -> None:
        """``refused``: its answer's length is to be varied, too."""
        self._a, self._objective, self._in_group = a, objective, task.group is not None
        self._output = task.max_output_tokens if refused else None
        self._expected_output = task.expected_output_tokens if refused else None
        self._varied = tuple(_varied(a.ask, self._output))
        self._ways = 2 * len(self._varied)
        self._judged = [_over_mean(a, limit) for limit in a.ask.limits]
        self._bases = np.array([one.base for one in self._varied])
        self._most = np.array([one.most for one in self._varied])
        self._values: dict[int, float] = {}
        self._answers: tuple[dict[float, int], ...] = tuple({} for _ in self._varied)
        """By field, and by its value."""

    def far(self, place: int) -> int:
        """How many of the smallest steps it is from the task."""
        return place // self._ways

    def field(self, place: int) -> int:
        """The number of the field that changes there."""
        return place % self._ways >> 1

    def change(self, place: int, answer: int) -> Change:
        """To the value at a place that was asked for, where that is answered."""
        varied, name = self._varied[self.field(place)], None
        if answer != NONE:
            name = self._a.fleet.deployments[answer].name
        return Change(varied.field, self._values[place], name, varied.slo)

    def climb(self, goal: _Goal) -> dict[int, tuple[int, int]]:
        """By goal the nearest place that reaches it, of equally near ones the first, and what is answered there."""
        ways, step = self._ways, FINEST
        nearest: dict[int, list[int]] = {}
        rungs = [far * ways + way for far in range(step, step * RUNGS + 1, step) for way in range(ways)]
        for place, answer in zip(rungs, self._answered(rungs), strict=True):
            if (reached := goal(place, answer)) is not None:
                places = nearest.setdefault(reached, [])
                if not places or self.far(places[0]) == self.far(place):
                    places.append(place)
        while step > 1:
            finer = step // STEPS
            inner = {
                place: list(range(place - (step - finer) * ways, place, finer * ways))
                for place in dict.fromkeys(chain.from_iterable(nearest.values()))
            }
            asked = list(chain.from_iterable(inner.values()))
            reached_at = dict(zip(asked, map(goal, asked, self._answered(asked)), strict=True))
            for one, places in nearest.items():
                first = [next((p for p in inner[place] if reached_at[p] == one), place) for place in places]
                far = min(map(self.far, first))
                nearest[one] = [place for place in first if self.far(place) == far]
            step = finer
        sure = ((one, places[0], self._sure(places[0])) for one, places in nearest.items())
        return {one: (place, answer) for one, place, answer in sure if goal(place, answer) == one}

    def _answered(self, places: list[int]) -> list[int | None]:
        """What is answered at each place; ``None`` where the value is not another, or none that a task may have."""
        if not places:
            return []
        far, way = np.divmod(np.array(places), self._ways)
        numbers = way >> 1
        values = self._rounded(numbers, np.where(way & 1, -far, far)).tolist()
        fields = numbers.tolist()
        self._values.update(zip(places, values, strict=True))
        new: list[list[float]] = [[] for _ in self._varied]
        for number, value in zip(fields, values, strict=True):
            known = self._answers[number]
            if value == value and value not in known:
                known[value] = UNSURE
                new[number].append(value)
        if any(new):
            found = iter(self._assessed(new))
            for known, asked in zip(self._answers, new, strict=True):
                known.update(zip(asked, found, strict=False))
        return [self._answers[number].get(value) for number, value in zip(fields, values, strict=True)]

    def _assessed(self, new: list[list[float]]) -> list[int]:
        """The answers with one field changed, by field the values of each."""
        if OBJECTIVES.get(self._objective.name) is not self._objective:
            # An objective of the user's own need not understand many tasks at once.
            return [self._alone(number, value) for number, values in enumerate(new) for value in values]
        a = self._a
        ask = self._stacked(new)
        many = Assessment(a.fleet, ask, met(a, ask, in_group=self._in_group), room_now=a.room_now)
        found: list[int] = best_of_each(many, self._objective).tolist()
        return found

    def _rounded(self, numbers: Ints, along: Ints) -> Floats:
        """The values of fields so many of the smallest steps up (or down); NaN where ``_answered`` says ``None``."""
        base, most = self._bases.take(numbers), self._most.take(numbers)
        value = base * 2.0 ** (along / FINEST)
        power = np.floor(np.log10(value)) + 1.0 - DIGITS
        scale = 10.0 ** np.abs(power)
        digits = np.where(power > 0.0, np.rint(value / scale) * scale, np.rint(value * scale) / scale)
        whole, count = most > 0.0, np.rint(value)
        good = np.where(whole, (count != base) & (count >= 1.0) & (count <= most), (digits >= 1e-9) & (digits < 1e12))
        return np.where(good, np.where(whole, count, digits), np.nan)

    def _stacked(self, new: list[list[float]]) -> Ask:
        """The task with one field changed in each row, field after field, as arrays of shape (t, 1)."""
        ask, values, ends = self._a.ask, np.array(list(chain.from_iterable(new))), accumulate(map(len, new))
        of = {one.field: slice(end - len(own), end) for one, own, end in zip(self._varied, new, ends, strict=True)}

        def column(field: Field, base: float, to: Callable[[Any], Any] | None = None) -> Any:
            filled = np.full((len(values), 1), base)
            here = values[of[field], None]
            filled[of[field]] = here if to is None else to(here)
            return filled

        if self._output:
            ask = ask._replace(**self._shorter(column, self._output))
        context, budget = column("context_tokens", ask.context_tokens), None
        if ask.max_cost_usd is not None:
            budget = column("max_cost_usd", ask.max_cost_usd)
        limits = []
        for limit, judged in zip(ask.limits, self._judged, strict=True):
            field, _ = _OF_METRIC[limit.metric]
            left = column(field, limit.limit_ms, partial(_left, limit, field))
            limits.append(limit._replace(limit_ms=left / judged, stat="mean"))
        grown: Any = ask.grown_tokens
        if np.any(grown):
            grown = grown + column("context_tokens", 0.0, partial(_more, self._a.ask))
        return ask._replace(
            context_tokens=context,
            isl=column("context_tokens", ask.isl, partial(_share, ask.isl, ask.context_tokens)),
            osl=cast(Any, np.broadcast_to(ask.osl, context.shape)),
            held_tokens=context + (ask.held_tokens - ask.context_tokens),
            shared_tokens=np.minimum(context, ask.shared_tokens),
            concurrency=column("concurrency", ask.concurrency),
            limits=tuple(limits),
            max_cost_usd=budget,
            grown_tokens=grown,
        )

    def _shorter(self, column: Callable[..., Any], most: int) -> dict[str, Any]:
        """The fields that change with the length of the answer."""
        ask = self._a.ask
        planned = ask.held_tokens - ask.context_tokens
        output = column("max_output_tokens", ask.output_tokens)
        held = column("max_output_tokens", planned, partial(np.minimum, planned))
        osl = held
        if (expected := self._expected_output) is not None:
            osl = column("max_output_tokens", expected, partial(_share, expected, most))
        grown = ask.grown_tokens and ask.grown_tokens + (output - ask.output_tokens)
        return {"osl": osl, "output_tokens": output, "held_tokens": ask.context_tokens + held, "grown_tokens": grown}

    def _alone(self, number: int, value: float) -> int:
        """The answer to the task with one field changed."""
        a, field = self._a, self._varied[number].field
        many = self._stacked([[value] if own == number else [] for own in range(len(self._varied))])
        left = [float(_left(limit, field, value)) for limit in a.ask.limits]
        limits = [limit._replace(limit_ms=ms) for limit, ms in zip(a.ask.limits, left, strict=True)]
        ask = a.ask._replace(limits=tuple(limits))
        scalars: dict[str, Any] = {}
        for name in _VARIED:
            if isinstance(column := getattr(many, name), np.ndarray):
                scalars[name] = float(column[0, 0])
        state = alone(met(a, many, in_group=self._in_group))
        answer = Assessment(a.fleet, ask._replace(**scalars), state, room_now=a.room_now).best(self._objective)
        return NONE if answer is None else answer

    def _sure(self, place: int) -> int:
        """The answer at a place. Asked again of that task alone where a band judges: another load changes the band."""
        number, value = self.field(place), self._values[place]
        if all(limit.stat == "mean" for limit in self._a.ask.limits):
            return self._answers[number][value]
        return self._alone(number, value)


def _left(limit: Limit, field: Field, value: Any) -> Any:
    """What is left of a limit, in milliseconds, with a field at another value, or at each of several."""
    own, ms = _OF_METRIC[limit.metric]
    return np.maximum(value * ms - limit.waited_ms, NO_TIME_MS) if own == field else limit.limit_ms


def _varied(ask: Ask, output: int | None) -> Iterator[_Varied]:
    yield _Varied("context_tokens", ask.context_tokens, most=MAX_TOKENS)
    if output is not None:
        yield _Varied("max_output_tokens", output, most=output)
    yield _Varied("concurrency", ask.concurrency, most=MAX_CONCURRENCY)
    for limit in ask.limits:
        field, ms = _OF_METRIC[limit.metric]
        asked = (limit.limit_ms if limit.asked_ms is None else limit.asked_ms) / ms
        yield _Varied(field, asked, Slo(asked, limit.stat, limit.hard, limit.from_itl))
    if ask.max_cost_usd is not None:
        yield _Varied("max_cost_usd", ask.max_cost_usd)


def _share(expected: float, most: float, changed: Any) -> Any:
    """What is expected of a changed prompt or answer: the same share of its upper bound."""
    return np.maximum(1.0, np.minimum(changed, np.rint(expected * changed / most)))


def _more(ask: Ask, changed: Any) -> Any:
    """What a changed prompt adds to ``Ask.grown_tokens``: it grows by the same share."""
    return (ask.grown_tokens - ask.output_tokens) / ask.context_tokens * (changed - ask.context_tokens)


def _over_mean(a: Assessment, limit: Limit) -> Any:
    """By deployment what a limit is judged by, over the mean; 1 where nothing is known."""
    if limit.stat == "mean":
        return 1.0
    share = a.judged_ms(limit) / getattr(a, limit.metric)
    return np.where(np.isnan(share), 1.0, share)
