"""Chats through a gateway that is served for real, to llama.cpp and to servers that misbehave."""

from __future__ import annotations

import json
import socket
import threading

import httpx
import pytest
from gateways import HELLO, Served
from servers import Asked, Server, answers, deployment, says, silent, streams

from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.patience import Timeout
from agentroute.route import Route


def piece(text: str, reason: str | None = None) -> str:
    """One event of a stream."""
    delta = {"content": text} if text else {}
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


WHOLE = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
)


def test_a_chat_is_answered_as_the_server_answers_it(llama_one: EmbeddedServer) -> None:
    direct = httpx.post(f"{llama_one.url}/v1/chat/completions", json={**HELLO, "model": MODEL_ALIAS}).json()
    with Served(deployment(llama_one.url, pool_tokens=2048)) as served:
        answer = served.chat()
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-agentroute-deployment"] == "here"
    assert "best by fit" in answer.headers["x-agentroute-reason"]
    assert answer.json()["choices"] == direct["choices"]
    assert answer.json()["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"] == 6


def test_a_stream_comes_as_events_and_ends_with_done(llama_one: EmbeddedServer) -> None:
    with (
        Served(deployment(llama_one.url, pool_tokens=2048)) as served,
        served.client.stream("POST", "/v1/chat/completions", json={**HELLO, "stream": True}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-agentroute-deployment"] == "here"
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    text = "".join(
        choice["delta"].get("content") or "" for line in lines[:-1] for choice in json.loads(line[6:])["choices"]
    )
    assert text


def test_the_bytes_are_passed_on_untouched() -> None:
    # Spaces and key order as no encoder of ours would write them.
    odd = '{"choices" : [ {"finish_reason":"stop","index":0,"message":{"content":"h\\u00e9","role":"assistant"}}]}'
    with Server(answers(odd)) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        assert served.chat().content == odd.encode()


@pytest.mark.parametrize("model", ["auto", "auto:batch", "smollm2-135m"])
def test_the_server_is_asked_for_its_own_model(model: str) -> None:
    with (
        Server(answers(WHOLE)) as upstream,
        Served(deployment(upstream.url, adapter="openai"), routes=(Route(name="batch"),)) as served,
    ):
        assert served.chat(model=model).status_code == 200
        sent = chats(upstream)[0]
        assert json.loads(sent.body)["model"] == "smollm2-135m"
        assert served.ended()[0]["route"] == ("batch" if model == "auto:batch" else "default")


def test_a_models_id_goes_to_its_own_deployments_alone() -> None:
    with Server(answers(WHOLE)) as one, Server(answers(WHOLE)) as two:
        fleet = [
            deployment(one.url, name="one", adapter="openai", served_model="qwen"),
            deployment(two.url, name="two", adapter="openai", served_model="llama"),
        ]
        with Served(*fleet) as served:
            went = [served.chat(model=model).headers["x-agentroute-deployment"] for model in ("llama", "qwen") * 3]
    assert went == ["two", "one"] * 3


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("gpt-5", "known: auto, smollm2-135m"),
        ("auto:nightly", "known: auto, smollm2-135m"),
        ("here", "known: auto, smollm2-135m"),
        ("auto:", "did you mean 'auto'?"),
    ],
)
def test_an_unknown_model_is_an_error_of_the_api(model: str, hint: str) -> None:
    with Server(answers(WHOLE)) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        answer = served.chat(model=model)
        assert not chats(upstream)
    error = answer.json()["error"]
    assert answer.status_code == 404
    assert (error["code"], error["type"]) == ("model_not_found", "invalid_request_error")
    assert error["message"] == f"there is no model {model!r}; {hint}"


@pytest.mark.parametrize("model", ["auto", "smollm2-135m"])
def test_an_unknown_route_of_a_hint_is_called_a_route(model: str) -> None:
    with Served(deployment("http://127.0.0.1:9")) as served:
        answer = served.chat(model=model, headers={"x-agentroute-route": "nightly"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no route 'nightly'; known: default"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages": []}',
        b'{"model": 7, "messages": []}',
        b'{"model": "auto"}',
        b'{"model": "auto", "messages": "hi"}',
        b'{"model": "auto", "messages": [1]}',
        b'{"model": "auto", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    ],
)
def test_a_malformed_request_is_the_callers_mistake(body: bytes) -> None:
    with Server(answers(WHOLE)) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        answer = served.client.post("/v1/chat/completions", content=body)
        assert not chats(upstream)
        assert served.chat().status_code == 200  # and nothing is broken by it
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("streaming", [False, True])
def test_who_goes_away_takes_his_request_along(streaming: bool) -> None:
    """The server sees its connection closed long before it would have answered."""
    begun = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: " + piece("Hi").encode() + b"\n\n"
    left = threading.Event()

    def behave(connection: socket.socket, asked: Asked) -> None:
        if asked.method == "GET":
            return
        if streaming:
            connection.sendall(begun)
        assert connection.recv(1) == b""
        left.set()

    with Server(behave) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        with pytest.raises(httpx.ReadTimeout):
            served.client.post("/v1/chat/completions", json={**HELLO, "stream": streaming}, timeout=1.0)
        assert left.wait(5.0)
        record = served.ended()[0]
    assert record["outcome"] == "cancelled"
    assert record["took_ms"] < 5_000


def test_a_failure_before_the_first_byte_goes_elsewhere() -> None:
    with Server(answers("{}", status=500)) as bad, Server(answers(WHOLE)) as good:
        fleet = [
            deployment(bad.url, name="bad", adapter="openai", pool_tokens=100_000),
            deployment(good.url, name="good", adapter="openai"),
        ]
        with Served(*fleet) as served:
            answer = served.chat()
        assert chats(bad)
    assert answer.status_code == 200
    assert answer.headers["x-agentroute-deployment"] == "good"


@pytest.mark.parametrize("stream", [False, True])
def test_a_servers_content_type_may_hold_any_character(stream: bool) -> None:
    kind = f"{'text/event-stream' if stream else 'application/json'}; x=\u20ac"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode()
    body = f"data: {WHOLE}\n\ndata: [DONE]\n\n" if stream else WHOLE
    with (
        Server(says(head + body.encode())) as upstream,
        Served(deployment(upstream.url, adapter="openai")) as served,
    ):
        answer = served.chat(stream=stream)
    assert (answer.status_code, answer.text) == (200, body)
    assert answer.headers["content-type"].isascii()


def test_a_stream_that_breaks_says_so_in_its_last_event() -> None:
    broken = streams([piece("Hel"), piece("lo")], whole=False)
    with Server(broken) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        answer = served.chat(stream=True)
        assert served.ended()[0]["outcome"] == "interrupted"
    events = [line for line in answer.text.splitlines() if line]
    assert "Hel" in events[0]
    assert json.loads(events[-1][6:])["error"]["code"] == "interrupted"
    assert "[DONE]" not in answer.text


def test_a_server_that_is_silent_for_too_long_is_a_gateway_timeout() -> None:
    patience = Timeout(read_s=0.5, total_s=2.0)
    with Server(silent) as upstream, Served(deployment(upstream.url, adapter="openai"), timeout=patience) as served:
        answer = served.chat()
        assert upstream.url not in answer.text
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"


def chats(upstream: Server) -> list[Asked]:
    """What was asked of a server, its load apart."""
    return [asked for asked in list(upstream.asked) if asked.method == "POST"]
