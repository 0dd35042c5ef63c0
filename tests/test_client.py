"""The clients against real llama.cpp servers, and what they say of what they are made of."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from servers import HELLO, SHORT, TOOLS, deployment, free_tokens, router
from tenacity import retry, stop_after_delay, wait_fixed

from agentroute.adapters import adapter
from agentroute.client import AsyncClient, Client, Reply, Timeout
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.errors import BackendError, FailureKind, UsageError
from agentroute.task import Task
from agentroute.wire import Finished, TextDelta, ToolCallDelta, Usage

pytestmark = pytest.mark.usefixtures("no_proxy")
ENDLESS = {"ignore_eos": True, "temperature": 0}


@retry(stop=stop_after_delay(10.0), wait=wait_fixed(0.01), reraise=True)
def idle(server: EmbeddedServer) -> None:
    """Wait until no slot is at work."""
    busy = [slot["id"] for slot in httpx.get(f"{server.url}/slots").json() if slot["is_processing"]]
    assert not busy


# --- a real server


def test_a_chat_is_chosen_called_and_settled(llama_one: EmbeddedServer) -> None:
    routed = router(deployment(llama_one.url, pool_tokens=2048))
    with Client(routed) as client:
        reply = client.chat(HELLO, body=SHORT)
    assert reply.text
    assert reply.finish_reason == "length"
    assert reply.usage.completion_tokens == 6
    assert reply.usage.prompt_tokens == 32
    assert reply.decision.deployment == "here"
    assert reply.raw["model"] == MODEL_ALIAS
    assert reply.seen.ttft_s is None
    assert reply.seen.e2e_s > 0
    assert free_tokens(routed) == 2048


def test_the_async_twin_gives_the_same_answer(llama_one: EmbeddedServer) -> None:
    routed = router(deployment(llama_one.url, pool_tokens=2048))

    async def ask() -> None:
        async with AsyncClient(routed) as client:
            whole = await client.chat(HELLO, body=SHORT)
            async with client.stream(HELLO, body=SHORT) as stream:
                assert stream.reply is None
                events = [event async for event in stream]
            reply = stream.reply
            assert reply is not None
            assert whole.text
            assert reply.text == "".join(event.text for event in events if isinstance(event, TextDelta))
            assert whole.usage.completion_tokens == reply.usage.completion_tokens == 6
            assert whole.finish_reason == reply.finish_reason == "length"
            assert reply.seen.ttft_s is not None
            assert 0 < reply.seen.ttft_s < reply.seen.e2e_s

    asyncio.run(ask())
    assert free_tokens(routed) == 2048


def test_a_stream_comes_in_pieces_and_ends_with_a_reply(llama_one: EmbeddedServer) -> None:
    with Client(router(deployment(llama_one.url))) as client, client.stream(HELLO, body=SHORT) as events:
        assert events.decision.deployment == "here"
        first = next(events)
        assert isinstance(first, TextDelta)
        assert events.reply is None
        rest = list(events)
        assert rest[-2:] == [Finished("length"), Usage(32, 6, rest[-1].cached_tokens)]  # type: ignore[union-attr]
        assert list(events) == []
    reply = events.reply
    assert reply is not None
    assert reply.text == "".join(event.text for event in [first, *rest] if isinstance(event, TextDelta))
    assert reply.usage.completion_tokens == 6
    assert reply.seen.ttft_s is not None
    assert 0 < reply.seen.ttft_s < reply.seen.e2e_s


def test_a_schema_gives_json_that_keeps_it(llama_one: EmbeddedServer) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": schema}}
    with Client(router(deployment(llama_one.url))) as client:
        reply = client.chat(HELLO, body={"response_format": form, "max_tokens": 200, "temperature": 0})
    assert isinstance(json.loads(reply.text)["ok"], bool)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_tool_call_comes_back(llama_tools: EmbeddedServer, streaming: bool) -> None:
    # This small model calls a tool once its answer is begun for it.
    messages = [
        {"role": "user", "content": "Weather in Paris?"},
        {"role": "assistant", "content": "<tool_call>\n"},
    ]
    body = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60, "temperature": 0}
    with Client(router(deployment(llama_tools.url))) as client:
        if streaming:
            with client.stream(messages, body=body) as events:
                pieces = [event for event in events if isinstance(event, ToolCallDelta)]
            assert len(pieces) > 1
            assert events.reply is not None
            reply = events.reply
            assert reply.seen.ttft_s is not None
        else:
            reply = client.chat(messages, body=body)
    call = reply.tool_calls[0]
    assert call.name == "get_weather"
    assert call.id
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")


def test_a_prompt_that_is_too_long_is_an_overflow_with_its_numbers(llama_split: EmbeddedServer) -> None:
    long = [{"role": "user", "content": "word " * 600}]
    routed = router(deployment(llama_split.url))
    with Client(routed) as client:
        with pytest.raises(BackendError, match=r"631 tokens.*512 tokens") as whole:
            client.chat(long, body=SHORT)
        with pytest.raises(BackendError) as streamed, client.stream(long, body=SHORT) as events:
            list(events)
    for error in (whole.value, streamed.value):
        assert (error.kind, error.status) == (FailureKind.CONTEXT_OVERFLOW, 400)
        assert (error.deployment, error.url) == ("here", llama_split.url)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"temperature": "hot"}, "type must be number, but is string"),
        ({"response_format": {"type": "nope"}}, "response_format type must be one of"),
    ],
)
def test_a_body_that_the_server_refuses_is_a_bad_request_in_its_words(
    llama_split: EmbeddedServer, body: dict[str, Any], words: str
) -> None:
    with Client(router(deployment(llama_split.url))) as client, pytest.raises(BackendError) as caught:
        client.chat(HELLO, body=body)
    assert caught.value.kind is FailureKind.BAD_REQUEST
    assert words in caught.value.detail


def test_two_streams_that_overflow_a_shared_memory_fail_with_the_text_so_far(llama_unified: EmbeddedServer) -> None:
    routed = router(deployment(llama_unified.url))

    async def ask(client: AsyncClient) -> BackendError:
        with pytest.raises(BackendError) as caught:
            async with client.stream(HELLO, body={**ENDLESS, "max_tokens": 200}) as events:
                async for _ in events:
                    pass
        return caught.value

    async def both() -> list[BackendError]:
        async with AsyncClient(routed) as client:
            return list(await asyncio.gather(ask(client), ask(client)))

    for error in asyncio.run(both()):
        assert error.kind is FailureKind.CONTEXT_OVERFLOW
        assert "Context size has been exceeded" in error.detail
        assert len(error.text) > 20
    idle(llama_unified)


def test_the_same_two_wait_for_each_other_when_the_pool_is_known(llama_unified: EmbeddedServer) -> None:
    routed = router(deployment(llama_unified.url, pool_tokens=256))
    task = Task(context_tokens=100, max_output_tokens=30)  # of 256 tokens it takes more than a half

    async def both() -> list[Reply]:
        async with AsyncClient(routed) as client:
            return await asyncio.gather(*(client.chat(HELLO, task=task, body=ENDLESS) for _ in range(2)))

    assert [reply.usage.completion_tokens for reply in asyncio.run(both())] == [30, 30]
    assert free_tokens(routed) == 256


def test_streams_one_after_the_other_never_meet_a_connection_that_the_server_dropped(llama_one: EmbeddedServer) -> None:
    with Client(router(deployment(llama_one.url))) as client:
        for _ in range(40):
            with client.stream(HELLO, body={"max_tokens": 1}) as events:
                assert list(events)


@pytest.mark.alone
def test_leaving_a_stream_frees_the_slot_within_a_second(llama_one: EmbeddedServer) -> None:
    routed = router(deployment(llama_one.url, pool_tokens=2048))
    with Client(routed) as client:
        with client.stream(HELLO, body={**ENDLESS, "max_tokens": 1500}) as events:
            next(events)
        left = time.monotonic()
        assert free_tokens(routed) < 2048, "the server needs a moment to notice, so the hold stays"
        idle(llama_one)
        assert time.monotonic() - left < 1.0
        time.sleep(adapter("llamacpp").release_delay_s(streaming=True))
        assert free_tokens(routed) == 2048
        with pytest.raises(UsageError, match="the stream is closed"):
            next(events)
    assert events.reply is None


def test_cancelling_a_chat_closes_its_connection_and_frees_the_slot(llama_one: EmbeddedServer) -> None:
    routed = router(deployment(llama_one.url, pool_tokens=2048))

    async def cancel() -> None:
        async with AsyncClient(routed) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.chat(HELLO, body={**ENDLESS, "max_tokens": 1500})
            async with client.stream(HELLO, body={**ENDLESS, "max_tokens": 1500}) as events:
                async for _ in events:
                    break

    asyncio.run(cancel())
    assert free_tokens(routed) < 2048
    idle(llama_one)


def test_one_client_serves_several_threads(llama_split: EmbeddedServer) -> None:
    routed = router(deployment(llama_split.url, pool_tokens=2048, served_model=None))
    with Client(routed) as client, ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(lambda _: client.chat(HELLO, body=SHORT), range(8)))
    assert {reply.usage.completion_tokens for reply in replies} == {6}
    assert free_tokens(routed) == 2048


def test_the_callers_own_errors_pass_through_the_block(llama_one: EmbeddedServer) -> None:
    mine = httpx.ReadError("mine")
    routed = router(deployment(llama_one.url))
    with Client(routed) as client, pytest.raises(httpx.ReadError) as caught, client.stream(HELLO, body=SHORT):
        raise mine
    assert caught.value is mine
    idle(llama_one)


# --- the client itself


def test_a_closed_client_says_so(llama_one: EmbeddedServer) -> None:
    client, twin = Client(router(deployment(llama_one.url))), AsyncClient(router(deployment(llama_one.url)))
    client.close()
    with pytest.raises(UsageError, match="the client is closed"):
        client.chat(HELLO)

    async def late() -> None:
        await twin.aclose()
        with pytest.raises(UsageError, match="the client is closed"):
            await twin.chat(HELLO)

    asyncio.run(late())


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"router": "agentroute.toml"},
            r"router must be a Router, such as Router\.from_config.*got 'agentroute\.toml'",
        ),
        ({"timeout": 5.0}, r"timeout must be a Timeout, got 5\.0"),
        ({"retry": 3}, "retry must be a Retry, got 3"),
        ({"observers": 5}, "observers must be a list of functions of an Ended, got 5"),
        ({"observers": [5]}, "observers must be a list of functions of an Ended, got 5"),
    ],
)
def test_a_client_says_what_it_is_made_of(kind: Callable[..., object], given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        kind(**{"router": router(deployment("http://127.0.0.1:9")), **given})


@pytest.mark.parametrize(
    "wrong", [{"connect_s": 0.0}, {"read_s": -1.0}, {"queue_s": -0.1}, {"queue_s": float("inf")}, {"read_s": "1"}]
)
def test_a_wait_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="finite number of seconds"):
        Timeout(**wrong)
