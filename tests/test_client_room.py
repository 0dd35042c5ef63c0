"""A call waits for room in the KV pool, as long as it may, and what it holds is let go of in time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from servers import HELLO, WHOLE, Behaviour, Server, answers, deployment, free_tokens, router, says, silent

from agentroute.client import AsyncClient, Client, Retry, Timeout
from agentroute.errors import BackendError, NoFeasibleDeployment, PoolFull
from agentroute.task import Task

pytestmark = pytest.mark.usefixtures("no_proxy")


@pytest.fixture
def quick() -> Iterator[Server]:
    """A server that answers at once."""
    with Server(answers(WHOLE)) as server:
        yield server


@pytest.mark.alone
def test_a_full_pool_is_waited_for(quick: Server) -> None:
    routed = router(deployment(quick.url, pool_tokens=100))
    task = Task(context_tokens=50, max_output_tokens=50)
    lease = routed.acquire(task)
    release = threading.Timer(0.3, lease.release)
    release.start()
    with Client(routed) as client:
        start = time.monotonic()
        assert client.chat(HELLO, task=task).text == "hi"
        assert time.monotonic() - start >= 0.25
    release.join()


@pytest.mark.alone
def test_a_full_pool_is_not_waited_for_longer_than_asked(quick: Server) -> None:
    routed = router(deployment(quick.url, pool_tokens=100))
    task = Task(context_tokens=50, max_output_tokens=50)

    async def refused() -> None:
        async with AsyncClient(routed, timeout=Timeout(queue_s=0.1)) as client:
            with pytest.raises(PoolFull):
                await client.chat(HELLO, task=task)

    with routed.acquire(task):
        with Client(routed, timeout=Timeout(queue_s=0)) as client, pytest.raises(PoolFull):
            client.chat(HELLO, task=task)
        start = time.monotonic()
        asyncio.run(refused())
        assert 0.1 <= time.monotonic() - start < 1.0
    assert quick.asked == []


def test_what_can_never_fit_is_not_waited_for(quick: Server) -> None:
    routed = router(deployment(quick.url, pool_tokens=100))
    with Client(routed) as client, pytest.raises(NoFeasibleDeployment) as caught:
        client.chat(HELLO, task=Task(context_tokens=500, max_output_tokens=50))
    assert not isinstance(caught.value, PoolFull)


@pytest.mark.parametrize(
    ("behave", "held"),
    [
        (answers(WHOLE), 0),
        (answers("", status=500), 0),
        (silent, 100),
        (says(b""), 100),
    ],
)
def test_the_hold_outlives_only_a_call_that_the_server_may_still_work_on(behave: Behaviour, held: int) -> None:
    with Server(behave) as server:
        routed = router(deployment(server.url, pool_tokens=200))
        timeout = Timeout(read_s=0.2 if behave is silent else 20.0)
        with Client(routed, timeout=timeout, retry=Retry(attempts=1)) as client, contextlib.suppress(BackendError):
            client.chat(HELLO, task=Task(context_tokens=50, max_output_tokens=50))
        assert 200 - free_tokens(routed) == held


def test_a_hard_deadline_goes_on_while_a_call_waits_for_room() -> None:
    routed = router(deployment("http://127.0.0.1:9", pool_tokens=100))
    task = Task(context_tokens=50, max_output_tokens=50)
    with routed.acquire(task), Client(routed) as client:
        started = time.monotonic()
        with pytest.raises(NoFeasibleDeployment):
            client.chat(HELLO, task=replace(task, deadline_s=0.5))
        assert time.monotonic() - started < 5
