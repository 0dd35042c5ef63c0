"""Waiting for room: a queue's ticket for people, to be entered with ``with`` or ``async with``."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from agentroute.errors import PoolFull, UsageError, shown

if TYPE_CHECKING:
    from agentroute.lease import Lease
    from agentroute.router import Router
    from agentroute.task import Task
    from agentroute.waiting import Ticket

_LOOK_S = 0.25
"""How often somebody who waits looks whether time alone has made room: a signal that faded, a hold that ran out."""


class Admission:
    """A task on its way in. Entering waits for its lease, leaving lets go of it.

    ::

        with router.admit(task, timeout_s=30) as lease:
            ...

    Raises ``NoFeasibleDeployment`` at once for what can never be placed, ``PoolFull`` when ``timeout_s`` is over.
    """

    def __init__(self, router: Router, task: Task, timeout_s: float | None, waited_s: float = 0.0) -> None:
        if timeout_s is not None and (not isinstance(timeout_s, int | float) or timeout_s != timeout_s):
            raise UsageError(f"timeout_s must be a number of seconds or None, got {shown(timeout_s)}")
        self._router, self._timeout_s, self._waited_s = router, timeout_s, waited_s
        self._task = task
        self._ticket: Ticket | None = None
        self._lease: Lease | None = None
        """Of who need not wait: a ticket takes as long as deciding does."""

    @property
    def expected_wait_s(self) -> float | None:
        """Seconds until there is a place, about: 0 when there is one; ``None`` when nobody can say.

        Before it is entered, that of somebody who would come now; raises ``NoFeasibleDeployment`` as entering would.
        """
        return 0.0 if self._lease is not None else self._router.expected_wait_s(self._ticket or self._task)

    @property
    def ahead(self) -> int:
        """How many wait before it; 0 before it is entered."""
        return self._ticket.ahead if self._ticket else 0

    def cancel(self) -> None:
        """Leave, waiting or not."""
        if self._lease is not None:
            self._lease.release()
        if self._ticket is not None:
            self._ticket.cancel()

    def __enter__(self) -> Lease:
        if (lease := self._at_once()) is not None:
            return lease
        ready = threading.Event()
        until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        ticket = self._queued(ready.set)
        try:
            while not ticket.done:
                left_s = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
                if left_s <= 0:
                    raise self._late()
                if not ready.wait(left_s):
                    self._router.pump(every_s=_LOOK_S)
            return ticket.result()
        except BaseException:
            self.cancel()
            raise

    async def __aenter__(self) -> Lease:
        return await self.place()

    async def place(self) -> Lease:
        """Wait for the lease, which is then the caller's to release."""
        if (lease := self._at_once()) is not None:
            return lease
        loop, ready, waits = asyncio.get_running_loop(), asyncio.Event(), False

        def wake() -> None:
            if not waits:  # who is placed at once need not be woken, which takes a system call
                return
            try:
                loop.call_soon_threadsafe(ready.set)
            except RuntimeError:
                self.cancel()  # the loop is closed: nobody is left to take it

        until = None if self._timeout_s is None else loop.time() + self._timeout_s
        ticket = self._queued(wake)
        waits = True
        try:
            while not ticket.done:
                left_s = _LOOK_S if until is None else min(_LOOK_S, until - loop.time())
                if left_s <= 0:
                    raise self._late()
                try:
                    await asyncio.wait_for(ready.wait(), left_s)
                except TimeoutError:
                    self._router.pump(every_s=_LOOK_S)
            return ticket.result()
        except BaseException:
            self.cancel()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def _at_once(self) -> Lease | None:
        if self._ticket is not None or self._lease is not None:
            raise UsageError("the admission was entered already; ask for another")
        self._lease = self._router._waiting.at_once(self._task, self._waited_s)
        return self._lease

    def _queued(self, wake: Callable[[], None]) -> Ticket:
        self._ticket = self._router.queue(self._task, on_done=lambda _: wake(), waited_s=self._waited_s)
        return self._ticket

    def _late(self) -> PoolFull:
        wait_s = self.expected_wait_s
        about = f"; about {wait_s:.0f} s more are expected" if wait_s else ""
        return PoolFull(f"no place within {self._timeout_s:g} s, {self.ahead} before it{about}", {})
