"""The extra ``fast``: the same calls over aiohttp, to a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from faults import FaultServer
from servers import WHOLE, Behaviour, Server, answers, deployment, free_port, router, says
from tenacity import retry, stop_after_delay, wait_fixed

from agentroute import pools
from agentroute.client import AsyncClient, Client, Reply, Retry
from agentroute.demo.embedded import EmbeddedServer
from agentroute.errors import BackendError, FailureKind
from agentroute.patience import Timeout
from agentroute.pools import Wire
from agentroute.wire import TextDelta

pytest.importorskip("aiohttp")

HELLO = [{"role": "user", "content": "Say hello"}]
SHORT = {"max_tokens": 6, "temperature": 0}


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_real_server_says_the_same_over_either_transport(llama_one: EmbeddedServer) -> None:
    routed = router(deployment(llama_one.url))
    said = []
    for wire in ("httpx", "aiohttp"):
        with Client(routed, transport=wire) as client:
            whole = client.chat(HELLO, body=SHORT)
            with client.stream(HELLO, body=SHORT) as events:
                text = "".join(event.text for event in events if isinstance(event, TextDelta))
            assert events.reply is not None
            completed = client.call("completions", {"prompt": "Once upon", **SHORT})
            body = json.dumps({"input": "Say hi", "max_output_tokens": 4, "temperature": 0, "stream": True}).encode()
            with client.forward(body, endpoint="responses") as answer:
                raw = b"".join(answer)
            assert answer.reply is not None
            assert b"response.completed" in raw
            said.append((whole.text, text, completed.text, answer.reply.text, whole.usage.completion_tokens))
    assert said[0] == said[1]
    assert all(said[0])


def test_leaving_a_stream_cancels_it_on_the_server(llama_one: EmbeddedServer) -> None:
    @retry(stop=stop_after_delay(10.0), wait=wait_fixed(0.05), reraise=True)
    async def idle(client: AsyncClient) -> None:
        async with httpx.AsyncClient(trust_env=False) as plain:
            slots = (await plain.get(f"{llama_one.url}/slots")).json()
        assert not [slot for slot in slots if slot["is_processing"]]

    async def leave() -> None:
        async with AsyncClient(router(deployment(llama_one.url)), transport="aiohttp") as client:
            async with client.stream(HELLO, body={"ignore_eos": True, "max_tokens": 1_500}) as events:
                assert await anext(events)
            await idle(client)

    asyncio.run(leave())


def test_many_calls_at_once_share_one_pool_and_leave_nothing_open() -> None:
    async def together(url: str) -> list[Reply]:
        async with AsyncClient(router(deployment(url)), transport="aiohttp") as client:
            replies = await asyncio.gather(*(client.chat([{"role": "user", "content": f"n{i}"}]) for i in range(64)))
            assert [pool.used for pool in client._means.pools._all] == [0]
            return replies

    with FaultServer() as server:
        replies = asyncio.run(together(server.url))

        @retry(stop=stop_after_delay(3.0), wait=wait_fixed(0.01), reraise=True)
        def closed() -> None:
            assert len(server.connections) == 0

        closed()
    assert [reply.text for reply in replies] == [f"n{i}" for i in range(64)]


@pytest.mark.parametrize(("variable", "fast"), [(None, True), ("HTTP_PROXY", False), ("NO_PROXY", True)])
def test_it_is_taken_by_itself_where_no_proxy_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, fast: bool
) -> None:
    if variable:
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert pools._is_fast.__closure__ is not None
    is_fast = pools._is_fast.__closure__[0].cell_contents  # conftest keeps it from the tests of httpx
    assert (is_fast("auto"), is_fast("aiohttp"), is_fast("httpx")) == (fast, True, False)


BASIC = "Basic " + b64encode(b"me:secret").decode()


@pytest.mark.parametrize("wire", ["httpx", "aiohttp"])
@pytest.mark.parametrize("key", [None, "sk-1"])
@pytest.mark.parametrize("user", ["", "me:secret@"])
def test_a_request_takes_a_proxy_from_the_environment_but_no_name_out_of_netrc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wire: Wire, key: str | None, user: str
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine backend.invalid login you password theirs\ndefault login you password theirs\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    if key:
        monkeypatch.setenv("A_KEY", key)
    with Server(answers(WHOLE)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{user}127.0.0.1:{proxy.port}")
        there = replace(deployment("http://backend.invalid:8000"), api_key_env="A_KEY" if key else None)
        with Client(router(there), retry=Retry(attempts=1), transport=wire) as client:
            assert client.chat(HELLO).text == "hi"
    (asked,) = proxy.asked
    assert asked.target == "http://backend.invalid:8000/v1/chat/completions"
    assert asked.headers.get("authorization") == (key and f"Bearer {key}")
    assert asked.headers.get("proxy-authorization") == (BASIC if user else None)


@pytest.mark.parametrize("wire", ["httpx", "aiohttp"])
@pytest.mark.parametrize("there", ["127.0.0.1", "127.0.0.1:{port}", "localhost,127.0.0.1", "*"])
def test_no_proxy_names_who_is_asked_without_one(monkeypatch: pytest.MonkeyPatch, wire: Wire, there: str) -> None:
    with Server(answers(WHOLE)) as server:
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{free_port()}")
        monkeypatch.setenv("no_proxy", there.format(port=server.port))
        with Client(router(deployment(server.url)), retry=Retry(attempts=1), transport=wire) as client:
            assert client.chat(HELLO).text == "hi"
        assert [asked.target for asked in server.asked] == ["/v1/chat/completions"]


@pytest.mark.parametrize("wire", ["httpx", "aiohttp"])
@pytest.mark.parametrize("behave", [None, says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\na")])
def test_what_is_said_of_a_broken_way_holds_no_address(behave: Behaviour | None, wire: Wire) -> None:
    with Server(behave or says(b"")) as server:
        url = server.url if behave else f"http://localhost:{free_port()}"
        once = Client(router(deployment(url)), retry=Retry(attempts=1), transport=wire)
        with once as client, pytest.raises(BackendError) as raised:
            client.chat(HELLO)
    assert raised.value.kind is FailureKind.UNAVAILABLE
    assert not {"localhost", "127.0.0.1"} & set(re.findall(r"[a-z0-9.]+", raised.value.detail))
    assert any(word in raised.value.detail for word in ("refused", "attempts failed", "HTTP"))


@pytest.mark.parametrize("wire", ["httpx", "aiohttp"])
def test_what_is_said_of_a_head_that_is_none_is_one_line(wire: Wire) -> None:
    with Server(says(b"HTTP/1.1 200 OK\r\nno header\r\n\r\n")) as server:
        once = Client(router(deployment(server.url)), retry=Retry(attempts=1), transport=wire)
        with once as client, pytest.raises(BackendError) as raised:
            client.chat(HELLO)
    assert raised.value.kind is FailureKind.UNAVAILABLE
    assert re.fullmatch(r"does not speak HTTP: .*'no header'\)?", raised.value.detail)


@pytest.mark.parametrize("wire", ["httpx", "aiohttp"])
def test_a_long_header_of_an_answer_is_taken(wire: Wire) -> None:
    behave = answers(WHOLE, headers={"content-security-policy": "a" * 20_000})
    with Server(behave) as server, Client(router(deployment(server.url)), transport=wire) as client:
        assert client.chat(HELLO).text == "hi"


@pytest.mark.parametrize("wire", ["httpx", "aiohttp"])
def test_a_long_prompt_is_sent_without_a_warning(wire: Wire) -> None:
    long = [{"role": "user", "content": "x" * 1_200_000}]
    with Server(answers(WHOLE)) as server, Client(router(deployment(server.url)), transport=wire) as client:
        assert client.chat(long).text == "hi"
    assert server.asked[-1].headers["content-type"] == "application/json"
    assert int(server.asked[-1].headers["content-length"]) == len(server.asked[-1].body)
    assert json.loads(server.asked[-1].body)["messages"] == long


TOO_LARGE = b"HTTP/1.1 413 X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize("said", [b"", TOO_LARGE], ids=["silent", "refuses"])
def test_what_a_server_does_not_read_is_let_go_of_with_the_connection(said: bytes) -> None:
    """Else every call to a server that hangs would keep its prompt, and a socket, for ever."""
    size = 20_000_000  # more than the system's buffers hold

    def read_at_last(connection: socket.socket) -> int:
        connection.settimeout(10.0)
        count = 0
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 20):
                count += len(piece)
        return count

    async def call(listener: socket.socket) -> int:
        routed, accepted = router(deployment(f"http://127.0.0.1:{listener.getsockname()[1]}")), []

        def take() -> None:
            connection, _ = listener.accept()
            connection.recv(100)
            connection.sendall(said)
            accepted.append(connection)

        taking = asyncio.create_task(asyncio.to_thread(take))
        waits, once = Timeout(read_s=0.5, times=0.0), Retry(attempts=1)
        async with AsyncClient(routed, timeout=waits, retry=once, transport="aiohttp") as client:
            with pytest.raises(BackendError):
                await client.chat([{"role": "user", "content": "x" * size}])
            await taking
            with accepted[0] as connection:
                return await asyncio.to_thread(read_at_last, connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10.0)
        assert asyncio.run(call(listener)) < size


@pytest.mark.parametrize("wire", ["httpx", "aiohttp"])
@pytest.mark.parametrize("path", ["/a%2Fb", "/a%3Fb", "/100%25", "/a%20b"])
def test_what_a_base_url_has_escaped_stays_so(path: str, wire: Wire) -> None:
    with Server(answers(WHOLE)) as server:
        once = Client(router(deployment(f"{server.url}{path}/v1")), retry=Retry(attempts=1), transport=wire)
        with once as client:
            assert client.chat(HELLO).text == "hi"
    assert [asked.target for asked in server.asked] == [f"{path}/v1/chat/completions"]
