"""Why nothing could take a task: an answer like any other, with what it was found on and what would change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentroute.assessment import Assessment
from agentroute.decision import rejections
from agentroute.errors import NoFeasibleDeployment, PoolFull
from agentroute.policy import Objective
from agentroute.reasons import Reason
from agentroute.task import Task

if TYPE_CHECKING:
    from agentroute.whatif import Change


class Refused(Protocol):
    """What a refusal rests on."""

    def reasons(self) -> dict[str, Reason]:
        """One for each deployment."""

    def changes(self) -> tuple[Change, ...]:
        """By number of the task the smallest change that would let one take it."""

    def record(self) -> dict[str, Any]:
        """What it was found on, for ``json.dumps``."""

    def told(self) -> Refused:
        """The same, so that it can be pickled."""


@dataclass(frozen=True, slots=True, eq=False)
class Assessed:
    """An assessment that nothing was feasible in; the rest is worked out on demand."""

    task: Task
    by: Objective
    assessment: Assessment
    decided_at: float
    """The router's clock, in seconds."""

    def reasons(self) -> dict[str, Reason]:
        """One for each deployment."""
        return rejections(self.assessment)

    def changes(self) -> tuple[Change, ...]:
        """By number of the task the smallest change that would let one take it."""
        from agentroute.whatif import lets

        return lets(self.assessment, self.by, self.task)

    def record(self) -> dict[str, Any]:
        """What it was found on, for ``json.dumps``."""
        from agentroute.replay import record_of_refusal

        return record_of_refusal(self)

    def told(self) -> Told:
        """All of it worked out: a fleet and its curves are not sent to another process."""
        return Told(self.reasons(), self.changes(), self.record())


@dataclass(frozen=True, slots=True)
class Told:
    """What was worked out."""

    _reasons: dict[str, Reason]
    _changes: tuple[Change, ...]
    _record: dict[str, Any]

    def reasons(self) -> dict[str, Reason]:
        """One for each deployment."""
        return self._reasons

    def changes(self) -> tuple[Change, ...]:
        """By number of the task the smallest change that would let one take it."""
        return self._changes

    def record(self) -> dict[str, Any]:
        """What it was found on, for ``json.dumps``."""
        return self._record

    def told(self) -> Told:
        """Itself."""
        return self


def refusal(task: Task, by: Objective, a: Assessment, now: float) -> NoFeasibleDeployment:
    """The error for a task that no deployment can take (now)."""
    output = f"{task.max_output_tokens:,}" if task.max_output_tokens else "unset"
    size, on = f"{task.context_tokens:,} context and {output} output tokens", Assessed(task, by, a, now)
    if a.able is None or a.able.any():
        return PoolFull(f"no deployment has room now for a task of {size}", on=on)
    return NoFeasibleDeployment(f"no deployment can take a task of {size}", on=on)
