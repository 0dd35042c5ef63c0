"""Every call that ends is told once, with what became of it, whatever became of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import faults
import pytest
from faults import FaultServer, answer, says
from fleets import profile

from agentroute.client import AsyncClient, Client, Retry
from agentroute.ended import Ended
from agentroute.errors import BackendError, NoFeasibleDeployment, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.router import Router
from agentroute.task import Task

TASK = Task(context_tokens=20, max_output_tokens=20, route="interactive", session_id="s")
HI = [{"role": "user", "content": "hi there"}]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


def router(*servers: FaultServer) -> Router:
    from agentroute.route import Route

    return Router(
        Fleet(
            Deployment(f"d{i}", profile(kv_blocks=1_000 - i, window=1_000), urls=(server.url,), served_model="m")
            for i, server in enumerate(servers)
        ),
        routes=[Route(name="interactive")],
    )


def test_an_answer(server: FaultServer) -> None:
    ended: list[Ended] = []
    with Client(router(server), observers=[ended.append]) as client:
        client.chat(HI, task=TASK)
        with client.stream(HI, task=TASK) as events:
            list(events)
            assert len(ended) == 1  # the call ends with its block
        with client.forward(b'{"model":"m","messages":[{"role":"user","content":"x"}]}', task=TASK) as answered:
            b"".join(answered)
    assert [(one.result, one.streaming, one.endpoint) for one in ended] == [
        ("ok", False, "chat"), ("ok", True, "chat"), ("ok", False, "chat"),
    ]  # fmt: skip
    first, second, _ = ended
    assert (first.outcome.prompt_tokens, first.outcome.output_tokens) == (7, 3)
    assert first.decision is not None
    assert first.decision.deployment == "d0"
    assert first.task == TASK
    assert first.attempts == ()
    assert first.outcome.ttft_ms is None
    assert second.outcome.ttft_ms is not None
    assert 0 <= second.waited_s < second.took_s
    assert second.took_s * 1_000 > second.outcome.ttft_ms


def test_another_endpoint_is_named(server: FaultServer) -> None:
    server.fault = says(answer(200, b'{"choices":[{"text":"on","finish_reason":"stop"}]}'))
    ended: list[Ended] = []
    with (
        Client(router(server), observers=[ended.append]) as client,
        client.forward(b'{"model":"m","prompt":"go"}', endpoint="completions", task=TASK) as answered,
    ):
        b"".join(answered)
    assert [(one.result, one.endpoint) for one in ended] == [("ok", "completions")]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_failure_with_every_attempt(server: FaultServer, streaming: bool) -> None:
    server.fault = says(answer(500, b'{"error":{"message":"no"}}'))
    ended: list[Ended] = []
    with FaultServer(says(answer(502, b"<html>"))) as other:
        by = router(server, other)
        with Client(by, observers=[ended.append], retry=Retry(attempts=2)) as client, pytest.raises(BackendError):
            if streaming:
                with client.stream(HI, task=TASK):
                    pass
            else:
                client.chat(HI, task=TASK)
    (one,) = ended
    assert one.result == "unavailable"
    assert {attempt.deployment for attempt in one.attempts} == {"d0", "d1"}
    assert one.decision is not None
    assert one.outcome.failure is not None
    assert one.usd is None


def test_an_answer_after_a_failure_keeps_the_attempt(server: FaultServer) -> None:
    server.fault = says(answer(502, b"<html>"))
    ended: list[Ended] = []
    with FaultServer() as other, Client(router(server, other), observers=[ended.append]) as client:
        decision = client.chat(HI, task=TASK).decision
    (one,) = ended
    assert (one.result, [attempt.deployment for attempt in one.attempts]) == ("ok", ["d0"])
    assert one.decision == decision


def test_a_stream_that_breaks(server: FaultServer) -> None:
    server.fault = faults.reset_after_content
    ended: list[Ended] = []
    with Client(router(server), observers=[ended.append]) as client:
        with pytest.raises(BackendError), client.stream(HI, task=TASK) as events:
            list(events)
        with pytest.raises(BackendError):
            body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
            with client.forward(body, task=TASK) as answered:
                list(answered)
    assert [one.result for one in ended] == ["interrupted", "interrupted"]


def test_a_stream_that_begins_anew_elsewhere_is_one_call(server: FaultServer) -> None:
    server.fault = faults.reset_after_content
    ended: list[Ended] = []
    with (
        FaultServer() as other,
        Client(router(server, other), observers=[ended.append]) as client,
        client.stream(HI, task=TASK, resume="restart") as events,
    ):
        list(events)
    (one,) = ended
    assert (one.result, len(one.attempts)) == ("ok", 1)
    assert one.decision is not None
    assert one.decision.deployment == "d1"


def test_a_block_that_is_left_early_is_cancelled(server: FaultServer) -> None:
    server.fault = faults.never_done_and_open
    ended: list[Ended] = []
    with Client(router(server), observers=[ended.append]) as client, client.stream(HI, task=TASK) as events:
        next(events)
    assert [one.result for one in ended] == ["cancelled"]


def test_a_call_that_is_cancelled_before_its_answer(server: FaultServer) -> None:
    server.fault = faults.silent
    ended: list[Ended] = []

    async def ask() -> None:
        async with AsyncClient(router(server), observers=[ended.append]) as client:
            asking = asyncio.create_task(client.chat(HI, task=TASK))
            while not server.asked:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(ask())
    (one,) = ended
    assert one.result == "cancelled"
    assert one.took_s >= 0.2
    assert one.decision is not None


def test_what_nothing_can_take(server: FaultServer) -> None:
    ended: list[Ended] = []
    with Client(router(server), observers=[ended.append]) as client, pytest.raises(NoFeasibleDeployment):
        client.chat(HI, task=Task(context_tokens=5_000))
    (one,) = ended
    assert (one.result, one.decision) == ("infeasible", None)
    assert one.refused is not None
    assert one.refused.record() is not None


def test_a_mistake_of_the_caller() -> None:
    ended: list[Ended] = []
    by = Router(Fleet([Deployment("d", profile(), urls=("http://127.0.0.1:9",), api_key_env="NO_SUCH_KEY")]))
    with Client(by, observers=[ended.append]) as client, pytest.raises(UsageError):
        client.chat(HI, task=Task(context_tokens=10))
    assert [one.result for one in ended] == ["usage"]


def test_an_observer_that_fails_is_logged_and_nobody_else_notices(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[Ended] = []

    def broken(one: Ended) -> None:
        raise ZeroDivisionError

    with (
        caplog.at_level(logging.ERROR, "agentroute"),
        Client(router(server), observers=[broken, ended.append]) as client,
    ):
        assert client.chat(HI, task=TASK).text == "hi there"
    assert len(ended) == 1
    assert "an observer of calls failed" in caplog.text
