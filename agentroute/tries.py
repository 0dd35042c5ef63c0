"""What a call has tried, and what it may still try, so that retries never multiply. No I/O."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentroute.errors import Attempt, BackendError, FailureKind, UsageError, shown
from agentroute.remedy import remedy

if TYPE_CHECKING:
    from agentroute.decision import Decision

_OF_THE_DEPLOYMENT = {FailureKind.CONTEXT_OVERFLOW, FailureKind.AUTH, FailureKind.NOT_FOUND}
"""What every endpoint of a deployment would answer alike."""
_AT_WORK = {FailureKind.ENGINE_DEAD, FailureKind.INTERRUPTED, FailureKind.TIMEOUT}
"""After these the server may have worked on the request, or died of it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How hard a call is tried. Raises ``UsageError`` for numbers that make no sense.

    A server that turned the request away (it is down, full, or lacks the model) is simply left for the next candidate,
    as long as there is one: that costs nothing, and room is held there first. What servers may have worked on is
    bounded by ``attempts``, what is sent twice to one server, or to two at once, by ``share``, too.
    """

    attempts: int = 3
    """Requests for one call that servers may work on, hedges included; 1: nothing is sent twice, nor elsewhere."""
    share: float = 0.2
    """Of all calls, the share that may be sent again to the same server, or hedged. Assumed."""
    first_wait_s: float = 0.25
    """Before the same server is asked again: a random time up to this, twice as long each time."""
    most_wait_s: float = 10.0
    """Who asks for a longer wait (``Retry-After``) is not waited for."""
    hedge: bool = True
    """Whether a second server may be asked while the first is late."""

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or isinstance(self.attempts, bool) or self.attempts < 1:
            raise UsageError(f"attempts must be a whole number, at least 1, got {shown(self.attempts)}")
        for name in ("share", "first_wait_s", "most_wait_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise UsageError(f"{name} must be a finite number, 0 or more, got {shown(value)}")


class Budget:
    """A token bucket: each call puts in a share of a token, each repetition takes one. Ten are there at first."""

    def __init__(self, share: float, most: float = 10.0) -> None:
        self._share, self._most = share, most
        self._left = most if share else 0.0

    def called(self) -> None:
        """A call was begun."""
        self._left = min(self._most, self._left + self._share)

    def take(self) -> bool:
        """Take one, if there is one."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Tries:
    """The failures of one call, and what they leave open.

    ``retried``: how often the caller has sent this call before by itself; it asks again by itself then, so nothing is
    sent twice to one server here.
    """

    def __init__(self, retry: Retry, budget: Budget, *, retried: int = 0) -> None:
        self.retry, self.budget, self.retried = retry, budget, retried
        self.attempts: list[Attempt] = []
        self.avoid: set[int] = set()
        """Pools that the next request must not go to."""
        self.deny: set[str] = set()
        """Deployments that can not take it."""
        self._again: dict[int, float] = {}
        """Of ``avoid``, those that may be asked again, and after how many seconds they want to be."""
        self._sent, self._repeated = 0, 0
        self._hopeless = False
        self._text = ""

    def failed(self, error: BackendError, decision: Decision, *, after_s: float, took_s: float) -> None:
        """One request failed, of a call whose caller has no content yet, or none that he wants to keep."""
        found = remedy(_without_text(error))
        self.attempts.append(
            Attempt(error.deployment, error.url, error.kind, error.detail, error.status, after_s, took_s)
        )
        if len(error.text) > len(self._text):
            self._text = error.text
        self._sent += error.kind in _AT_WORK or (error.kind is FailureKind.UNAVAILABLE and error.status is not None)
        self._hopeless |= not (found.elsewhere or found.again) or self.retry.attempts == 1
        self.avoid.add(decision.pool)
        if error.kind in _OF_THE_DEPLOYMENT:
            self.deny.add(decision.deployment)
        if found.again:
            self._again[decision.pool] = error.retry_after_s or 0.0
        else:
            self._again.pop(decision.pool, None)

    @property
    def may_go_on(self) -> bool:
        """Whether another server may be asked."""
        return not self._hopeless and self._sent < self.retry.attempts

    def may_hedge(self) -> bool:
        """Whether a second server may be asked at once; takes from the budget."""
        spare = self.retry.hedge and not self.retried and self._sent + 1 < self.retry.attempts
        return spare and self.budget.take()

    def wait_s(self, left_s: float = math.inf) -> float | None:
        """Seconds until one of the servers that failed may be asked again; ``None``: none may, or none of them before
        the ``left_s`` are over that the call has. Takes from the budget.

        After it, those whose time has come are avoided no more.
        """
        if not self._again or self.retried or self._repeated + 1 >= self.retry.attempts:
            return None
        asked_s = min(self._again.values())
        if asked_s > self.retry.most_wait_s or asked_s >= left_s or not self.budget.take():
            return None
        backoff_s = min(self.retry.first_wait_s * 2.0**self._repeated, self.retry.most_wait_s, left_s - asked_s)
        self._repeated += 1
        for pool in [pool for pool, asked in self._again.items() if asked <= asked_s]:
            del self._again[pool]
            self.avoid.discard(pool)
        return asked_s + random.uniform(0.0, backoff_s)

    def told(self, error: BackendError) -> BackendError:
        """The last failure with all that went before."""
        return BackendError(
            error.kind,
            error.detail,
            deployment=error.deployment,
            url=error.url,
            status=error.status,
            retry_after_s=error.retry_after_s,
            text=error.text or self._text,
            attempts=self.attempts,
        )


def _without_text(error: BackendError) -> BackendError:
    return BackendError(error.kind, error.detail, status=error.status) if error.text else error
