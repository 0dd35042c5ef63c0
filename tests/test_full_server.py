"""A server that is full: what the client tells the router of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from servers import Behaviour, Server, answers, deployment, router, streams

from agentroute.client import AsyncClient, Client, Retry
from agentroute.errors import BackendError, FailureKind, PoolFull
from agentroute.patience import Timeout
from agentroute.router import Router
from agentroute.state.breaker import FAILURES
from agentroute.state.throttle import MOST_PAUSE_S
from agentroute.task import Task

HELLO = [{"role": "user", "content": "hello"}]
ONCE = Retry(attempts=1)
FULL = '{"error":{"message":"too many requests"}}'
DOWN = '{"error":{"message":"internal error"}}'
IN_A_STREAM = '{"error":{"message":"The engine is currently busy","code":503}}'


def told(routed: Router, *, streaming: bool) -> BackendError:
    with Client(routed, timeout=Timeout(queue_s=0.0), retry=ONCE) as client, pytest.raises(BackendError) as caught:
        if streaming:
            with client.stream(HELLO) as events:
                list(events)
        else:
            client.chat(HELLO)
    return caught.value


@pytest.mark.parametrize(
    ("behave", "streaming"),
    [
        (answers(FULL, status=429), False),
        (answers(FULL, status=503), True),
        (answers(FULL, status=529), False),
        (streams([IN_A_STREAM, "[DONE]"]), True),
    ],
)
def test_it_is_full_and_not_down(behave: Behaviour, streaming: bool) -> None:
    with Server(behave) as server:
        routed = router(deployment(server.url, adapter="openai"))
        assert told(routed, streaming=streaming).kind is FailureKind.OVERLOADED
    assert routed._situation.throttle.narrowed() == {0}
    assert routed._situation.breaker.is_closed(0)
    with pytest.raises(PoolFull, match="it turned others away"):
        routed.acquire(Task(context_tokens=10))


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [({"retry-after": "7"}, 7.0), ({"retry-after": "100000"}, MOST_PAUSE_S), ({"retry-after": "soon"}, 0.0)],
)
def test_it_is_left_alone_for_as_long_as_it_asks(headers: Mapping[str, str], pause_s: float) -> None:
    with Server(answers(FULL, status=429, headers=headers)) as server:
        routed = router(deployment(server.url, adapter="openai"))

        async def ask() -> None:
            async with AsyncClient(routed, retry=ONCE) as client:
                await client.chat(HELLO)

        with pytest.raises(BackendError):
            asyncio.run(ask())
    throttle = routed._situation.throttle
    one = throttle._narrow[0]
    assert one.until - throttle._steady.last == pytest.approx(pause_s)


def test_one_that_fails_is_down() -> None:
    with Server(answers(DOWN, status=500)) as server:
        routed = router(deployment(server.url, adapter="openai"))
        for _ in range(FAILURES):
            told(routed, streaming=False)
    assert not routed._situation.throttle
    assert not routed._situation.breaker.is_closed(0)
