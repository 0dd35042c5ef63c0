"""A task and its route as the numbers that an assessment works with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from agentroute.compiled import BIT, Bools, CompiledFleet, Floats
from agentroute.errors import UnknownNameError, UsageError
from agentroute.inputs import Ask, Limit, Metric
from agentroute.route import Route, soft
from agentroute.task import UNSET_OUTPUT_TOKENS, Slo, Task, slo

Quality = Mapping[str, Mapping[str, float]]
"""By model and skill, how good it is, on a scale of the user's own; the greater the better."""

_METRICS: tuple[tuple[Metric, str, float], ...] = (
    ("ttft_ms", "ttft_ms", 1.0),
    ("tpot_ms", "tpot_ms", 1.0),
    ("e2e_ms", "deadline_s", 1_000.0),
)
"""The metric, the field that limits it, and milliseconds in the field's unit."""
_own_limits = attrgetter(*(field for _, field, _ in _METRICS))
_FIELD = {metric: (field, ms) for metric, field, ms in _METRICS}
STEPS_AHEAD = 4
"""Steps of a conversation that should still fit where one is placed: moving it costs its whole prompt. Assumed."""
FIRST_STEPS = 4
"""Which step a prompt is taken for, where a conversation does not say: its context has come in so many. Assumed."""
NO_TIME_MS = 1e-6
"""What is left of a limit that has passed: nothing keeps it, and it can still be divided by."""


class Asks:
    """Makes an ``Ask`` of a task for one fleet; ``quality`` is the user's table, or empty."""

    def __init__(self, fleet: CompiledFleet, quality: Quality) -> None:
        self._fleet, self._quality = fleet, quality
        self._names = {deployment.name: d for d, deployment in enumerate(fleet.deployments)}
        self._of_route: dict[str, Bools | None] = {}
        self._inherited: dict[str, tuple[Slo | None, ...]] = {}
        """By route, the SLOs of ``_METRICS``."""
        self._skills: dict[str, Floats] = {}

    def of(self, task: Task, route: Route, waited_s: float = 0.0) -> Ask:
        """``task`` on ``route``, after it has waited so long for room. Raises ``UnknownNameError``, ``UsageError``."""
        output = task.max_output_tokens or UNSET_OUTPUT_TOKENS
        planned = min(output, route.p95_output_tokens or output)
        needs = 0
        for need in task.needs | route.needs if route.needs else task.needs:
            needs |= BIT[need]  # type: ignore[index]
        return Ask(
            float(task.context_tokens),
            float(task.expected_context_tokens or task.context_tokens),
            float(task.expected_output_tokens or planned),
            float(output),
            float(task.context_tokens + planned),
            float(task.shared_prefix_tokens),
            task.max_output_tokens is not None,
            float(task.concurrency),
            needs,
            self._limits(task, route, waited_s * 1_000.0),
            self._allowed(task, route),
            _least(task.max_cost_usd, route.max_cost_usd),
            _grown_tokens(task, output),
        )

    def stack(self, tasks: Sequence[Task], route: Route, ask: Ask) -> Ask:
        """Tasks of one kind (``agentroute.many``) as one; ``ask`` is the first one's.

        The fields that may differ are arrays of shape (t, 1); what is 0 of all stays a number.
        """
        first = tasks[0]
        tokens = _column([task.context_tokens for task in tasks])
        output = _column([task.max_output_tokens or UNSET_OUTPUT_TOKENS for task in tasks])
        planned = output if route.p95_output_tokens is None else np.minimum(output, route.p95_output_tokens)
        limits = []
        for limit in ask.limits:
            field, ms = _FIELD[limit.metric]
            if getattr(first, field) is not None:
                given = map(attrgetter(field), tasks)
                values = _column([one.value if isinstance(one, Slo) else one for one in given])
                limit = limit._replace(limit_ms=np.maximum(values * ms, NO_TIME_MS))
            limits.append(limit)
        return ask._replace(
            context_tokens=tokens,
            isl=_expected([task.expected_context_tokens for task in tasks], tokens),
            osl=_expected([task.expected_output_tokens for task in tasks], planned),
            output_tokens=output,
            held_tokens=tokens + planned,
            shared_tokens=_column_of_any([task.shared_prefix_tokens for task in tasks]),
            concurrency=_column([task.concurrency for task in tasks]),
            limits=tuple(limits),
            max_cost_usd=ask.max_cost_usd
            if first.max_cost_usd is None
            else _column([_least(task.max_cost_usd, route.max_cost_usd) for task in tasks]),
            grown_tokens=_column([_grown_tokens(task, task.max_output_tokens or UNSET_OUTPUT_TOKENS) for task in tasks])
            if any(task.session_id for task in tasks)
            else 0.0,
        )

    def mask(self, names: Collection[str], value: bool = True) -> Bools:
        """An array that is ``value`` for the named deployments; raises ``UnknownNameError``."""
        mask = np.full(len(self._names), not value)
        for name in names:
            if name not in self._names:
                raise UnknownNameError("deployment", name, self._names)
            mask[self._names[name]] = value
        return mask

    def judged(self, ask: Ask, task: Task, route: Route) -> Ask:
        """``ask`` with how good every model is: the mean over the skills that task or route name, or over all.

        Raises ``UsageError`` without a table.
        """
        skills = {**route.quality, **task.quality} or {skill for row in self._quality.values() for skill in row}
        if not skills:
            raise UsageError("the objective 'quality' needs a table of models and skills; give one under [quality]")
        return ask._replace(quality=np.mean([self.quality(skill) for skill in sorted(skills)], axis=0))

    def quality(self, skill: str) -> Floats:
        """How good every deployment's model is at ``skill``, NaN where nobody says; raises ``UsageError``."""
        if not self._quality:
            raise UsageError("quality needs a table of models and skills; give one under [quality]")
        if skill not in self._skills:
            skills = sorted({known for row in self._quality.values() for known in row})
            if skill not in skills:
                raise UnknownNameError("skill", skill, skills)
            rows = [self._quality.get(d.model_name or "", {}) for d in self._fleet.deployments]
            self._skills[skill] = np.array([row.get(skill, np.nan) for row in rows], dtype=np.float64)
        return self._skills[skill]

    def _allowed(self, task: Task, route: Route) -> Bools | None:
        """Deployments that neither route nor task rules out, by name or by their model's quality; ``None``: all."""
        if route.name in self._of_route:
            allowed = self._of_route[route.name]
        else:
            allowed = None if route.allow is None else self.mask(route.allow)
            if route.deny:
                allowed = _and(allowed, self.mask(route.deny, False))
            self._of_route[route.name] = allowed
        if task.allow is None and not task.deny and task.pin is None and not task.quality and not route.quality:
            return allowed
        if task.allow is not None:
            allowed = _and(allowed, self.mask(task.allow))
        if task.deny:
            allowed = _and(allowed, self.mask(task.deny, False))
        if task.pin is not None:
            allowed = _and(allowed, self.mask((task.pin,)))
        for skill, floor in {**route.quality, **task.quality}.items():
            allowed = _and(allowed, self.quality(skill) >= floor)
        return allowed

    def _limits(self, task: Task, route: Route, waited_ms: float) -> tuple[Limit, ...]:
        """The SLOs that apply: the task's own, else the route's; what was waited already is no longer left."""
        inherited = self._inherited.get(route.name)
        if inherited is None:
            inherited = self._inherited[route.name] = tuple(soft(getattr(route, field)) for _, field, _ in _METRICS)
        limits = []
        for own, from_route, limited in zip(_own_limits(task), inherited, _METRICS, strict=True):
            chosen = from_route if own is None else slo(own)
            if chosen is not None:
                metric, _, ms = limited
                asked_ms, gone_ms = chosen.value * ms, 0.0 if metric == "tpot_ms" else waited_ms
                left = max(asked_ms - gone_ms, NO_TIME_MS)
                limits.append(Limit(metric, left, chosen.stat, chosen.hard, asked_ms, gone_ms, chosen.from_itl))
        return tuple(limits)


def _grown_tokens(task: Task, output: int) -> float:
    """Prompt and answer some steps on, each of which adds as much as those so far did; 0: it is no step of anything."""
    if not task.session_id:
        return 0.0
    return task.context_tokens * (1.0 + STEPS_AHEAD / (task.step or FIRST_STEPS)) + output


def _column(values: Sequence[float | None]) -> Any:
    return np.array(values, dtype=np.float64)[:, None]


def _column_of_any(values: Sequence[float]) -> Any:
    return _column(values) if any(values) else 0.0


def _expected(values: Sequence[float | None], planned: Any) -> Any:
    """What is expected where anything is, else what is planned for."""
    if not any(values):
        return planned
    expected = _column(values)
    return np.where(np.isnan(expected), planned, expected)


def _least(own: float | None, other: float | None) -> float | None:
    """The smaller of two limits that may not be there."""
    return own if other is None else other if own is None else min(own, other)


def _and(a: Bools | None, b: Bools) -> Bools:
    return b if a is None else a & b
