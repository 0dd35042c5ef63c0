"""What the readings of one endpoint say when they are put in a row: is it up, how fast is it, who answers. No I/O.

One reading tells a load. Two tell the mean TTFT between them. A row of them tells two things that no reading says:

- *An engine that died behind its HTTP front* may show its last figures for ever. Where requests run or wait, something
  moves with every step: a counter of steps, the KV in use (while a long prompt is read in pieces), or the number of
  requests. If nothing has moved for ``STALLED_S``, the engine is taken for dead.
- *Several servers at one address*, behind a load balancer, answer in turn. A process that was seen before another one
  answers again, or counters, which only grow in one process, go back and, with an answer to every attempt in between,
  back again. A restart is one step, and nobody answers meanwhile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from agentroute.adapters.base import Load, Total
from agentroute.errors import BackendError, FailureKind
from agentroute.state.load import Load as Report
from agentroute.state.load import Trouble

STALLED_S = 60.0
"""Assumed: a step of an engine is far shorter; the first one of vLLM, which compiles, took 13 s."""
MIXED_S = 600.0
"""For so long an address counts as that of several servers after the last sign of it. Assumed."""
GONE = 2
"""Attempts in a row without a connection after which a server is taken to be down: one may be a restart of what stands
before it. Assumed."""
WINDOW_S = 60.0
"""Over so long at most a mean TTFT is taken. Assumed."""
MOST_READINGS = 1_000
"""... or over so many readings."""
JITTER = 0.2
MOST_S = 30.0
"""A server that does not answer is asked after twice as long each time, and after this at the latest. Assumed."""
HIDDEN_S = 60.0
"""One that shows nothing is asked again after so long: somebody may have opened it. Assumed."""


@dataclass(frozen=True, slots=True)
class Vital:
    """How an endpoint is, by the readings so far."""

    load: Load = field(default_factory=Load)
    """The last reading; what nobody knows where there was none."""
    at: float | None = None
    """When that was asked for, by the caller's clock; ``None``: it has never answered."""
    trouble: Trouble | None = None
    """What is wrong with it, or with asking it."""
    said: str = ""
    """The same in words."""
    ttft_ms: float | None = None
    """Mean TTFT of all that were answered lately, in milliseconds, by the server's own account."""
    ttft_s: float | None = None
    """How many seconds that covers; ``None``: all since the server started."""
    isl: float | None = None
    """Mean prompt tokens of the same."""
    osl: float | None = None
    """Mean answer tokens of the same."""
    failures: int = 0
    """Attempts that failed since the last reading."""

    @property
    def up(self) -> bool | None:
        """Whether it can take requests; ``None``: nobody knows."""
        if self.trouble in ("unreachable", "dead"):
            return False
        return None if self.at is None or self.failures else True


def wait_s(vital: Vital, interval_s: float, chance: float) -> float:
    """Seconds until the next reading: longer after failures, and where nothing is shown; ``chance`` is from 0 to 1.

    A fifth more or less keeps many watchers of one server from asking at the same moment.
    """
    jitter = 1.0 + JITTER * (2.0 * chance - 1.0)
    if vital.failures:
        return min(max(MOST_S, interval_s), interval_s * 2.0 ** min(vital.failures, 20)) * jitter
    if vital.trouble == "hidden" and vital.load.alive is None:
        return max(HIDDEN_S, interval_s) * jitter
    return interval_s * jitter


class Pulse:
    """The readings of one endpoint. ``now`` is in seconds, by any clock that does not go back."""

    def __init__(self) -> None:
        self.vital = Vital()
        self._refused = 0
        self._moved_at: float | None = None
        self._figures: object = None
        self._last: Load | None = None
        self._processes: deque[str] = deque(maxlen=MOST_READINGS)
        self._backward_at: float | None = None
        self._mixed_at: float | None = None
        self._totals: deque[tuple[float, Load]] = deque(maxlen=MOST_READINGS)

    def read(self, load: Load, now: float) -> Report:
        """Take in a reading that was asked for at ``now``; what the router should be told of it."""
        self._refused = 0
        self._look_who_answers(load, now)
        trouble, said = self._trouble(load, now)
        ttft_ms, over_s, isl, osl = self._means(load, now)
        self.vital = Vital(load, now, trouble, said, ttft_ms, over_s, isl, osl)
        if trouble == "mixed":
            return Report(at=now, trouble=trouble, said=said)
        return Report(load.running, load.waiting, load.kv_used, now, trouble, said)

    def missed(self, error: BackendError, now: float) -> Report | None:
        """Take in that nobody answered; what the router should be told of it, if anything.

        Only where nobody takes the connection, or what does speaks no HTTP, is a server down: one that is silent may be
        busy, one that answers with an error may still serve.
        """
        self._backward_at = None
        refused = error.kind is FailureKind.UNAVAILABLE and error.status is None
        self._refused = self._refused + 1 if refused else 0
        self.vital = replace(self.vital, failures=self.vital.failures + 1, said=error.detail)
        if error.kind is FailureKind.ENGINE_DEAD:
            self.vital = replace(self.vital, trouble="dead")
            return Report(at=now, trouble="dead", said=error.detail)
        if self._refused < GONE:
            return None
        self.vital = replace(self.vital, trouble="unreachable")
        return Report(at=now, trouble="unreachable", said=error.detail)

    def _trouble(self, load: Load, now: float) -> tuple[Trouble | None, str]:
        if load.alive is False:
            return "dead", load.said
        if self._is_mixed(now):
            self._moved_at = None
            count = len(set(self._processes))
            return "mixed", f"{count} processes seen" if count > 1 else "its counters go back and forth"
        if (stood_s := self._stood_s(load, now)) >= STALLED_S:
            waiting = (load.running or 0) + (load.waiting or 0)
            return "dead", f"for {stood_s:.0f} s nothing has moved, though {waiting} requests run or wait"
        return ("hidden", load.said) if load.hidden else (None, "")

    def _is_mixed(self, now: float) -> bool:
        return self._mixed_at is not None and now - self._mixed_at <= MIXED_S

    def _stood_s(self, load: Load, now: float) -> float:
        """For how long all figures have stood while there was something to do; 0 where no counter is known."""
        figures = (load.running, load.waiting, load.kv_used, load.steps)
        busy = (load.running or 0) + (load.waiting or 0) > 0
        if load.steps is None or not busy or figures != self._figures or self._moved_at is None:
            self._figures, self._moved_at = figures, now
        return now - self._moved_at

    def _look_who_answers(self, load: Load, now: float) -> None:
        last, self._last = self._last or load, load
        another = last.process != load.process and None not in (last.process, load.process)
        backward = not another and None not in (last.counted, load.counted) and load.counted < last.counted  # type: ignore[operator]
        if another and load.process in self._processes:
            self._mixed_at = now
        if backward:
            again = self._backward_at is not None and now - self._backward_at <= MIXED_S
            self._mixed_at, self._backward_at = now if again else self._mixed_at, now
        if another or backward:
            self._totals.clear()
        if load.process is not None:
            self._processes.append(load.process)

    def _means(self, load: Load, now: float) -> tuple[float | None, float | None, float | None, float | None]:
        """Mean TTFT, over how long, and mean prompt and answer, of what was answered in the last ``WINDOW_S``."""
        while len(self._totals) > 1 and now - self._totals[1][0] >= WINDOW_S:
            self._totals.popleft()
        first = self._totals[0] if self._totals else None
        self._totals.append((now, load))
        if load.ttft_s is None or self._is_mixed(now):
            return None, None, None, None
        if first is None or first[1].ttft_s is None:
            return _ms(load.ttft_s.mean()), None, _mean(load.isl), _mean(load.osl)
        before = first[1]
        answered = load.ttft_s.since(first[1].ttft_s)
        return (
            _ms(answered.mean()),
            now - first[0],
            _mean(load.isl, before.isl),
            _mean(load.osl, before.osl),
        )


def _mean(total: Total | None, before: Total | None = None) -> float | None:
    if total is None:
        return None
    return (total.since(before) if before else total).mean()


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1_000.0 * seconds
