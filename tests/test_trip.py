"""Getting one call through: hedges, the same server again, cancelling, sessions, bytes passed on."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import faults
import pytest
from faults import FaultServer, answer, says
from fleets import assert_nothing_is_held, profile
from tenacity import retry, stop_after_delay, wait_fixed

from agentroute.client import AsyncClient, Client, Retry, Session, Timeout
from agentroute.counting import Counting
from agentroute.errors import BackendError, FailureKind, NoFeasibleDeployment, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.passage import Passage
from agentroute.pools import EACH, Pools
from agentroute.route import Route
from agentroute.router import Router
from agentroute.state.breaker import FAILURES
from agentroute.task import Slo, Task
from agentroute.tokens import GENERIC
from agentroute.transport import Target

TASK = Task(context_tokens=20, max_output_tokens=20)
HI = [{"role": "user", "content": "hi there"}]
BUSY = b'{"error":{"message":"busy"}}'


@pytest.fixture
def first() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture
def second() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


def one(server: FaultServer) -> Router:
    return Router(Fleet([Deployment("one", profile(kv_blocks=1_000), urls=(server.url,), served_model="m")]))


def two(first: FaultServer, second: FaultServer) -> Router:
    """The first is asked first: its KV pool is known."""
    return Router(
        Fleet([
            Deployment("one", profile(kv_blocks=1_000), urls=(first.url,), served_model="m"),
            Deployment("two", profile(), urls=(second.url,), served_model="m"),
        ])
    )  # fmt: skip


@retry(stop=stop_after_delay(3.0), wait=wait_fixed(0.02), reraise=True)
def nothing_is_held(router: Router) -> None:
    assert_nothing_is_held(router)


@retry(stop=stop_after_delay(3.0), wait=wait_fixed(0.02), reraise=True)
def closed(server: FaultServer) -> None:
    assert not server.connections


# --- hedges


@pytest.mark.parametrize("streaming", [True, False])
def test_a_second_server_answers_when_the_first_is_late_and_the_first_is_cancelled(
    first: FaultServer, second: FaultServer, streaming: bool
) -> None:
    first.fault = faults.silent
    router = two(first, second)

    async def ask() -> str:
        async with AsyncClient(router) as client:
            if not streaming:
                return (await client.chat(HI, task=TASK)).text
            async with client.stream(HI, task=TASK) as events:
                async for _ in events:
                    pass
            assert events.decision.deployment == "two"
            assert events.reply is not None
            closed(first)
            return events.reply.text

    started = time.monotonic()
    assert asyncio.run(ask()) == "hi there"
    assert time.monotonic() - started < 10.0
    assert (first.asked.total(), second.asked.total()) == (1, 1)
    nothing_is_held(router)


def test_a_first_that_answers_in_the_end_wins_from_a_slower_second(first: FaultServer, second: FaultServer) -> None:
    async def late(asked: faults.Question, out: faults.Connection) -> None:
        await asyncio.sleep(0.6)
        await faults.good(asked, out)

    first.fault, second.fault = late, faults.silent
    router = two(first, second)
    with Client(router) as client:
        assert client.chat(HI, task=TASK).decision.deployment == "one"
        closed(second)
    nothing_is_held(router)


def test_when_both_fail_the_error_tells_both(first: FaultServer, second: FaultServer) -> None:
    async def late(asked: faults.Question, out: faults.Connection) -> None:
        await asyncio.sleep(0.5)
        out.write(answer(400, b'{"error":{"message":"no"}}'))

    first.fault = second.fault = late
    router = two(first, second)
    with Client(router) as client, pytest.raises(BackendError) as caught:
        client.chat(HI, task=TASK)
    assert {attempt.deployment for attempt in caught.value.attempts} == {"one", "two"}
    nothing_is_held(router)


@pytest.mark.parametrize("retry", [Retry(hedge=False), Retry(share=0.0), Retry(attempts=1)])
def test_nothing_is_hedged_where_the_budget_has_nothing_left(
    first: FaultServer, second: FaultServer, retry: Retry
) -> None:
    async def late(asked: faults.Question, out: faults.Connection) -> None:
        await asyncio.sleep(0.6)
        await faults.good(asked, out)

    first.fault = late
    with Client(two(first, second), retry=retry) as client:
        assert client.chat(HI, task=TASK).decision.deployment == "one"
    assert not second.asked


# --- the same server again


def test_a_server_that_is_full_is_asked_again_when_it_says_so_and_told_of_it(first: FaultServer) -> None:
    async def at_second(asked: faults.Question, out: faults.Connection) -> None:
        if asked.number:
            await faults.good(asked, out)
        else:
            out.write(answer(429, BUSY, "application/json", "retry-after: 0.3"))

    first.fault = at_second
    started = time.monotonic()
    with Client(one(first)) as client:
        assert client.chat(HI, task=TASK).text == "hi there"
    assert time.monotonic() - started >= 0.3
    assert first.retries == [None, "1"]


def test_a_server_that_stays_full_is_given_up_with_every_attempt(first: FaultServer) -> None:
    first.fault = says(answer(429, BUSY))
    router = one(first)
    with Client(router) as client, pytest.raises(BackendError) as caught:
        client.chat(HI, task=TASK)
    attempts = caught.value.attempts
    assert len(attempts) == first.asked.total() == 3
    assert {attempt.kind for attempt in attempts} == {FailureKind.OVERLOADED}
    assert list(attempts) == sorted(attempts, key=lambda attempt: attempt.after_s)
    assert "busy; before it one after 0.0 s: overloaded (HTTP 429): busy" in str(caught.value)
    nothing_is_held(router)


def test_what_the_caller_has_retried_is_not_retried_again_and_counted_on(first: FaultServer) -> None:
    first.fault = says(answer(429, BUSY))
    with Client(one(first)) as client, pytest.raises(BackendError):
        client.chat(HI, task=TASK, retried=2)
    assert first.retries == ["2"]


@pytest.mark.parametrize("of", ["task", "route"])
def test_a_deadline_that_has_passed_ends_the_tries(first: FaultServer, of: str) -> None:
    async def slow(asked: faults.Question, out: faults.Connection) -> None:
        await asyncio.sleep(0.3)
        out.write(answer(503, BUSY))

    first.fault = slow
    due = Slo(0.2, hard=False)
    task = replace(TASK, deadline_s=due) if of == "task" else replace(TASK, route="due")
    router = Router(one(first).fleet, routes=[Route(name="due", deadline_s=due)])
    with Client(router) as client, pytest.raises(BackendError) as caught:
        client.chat(HI, task=task)
    assert len(caught.value.attempts) == first.asked.total() == 1


@pytest.mark.parametrize("fault", [faults.silent, faults.drips_comments, faults.drips_words])
def test_a_running_request_ends_with_its_hard_deadline_and_no_server_is_blamed(
    first: FaultServer, second: FaultServer, fault: faults.Fault
) -> None:
    """Its connection is closed, so that the server stops, and no other is asked: nobody has a use for the answer."""
    first.fault = second.fault = fault
    router, task, began = two(first, second), replace(TASK, deadline_s=0.5), time.monotonic()
    with Client(router, retry=Retry(hedge=False)) as client:
        for _ in range(FAILURES):
            with (
                pytest.raises(BackendError, match="that its deadline left") as caught,
                client.stream(HI, task=task, resume="restart") as stream,
            ):
                for _ in stream:
                    pass
            assert caught.value.kind is FailureKind.DEADLINE
            assert len(caught.value.attempts) == 1
        assert time.monotonic() - began < FAILURES * 1.5
        assert first.asked.total() + second.asked.total() == FAILURES
        closed(first)
        closed(second)
        nothing_is_held(router)
        first.fault = second.fault = faults.good
        assert client.chat(HI, task=TASK).text == "hi there"


@pytest.mark.parametrize(("value", "hard", "cut"), [(0.3, True, True), (0.3, False, False), (30.0, True, False)])
def test_so_it_does_with_the_hard_deadline_of_its_route(
    first: FaultServer, value: float, hard: bool, cut: bool
) -> None:
    async def slow(asked: faults.Question, out: faults.Connection) -> None:
        await asyncio.sleep(0.8)
        await faults.good(asked, out)

    first.fault = slow
    deployments = [Deployment("one", profile(kv_blocks=1_000), urls=(first.url,), served_model="m")]
    router = Router(Fleet(deployments), routes=[Route(name="hard", deadline_s=Slo(value, hard=hard))])
    with Client(router, retry=Retry(attempts=1)) as client:
        try:
            text = client.chat(HI, task=replace(TASK, route="hard")).text
        except BackendError as error:
            assert (error.kind, cut) == (FailureKind.DEADLINE, True)
        else:
            assert (text, cut) == ("hi there", False)


def test_on_a_fallback_the_fallbacks_deadline_holds(first: FaultServer, second: FaultServer) -> None:
    async def slow(asked: faults.Question, out: faults.Connection) -> None:
        await asyncio.sleep(0.8)
        await faults.good(asked, out)

    second.fault = slow
    strict = Route(name="strict", deadline_s=Slo(0.3), allow=frozenset({"one"}), fallbacks=("lax",))
    fleet = two(first, second).fleet
    router = Router(fleet, routes=[strict, Route(name="lax", allow=frozenset({"two"}))])
    long = replace(TASK, context_tokens=1_000_000, route="strict")
    with Client(router) as client:
        assert client.chat(HI, task=long).text == "hi there"


def test_a_soft_deadline_ends_no_running_request(first: FaultServer) -> None:
    async def slow(asked: faults.Question, out: faults.Connection) -> None:
        await asyncio.sleep(0.4)
        await faults.good(asked, out)

    first.fault = slow
    with Client(one(first)) as client:
        assert client.chat(HI, task=replace(TASK, deadline_s=Slo(0.2, hard=False))).text == "hi there"


def test_a_call_that_would_cost_another_its_slo_waits_until_it_costs_none(first: FaultServer) -> None:
    """As whoever comes through the router's queue: room alone is no reason to be sent."""
    router, long = one(first), Task(context_tokens=12_000, max_output_tokens=200)
    its = replace(TASK, max_output_tokens=500, ttft_ms=Slo(300.0, hard=False), tpot_ms=Slo(6.5, hard=False))
    person = router.acquire(its)
    with Client(router) as client, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.chat, HI, task=long)
        while not router.queued:
            assert not first.asked
            time.sleep(0.01)
        person.release()
        assert asked.result(20.0).text == "hi there"


def test_a_soft_deadline_that_has_passed_leaves_the_next_server_to_be_asked(
    first: FaultServer, second: FaultServer
) -> None:
    async def slow(asked: faults.Question, out: faults.Connection) -> None:
        await asyncio.sleep(0.3)
        out.write(answer(503, BUSY))

    first.fault = slow
    task = Task(context_tokens=20, max_output_tokens=20, deadline_s=Slo(0.2, hard=False))
    with Client(two(first, second), retry=Retry(hedge=False)) as client:
        assert client.chat(HI, task=task).decision.deployment == "two"


@pytest.mark.parametrize(
    ("deadline_s", "total_s"), [(5.0, 600.0), (Slo(5.0, hard=False), 600.0), (None, 5.0)], ids=["hard", "soft", "total"]
)
def test_a_server_that_is_full_for_longer_than_the_call_has_is_not_waited_for(
    first: FaultServer, deadline_s: float | Slo | None, total_s: float
) -> None:
    first.fault = says(answer(429, BUSY, "application/json", "retry-after: 8"))
    task, began = Task(context_tokens=20, max_output_tokens=20, deadline_s=deadline_s), time.monotonic()
    with Client(one(first), timeout=Timeout(total_s=total_s)) as client, pytest.raises(BackendError) as caught:
        client.chat(HI, task=task)
    assert caught.value.kind is FailureKind.OVERLOADED
    assert time.monotonic() - began < 7.5
    assert first.asked.total() == 1


# --- leaving


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


@pytest.mark.parametrize(
    ("pieces", "text"), [(("\\ud83d", "\\ude00 yes"), "😀 yes"), (("no \\ud83d", ""), "no \ufffd")]
)
def test_a_character_that_came_in_two_halves_is_one_and_half_of_one_is_none(
    first: FaultServer, pieces: tuple[str, str], text: str
) -> None:
    """Half a character could be neither printed nor sent with the next prompt."""

    async def halves(asked: faults.Question, out: faults.Connection) -> None:
        if len(asked.body["messages"]) > 1:
            return await faults.good(asked, out)
        said = b"".join(faults.event(f'{{"choices":[{{"delta":{{"content":"{piece}"}}}}]}}') for piece in pieces)
        out.write(faults.HEAD + said + faults.delta("", "stop") + faults.event("[DONE]") + faults.END)

    first.fault = halves
    with Client(one(first)) as client:
        with client.stream(HI, task=TASK) as events:
            list(events)
        assert events.reply is not None and events.reply.text == text
        assert client.chat([*HI, {"role": "assistant", "content": events.reply.text}, *HI]).text == "hi there"


# --- sessions


def test_a_session_counts_from_the_usage_of_the_step_before(first: FaultServer) -> None:
    seen: list[Task] = []
    router = one(first)
    with Client(router) as client:
        session = Session("run-1")
        messages: list[dict[str, Any]] = [*HI]
        for _ in range(2):
            reply = client.chat(messages, session=session)
            seen.append(reply.decision.task)
            messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "and then?"}]
    assert [(task.session_id, task.step) for task in seen] == [("run-1", 1), ("run-1", 2)]
    assert [task.context_source for task in seen] == ["generic fingerprint", "usage"]
    counted = faults.USAGE["prompt_tokens"] + faults.USAGE["completion_tokens"]
    assert counted < (seen[1].expected_context_tokens or 0) < counted + 20


def test_each_step_of_a_session_has_what_the_steps_before_it_left(first: FaultServer) -> None:
    now = [100.0]
    session = Session(deadline_s=Slo(10.0, hard=False), clock=lambda: now[0])
    with Client(one(first)) as client:
        assert client.chat(HI, session=session).decision.task.deadline_s == Slo(10.0, hard=False)
        now[0] += 4.0
        assert session.left_s == 6.0
        assert client.chat(HI, session=session).decision.task.deadline_s == Slo(6.0, hard=False)
        own = Task(context_tokens=20, max_output_tokens=20, deadline_s=2.0)
        assert client.chat(HI, task=own, session=session).decision.task.deadline_s == Slo(2.0)
        now[0] += 7.5
        with pytest.raises(NoFeasibleDeployment, match=r"deadline of 10 s passed 1\.5 s ago"):
            client.chat(HI, session=session)
    assert first.asked.total() == 3


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("of", ["prompt_tokens", "completion_tokens", "cached_tokens"])
def test_counts_that_no_server_can_have_counted_are_unknown(
    first: FaultServer, monkeypatch: pytest.MonkeyPatch, of: str, streaming: bool
) -> None:
    """They lost the answer, kept the hold, and left a session whose next step asked for more than any window."""
    details = {"cached_tokens": 1} | ({of: 10**12} if of == "cached_tokens" else {})
    monkeypatch.setattr(faults, "USAGE", faults.USAGE | {of: 10**12} | {"prompt_tokens_details": details})
    router, session = one(first), Session()
    with Client(router) as client:
        for _ in range(2):
            if streaming:
                with client.stream(HI, session=session) as events:
                    list(events)
                reply = events.reply
            else:
                reply = client.chat(HI, session=session)
            assert reply is not None and reply.text == "hi there"
            assert getattr(reply.usage, of) is None
    nothing_is_held(router)


def test_usage_teaches_how_the_fleets_model_counts() -> None:
    counting = Counting(Router(Fleet([Deployment("one", profile(), served_model="m")])))
    assert counting.fingerprint() == GENERIC
    for _ in range(20):
        counting.seen("one", HI, (), 40)
    learnt = counting.fingerprint()
    assert learnt.name == "p" or learnt.name == "m"
    assert learnt.weights != GENERIC.weights


def test_two_models_teach_nothing_about_each_other() -> None:
    fleet = Fleet(
        [Deployment("one", profile("p"), served_model="m"), Deployment("two", profile("q"), served_model="n")]
    )
    counting = Counting(Router(fleet))
    counting.seen("one", HI, (), 40)
    assert counting.fingerprint() == counting.fingerprint("two") == GENERIC
    assert counting.fingerprint("one") != GENERIC


# --- bytes passed on

STREAMED = b'{"model": "m",  "messages": [{"role":"user","content":"hi there"}], "stream": true, "max_tokens": 9,'
STREAMED += b' "stream_options": {"include_usage": true}}'
WHOLE = b'{"messages": [{"role":"user","content":"hi there"}],"max_tokens": 9,   "model": "m"}'


@pytest.mark.parametrize("body", [STREAMED, WHOLE])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_forwarded_request_and_its_answer_are_the_same_bytes(first: FaultServer, body: bytes, way: str) -> None:
    first.bodies = []
    router = one(first)
    if way == "sync":
        with Client(router) as client, client.forward(body) as back:
            status, kind, got = back.status, back.headers["content-type"], b"".join(back)
            reply, decision = back.reply, back.decision
    else:

        async def forward() -> Any:
            async with AsyncClient(router) as client, client.forward(body) as back:
                got = b"".join([chunk async for chunk in back])
                return back.status, back.headers["content-type"], got, back.reply, back.decision

        status, kind, got, reply, decision = asyncio.run(forward())
    assert first.bodies == [body]
    sent = [piece[piece.index(b"\r\n") + 2 : -2] for piece in faults.whole("hi there")[1:-1]]
    assert (status, kind, got) == (
        (200, "text/event-stream", b"".join(sent))
        if body is STREAMED
        else (200, "application/json", faults.completion("hi there"))
    )
    assert reply is not None
    assert (reply.text, reply.usage.prompt_tokens) == ("hi there", 7)
    assert decision.deployment == "one"
    nothing_is_held(router)


def test_a_forwarded_request_names_the_servers_own_model(first: FaultServer) -> None:
    first.bodies = []
    with Client(one(first)) as client, client.forward(WHOLE.replace(b'"m"', b'"alias"')) as back:
        assert b"".join(back) == faults.completion("hi there")
    assert json.loads(first.bodies[0]) == json.loads(WHOLE)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages": "hi"}'])
def test_what_is_no_chat_request_is_refused(first: FaultServer, body: bytes) -> None:
    with Client(one(first)) as client, pytest.raises(UsageError), client.forward(body):
        pass
    assert not first.asked


def test_a_forwarded_stream_that_breaks_is_an_error_after_its_bytes(first: FaultServer) -> None:
    first.fault = faults.reset_after_content
    got = b""
    with Client(one(first)) as client, client.forward(STREAMED) as back, pytest.raises(BackendError) as caught:
        for chunk in back:
            got += chunk
    assert b'"content": "be"' in got
    assert caught.value.kind is FailureKind.INTERRUPTED


# --- connections


def test_a_pool_is_shared_by_few_and_used_again() -> None:
    async def use() -> None:
        pools = Pools(Timeout(), "httpx")
        taken = [pools.take("http://a") for _ in range(2 * EACH + 1)]
        assert [taken.count(pool) for pool in dict.fromkeys(taken)] == [EACH, EACH, 1]
        assert pools.take("http://b") not in taken
        for pool in taken:
            pools.give(pool)
        assert pools.take("http://a") in taken
        await pools.aclose()
        with pytest.raises(UsageError, match="the client is closed"):
            pools.take("http://a")

    asyncio.run(use())


def test_a_transport_that_is_none_is_refused(first: FaultServer) -> None:
    with pytest.raises(UsageError, match="transport must be"):
        Client(one(first), transport="curl")  # type: ignore[arg-type]


def test_a_plain_address_needs_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> None:
        raise AssertionError("certificates were read")

    for name in ("http_proxy", "https_proxy", "all_proxy", "ssl_cert_file", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("httpx.create_ssl_context", read)
    monkeypatch.setenv("no_proxy", "localhost")  # names no proxy
    pools = Pools(Timeout(), "httpx")
    assert pools._context(Target.of("http://127.0.0.1:1", None).root) is pools._context("http://127.0.0.2")
    with pytest.raises(AssertionError, match="certificates were read"):
        pools._context("https://127.0.0.1")
