"""A call that is over, as a value for whoever keeps records, accounts or metrics. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentroute.errors import Attempt, BackendError, NoFeasibleDeployment, UsageError
from agentroute.outcome import Outcome
from agentroute.task import Task

if TYPE_CHECKING:
    from agentroute.decision import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One call, from the moment it was asked for to its end, whatever that was.

    Holds no word of the prompt or of the answer.
    """

    endpoint: str
    """``chat``, ``completions``, ``responses`` or ``embeddings``."""
    streaming: bool
    task: Task
    decision: Decision | None
    """Who answered it, or was the last to be asked, and why; ``None``: nobody was."""
    result: str
    """``ok``, ``infeasible``, ``cancelled``, ``usage`` (a caller's mistake), ``error`` (one of ours), else the kind of
    the last failure (``agentroute.errors.FailureKind``)."""
    refused: NoFeasibleDeployment | None
    """Why nothing could take it, where that is how it ended."""
    outcome: Outcome
    """What was seen of the request that was answered: times and tokens."""
    attempts: tuple[Attempt, ...]
    """The requests that failed, in order."""
    ended_at: float
    """Seconds since 1970."""
    waited_s: float
    """Before the last request was sent: for room, and for those that failed."""
    took_s: float
    """All of it, from the moment it was asked for."""

    @property
    def usd(self) -> float | None:
        """What it has cost; see ``Decision.spent_usd``. ``None``: not known, or it was not answered."""
        return None if self.decision is None or self.result != "ok" else self.decision.spent_usd(self.outcome)


def result_of(error: BaseException) -> str:
    """The result of a call that ended with ``error``."""
    match error:
        case BackendError():
            return error.kind.value
        case NoFeasibleDeployment():
            return "infeasible"
        case UsageError():
            return "usage"
        case Exception():
            return "error"
    return "cancelled"


Observer = Callable[[Ended], None]
"""Is told of every call that ends, on the thread of the client: it must not block."""


def tell(observers: Sequence[Observer], ended: Ended) -> None:
    """Tell all of them; what one raises is logged, and reaches neither the caller nor the others."""
    for observer in observers:
        try:
            observer(ended)
        except Exception:
            logging.getLogger("agentroute").exception("an observer of calls failed: %r", observer)
