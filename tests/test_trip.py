"""Getting one call through: hedges, the same server again, and the deadline that ends both."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import faults
import pytest
from faults import FaultServer, answer, closed, says
from fleets import nothing_is_held, profile
from pair import BUSY, HI, TASK, one, two

from agentroute.client import AsyncClient, Client, Retry, Timeout
from agentroute.errors import BackendError, FailureKind
from agentroute.fleet import Deployment, Fleet
from agentroute.route import Route
from agentroute.router import Router
from agentroute.state.breaker import FAILURES
from agentroute.task import Slo, Task

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
