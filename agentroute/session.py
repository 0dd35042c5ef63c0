"""A conversation of several calls: one deadline for all its steps, and what the last one's usage says of the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from agentroute.errors import NoFeasibleDeployment, TaskError
from agentroute.task import Slo, Task, slo
from agentroute.tokens import Previous

if TYPE_CHECKING:
    from agentroute.call import Reply


class Session:
    """An agent's run, to be given to every ``chat`` or ``stream`` that is a step of it.

    Its steps are placed where their prompts are warm, the tokens of a prompt are those that the server counted in the
    step before and what is new since, and ``deadline_s`` is the time for all of them together: each step has what the
    steps before it have left. A bare number is a hard mean, as in a task.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        deadline_s: float | Slo | None = None,
        parent: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(name, str | None):
            raise TaskError(f"a session's name must be a text or None, got {name!r:.60}")
        self.name = name or uuid4().hex
        self.parent = parent
        self.steps = 0
        """Steps that were answered."""
        self.deployment: str | None = None
        """Who answered the last one."""
        self.previous: Previous | None = None
        self._deadline = slo(deadline_s)
        self._clock, self._began = clock, clock()

    @property
    def left_s(self) -> float | None:
        """Seconds that are left of its deadline, below 0 once it has passed; ``None``: it has none."""
        return None if self._deadline is None else self._deadline.value - (self._clock() - self._began)

    def step(self, task: Task) -> Task:
        """``task`` as the next step; raises ``NoFeasibleDeployment`` once the deadline has passed."""
        deadline, left_s, own = self._deadline, self.left_s, slo(task.deadline_s)
        if deadline is not None and left_s is not None:
            if left_s <= 0:
                said = f"the session's deadline of {deadline.value:g} s passed {-left_s:.1f} s ago"
                raise NoFeasibleDeployment(said, {})
            if own is None or left_s < own.value:
                own = replace(deadline, value=max(left_s, 1e-6))
        first = self.parent if self.steps == 0 else None
        return replace(
            task,
            session_id=self.name,
            step=self.steps + 1,
            parent_session_id=task.parent_session_id or first,
            deadline_s=own,
        )

    def answered(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], reply: Reply) -> None:
        """A step was answered; without ``messages`` its prompt is none that the next one could go on from."""
        self.steps += 1
        self.deployment = reply.decision.deployment
        counted = reply.usage.prompt_tokens
        self.previous = (
            None
            if counted is None or not messages
            else Previous.of(messages, counted, reply.usage.completion_tokens, tools=tools)
        )
