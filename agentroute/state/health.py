"""How the pools have fared of late: full to the brim, grown beyond, or with stages that wait. Kept for the doctor."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentroute.state.load import Load, Trouble
from agentroute.state.steady import Steady

FULL = 0.95
"""From such a share of its KV memory in use on, a pool is full. Assumed."""
OVERRUN_S = 600.0
"""An overrun counts for so many seconds. Assumed."""
MOST_OVERRUNS = 1_000
"""... and no more of them are kept."""
FADE_S = 600.0
"""A mean of requests in flight fades by e in so many seconds. Assumed."""
BUSY_S = 30.0
"""... and is told once a pool was busy for so long. Assumed."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of one pool. ``None`` is unknown, never zero."""

    in_flight: float | None = None
    """Requests in flight on average while there were any, over about ten minutes; ``None``: not kept (only pools with
    a layer split need it), or too little was seen."""
    overruns: int = 0
    """How often one of our answers grew beyond what the pool has, in the last ten minutes."""
    full_s: float = 0.0
    """Seconds between the first and the last of the reports in a row that said: full, and requests wait."""
    waiting: int | None = None
    """Requests in the engine's own queue, by the last report that said so."""
    kv_used: float | None = None
    """Share of the KV pool in use, by the last report that said so."""
    age_s: float | None = None
    """Seconds since the last report; ``None``: there was none."""
    closed_in_s: float | None = None
    """Where the breaker is not closed: seconds until a call may try whether the server is back."""
    trouble: Trouble | None = None
    """What the last report said to be wrong with the server, or with asking it."""
    said: str = ""
    """The same in words."""


@dataclass(slots=True)
class _Reported:
    at: float
    waiting: int | None = None
    kv_used: float | None = None
    full_since: float | None = None
    trouble: Trouble | None = None
    said: str = ""


class Health:
    """Not locked: the router calls it under its own lock. ``counted`` are the pools of which the mean of requests in
    flight is kept."""

    def __init__(self, counted: Iterable[int] = ()) -> None:
        self.counted = frozenset(counted)
        self._busy = dict.fromkeys(self.counted, (0.0, 0.0, -math.inf))
        """By pool: requests in flight x seconds, and the seconds, both faded; and until when."""
        self._overran: dict[int, deque[float]] = {}
        self._reports: dict[int, _Reported] = {}
        self._steady = Steady()

    def passed(self, pool: int, in_flight: float, now: float) -> None:
        """From the last call until ``now`` there were ``in_flight`` requests in one of the pools that are counted."""
        time = self._steady(now)
        area, busy_s, at = self._busy[pool]
        kept = math.exp((at - time) / FADE_S)
        spent_s = FADE_S * (1.0 - kept) if in_flight > 0 and at > -math.inf else 0.0
        self._busy[pool] = area * kept + in_flight * spent_s, busy_s * kept + spent_s, time

    def overran(self, pool: int, now: float) -> None:
        """One of our answers grew beyond what the pool has."""
        self._overran.setdefault(pool, deque(maxlen=MOST_OVERRUNS)).append(self._steady(now))

    def reported(self, pool: int, load: Load, now: float) -> None:
        """Take in a report; one that is older than the last is ignored. A figure that is missing changes nothing."""
        time = self._steady(now)
        at = time if load.at is None else time - max(0.0, now - load.at)
        seen = self._reports.setdefault(pool, _Reported(at))
        if at < seen.at:
            return
        seen.at, seen.trouble, seen.said = at, load.trouble, load.said
        seen.waiting = seen.waiting if load.waiting is None else load.waiting
        seen.kv_used = seen.kv_used if load.kv_used is None else load.kv_used
        if not seen.waiting or seen.kv_used is None or seen.kv_used < FULL:
            seen.full_since = None
        elif seen.full_since is None:
            seen.full_since = at

    def adopt(self, old: Health, pools: Mapping[int, int]) -> None:
        """Take over what is known of pools that have new numbers."""
        self._busy |= {pools[pool]: busy for pool, busy in old._busy.items() if pools.get(pool) in self.counted}
        self._overran = {pools[pool]: overran for pool, overran in old._overran.items() if pool in pools}
        self._reports = {pools[pool]: report for pool, report in old._reports.items() if pool in pools}
        self._steady = old._steady

    def signs(self, pool: int, now: float, *, age_s: float | None, closed_in_s: float | None) -> Signs:
        """What is known of ``pool`` at ``now``, beside what others know of it."""
        time = self._steady(now)
        area, busy_s, _ = self._busy.get(pool, (0.0, 0.0, 0.0))
        seen = self._reports.get(pool) or _Reported(time)
        return Signs(
            in_flight=area / busy_s if busy_s >= BUSY_S else None,
            overruns=sum(time - at <= OVERRUN_S for at in self._overran.get(pool, ())),
            full_s=0.0 if seen.full_since is None else seen.at - seen.full_since,
            waiting=seen.waiting,
            kv_used=seen.kv_used,
            age_s=age_s,
            closed_in_s=closed_in_s,
            trouble=seen.trouble,
            said=seen.said,
        )
