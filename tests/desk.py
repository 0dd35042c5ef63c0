"""A router's queue and a clock to move, for tests of who waits."""

from __future__ import annotations

from typing import Any

from fleets import Clock, fleet, profile, task

from agentroute.errors import PoolFull
from agentroute.lease import Lease
from agentroute.profile import Profile
from agentroute.route import Route
from agentroute.router import Router
from agentroute.task import Task
from agentroute.waiting import Ticket

SMALL, LARGE = task(context=1_000), task(context=4_000)
UNITS = {SMALL: 69, LARGE: 257}


class Desk:
    """A router with a clock to move, and who was placed, in their order."""

    def __init__(self, *profiles: Profile, routes: tuple[Route, ...] = (), objective: str = "fit") -> None:
        self.clock = Clock()
        self.router = Router(fleet(*profiles), routes=routes, objective=objective, clock=self.clock)
        self.placed: list[str] = []
        self.tickets: dict[str, Ticket] = {}
        self.busy: list[Lease] = []

    def fill(self, asked: Task = SMALL) -> Desk:
        """Hold all that there is room for."""
        while True:
            try:
                self.busy.append(self.router.acquire(asked))
            except PoolFull:
                return self

    def queue(self, name: str, asked: Task = SMALL, after_s: float = 0.0) -> Ticket:
        self.clock.now += after_s
        ticket = self.tickets[name] = self.router.queue(asked, on_done=lambda _: self.placed.append(name))
        return ticket

    def free(self) -> None:
        """One that runs is done."""
        self.busy.pop().release()

    def serve(self, many: int) -> list[str]:
        """So many are done one after the other; who came in for them."""
        before = len(self.placed)
        for _ in range(many):
            self.free() if self.busy else self.tickets[self.placed[-1]].result().release()
        return self.placed[before:]


def one(**more: Any) -> Desk:
    """One pool that holds one ``SMALL``, held."""
    return Desk(profile(kv_blocks=70, **more)).fill()
