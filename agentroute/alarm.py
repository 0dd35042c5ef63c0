"""A timer for one request that interrupts whoever waits for its next bytes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from agentroute.errors import BackendError, FailureKind
from agentroute.patience import AFTER_THE_END_S, Patience


class Alarm:
    """``with alarm:`` around every wait for the server: it ends with a ``BackendError`` (timeout) when it is time.

    One timer serves all waits of a request, since a timer for each takes as long as reading a chunk does. It looks
    when it may be time at the earliest, and sets itself anew when it is not. The time that a caller takes between two
    waits counts neither as a gap nor towards the first token.

    ``patience`` is asked for once ``surely_s`` have passed, which no wait is shorter than. To work out
    what is predicted takes a fifth of the time that a call takes here, and most calls are over by then.
    After ``due_s`` the caller has no use for the answer any more, whatever the server does (``FailureKind.DEADLINE``).
    """

    def __init__(self, patience: Callable[[], Patience], surely_s: float, due_s: float = math.inf) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience: Callable[[], Patience] | None = patience
        self._gap_s = self._limit_s = surely_s
        self._began_at = self._since = self._left_at = self._loop.time()
        self._due_s, self._total_s = due_s, math.inf
        self._end_at = self._began_at + due_s
        self._due = min(self._since + surely_s, self._end_at)
        self._heard = self._begun = self._ended = False
        self._waiting: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._rang = False
        self._set = True
        """Whether the timer will look again."""
        self._timer = self._loop.call_at(self._due, self._ring)

    def heard(self) -> None:
        """Some bytes came, but nothing in them that counts."""
        self._heard = True

    def progress(self, *, begun: bool, ended: bool = False) -> None:
        """Something came: before the first content (``begun`` is false) that buys no time."""
        self._heard = not begun
        if not begun:
            return
        self._since = self._loop.time()
        if self._begun and ended == self._ended:  # the same limit, so no earlier: whoever waits next counts from here
            return
        self._begun, self._ended = True, ended
        self._limit_s = min(self._gap_s, AFTER_THE_END_S) if ended else self._gap_s
        self._due = min(self._since + self._limit_s, self._end_at)
        if self._due < self._timer.when():
            self._sets(self._due)

    def shorten(self, limit_s: float) -> None:
        """What comes now is worth no longer a wait than this."""
        self.progress(begun=True)
        self._patience = None
        self._limit_s = limit_s
        self._end_at = min(self._end_at, self._since + limit_s)
        self._sets(self._end_at)

    def close(self) -> None:
        """Nobody waits any more."""
        self._timer.cancel()

    def __enter__(self) -> Self:
        away_s = self._loop.time() - self._left_at
        self._since += away_s
        self._due = min(self._since + self._limit_s, self._end_at)
        self._waiting = asyncio.current_task()
        assert self._waiting is not None
        self._cancelling = self._waiting.cancelling()
        if not self._set:  # it looked while nobody waited
            self._sets(self._due)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._waiting, self._left_at = self._waiting, None, self._loop.time()
        if not self._rang:
            return
        self._rang = False
        assert task is not None
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise BackendError(*self._ended_by()) from None

    def _sets(self, at: float) -> None:
        self._timer.cancel()
        self._set, self._timer = True, self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._set = False
        if self._waiting is None:
            return  # whoever waits next sets it again
        if self._patience is not None:
            self._ask(self._patience)
        if self._loop.time() < self._due:
            self._sets(self._due)
            return
        self._rang = True
        self._waiting.cancel()

    def _ask(self, patience: Callable[[], Patience]) -> None:
        """Wait for as long as was predicted, from now on."""
        waits, self._patience = patience(), None
        self._gap_s, self._total_s = waits.gap_s, waits.total_s
        self._limit_s = waits.gap_s if self._begun else waits.first_s
        if self._ended:
            self._limit_s = min(self._limit_s, AFTER_THE_END_S)
        self._end_at = self._began_at + min(waits.total_s, self._due_s)
        self._due = min(self._since + self._limit_s, self._end_at)

    def _ended_by(self) -> tuple[FailureKind, str]:
        if self._loop.time() >= self._began_at + self._due_s:
            return FailureKind.DEADLINE, f"was not done within the {self._due_s:.3g} s that its deadline left"
        return FailureKind.TIMEOUT, self._words()

    def _words(self) -> str:
        if self._loop.time() >= self._end_at and self._end_at <= self._since + self._limit_s:
            return f"was not done after {self._total_s:g} s"
        if not self._heard:
            return f"was silent for {self._limit_s:g} s"
        return f"gave no {'further' if self._begun else 'first'} piece of the answer within {self._limit_s:g} s"
