"""What the gateway tells of its calls: gathered once, for its page, its metrics, records and OpenTelemetry."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from gateways import HELLO, Served
from servers import Asked, Server, answers, deployment

from agentroute.decision import replay
from agentroute.ended import Ended
from agentroute.reload import Reloading
from agentroute.route import Route

WHOLE = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "plugh"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 31, "completion_tokens": 7},
    }
)


def test_a_record_says_what_observers_are_told() -> None:
    told: list[Ended] = []
    with (
        Server(answers(WHOLE)) as upstream,
        Served(
            deployment(upstream.url, adapter="openai"), routes=(Route(name="batch"),), observers=[told.append]
        ) as served,
    ):
        served.chat(model="auto:batch")
        (record,) = served.ended()
    (ended,) = told
    assert ended.decision is not None
    assert (record["route"], record["deployment"]) == (ended.task.route, ended.decision.deployment) == ("batch", "here")
    assert record["context_tokens"] == ended.task.context_tokens
    assert record["output_tokens"] == ended.outcome.output_tokens == 7
    assert record["reason"] == ended.decision.reason
    assert (record["outcome"], ended.result) == ("ok", "ok")


def test_the_first_token_is_waited_for_from_the_beginning() -> None:
    """What was predicted counts the waiting, so what was seen does."""
    piece = json.dumps({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}).encode()
    body = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: " + piece + b"\n\ndata: [DONE]\n\n"

    def late(connection: socket.socket, asked: Asked) -> None:
        if asked.method == "POST":
            time.sleep(0.4)
            answers("{}", status=500)(connection, asked)

    def quick(connection: socket.socket, asked: Asked) -> None:
        if asked.method == "POST":
            connection.sendall(body)

    with Server(late) as bad, Server(quick) as good:
        fleet = [
            deployment(bad.url, name="bad", adapter="openai", pool_tokens=100_000),
            deployment(good.url, name="good", adapter="openai"),
        ]
        with Served(*fleet) as served:
            assert served.chat(stream=True).status_code == 200
            (record,) = served.ended()
    assert record["deployment"] == "good"
    assert record["ttft_ms"] >= 400.0


def test_what_never_became_a_call_is_told_to_no_observer() -> None:
    told: list[Ended] = []
    with Served(deployment(None), keys={"a": {}}, observers=[told.append]) as served:
        assert served.chat().status_code == 401
        assert served.chat("a", model="nobody").status_code == 404
        assert served.chat("a", messages="x").status_code == 400
        assert [one["outcome"] for one in served.ended(2)] == ["bad_request", "model_not_found"]
    assert told == []


def test_requests_at_once_are_not_taken_for_each_other() -> None:
    def behave(connection: socket.socket, asked: Asked) -> None:
        if asked.method == "POST":
            time.sleep(0.1)
            tokens = json.loads(asked.body)["max_tokens"]
            answers(WHOLE.replace('"completion_tokens": 7', f'"completion_tokens": {tokens}'))(connection, asked)

    async def many(port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30.0, trust_env=False) as client:
            asks = [
                client.post("/v1/chat/completions", json=HELLO | {"max_tokens": n}, headers={"x-request-id": f"r{n}"})
                for n in range(1, 33)
            ]
            assert {one.status_code for one in await asyncio.gather(*asks)} == {200}

    with Server(behave) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        asyncio.run(many(served.port))
        records = served.ended(32)
    assert {record["id"]: record["output_tokens"] for record in records} == {f"r{n}": n for n in range(1, 33)}


# ---- switched on by the file


def served_from(path: Path, ask: Sequence[dict[str, object]], **environment: str) -> str:
    """`agentroute serve` by a file, asked so, and told to stop; what it wrote to stderr."""
    command = [sys.executable, "-m", "agentroute.cli", "serve", "--config", str(path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    assert process.stderr is not None
    try:
        said = ""
        while not (found := re.search(r"serving on (\S+)/v1", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        for body in ask:
            httpx.post(f"{found[1]}/v1/chat/completions", json=body, timeout=30.0, trust_env=False)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30.0) == 0
        return said + process.stderr.read()
    finally:
        process.kill()
        process.wait(10.0)
        process.stderr.close()


def written(folder: Path, url: str, more: str) -> Path:
    path = folder / "agentroute.toml"
    (folder / "own.toml").write_text('format = 1\nname = "own"\n[engine]\nname = "vllm"\n')
    path.write_text(
        f'[[deployments]]\nname = "here"\nprofile = "own.toml"\nbase_url = "{url}"\nserved_model = "m"\n{more}'
    )
    return path


def test_calls_are_recorded_and_can_be_decided_on_again(tmp_path: Path) -> None:
    secret = HELLO | {"messages": [{"role": "user", "content": "xyzzy"}]}
    with Server(answers(WHOLE)) as upstream:
        path = written(tmp_path, upstream.url, '[telemetry]\nrecords = "calls.jsonl"\n')
        served_from(path, [secret, HELLO | {"max_tokens": 9}])
        router = Reloading(path).router
    text = (tmp_path / "calls.jsonl").read_text()
    first, second = map(json.loads, text.splitlines())
    assert (first["deployment"], first["result"], first["output_tokens"]) == ("here", "ok", 7)
    assert replay(second["decision"], router).task.max_output_tokens == 9
    assert "xyzzy" not in text and "plugh" not in text


@pytest.mark.skipif(importlib.util.find_spec("opentelemetry.exporter") is None, reason="needs the extra otlp")
def test_spans_and_metrics_go_where_the_environment_says(tmp_path: Path) -> None:
    with Server(answers(WHOLE)) as upstream, Server(answers("", content_type="application/x-protobuf")) as collector:
        path = written(tmp_path, upstream.url, "[telemetry]\nopentelemetry = true\n")
        served_from(path, [HELLO], OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_EXPORTER_OTLP_COMPRESSION="none")
        sent = {asked.target: asked.body for asked in collector.asked}
    assert set(sent) == {"/v1/traces", "/v1/metrics"}
    assert b"agentroute.deployment" in sent["/v1/traces"] and b"service.name" in sent["/v1/traces"]
    assert b"gen_ai.client.operation.duration" in sent["/v1/metrics"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('records = "calls.txt"', "telemetry.records"),
        ('records = "no/such/folder/calls.jsonl"', "cannot be written"),
        ("records_kept = 0", "telemetry.records_kept"),
        ("opentelemetry = 1", "telemetry.opentelemetry"),
    ],
)
def test_a_mistake_is_said_before_anything_is_served(tmp_path: Path, more: str, said: str) -> None:
    path = written(tmp_path, "http://127.0.0.1:9", f"[telemetry]\n{more}\n")
    command = [sys.executable, "-m", "agentroute.cli", "serve", "--config", str(path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_it_is_said_which_extra_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, "http://127.0.0.1:9", "[telemetry]\nopentelemetry = true\n")
    hide = (
        "import sys; sys.modules['opentelemetry'] = None; sys.argv = ['agentroute', 'serve', '--config', sys.argv[1]]"
    )
    command = [sys.executable, "-c", f"{hide}; from agentroute.cli import main; main()", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "pip install 'agentroute[otlp]'" in done.stderr
