"""The routing transport: what it routes and what it leaves alone, hints, errors, streams, and whose keys go where."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import faults
import httpx as plain_httpx
import pytest
from faults import Connection, FaultServer, Question, closed
from fleets import Watched, nothing_is_held, profile
from servers import Server, answers

from agentroute import hint
from agentroute.client import AsyncClient, Client
from agentroute.errors import UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.integrations.transport import BASE_URL, routing_transport
from agentroute.route import Route
from agentroute.router import Router
from agentroute.task import Slo

MODULES = [name for name in ("httpx", "httpx2") if find_spec(name)]
CHAT = "/chat/completions"
HI = {"model": "auto", "messages": [{"role": "user", "content": "hi there"}]}


@pytest.fixture(params=MODULES)
def httpx(request: pytest.FixtureRequest) -> ModuleType:
    return import_module(request.param)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        server.bodies = []
        yield server


def body_of(server: FaultServer) -> Any:
    """What the server was sent, as JSON."""
    assert server.bodies is not None
    (body,) = server.bodies
    return json.loads(body)


def router_for(server: FaultServer, **more: Any) -> Watched:
    one = Deployment("one", profile(kv_blocks=1_000, window=2_000), urls=(server.url,), served_model="m")
    return Watched(Fleet([one]), **more)


def post(
    httpx: ModuleType, router: Any, body: Any, *, url: str = BASE_URL + CHAT, way: str = "sync", **more: Any
) -> Any:
    """The answer, read to its end."""
    transport = routing_transport(router, httpx=httpx, **more.pop("transport", {}))
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def ask() -> Any:
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.post(url, content=content, **more)

    if way == "async":
        return asyncio.run(ask())
    with httpx.Client(transport=transport) as client:
        return client.post(url, content=content, **more)


BOTH = pytest.mark.parametrize("way", ["sync", "async"])


@BOTH
def test_a_request_for_auto_is_routed(httpx: ModuleType, server: FaultServer, way: str) -> None:
    router = router_for(server)
    answer = post(httpx, router, HI, way=way)
    assert (answer.status_code, answer.content) == (200, faults.completion("hi there"))
    assert type(answer) is httpx.Response
    assert answer.headers["x-agentroute-deployment"] == "one"
    assert answer.headers["x-agentroute-reason"]
    assert answer.headers["content-type"] == "application/json"
    nothing_is_held(router)


def test_a_measured_deployments_first_token_is_told(server: FaultServer) -> None:
    from fleets import grid

    one = Deployment("one", profile(points=grid(1.0)), urls=(server.url,), served_model="m")
    answer = post(plain_httpx, Router(Fleet([one])), HI)
    assert float(answer.headers["x-agentroute-predicted-ttft-ms"]) > 0


@BOTH
def test_a_stream_is_what_a_direct_call_without_usage_brings(httpx: ModuleType, server: FaultServer, way: str) -> None:
    answer = post(httpx, router_for(server), {**HI, "stream": True}, way=way)
    sent = [piece[piece.index(b"\r\n") + 2 : -2] for piece in faults.whole("hi there")[1:-1]]
    assert answer.content == b"".join(piece for piece in sent if b'"usage"' not in piece)
    assert answer.headers["content-type"] == "text/event-stream"
    asked = post(httpx, router_for(server), {**HI, "stream": True, "stream_options": {"include_usage": True}}, way=way)
    assert asked.content == b"".join(sent)


def test_a_body_that_names_the_servers_model_otherwise_keeps_its_bytes(server: FaultServer) -> None:
    body = b'{"messages":   [{"role":"user","content":"hi \\u00e9 \\"model\\": \\"auto\\""}],'
    body += b'\n "model" : "auto","max_tokens": 3}'
    post(plain_httpx, router_for(server), body)
    assert server.bodies == [body.replace(b' : "auto"', b' : "m"')]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "auto", "messages": [{"role":"user","content":"a"}], "x": {"model": "auto"}}',
        b'{"\\u006dodel": "auto", "messages": [{"role":"user","content":"a"}], "x": {"model": "auto"}}',
        b'{"model": "gpt", "model": "auto", "messages": [{"role":"user","content":"a"}]}',
        b'{"model": "\\u0061uto", "messages": [{"role":"user","content":"a"}]}',
    ],
)
def test_a_body_whose_model_is_hard_to_find_says_the_same_anew(server: FaultServer, body: bytes) -> None:
    post(plain_httpx, router_for(server), body)
    assert body_of(server) == {**json.loads(body), "model": "m"}


def test_a_body_is_read_once(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    loads = json.loads

    def counted(data: Any, **more: Any) -> Any:
        read.append(data)
        return loads(data, **more)

    monkeypatch.setattr(json, "loads", counted)
    body = json.dumps(HI).encode()
    with Client(router_for(server)) as client:
        post(plain_httpx, client, body)
    assert read.count(body) == 1


# --- what is not routed


@BOTH
@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("http://elsewhere.test/v1/chat/completions", HI),
        ("https://api.test/v1/chat/completions", {**HI, "model": "gpt-5"}),
        ("https://api.test/v1/chat/completions", b"no JSON"),
        ("https://api.test/v1/chat/completions", b"[1]"),
        ("https://api.test/v1/files", HI),
        ("https://api.test/other/chat/completions", HI),
    ],
)
def test_all_else_goes_to_the_inner_transport_untouched(
    httpx: ModuleType, server: FaultServer, way: str, url: str, body: Any
) -> None:
    seen: list[Any] = []

    def inner(request: Any) -> Any:
        seen.append((str(request.url), request.content, request.headers["authorization"]))
        return httpx.Response(207, content=b"theirs", headers={"x-theirs": "yes"})

    more = {"inner": httpx.MockTransport(inner), "base_url": "https://api.test/v1"}
    answer = post(
        httpx, router_for(server), body, url=url, way=way, transport=more, headers={"authorization": "Bearer k"}
    )
    assert (answer.status_code, answer.content, answer.headers["x-theirs"]) == (207, b"theirs", "yes")
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert seen == [(url, content, "Bearer k")]
    assert not server.asked


def test_at_a_providers_own_address_auto_is_routed(httpx: ModuleType, server: FaultServer) -> None:
    more = {"inner": httpx.MockTransport(lambda request: httpx.Response(500)), "base_url": "https://api.test/v1/"}
    answer = post(httpx, router_for(server), HI, url="https://api.test/v1/chat/completions", transport=more)
    assert answer.content == faults.completion("hi there")


@BOTH
def test_a_servers_headers_may_hold_any_character(httpx: ModuleType, server: FaultServer, way: str) -> None:
    server.fault = faults.says(
        faults.answer(200, faults.completion("hi"), "application/json", "x-by: caf\u00e9 \u20ac")
    )
    answer = post(httpx, router_for(server), HI, way=way)
    assert (answer.status_code, answer.content) == (200, faults.completion("hi"))
    assert (b"x-by", "caf\u00e9 \u20ac".encode()) in answer.headers.raw


@BOTH
def test_at_the_address_of_nobody_what_is_not_routed_is_told_so(
    httpx: ModuleType, server: FaultServer, way: str
) -> None:
    answer = post(httpx, router_for(server), {**HI, "model": "gpt-5"}, way=way)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert answer.json()["error"]["message"].endswith("is routed for the model auto or auto:ROUTE alone, got 'gpt-5'")
    assert answer.headers["x-should-retry"] == "false"
    elsewhere = post(httpx, router_for(server), HI, url=BASE_URL + "/files", way=way)
    assert "POST /v1/files is not routed" in elsewhere.json()["error"]["message"]


def test_models_are_listed(httpx: ModuleType, server: FaultServer) -> None:
    transport = routing_transport(router_for(server, routes=[Route(name="fast")]), httpx=httpx)
    with httpx.Client(transport=transport) as client:
        listed = client.get(BASE_URL + "/models").json()
    assert [model["id"] for model in listed["data"]] == ["auto", "auto:fast"]


# --- keys and hints


@BOTH
def test_the_callers_key_reaches_no_server(
    httpx: ModuleType, server: FaultServer, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[dict[str, str]] = []

    async def watch(asked: Question, out: Connection) -> None:
        heads.append(asked.headers)
        await faults.good(asked, out)

    server.fault = watch
    monkeypatch.setenv("ONES_KEY", "ours")
    for key in (None, "ONES_KEY"):
        one = Deployment("one", profile(), urls=(server.url,), served_model="m", api_key_env=key)
        headers = {"authorization": "Bearer theirs", "cookie": "theirs", "openai-organization": "theirs"}
        assert post(httpx, Router(Fleet([one])), HI, way=way, headers=headers).status_code == 200
    assert not any("theirs" in value for head in heads for value in head.values())
    assert [head.get("authorization") for head in heads] == [None, "Bearer ours"]


@BOTH
def test_metadata_comes_before_headers_and_those_before_what_is_said_around(
    httpx: ModuleType, server: FaultServer, way: str
) -> None:
    router = router_for(server)
    body = {**HI, "metadata": {"agentroute_concurrency": "2", "user": "u"}}
    headers = {"x-agentroute-concurrency": "3", "x-llm-d-slo-ttft-ms": "9000", "x-session-id": "s"}
    with hint(concurrency=4, ttft_ms=1, deadline_s=30, priority="batch"):
        assert post(httpx, router, body, way=way, headers=headers).status_code == 200
    (task,) = router.tasks
    assert (task.concurrency, task.session_id, task.priority) == (2, "s", "batch")
    assert (task.ttft_ms, task.deadline_s) == (Slo(9000.0, hard=False), Slo(30, hard=False))
    assert body_of(server) == {**HI, "model": "m", "metadata": {"user": "u"}}


def test_metadata_of_hints_alone_is_gone_before_the_wire(server: FaultServer) -> None:
    post(plain_httpx, router_for(server), {**HI, "metadata": {"agentroute_step": 2}})
    assert body_of(server) == {**HI, "model": "m"}


def test_what_the_sdk_has_sent_before_is_not_repeated_here(server: FaultServer) -> None:
    server.fault = faults.says(faults.answer(503, b'{"error": {"message": "starting"}}'))
    post(plain_httpx, router_for(server), HI, headers={"x-stainless-retry-count": "1"})
    assert server.asked.total() == 1


@pytest.mark.parametrize(
    ("model", "headers", "route"),
    [
        ("auto", {}, "default"),
        ("auto:fast", {}, "fast"),
        ("auto", {"x-agentroute-route": "fast"}, "fast"),
        ("auto:fast", {"x-agentroute-route": "slow"}, "fast"),
    ],
)
def test_the_models_name_or_a_hint_is_the_route(server: FaultServer, model: str, headers: Any, route: str) -> None:
    router = router_for(server, routes=[Route(name="fast", ttft_ms=5_000), Route(name="slow")])
    assert post(plain_httpx, router, {**HI, "model": model}, headers=headers).status_code == 200
    assert router.tasks[0].route == route


def test_a_hint_cannot_lift_the_routes_limit(server: FaultServer) -> None:
    router = router_for(server, routes=[Route(name="fast", ttft_ms=Slo(500, stat="p95", hard=False))])
    for said in ("900", "100"):
        post(plain_httpx, router, {**HI, "model": "auto:fast"}, headers={"x-slo-ttft-ms": said})
    assert [task.ttft_ms for task in router.tasks] == [None, Slo(100.0, stat="p95", hard=False)]


# --- errors


@BOTH
@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ({**HI, "messages": [{"role": "user", "content": "word " * 5_000}]}, {}, 400, "context_length_exceeded"),
        ({**HI, "messages": "hi"}, {}, 400, None),
        ({**HI, "max_tokens": 0}, {}, 400, None),
        ({**HI, "metadata": {"agentroute_step": "x"}}, {}, 400, None),
        (HI, {"x-agentroute-concurrency": "x"}, 400, None),
        ({**HI, "model": "auto:fats"}, {}, 404, "model_not_found"),
        (HI, {"x-agentroute-max-cost-usd": "1"}, 422, "no_feasible_deployment"),
    ],
)
def test_an_error_is_an_answer_that_is_not_to_be_repeated(
    httpx: ModuleType, server: FaultServer, way: str, body: Any, headers: dict[str, str], status: int, code: str | None
) -> None:
    router = router_for(server)
    answer = post(httpx, router, body, way=way, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == "false"
    assert not server.asked
    nothing_is_held(router)


def test_a_server_that_is_full_is_told_with_its_own_wait(server: FaultServer) -> None:
    server.fault = faults.says(
        faults.answer(429, b'{"error": {"message": "busy"}}', "application/json", "retry-after: 60")
    )
    answer = post(plain_httpx, router_for(server), HI)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    assert answer.headers["x-should-retry"] == "false"
    assert server.url.encode() not in answer.content


@BOTH
def test_a_stream_that_breaks_after_an_event_ends_with_an_error_event(
    httpx: ModuleType, server: FaultServer, way: str
) -> None:
    server.fault = faults.reset_after_content
    router = router_for(server)
    answer = post(httpx, router, {**HI, "stream": True}, way=way)
    *_, last = answer.content.decode().strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "interrupted"
    nothing_is_held(router)


@BOTH
def test_a_callers_read_timeout_is_kept(httpx: ModuleType, server: FaultServer, way: str) -> None:
    server.fault = faults.silent
    router = router_for(server)
    with pytest.raises(httpx.ReadTimeout, match=r"read timeout of 0\.2 s") as caught:
        post(httpx, router, HI, way=way, timeout=httpx.Timeout(5.0, read=0.2))
    assert isinstance(caught.value.request, httpx.Request)
    nothing_is_held(router)
    closed(server)


# --- streams that are left


def endless(pause_s: float = 0.02) -> Callable[[Question, Connection], Any]:
    async def fault(asked: Question, out: Connection) -> None:
        out.write(faults.HEAD + faults.delta(None))
        while not out.transport.is_closing():
            out.write(faults.delta("on "))
            await out.drain()
            await asyncio.sleep(pause_s)

    return fault


@BOTH
def test_a_stream_comes_as_it_is_said_and_ends_when_it_is_left(
    httpx: ModuleType, server: FaultServer, way: str
) -> None:
    server.fault = endless()
    router = router_for(server)
    transport = routing_transport(router, httpx=httpx)
    content = json.dumps({**HI, "stream": True}).encode()

    async def take() -> None:
        async with (
            httpx.AsyncClient(transport=transport) as client,
            client.stream("POST", BASE_URL + CHAT, content=content) as answer,
        ):
            chunks = answer.aiter_bytes()
            assert [await anext(chunks) for _ in range(3)]
            assert server.connections

    if way == "async":
        asyncio.run(take())
    else:
        with (
            httpx.Client(transport=transport) as client,
            client.stream("POST", BASE_URL + CHAT, content=content) as answer,
        ):
            chunks = answer.iter_bytes()
            assert [next(chunks) for _ in range(3)]
            assert server.connections
    closed(server)
    nothing_is_held(router)


def test_a_cancelled_task_lets_go(httpx: ModuleType, server: FaultServer) -> None:
    server.fault = faults.silent
    router = router_for(server)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=routing_transport(router, httpx=httpx)) as client:
            task = asyncio.create_task(client.post(BASE_URL + CHAT, json=HI))
            await asyncio.sleep(0.2)
            assert server.connections
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            nothing_is_held(router)

    asyncio.run(ask())
    closed(server)


# --- clients


def test_one_transport_serves_several_event_loops(httpx: ModuleType, server: FaultServer) -> None:
    transport = routing_transport(router_for(server), httpx=httpx)

    async def ask() -> int:
        client = httpx.AsyncClient(transport=transport)
        status: int = (await client.post(BASE_URL + CHAT, json=HI)).status_code
        await transport.aclose()
        return status

    assert [asyncio.run(ask()) for _ in range(2)] == [200, 200]


def test_a_client_that_is_given_is_used_and_left_open(server: FaultServer) -> None:
    with Client(router_for(server)) as given:
        for _ in range(2):
            assert post(plain_httpx, given, HI).status_code == 200

    async def ask() -> list[int]:
        async with AsyncClient(router_for(server)) as given:
            statuses = []
            for _ in range(2):
                async with plain_httpx.AsyncClient(transport=routing_transport(given)) as client:
                    statuses.append((await client.post(BASE_URL + CHAT, json=HI)).status_code)
            return statuses

    assert asyncio.run(ask()) == [200, 200]


@pytest.mark.parametrize(("router", "module"), [("none", None), (None, json)])
def test_what_is_no_router_or_no_httpx_is_refused(server: FaultServer, router: Any, module: Any) -> None:
    with pytest.raises(UsageError):
        routing_transport(router or router_for(server), httpx=module)


@pytest.mark.parametrize("base_url", ["nope", "", "ftp://x/v1", "http://", "http://x/v1?a=b", None])
def test_what_is_no_address_is_refused(server: FaultServer, base_url: Any) -> None:
    with pytest.raises(UsageError, match=r"^base_url must "):
        routing_transport(router_for(server), base_url=base_url)


@pytest.mark.parametrize(
    ("endpoint", "body", "said"),
    [
        ("/completions", {"prompt": "hi"}, {"choices": [{"text": "yes", "finish_reason": "stop"}]}),
        ("/responses", {"input": "hi"}, {"status": "completed", "output": []}),
        ("/embeddings", {"input": "hi"}, {"data": [{"embedding": [0.5], "index": 0}]}),
    ],
)
def test_the_other_endpoints_are_routed(httpx: ModuleType, endpoint: str, body: Any, said: Any) -> None:
    with Server(answers(json.dumps(said))) as server:
        one = Deployment("one", profile(), urls=(server.url,), served_model="m")
        answer = post(httpx, Router(Fleet([one])), {"model": "auto", **body}, url=BASE_URL + endpoint)
        assert (answer.status_code, answer.json()) == (200, said)
        (asked,) = server.asked
    assert (asked.target, json.loads(asked.body)) == ("/v1" + endpoint, {"model": "m", **body})
