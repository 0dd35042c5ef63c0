"""Fifty calls at once while a server fails: none hangs, none is lost or doubled, nothing stays held or open.

Of two servers the one that fails is always asked first; the other answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import faults
import pytest
from faults import Fault, FaultServer, answer, closed, error_in_stream, says
from fleets import assert_nothing_is_held, profile
from servers import deployment, free_port

from agentroute.client import AsyncClient, Client, Reply, Retry, Timeout
from agentroute.errors import BackendError, FailureKind
from agentroute.fleet import Deployment, Fleet
from agentroute.router import Router
from agentroute.task import Task
from agentroute.wire import Restarted, TextDelta

CALLS = 50
TASK = Task(context_tokens=20, max_output_tokens=20)
WAITS = Timeout(connect_s=20.0, read_s=20.0, queue_s=5.0, total_s=30.0, at_least_s=20.0)
SHORT = replace(WAITS, at_least_s=1.0)
"""Only the server that fails has a curve, by which it is waited for so long; the other one has all the time."""
SLOW = {"slow loris, header", "slow loris, comments", "silent"}
ONCE = Retry(hedge=False)
BUSY = answer(429, b'{"error":{"message":"busy"}}')


class Clock:
    """The machine's, and it can be set."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@dataclass(frozen=True, slots=True)
class Scene:
    """A server that fails and is asked first, one that does not, and a router over both."""

    bad: FaultServer
    good: FaultServer
    router: Router
    clock: Clock


@pytest.fixture
def scene() -> Iterator[Scene]:
    with FaultServer() as bad, FaultServer() as good:
        clock = Clock()
        # A known KV pool comes before an unknown one.
        fleet = Fleet([asked_first(bad.url), deployment(good.url, name="good", adapter="openai")])
        yield Scene(bad, good, Router(fleet, clock=clock), clock)


def asked_first(url: str) -> Deployment:
    return Deployment("bad", profile(kv_blocks=100_000), urls=(url,), served_model="m")


def words(i: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"répondre {i}"}]


def ask(client: Client, i: int, streaming: bool) -> Reply:
    if not streaming:
        return client.chat(words(i), task=TASK)
    with client.stream(words(i), task=TASK) as events:
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert events.reply is not None
    assert events.reply.text == text
    return events.reply


async def aask(client: AsyncClient, i: int, streaming: bool) -> Reply:
    if not streaming:
        return await client.chat(words(i), task=TASK)
    async with client.stream(words(i), task=TASK) as events:
        text = "".join([event.text async for event in events if isinstance(event, TextDelta)])
    assert events.reply is not None
    assert events.reply.text == text
    return events.reply


def fifty(scene: Scene, way: str, streaming: bool, waits: Timeout = WAITS) -> list[Reply]:
    """What fifty calls at once get."""
    if way == "sync":
        with Client(scene.router, timeout=waits, retry=ONCE) as client, ThreadPoolExecutor(CALLS) as threads:
            replies = list(threads.map(lambda i: ask(client, i, streaming), range(CALLS)))
            idle(client._inner)
        return replies

    wire: Literal["httpx", "aiohttp"] = "aiohttp" if way == "aiohttp" else "httpx"
    if wire == "aiohttp":
        pytest.importorskip("aiohttp")

    async def together() -> list[Reply]:
        async with AsyncClient(scene.router, timeout=waits, retry=ONCE, transport=wire) as client:
            replies = await asyncio.gather(*(aask(client, i, streaming) for i in range(CALLS)))
            idle(client)
            return replies

    return asyncio.run(together())


def idle(client: AsyncClient) -> None:
    """No connection is lent any more."""
    assert not [pool for pool in client._means.pools._all if pool.used]


def nothing_is_left(scene: Scene) -> None:
    scene.clock.ahead_s += 10.0  # a server that may not have noticed yet keeps its blocks for a moment
    assert_nothing_is_held(scene.router)
    closed(scene.bad, scene.good)


ELSEWHERE: dict[str, Fault] = {
    "reset in the header": faults.reset_in_header,
    "reset before content": faults.reset_before_content,
    "slow loris, header": faults.drips_the_header,
    "slow loris, comments": faults.drips_comments,
    "silent": faults.silent,
    "200 with an error": error_in_stream(503, "The engine is currently busy"),
    "HTML 502": says(answer(502, b"<html><title>Bad Gateway</title></html>", "text/html")),
    "empty 408": says(answer(408, b"")),
    "429 with Retry-After": says(answer(429, b'{"error":{"message":"busy"}}', "application/json", "retry-after: 60")),
    "429 without": says(BUSY),
    "529": says(answer(529, b'{"message":"full","type":"Overloaded","code":529}')),
    "engine death": faults.engine_dies,
    "half a character": faults.half_a_character,
    "10 MB without a line's end": faults.endless_line,
    "gzip bomb": faults.gzip_bomb,
    "ends too soon": faults.ends_too_soon,
    "[DONE] alone": says(faults.HEAD + faults.event("[DONE]") + faults.END),
    "wrong key": says(answer(401, b'{"error":{"message":"no such key"}}')),
    "no such model": says(answer(404, b'{"error":{"message":"no such model"}}')),
}
"""What sends a call to the next candidate."""
GOOD: dict[str, Fault] = {
    "good": faults.good,
    "characters in pieces": faults.characters_in_two_pieces,
    "[DONE] twice": faults.done_twice,
    "no [DONE]": faults.never_done,
}
"""What is a whole answer all the same."""
WAYS = [("async", True), ("async", False), ("sync", True), ("aiohttp", True)]
STREAMED_ONLY = {"10 MB without a line's end", "[DONE] alone"}
SYNC_TOO = {"reset in the header", "silent", "200 with an error", "429 without", "engine death"}
"""The sync client runs the async one's code, in a thread."""
ROWS = [
    (fault, way, streaming)
    for fault in ELSEWHERE
    for way, streaming in WAYS
    if (streaming or fault not in STREAMED_ONLY) and (way != "sync" or fault in SYNC_TOO)
]


@pytest.mark.parametrize(("fault", "way", "streaming"), ROWS)
def test_the_next_candidate_answers_each_call_once(scene: Scene, fault: str, way: str, streaming: bool) -> None:
    scene.bad.fault = ELSEWHERE[fault]
    started = time.monotonic()
    replies = fifty(scene, way, streaming, SHORT if fault in SLOW else WAITS)
    assert time.monotonic() - started < WAITS.read_s
    assert [reply.text for reply in replies] == [f"répondre {i}" for i in range(CALLS)]
    assert {reply.decision.deployment for reply in replies} == {"good"}
    assert scene.bad.asked.total() > 0
    assert set(scene.good.asked.values()) == {1}, "nothing is asked for twice"
    nothing_is_left(scene)


@pytest.mark.parametrize(("way", "streaming"), WAYS)
def test_the_next_candidate_answers_when_a_server_is_down(way: str, streaming: bool) -> None:
    with FaultServer() as good:
        down = asked_first(f"http://127.0.0.1:{free_port()}")
        router = Router(Fleet([down, deployment(good.url, name="good", adapter="openai")]), clock=(clock := Clock()))
        scene = Scene(good, good, router, clock)
        assert [reply.text for reply in fifty(scene, way, streaming)] == [f"répondre {i}" for i in range(CALLS)]
        assert set(good.asked.values()) == {1}
        nothing_is_left(scene)


@pytest.mark.parametrize(("way", "streaming"), [("async", True), ("sync", True), ("aiohttp", True)])
@pytest.mark.parametrize("fault", GOOD)
def test_a_whole_answer_is_taken_as_one(scene: Scene, fault: str, way: str, streaming: bool) -> None:
    scene.bad.fault = GOOD[fault]
    replies = fifty(scene, way, streaming)
    assert [reply.text for reply in replies] == [f"répondre {i}" for i in range(CALLS)]
    assert {reply.decision.deployment for reply in replies} == {"bad"}
    assert not scene.good.asked
    nothing_is_left(scene)


@pytest.mark.parametrize("jump_s", [3_600.0, -3_600.0])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_clock_that_jumps_neither_loses_nor_hangs_anything(scene: Scene, jump_s: float, streaming: bool) -> None:
    async def jumps(asked: faults.Question, out: faults.Connection) -> None:
        scene.clock.ahead_s = jump_s
        await faults.good(asked, out)

    scene.bad.fault = jumps
    assert [reply.text for reply in fifty(scene, "async", streaming)] == [f"répondre {i}" for i in range(CALLS)]
    scene.clock.ahead_s = 4_000.0
    nothing_is_left(scene)


# --- after the first content


def test_what_breaks_after_content_is_told_with_the_text_so_far_and_not_sent_again(scene: Scene) -> None:
    scene.bad.fault = faults.reset_after_content

    async def broken(client: AsyncClient, i: int) -> BackendError:
        with pytest.raises(BackendError) as caught:
            async with client.stream(words(i), task=TASK) as events:
                async for _ in events:
                    pass
        return caught.value

    async def together() -> list[BackendError]:
        async with AsyncClient(scene.router, timeout=WAITS, retry=ONCE) as client:
            return await asyncio.gather(*(broken(client, i) for i in range(CALLS)))

    for error in asyncio.run(together()):
        assert (error.kind, error.text, error.deployment) == (FailureKind.INTERRUPTED, "be", "bad")
        assert [attempt.deployment for attempt in error.attempts] == ["bad"]
    assert set(scene.bad.asked.values()) == {1}
    assert not scene.good.asked
    nothing_is_left(scene)


def test_what_breaks_after_content_begins_anew_where_the_caller_allows_it(scene: Scene) -> None:
    scene.bad.fault = faults.reset_after_content

    async def anew(client: AsyncClient, i: int) -> None:
        async with client.stream(words(i), task=TASK, resume="restart") as events:
            seen = [event async for event in events]
        mark = seen.index(Restarted())
        assert seen[:mark] == [TextDelta("be")]
        after = "".join(event.text for event in seen[mark:] if isinstance(event, TextDelta))
        assert events.reply is not None
        assert events.reply.text == after == f"répondre {i}"
        assert events.decision.deployment == "good"

    async def together() -> None:
        async with AsyncClient(scene.router, timeout=WAITS, retry=ONCE) as client:
            await asyncio.gather(*(anew(client, i) for i in range(CALLS)))

    asyncio.run(together())
    assert set(scene.good.asked.values()) == {1}
    nothing_is_left(scene)


@pytest.mark.parametrize("fault", [faults.reset_after_the_end, faults.never_done_and_open])
def test_an_answer_that_had_ended_when_the_connection_broke_is_whole(scene: Scene, fault: Fault) -> None:
    scene.bad.fault = fault
    replies = fifty(scene, "async", True, replace(WAITS, at_least_s=2.0))
    assert [(reply.text, reply.finish_reason) for reply in replies] == [(f"répondre {i}", "stop") for i in range(CALLS)]
    assert not scene.good.asked
    nothing_is_left(scene)
