"""The timer of a request: what it waits for, and when what was predicted is asked for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from agentroute.alarm import Alarm
from agentroute.errors import BackendError, FailureKind
from agentroute.patience import Patience


class Asked:
    """A patience that counts how often it was asked for."""

    def __init__(self, first_s: float, gap_s: float, total_s: float) -> None:
        self._patience, self.times = Patience(first_s, gap_s, total_s), 0

    def __call__(self) -> Patience:
        self.times += 1
        return self._patience


def run(patience: Asked, surely_s: float, waits: Callable[[Alarm], Awaitable[None]], due_s: float = math.inf) -> None:
    async def alone() -> None:
        alarm = Alarm(patience, surely_s, due_s)
        try:
            await waits(alarm)
        finally:
            alarm.close()

    asyncio.run(alone())


async def slept(alarm: Alarm, s: float) -> None:
    with alarm:
        await asyncio.sleep(s)


def test_a_call_that_is_over_soon_asks_for_no_prediction() -> None:
    patience = Asked(1.0, 1.0, 1.0)
    run(patience, 0.5, lambda alarm: slept(alarm, 0.01))
    assert patience.times == 0


def test_once_that_is_over_the_prediction_is_asked_for_and_waited_for() -> None:
    patience = Asked(0.3, 1.0, 1.0)

    async def waits(alarm: Alarm) -> None:
        await slept(alarm, 0.2)
        with pytest.raises(BackendError, match=r"was silent for 0\.3 s") as caught:
            await slept(alarm, 5.0)
        assert caught.value.kind is FailureKind.TIMEOUT

    run(patience, 0.05, waits)
    assert patience.times == 1


def test_a_stream_that_never_pauses_ends_at_its_total() -> None:
    patience = Asked(1.0, 1.0, 0.3)

    async def waits(alarm: Alarm) -> None:
        with pytest.raises(BackendError, match=r"was not done after 0\.3 s"):
            for _ in range(100):
                await slept(alarm, 0.02)
                alarm.progress(begun=True)

    run(patience, 0.05, waits)
    assert patience.times == 1


@pytest.mark.parametrize("surely_s", [0.05, 0.5], ids=["predictions asked for", "none asked for"])
def test_a_deadline_ends_any_wait_and_is_no_timeout(surely_s: float) -> None:
    async def waits(alarm: Alarm) -> None:
        with pytest.raises(BackendError, match=r"was not done within the 0\.2 s that its deadline left") as caught:
            for _ in range(100):
                await slept(alarm, 0.02)
                alarm.progress(begun=True)
        assert caught.value.kind is FailureKind.DEADLINE

    run(Asked(1.0, 1.0, 1.0), surely_s, waits, due_s=0.2)


def test_after_the_first_content_gaps_count() -> None:
    async def waits(alarm: Alarm) -> None:
        await slept(alarm, 0.02)
        alarm.progress(begun=True)
        with pytest.raises(BackendError, match=r"no further piece of the answer within 0\.15 s|was silent for 0\.15 s"):
            await slept(alarm, 5.0)

    run(Asked(10.0, 0.15, 10.0), 0.05, waits)


def test_the_time_that_a_caller_takes_is_no_gap() -> None:
    async def waits(alarm: Alarm) -> None:
        for _ in range(3):
            await slept(alarm, 0.02)
            alarm.progress(begun=True)
            await asyncio.sleep(0.2)

    run(Asked(0.1, 0.1, 10.0), 0.05, waits)
