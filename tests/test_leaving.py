"""Leaving a call before its end: the server stops, nothing stays held, and no thread is left."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import faults
import pytest
from faults import FaultServer, closed
from fleets import nothing_is_held
from pair import HI, TASK, one, two

from agentroute.client import AsyncClient, Client
from agentroute.errors import UsageError
from agentroute.passage import Passage


def test_cancelling_reaches_the_server_at_once(first: FaultServer) -> None:
    first.fault = faults.silent
    router = one(first)

    async def cancel() -> None:
        async with AsyncClient(router) as client:
            asking = asyncio.create_task(client.chat(HI, task=TASK))
            while not first.asked:
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            closed(first)

    asyncio.run(cancel())
    nothing_is_held(router)


def test_who_is_cancelled_while_the_loser_of_a_race_is_ended_gets_no_answer(
    first: FaultServer, second: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancelling was lost, and the call went on."""
    first.fault = faults.silent
    router, close = two(first, second), Passage.close
    loser_ends = asyncio.Event()

    async def slowly(passage: Passage) -> None:
        if passage.call.deployment.name == "one":
            loser_ends.set()
            await asyncio.sleep(0.1)
        await close(passage)

    monkeypatch.setattr(Passage, "close", slowly)

    async def cancel() -> None:
        async with AsyncClient(router) as client:
            asking = asyncio.create_task(client.chat(HI, task=TASK))
            await asyncio.wait_for(loser_ends.wait(), 10.0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            nothing_is_held(router)

    asyncio.run(cancel())
    closed(first)
    closed(second)


def test_an_async_client_in_a_second_event_loop_says_so(first: FaultServer) -> None:
    client = AsyncClient(one(first), transport="httpx")

    async def ask() -> None:
        await client.chat(HI, task=TASK)

    async def ask_and_close() -> None:
        async with client:
            await ask()
            with pytest.raises(UsageError, match="in another event loop"):
                await asyncio.to_thread(asyncio.run, ask())

    asyncio.run(ask_and_close())
    nothing_is_held(client.router)


def test_closing_a_client_ends_the_calls_of_other_threads_in_one_sentence(first: FaultServer) -> None:
    first.fault = faults.silent
    client, said = Client(one(first)), []

    def ask() -> None:
        with pytest.raises(UsageError, match="closed while this call was under way") as caught:
            client.chat(HI, task=TASK)
        said.append(caught.value)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    while first.asked.total() < 3:
        time.sleep(0.01)
    client.close()
    for thread in threads:
        thread.join(5.0)
    assert len(said) == 3
    nothing_is_held(client.router)
    closed(first)


def test_closing_a_client_inside_a_stream_leaves_its_block_in_peace(first: FaultServer) -> None:
    client = Client(one(first))
    with client.stream(HI, task=TASK) as events:
        next(events)
        client.close()
    nothing_is_held(client.router)


@pytest.mark.parametrize("raising", [True, False])
def test_leaving_a_block_in_a_thread_reaches_the_server_at_once(first: FaultServer, raising: bool) -> None:
    async def endless(asked: faults.Question, out: faults.Connection) -> None:
        out.write(faults.HEAD + faults.delta("a"))
        await asyncio.sleep(30.0)

    first.fault = endless
    router = one(first)
    with Client(router) as client:

        def leave() -> None:
            with client.stream(HI, task=TASK) as events:
                next(events)
                if raising:
                    raise KeyError("mine")

        thread = threading.Thread(target=leave)
        old, threading.excepthook = threading.excepthook, lambda _: None
        try:
            thread.start()
            thread.join(10.0)
        finally:
            threading.excepthook = old
        closed(first)
    nothing_is_held(router)


def test_a_client_that_nobody_closed_leaves_no_thread(first: FaultServer) -> None:
    def use() -> None:
        client = Client(one(first))
        client.chat(HI, task=TASK)

    before = threading.active_count()
    use()
    gc.collect()
    assert threading.active_count() <= before
