"""What became of the requests: the last ones for people, all of them as counters. No prompt and no answer is kept.

What the client tells of a call (``agentroute.ended``) is not looked up a second time; what it never sees, such as whose
key it was, and requests that were turned away before they became calls, are added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any

from agentroute.ended import Ended
from agentroute.gateway.keys import Caller
from agentroute.gateway.metrics import Metrics

KEPT = 200
"""Of the last requests so many are kept."""


@dataclass(slots=True)
class Record:
    """One request, from the moment that it came in. ``None`` is unknown."""

    id: str
    at: float
    """Seconds since 1970."""
    endpoint: str
    key: str | None = None
    """The name of the caller's key."""
    model: str | None = None
    """What the caller named as the model."""
    route: str | None = None
    deployment: str | None = None
    reason: str | None = None
    """Why that one; or in one word why none."""
    context_tokens: int | None = None
    """An upper bound on the prompt's tokens."""
    output_tokens: int | None = None
    """Tokens of the answer, as the server counted them."""
    ttft_predicted_ms: float | None = None
    ttft_ms: float | None = None
    """Time to the first token of what was streamed, waiting and failed attempts included, as in what was predicted."""
    took_ms: float | None = None
    status: int | None = None
    outcome: str = "running"
    """``ok``, ``cancelled``, or the code of the error."""

    def called(self, ended: Ended) -> None:
        """Note what the client tells of its call."""
        seen, decision = ended.outcome, ended.decision
        self.route, self.context_tokens = ended.task.route, ended.task.context_tokens
        self.deployment = None if decision is None else decision.deployment
        self.output_tokens = seen.output_tokens
        self.ttft_ms = None if seen.ttft_ms is None else ended.waited_s * 1_000.0 + seen.ttft_ms


_CURRENT: ContextVar[Record | None] = ContextVar("agentroute_gateway_record", default=None)


class Records:
    """The last requests, newest first, and the counters over all; an observer of the gateway's client."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._last: deque[Record] = deque(maxlen=KEPT)

    def begin(self, record: Record) -> None:
        """What the client tells from now on, in this task, is of this request."""
        _CURRENT.set(record)

    def __call__(self, ended: Ended) -> None:
        """A call has ended."""
        if (record := _CURRENT.get()) is not None:
            record.called(ended)

    def ended(self, record: Record) -> None:
        """Count it, and keep it, unless nobody knows who asked: strangers must not push out what callers did."""
        if record.status != 401:
            self._last.appendleft(record)
        self.metrics.ended(
            route=record.route,
            deployment=record.deployment,
            outcome=record.outcome,
            took_ms=record.took_ms,
            ttft_ms=record.ttft_ms,
            ttft_predicted_ms=record.ttft_predicted_ms,
            output_tokens=record.output_tokens,
        )

    def last(self, caller: Caller, most: int = 50) -> Iterator[dict[str, Any]]:
        """The last requests that a caller may see: its own, an admin all."""
        shown = (record for record in self._last if caller.admin or record.key == caller.name)
        for record, _ in zip(shown, range(most), strict=False):
            yield asdict(record)
