"""A decision and the hold that makes it true."""

from __future__ import annotations

import math
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agentroute.decision import Decision
from agentroute.errors import UsageError, shown
from agentroute.fleet import Deployment
from agentroute.outcome import Outcome
from agentroute.state.placed import Placed
from agentroute.task import MAX_TOKENS

if TYPE_CHECKING:
    from agentroute.router import Router


class Lease:
    """A decision and the hold behind it, for one request. Leaving the block lets go of it."""

    def __init__(self, router: Router, decision: Decision, placed: Placed) -> None:
        self.decision = decision
        self._router = router
        self._placed: Placed | None = placed

    def __del__(self) -> None:
        # Called wherever the last reference goes, under the router's lock, too: so nothing is done here.
        if self._placed is not None:
            self._router._dropped.append(self._placed)

    @property
    def deployment(self) -> Deployment:
        """The chosen deployment."""
        return self.decision.chosen

    @property
    def blocks(self) -> int:
        """KV blocks that it holds; 0 once released."""
        placed = self._placed
        return placed.hold.total if placed else 0

    @property
    def url(self) -> str | None:
        """The base URL of the chosen endpoint, or ``None`` when the deployment has none."""
        return self.decision.url

    def release(self, after_s: float = 0.0) -> None:
        """Let go, now or after the seconds that a runtime keeps a cancelled request; a second time does nothing."""
        if not 0.0 <= after_s < math.inf:
            raise UsageError(f"after_s must be a finite number of seconds, 0 or more, got {after_s!r}")
        self._router._release(self, None, after_s)

    def settle(self, outcome: Outcome, *, after_s: float = 0.0) -> None:
        """Let go, and let the router learn from what became of the request: what is slow, what is warm, who is down."""
        if not 0.0 <= after_s < math.inf:
            raise UsageError(f"after_s must be a finite number of seconds, 0 or more, got {after_s!r}")
        if not isinstance(outcome, Outcome):
            raise UsageError(f"a lease is settled with an Outcome, got {shown(outcome)}")
        self._router._release(self, outcome, after_s)

    def first_token(self) -> None:
        """Say that its first token came: the prompts before it and its own are read, and who comes waits for less."""
        self._router._read(self)

    def extend(self, output_tokens: int) -> bool:
        """Say that the answer has grown to so many tokens, beyond what was held for it.

        False where the pool has no more: the request goes on, the engine sees to that, but nothing else is placed
        there until enough is free again.
        """
        if (
            not isinstance(output_tokens, int)
            or isinstance(output_tokens, bool)
            or not 0 <= output_tokens <= MAX_TOKENS
        ):
            raise UsageError(
                f"output_tokens must be a whole number from 0 to {MAX_TOKENS:,}, got {shown(output_tokens)}"
            )
        return self._router._extend(self, output_tokens)

    def __enter__(self) -> Self:
        if self._placed is None:
            raise UsageError("the lease was released already; acquire another")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
