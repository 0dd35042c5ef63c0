"""Getting one call through: the next candidate, the same one again, two at once, until one has begun to answer."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from agentroute.call import Call
from agentroute.ended import Ended, result_of, tell
from agentroute.errand import Errand
from agentroute.errors import BackendError, NoFeasibleDeployment, PoolFull
from agentroute.hedge import AT_LEAST_S, hedge_after_s
from agentroute.lease import Lease
from agentroute.outcome import Outcome
from agentroute.passage import Means, Passage
from agentroute.route import deadline_of
from agentroute.tries import Tries

_LOOK_S = 0.25
"""Who may only go to some of the servers looks this often at most whether they have room. Assumed."""
_AGAIN_S = 3.0
"""The router leaves a server that failed alone for a while: for so long that is waited for, a little longer than a
breaker is open at first. Assumed."""


class Trip:
    """A call from the moment it is asked until a server answers it."""

    def __init__(self, means: Means, errand: Errand) -> None:
        self._means, self._errand = means, errand
        self._asked_at = time.perf_counter()
        self._tries = Tries(means.retry, means.budget, retried=errand.retried)
        self._last: BackendError | None = None
        self._wait_s = 0.0
        """Before the next round."""
        self._look_until_s = 0.0
        """So long, from the start, it is looked whether the router sends anything to a server that is asked again."""
        self._call: Call | None = None
        """The last request."""
        if (route := means.router.routes.get(errand.task.route)) is not None:
            errand.priority = route.priority
        means.budget.called()

    async def begin(self) -> Passage:
        """The passage on which the answer comes: of a stream its first content, else all of it is there.

        Raises ``BackendError`` with every attempt, or what ``Router.acquire`` raises.
        """
        return await self._told(self._begin())

    async def _begin(self) -> Passage:
        try:
            return await self._round()
        except BackendError as error:
            return await self._go_on(error)

    async def anew(self, broken: BackendError, at: Passage) -> Passage:
        """Another passage for a stream that broke after its first content, where the caller allows that.

        Raises ``broken``, with every attempt, where he does not, or where there is none.
        """
        at.on_close = None
        return await self._told(self._anew(broken, at), at)

    async def _anew(self, broken: BackendError, at: Passage) -> Passage:
        await at.close()
        self._failed(broken, at)
        if self._errand.resume != "restart":
            raise self._tries.told(broken) from broken.__cause__
        return await self._go_on(broken)

    async def _told(self, way: Coroutine[Any, Any, Passage], at: Passage | None = None) -> Passage:
        """The passage that a way leads to. Observers are told of its end, or now, where there is none."""
        try:
            passage = await way
        except BaseException as error:
            self._tell(at, error)
            raise
        if self._means.observers:
            passage.on_close = self._tell
        return passage

    async def _go_on(self, error: BackendError) -> Passage:
        """Repeat as long as there is a way. No loop is built for a call that goes through at once."""
        pending = [error]

        async def again() -> Passage:
            if pending:
                raise pending.pop()
            return await self._round()

        loop = AsyncRetrying(retry=retry_if_exception(self._finds_a_way), wait=self._pause, reraise=True)
        try:
            return await loop(again)
        except (BackendError, NoFeasibleDeployment):
            last = self._last or error
            raise self._tries.told(last) from last.__cause__

    def _finds_a_way(self, error: BaseException) -> bool:
        """Whether to go on after this: elsewhere, else to the same server after a while."""
        # On a fallback that route's own holds.
        task = self._errand.task if self._call is None else self._call.decision.task
        elapsed_s, deadline = self._elapsed_s(), deadline_of(task, self._means.router.routes)
        total_s, due_s = self._means.timeout.total_s, math.inf if deadline is None else deadline.value
        if elapsed_s >= total_s or (elapsed_s >= due_s and deadline is not None and deadline.hard):
            return False
        if isinstance(error, BackendError):
            self._wait_s = 0.0
            return self._tries.may_go_on
        if not isinstance(error, NoFeasibleDeployment) or elapsed_s >= due_s:
            return False  # an answer that is late by a soft deadline is worth another server, but no wait
        if isinstance(error, PoolFull) and elapsed_s < self._means.timeout.queue_s and _is_full(error):
            self._wait_s = random.uniform(0.0, _LOOK_S)
            return True
        if elapsed_s < self._look_until_s:
            self._wait_s = random.uniform(0.0, _LOOK_S)
            return True
        wait_s = self._tries.wait_s(min(total_s, due_s) - elapsed_s)
        self._wait_s = wait_s or 0.0
        self._look_until_s = elapsed_s + self._wait_s + _AGAIN_S
        return wait_s is not None

    def _pause(self, state: RetryCallState) -> float:
        return self._wait_s

    async def _round(self) -> Passage:
        """One request, or two when the first is late."""
        passage = self._passage(await self._place())
        hedges = self._means.retry.hedge and self._means.replicated and self._errand.endpoint.limits
        return await (self._raced(passage) if hedges else self._open(passage))

    async def _place(self) -> Lease:
        """A place for the request: in the router's queue at first, at once or not at all after a failure."""
        router, tries, task = self._means.router, self._tries, self._errand.task
        if deny := tries.deny | self._means.lacks.of(self._errand.endpoint):
            task = replace(task, deny=task.deny | deny)
        if tries.attempts:
            return router.acquire(task, waited_s=self._elapsed_s(), avoid=frozenset(tries.avoid))
        if not self._means.timeout.queue_s:
            return router.acquire(task)
        return await router.admit(task, timeout_s=self._means.timeout.queue_s, waited_s=self._elapsed_s()).place()

    def _passage(self, lease: Lease) -> Passage:
        try:
            tried = len(self._tries.attempts)
            passage = Passage(self._means, self._errand, lease, asked_at=self._asked_at, tried=tried)
            self._call = passage.call
            return passage
        except BaseException:
            lease.release()
            raise

    async def _open(self, passage: Passage) -> Passage:
        try:
            await passage.open()
        except BaseException as error:
            await passage.close()
            if isinstance(error, BackendError):
                self._failed(error, passage)
            raise
        return passage

    async def _raced(self, passage: Passage) -> Passage:
        """Open it; when that takes too long, another one, too. The first to answer wins, the other is cancelled."""
        racing = {asyncio.create_task(self._open(passage))}
        won: Passage | None = None
        try:
            # What is predicted is worked out for who is late alone: that takes as long as all else of a call.
            done, _ = await asyncio.wait(racing, timeout=AT_LEAST_S)
            if not done and (second := await self._late(passage, racing)) is not None:
                racing.add(asyncio.create_task(self._open(second)))
            pending = set(racing)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None:
                        won = task.result()
                        return won
                    if not isinstance(task.exception(), BackendError):
                        pending = set()
            return next(iter(done)).result()  # raises what the last one failed with
        finally:
            if won is None or len(racing) > 1:
                await self._end(racing, won)

    async def _late(self, first: Passage, opening: set[asyncio.Task[Passage]]) -> Passage | None:
        """A second passage, once the first has not opened for so long as is waited for it; ``None``: there is none."""
        after_s = hedge_after_s(first.call.decision, streaming=self._errand.streaming)
        if after_s is None:
            return None
        done, _ = await asyncio.wait(opening, timeout=after_s - AT_LEAST_S)
        return None if done else self._second(first)

    async def _end(self, racing: set[asyncio.Task[Passage]], won: Passage | None) -> None:
        """End what has not won, to the last; who is cancelled meanwhile gets no answer, so that one is closed, too."""
        ending = asyncio.create_task(_ended(racing, but=won))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            if won is not None:
                await won.close()
            raise

    def _second(self, first: Passage) -> Passage | None:
        """A second passage, where the budget allows one and another server has room."""
        task, pool = self._errand.task, first.call.decision.pool
        if not self._tries.may_hedge():
            return None
        try:
            avoid = frozenset({pool, *self._tries.avoid})
            return self._passage(self._means.router.acquire(task, waited_s=self._elapsed_s(), avoid=avoid))
        except NoFeasibleDeployment:
            return None

    def _failed(self, error: BackendError, at: Passage) -> None:
        now = time.perf_counter()
        self._last = error
        self._means.lacks.failed(self._errand.endpoint, at.call.decision.deployment, error)
        self._tries.failed(
            error, at.call.decision, after_s=at.began_at - self._asked_at, took_s=max(0.0, now - at.began_at)
        )

    def _tell(self, at: Passage | None, error: BaseException | None = None) -> None:
        """Tell the observers, if there are any, that the call is over."""
        if not self._means.observers:
            return
        call = self._call if at is None else at.call
        elapsed_s = self._elapsed_s()
        ended = Ended(
            endpoint=self._errand.endpoint.name,
            streaming=self._errand.streaming,
            task=self._errand.task,
            decision=None if call is None else call.decision,
            result=result_of(error) if error is not None else "cancelled" if call is None else call.result,
            refused=error if isinstance(error, NoFeasibleDeployment) else None,
            outcome=Outcome() if call is None else call.outcome,
            attempts=tuple(self._tries.attempts),
            ended_at=time.time(),
            waited_s=elapsed_s if call is None else call.waited_s,
            took_s=elapsed_s,
        )
        tell(self._means.observers, ended)

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._asked_at


async def _ended(racing: set[asyncio.Task[Passage]], *, but: Passage | None) -> None:
    """Cancel those that did not win, and close what they opened."""
    for task in racing:
        task.cancel()
    await asyncio.wait(racing)
    for task in racing:
        if not task.cancelled() and task.exception() is None and (passage := task.result()) is not but:
            with suppress(Exception):
                await passage.close()


def _is_full(error: PoolFull) -> bool:
    """Whether a server that may be asked only lacks room."""
    return any(reason.kind == "no_room" for reason in error.reasons.values())
