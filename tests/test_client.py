"""The clients: against real llama.cpp servers, and against servers and ways that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
import trustme
from servers import (
    Asked,
    Behaviour,
    Server,
    answers,
    deployment,
    forwards,
    free_port,
    read_request,
    router,
    says,
    silent,
    silent_after,
    streams,
)
from tenacity import retry, stop_after_delay, wait_fixed

from agentroute import transport
from agentroute.adapters import adapter
from agentroute.client import AsyncClient, Client, Reply, Retry, Timeout
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.errand import prepare
from agentroute.errors import BackendError, FailureKind, NoFeasibleDeployment, PoolFull, UnknownNameError, UsageError
from agentroute.probe import probe
from agentroute.router import Router
from agentroute.task import Task
from agentroute.tokens import estimate
from agentroute.wire import Finished, TextDelta, ToolCallDelta, Usage

HELLO = [{"role": "user", "content": "Say hello"}]
SHORT = {"max_tokens": 6, "temperature": 0}
ENDLESS = {"ignore_eos": True, "temperature": 0}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                "required": ["city"],
            },
        },
    }
]


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def free_tokens(routed: Router) -> int:
    """What is not held of the only deployment's KV pool."""
    headroom = routed.decide(Task(context_tokens=1, max_output_tokens=1)).candidates[0].headroom
    assert headroom is not None
    return headroom.free


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
    task = Task(context_tokens=60, max_output_tokens=75)

    async def both() -> list[Reply]:
        async with AsyncClient(routed) as client:
            return await asyncio.gather(*(client.chat(HELLO, task=task, body=ENDLESS) for _ in range(2)))

    assert [reply.usage.completion_tokens for reply in asyncio.run(both())] == [75, 75]
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


# --- the way to it


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_base_url_ends_in_v1_or_not(llama_split: EmbeddedServer, suffix: str) -> None:
    with Client(router(deployment(llama_split.url + suffix))) as client:
        assert client.chat(HELLO, body=SHORT).text
    assert probe(llama_split.url + suffix, adapter("llamacpp")).models == (MODEL_ALIAS,)


def test_a_server_may_stand_behind_a_path(llama_split: EmbeddedServer) -> None:
    with Server(forwards(llama_split.url, lambda target: target.removeprefix("/team/llm"))) as front:
        with Client(router(deployment(f"{front.url}/team/llm/v1", served_model=None))) as client:
            assert client.chat(HELLO, body=SHORT).text
            assert client.chat(HELLO, body=SHORT).text
        targets = [asked.target for asked in front.asked]
    chats = ["/team/llm/v1/chat/completions"] * 2
    assert targets == ["/team/llm/v1/models", "/team/llm/props", *chats], "the model's name is asked for once"


def test_a_proxy_from_the_environment_is_used(llama_split: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def path(target: str) -> str:
        return target.removeprefix("http://backend.invalid:8000")

    with Server(forwards(llama_split.url, path)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        routed = router(deployment("http://backend.invalid:8000"))
        with Client(routed) as client:
            assert client.chat(HELLO, body=SHORT).text
            with client.stream(HELLO, body=SHORT) as events:
                assert list(events)
        assert asyncio.run(_chat(routed)).text
        assert probe("http://backend.invalid:8000", adapter("openai")).models == (MODEL_ALIAS,)
        assert len(proxy.asked) == 4


def test_a_private_authority_from_the_environment_is_trusted(
    llama_split: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with Server(forwards(llama_split.url), tls=tls) as front:
        routed = router(deployment(f"https://127.0.0.1:{front.port}/v1"))
        with Client(routed) as client, pytest.raises(BackendError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            client.chat(HELLO, body=SHORT)
        assert caught.value.kind is FailureKind.UNAVAILABLE
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        with Client(routed) as client:
            assert client.chat(HELLO, body=SHORT).text
        assert asyncio.run(_chat(routed)).text


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SSL_CERT_FILE", "/no/such/file.pem"), ("HTTP_PROXY", "gopher://x")],
)
def test_a_wrong_setting_in_the_environment_is_one_sentence(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    wrong = "the proxy or certificate settings in the environment are wrong"
    with Client(router(deployment("http://127.0.0.1:9"))) as client, pytest.raises(UsageError, match=wrong):
        client.chat(HELLO)


async def _chat(routed: Router) -> Reply:
    async with AsyncClient(routed) as client:
        return await client.chat(HELLO, body=SHORT)


# --- bad servers

CHUNK = '{"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
WHOLE = '{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}'


@pytest.mark.parametrize(
    ("behave", "kind", "words"),
    [
        (silent, FailureKind.TIMEOUT, "was silent for 0.3 s"),
        (says(b""), FailureKind.INTERRUPTED, "the connection broke"),
        (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), FailureKind.UNAVAILABLE, "does not speak HTTP"),
        (answers("<html>hi</html>", content_type="text/html"), FailureKind.UNAVAILABLE, "answered HTML, not JSON"),
        (answers("<title>Oops</title>", status=502), FailureKind.UNAVAILABLE, "answered HTML: Oops"),
        (answers("", status=302, headers={"location": "/login"}), FailureKind.UNAVAILABLE, "redirects"),
        (answers("", status=401), FailureKind.AUTH, "the body is empty"),
        (answers('{"error":{"message":"full","code":429}}'), FailureKind.OVERLOADED, "full"),
        (answers("x" * 1_000_000, status=500), FailureKind.UNAVAILABLE, "xxx..."),
        (answers("{}"), FailureKind.UNAVAILABLE, "without a choice"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_bad_answer_is_classified(behave: Behaviour, kind: FailureKind, words: str, streaming: bool) -> None:
    with Server(behave) as server:
        for error in _failures(server.url, streaming, patient=kind is not FailureKind.TIMEOUT):
            assert error.kind is kind
            assert words in error.detail
            assert error.url == server.url
            assert "\n" not in str(error)
        assert len(server.asked) == 2, "nothing is sent twice"


@pytest.mark.parametrize("url", [None, f"http://{'a' * 70}.invalid"], ids=["no HTTP", "no name"])
@pytest.mark.parametrize("wire", ["httpx", "aiohttp"])
def test_whatever_a_transport_raises_the_next_candidate_answers(
    wire: Literal["httpx", "aiohttp"], url: str | None
) -> None:
    if wire == "aiohttp":
        pytest.importorskip("aiohttp")
    with Server(says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")) as wrong, Server(answers(WHOLE)) as right:
        first = deployment(url or wrong.url, name="wrong", pool_tokens=100_000)
        routed = router(first, deployment(right.url, name="right"))
        with Client(routed, transport=wire) as client:
            assert client.chat(HELLO).decision.deployment == "right"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_server_that_is_down_is_unavailable(streaming: bool) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for error in _failures(url, streaming):
        assert error.kind is FailureKind.UNAVAILABLE
        assert "cannot be reached" in error.detail


@pytest.mark.parametrize(
    ("behave", "kind", "words", "text"),
    [
        (streams([CHUNK % "one", CHUNK % " two"], whole=False), FailureKind.INTERRUPTED, "broke", "one two"),
        (streams([CHUNK % "one"]), FailureKind.INTERRUPTED, "ended before the answer did", "one"),
        (streams([]), FailureKind.INTERRUPTED, "ended before the answer did", ""),
        (streams([CHUNK % "one", '{"choices":[{"d']), FailureKind.INTERRUPTED, "not JSON", "one"),
        (
            streams([CHUNK % "one", '{"error":{"message":"EngineCore encountered an issue.","code":500}}', "[DONE]"]),
            FailureKind.ENGINE_DEAD,
            "EngineCore",
            "one",
        ),
        (
            streams(['{"error":{"message":"The engine is currently busy","code":503}}', "[DONE]"]),
            FailureKind.OVERLOADED,
            "currently busy",
            "",
        ),
        (silent_after(STREAM_HEAD), FailureKind.TIMEOUT, "was silent for 0.3 s", ""),
        (
            silent_after(STREAM_HEAD + f"data: {CHUNK % 'one'}\n\n".encode()),
            FailureKind.TIMEOUT,
            "was silent for 0.3 s",
            "one",
        ),
        (says(STREAM_HEAD + b"data: " + b"x" * (2 << 20)), FailureKind.INTERRUPTED, "more than 1 MiB", ""),
        (says(STREAM_HEAD + b"<html>"), FailureKind.INTERRUPTED, "ended before the answer did", ""),
        (answers(WHOLE), FailureKind.UNAVAILABLE, "in one piece", ""),
    ],
)
def test_a_stream_that_goes_wrong_is_an_error_with_the_text_so_far(
    behave: Behaviour, kind: FailureKind, words: str, text: str
) -> None:
    with Server(behave) as server:
        for error in _failures(server.url, True, patient=kind is not FailureKind.TIMEOUT):
            assert (error.kind, error.text) == (kind, text)
            assert words in error.detail


@pytest.mark.parametrize("end", [["[DONE]"], []])
def test_a_stream_is_whole_when_it_is_done_or_has_a_reason_to_stop(end: list[str]) -> None:
    events = [CHUNK % "one", '{"choices":[{"delta":{},"finish_reason":"stop"}]}', *end]
    with Server(streams(events)) as server, Client(router(deployment(server.url))) as client:
        with client.stream(HELLO) as stream:
            assert list(stream) == [TextDelta("one"), Finished("stop")]
        assert stream.reply is not None
        assert stream.reply.usage == Usage()


def test_streams_one_after_the_other_share_a_connection() -> None:
    once = streams([CHUNK % "one", "[DONE]"])

    def again_and_again(connection: socket.socket, asked: Asked | None) -> None:
        while asked is not None:
            once(connection, asked)
            asked = read_request(connection)

    async def twice(routed: Router) -> None:
        async with AsyncClient(routed) as client:
            for _ in range(2):
                async with client.stream(HELLO) as events:
                    assert [event async for event in events] == [TextDelta("one")]

    with Server(again_and_again) as server:
        routed = router(deployment(server.url, adapter="openai"))
        with Client(routed) as client:
            for _ in range(2):
                with client.stream(HELLO) as events:
                    assert list(events) == [TextDelta("one")]
        assert len(server.asked) == 1
        asyncio.run(twice(routed))
        assert len(server.asked) == 2


def test_an_answer_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1 << 20)
    with Server(answers("x" * (2 << 20))) as server:
        assert "larger than 1 MiB" in _failures(server.url, False)[0].detail


def test_the_callers_own_errors_pass_through_the_block(llama_one: EmbeddedServer) -> None:
    mine = httpx.ReadError("mine")
    routed = router(deployment(llama_one.url))
    with Client(routed) as client, pytest.raises(httpx.ReadError) as caught, client.stream(HELLO, body=SHORT):
        raise mine
    assert caught.value is mine
    idle(llama_one)


def _failures(url: str, streaming: bool, *, patient: bool = True) -> tuple[BackendError, BackendError]:
    """How the sync and the async client fail there, when they may send nothing twice."""
    routed, timeout = router(deployment(url)), Timeout(read_s=20.0 if patient else 0.3)

    def fail() -> None:
        with Client(routed, timeout=timeout, retry=Retry(attempts=1)) as client:
            if not streaming:
                client.chat(HELLO)
            with client.stream(HELLO) as events:
                list(events)

    async def afail() -> None:
        async with AsyncClient(routed, timeout=timeout, retry=Retry(attempts=1)) as client:
            if not streaming:
                await client.chat(HELLO)
            async with client.stream(HELLO) as events:
                async for _ in events:
                    pass

    with pytest.raises(BackendError) as one:
        fail()
    with pytest.raises(BackendError) as other:
        asyncio.run(afail())
    return one.value, other.value


# --- keys


def test_the_key_from_the_environment_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE_KEY", " sk-123456 \n")
    refusal = answers('{"error":{"message":"no such key: sk-123456"}}', status=401)
    with Server(refusal) as server:
        routed, words = router(deployment(server.url, api_key_env="HERE_KEY")), r"no such key: \*\*\*"
        with Client(routed) as client, pytest.raises(BackendError, match=words) as caught:
            client.chat(HELLO)
        with pytest.raises(BackendError, match=words):
            probe(server.url, adapter("openai"), api_key_env="HERE_KEY")
        assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer sk-123456"] * 2
    assert "sk-123456" not in str(caught.value)


def test_without_a_variable_no_key_is_sent() -> None:
    with Server(answers(WHOLE)) as server, Client(router(deployment(server.url))) as client:
        client.chat(HELLO)
        assert "authorization" not in server.asked[0].headers


@pytest.mark.parametrize("value", [None, "", "  ", "sk-a\nb", "sk-é"])
def test_a_key_that_is_missing_or_none_names_its_variable(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("HERE_KEY", value)
    words = "the environment variable HERE_KEY"
    routed = router(deployment("http://127.0.0.1:9", api_key_env="HERE_KEY"))
    with Client(routed) as client, pytest.raises(UsageError, match=words) as caught:
        client.chat(HELLO)
    assert "sk-" not in str(caught.value)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="must not hold a password") as caught:
        deployment("http://me:secret@127.0.0.1:8000")
    assert "secret" not in str(caught.value)


def test_a_key_that_a_server_echoes_is_nowhere_in_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE_KEY", key := "sk-" + "a1b2c3d4e5f6" * 4)
    padding = "x" * 270  # the message is cut at 300 characters, in the middle of the key
    for message in (f"bad key {key}", f"{padding} bad key {key}"):
        body = json.dumps({"error": {"message": message, "code": 401}})
        with Server(answers(body, status=401)) as server:
            routed = router(deployment(server.url, api_key_env="HERE_KEY"))
            with Client(routed) as client, pytest.raises(BackendError) as caught:
                client.chat(HELLO)
        shown = "".join(traceback.format_exception(caught.value))
        assert key[:6] not in shown
        assert "***" in str(caught.value)


@pytest.mark.parametrize("body", [{"n": 2}, {"best_of": 3}])
def test_several_answers_in_one_call_are_refused(body: dict[str, Any]) -> None:
    with Client(router(deployment("http://127.0.0.1:9"))) as client, pytest.raises(UsageError, match="ask several"):
        client.chat(HELLO, body=body)


def test_a_hard_deadline_goes_on_while_a_call_waits_for_room() -> None:
    routed = router(deployment("http://127.0.0.1:9", pool_tokens=100))
    task = Task(context_tokens=50, max_output_tokens=50)
    with routed.acquire(task), Client(routed) as client:
        started = time.monotonic()
        with pytest.raises(NoFeasibleDeployment):
            client.chat(HELLO, task=replace(task, deadline_s=0.5))
        assert time.monotonic() - started < 5


# --- what the caller gives


def test_a_deployment_without_a_url_can_not_be_called() -> None:
    routed = router(deployment(None))
    with Client(routed) as client, pytest.raises(UsageError, match="'here' has no URL"):
        client.chat(HELLO)


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


@pytest.mark.parametrize("name", ["task", "session"])
def test_what_is_no_task_or_session_is_refused_before_a_server_is_asked(name: str) -> None:
    words = rf"{name} must be a {name.title()} or None, got \{{'a': 1\}}"
    with Client(router(deployment("http://127.0.0.1:9"))) as client, pytest.raises(UsageError, match=words):
        client.chat(HELLO, **{name: {"a": 1}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x", "http://", "http://[", "http://x:99999", "http://x:y", "/v1"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not a"):
        probe(url, adapter("openai"))


def test_an_adapter_that_does_not_exist_is_refused_and_nothing_stays_held() -> None:
    routed = router(deployment("http://127.0.0.1:9", adapter="llamacp", pool_tokens=2048))
    with Client(routed) as client, pytest.raises(UnknownNameError, match="did you mean 'llamacpp'"):
        client.chat(HELLO)
    assert free_tokens(routed) == 2048


@pytest.mark.parametrize(
    ("messages", "body", "words"),
    [
        ("hi", None, "messages must be a list of mappings, got str"),
        ({"role": "user"}, None, "messages must be a list of mappings, got dict"),
        (["hi"], None, "every message must be a mapping"),
        (HELLO, [1], "body must be a mapping"),
        (HELLO, {"model": "x"}, "must not set 'model'"),
        (HELLO, {"temperature": float("nan")}, "must be JSON"),
        (HELLO, {"logit_bias": b"x"}, "must be JSON"),
        ([{"role": "user", "content": "\ud800"}], None, "must be JSON"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_nothing_stays_held(messages: Any, body: Any, words: str) -> None:
    routed = router(deployment("http://127.0.0.1:9", pool_tokens=2048))
    with Client(routed) as client:
        with pytest.raises(UsageError, match=words):
            client.chat(messages, body=body)
        with pytest.raises(UsageError, match=words), client.stream(messages, body=body):
            pass
    assert free_tokens(routed) == 2048


@pytest.mark.parametrize(
    ("task_limit", "body", "held", "sent"),
    [
        (None, {}, None, {}),
        (50, {}, 50, {"max_tokens": 50}),
        (None, {"max_tokens": 70}, 70, {"max_tokens": 70}),
        (None, {"max_completion_tokens": 70}, 70, {"max_completion_tokens": 70}),
        (50, {"max_tokens": 70}, 70, {"max_tokens": 70}),
        (50, {"max_tokens": 30}, 50, {"max_tokens": 30}),
        (50, {"max_tokens": None}, 50, {"max_tokens": 50}),
        (50, {"n_predict": 80}, 80, {"n_predict": 80}),
    ],
)
def test_the_output_that_is_asked_for_is_the_output_that_is_held(
    task_limit: int | None, body: dict[str, Any], held: int | None, sent: dict[str, Any]
) -> None:
    before = dict(body)
    task, fields = prepare(HELLO, Task(context_tokens=10, max_output_tokens=task_limit), body)
    assert task.max_output_tokens == held
    assert fields == sent
    assert body == before


def test_a_task_is_made_from_messages_and_tools() -> None:
    task, _ = prepare(HELLO, None, {"max_tokens": 7, "tools": TOOLS})
    assert task.max_output_tokens == 7
    assert task.needs == {"tools"}
    assert task.context_tokens > prepare(HELLO, None, None)[0].context_tokens


@pytest.mark.parametrize(
    "wrong", [{"connect_s": 0.0}, {"read_s": -1.0}, {"queue_s": -0.1}, {"queue_s": float("inf")}, {"read_s": "1"}]
)
def test_a_wait_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="finite number of seconds"):
        Timeout(**wrong)


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


# --- a full pool


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


@pytest.mark.parametrize("limit", ["many", -1, 0, 1.5, True, 10**40])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(UsageError, match="a whole number of tokens, at least 1"):
        prepare(HELLO, None, {"max_tokens": limit})


@pytest.mark.parametrize(
    "text",
    [
        "hi",
        "31415926535897932384626433832795" * 8,
        "aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0IHRleHQ=" * 6,
        "\u1019\u1004\u103a\u1039\u1002\u101c\u102c\u1015\u102b " * 12,
        "\U0001f600\U0001f680\U0001f9ea" * 10,
        "{}[]()<>!@#$%^&*~`|\\;:" * 8,
        "f47ac10b-58cc-4372-a567-0e02b2c3d479 " * 6,
        "The council liked the price of the third proposal and the look of the first. " * 4,
    ],
    ids=["a word", "digits", "base64", "Burmese", "emoji", "signs", "ids", "prose"],
)
def test_a_real_tokenizer_stays_below_the_upper_bound(llama_one: EmbeddedServer, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    with Client(router(deployment(llama_one.url))) as client:
        counted = client.chat(messages, body={"max_tokens": 1}).usage.prompt_tokens
    assert counted is not None and counted <= estimate(messages).upper
