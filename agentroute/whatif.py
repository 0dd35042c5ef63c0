"""The smallest change of a task that would have changed the answer, on the same state.

One field at a time is varied: prompt tokens, concurrency, each limit on a latency that applies, the budget where there
is one. Its values stand on a geometric ladder, each rung twice the one before, up to 1,024 times more or less; between
the rung at which a deployment first wins and the one before, two finer ladders follow. So the smallest change is found
to about 1 % of the value (a whole token, a whole request), unless an answer comes and goes between two rungs.
All values of a ladder are assessed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, islice
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


def changes(a: Assessment, objective: Objective, best: int) -> Changes:
    """The smallest changes to what was assessed, where deployment number ``best`` was chosen."""
    ladders = _Ladders(a, objective)
    found: dict[str | None, Change] = {}
    for d, place in sorted(ladders.climb(best).items(), key=lambda one: (ladders.far(one[1]), one[0])):
        name = None if d == NONE else a.fleet.deployments[d].name
        varied, value = ladders.at(place)
        found[name] = Change(varied.field, value, name, varied.slo)
    wins = {name: change for name, change in found.items() if name is not None}
    return Changes(next(iter(found.values()), None), wins)


class _Ladders:
    """The ladders of every field that may be varied, and what was answered on their places.

    There are two ways for each field, up (even) and down (odd). A place is one number, ``far * ways + way``: so many of
    the smallest steps along a way. So the nearer ones come first, and nothing is allocated for one.
    """

    def __init__(self, a: Assessment, objective: Objective) -> None:
        self._a, self._objective = a, objective
        self._varied = tuple(_varied(a.ask))
        self._ways = 2 * len(self._varied)
        self._judged = [_over_mean(a, limit) for limit in a.ask.limits]
        self._bases = np.array([one.base for one in self._varied])
        self._most = np.array([_WHOLE.get(one.field, 0.0) for one in self._varied])
        self._values: dict[int, float] = {}
        self._answers: tuple[dict[float, int], ...] = tuple({} for _ in self._varied)
        """By field, and by its value."""

    def far(self, place: int) -> int:
        """How many of the smallest steps it is from the task."""
        return place // self._ways

    def at(self, place: int) -> tuple[_Varied, float]:
        """The field, and its value at a place that was asked for."""
        return self._varied[place % self._ways >> 1], self._values[place]

    def climb(self, best: int) -> dict[int, int]:
        """By deployment the nearest place at which it wins instead of ``best``; of equally near ones the first."""
        ways, step = self._ways, FINEST
        nearest: dict[int, list[int]] = {}
        rungs = [far * ways + way for far in range(step, step * RUNGS + 1, step) for way in range(ways)]
        for place, d in zip(rungs, self._answered(rungs), strict=True):
            if d is not None and d != best and d != UNSURE:
                places = nearest.setdefault(d, [])
                if not places or self.far(places[0]) == self.far(place):
                    places.append(place)
        while step > 1:
            finer = step // STEPS
            inner = {
                place: list(range(place - (step - finer) * ways, place, finer * ways))
                for place in dict.fromkeys(chain.from_iterable(nearest.values()))
            }
            answers = iter(self._answered(list(chain.from_iterable(inner.values()))))
            answered = {place: list(islice(answers, STEPS - 1)) for place in inner}
            for d, places in nearest.items():
                first = [inner[one][answered[one].index(d)] if d in answered[one] else one for one in places]
                far = min(map(self.far, first))
                nearest[d] = [one for one in first if self.far(one) == far]
            step = finer
        return {d: places[0] for d, places in nearest.items() if self._holds(places[0], d)}

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
        many = Assessment(a.fleet, self._stacked(new), a.state, room_now=a.room_now)
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
        of = {
            one.field: slice(end - len(own), end) for one, own, end in zip(self._varied, new, ends, strict=True)
        }

        def column(field: Field, base: float, to: Callable[[Any], Any] | None = None) -> Any:
            filled = np.full((len(values), 1), base)
            here = values[of[field], None]
            filled[of[field]] = here if to is None else to(here)
            return filled

        context, budget = column("context_tokens", ask.context_tokens), None
        if ask.max_cost_usd is not None:
            budget = column("max_cost_usd", ask.max_cost_usd)
        limits = []
        for limit, judged in zip(ask.limits, self._judged, strict=True):
            field, _ = _OF_METRIC[limit.metric]
            left = column(field, limit.limit_ms, partial(_left, limit, field))
            limits.append(limit._replace(limit_ms=left / judged, stat="mean"))
        grown: Any = ask.grown_tokens
        if grown:
            grown = column("context_tokens", grown, partial(_grown, ask))
        return ask._replace(
            context_tokens=context,
            isl=column("context_tokens", ask.isl, partial(_expected, ask.isl, ask.context_tokens)),
            osl=cast(Any, np.full((len(values), 1), ask.osl)),
            held_tokens=context + (ask.held_tokens - ask.context_tokens),
            shared_tokens=np.minimum(context, ask.shared_tokens),
            concurrency=column("concurrency", ask.concurrency),
            limits=tuple(limits),
            max_cost_usd=budget,
            grown_tokens=grown,
        )

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
        answer = Assessment(a.fleet, ask._replace(**scalars), a.state, room_now=a.room_now).best(self._objective)
        return NONE if answer is None else answer

    def _holds(self, place: int, d: int) -> bool:
        """Whether the change does so alone. Asked only where a band judges, since another load changes the band."""
        if all(limit.stat == "mean" for limit in self._a.ask.limits):
            return True
        return self._alone(place % self._ways >> 1, self._values[place]) == d


def _left(limit: Limit, field: Field, value: Any) -> Any:
    """What is left of a limit, in milliseconds, with a field at another value, or at each of several."""
    own, ms = _OF_METRIC[limit.metric]
    return np.maximum(value * ms - limit.waited_ms, NO_TIME_MS) if own == field else limit.limit_ms


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
