"""What the gateway answers beside chats: the other calls of the API, models, dry runs, health, metrics."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from gateways import HELLO, Served
from servers import Server, answers, deployment, free_port

from agentroute.decision import replay
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.gateway.app import PATHS
from agentroute.gateway.keys import ANYBODY
from agentroute.gateway.metrics import MOST_SERIES, Metrics
from agentroute.payload import EndpointName
from agentroute.route import Route

WHOLE = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
)
VECTOR = json.dumps({"object": "list", "data": [{"index": 0, "object": "embedding", "embedding": [0.5, 0.25]}]})


def test_a_completion_comes_from_a_real_server(llama_one: EmbeddedServer) -> None:
    body = {"model": "auto", "prompt": "Once upon", "max_tokens": 5, "temperature": 0}
    with Served(deployment(llama_one.url, pool_tokens=2048)) as served:
        answer = served.client.post("/v1/completions", json=body)
        streamed = served.client.post("/v1/completions", json=body | {"stream": True})
    assert answer.status_code == 200
    assert answer.json()["object"] == "text_completion"
    text = answer.json()["choices"][0]["text"]
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == text
    assert streamed.text.rstrip().endswith("data: [DONE]")


def test_embeddings_and_responses_go_to_their_own_paths() -> None:
    said = json.dumps({"object": "response", "status": "completed", "output": [], "usage": {"input_tokens": 3}})
    with Server(answers(VECTOR)) as vectors, Served(deployment(vectors.url, adapter="vllm")) as served:
        answer = served.client.post("/v1/embeddings", json={"model": "auto", "input": ["a", "b"]})
        assert answer.content == VECTOR.encode()
        assert [a.target for a in vectors.asked if a.method == "POST"] == ["/v1/embeddings"]
    with Server(answers(said)) as upstream, Served(deployment(upstream.url, adapter="vllm")) as served:
        assert served.client.post("/v1/responses", json={"model": "auto", "input": "Hi"}).content == said.encode()
        sent = [a for a in upstream.asked if a.method == "POST"]
    assert [(a.target, json.loads(a.body)["model"]) for a in sent] == [("/v1/responses", "smollm2-135m")]


def test_hints_are_taken_out_of_the_metadata() -> None:
    with (
        Server(answers(WHOLE)) as upstream,
        Served(deployment(upstream.url, adapter="openai"), routes=(Route(name="batch"),)) as served,
    ):
        own = {"agentroute_route": "batch", "agentroute_ttft_ms": 900, "team": "red"}
        headers = {"x-agentroute-route": "default"}  # a body's own hints come before those of a client
        assert served.chat(metadata=own, headers=headers).status_code == 200
        sent = json.loads(next(a for a in upstream.asked if a.method == "POST").body)
        assert sent["metadata"] == {"team": "red"}
        assert served.ended()[0]["route"] == "batch"
        assert served.chat(metadata={"agentroute_nothing": 1}).status_code == 400


@pytest.mark.parametrize("name", ["x-agentroute-deadline-s", "x-llm-d-slo-ttft-ms", "x-agentroute-step"])
def test_a_malformed_hint_names_its_header(name: str) -> None:
    with Server(answers(WHOLE)) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        answer = served.chat(headers={name: "soon"})
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]


def test_the_names_of_routes_and_models_are_listed() -> None:
    fleet = [deployment(None, name=name, served_model=model) for name, model in (("a", "m"), ("b", "m"), ("c", "n/o"))]
    with Served(*fleet, routes=(Route(name="night"),)) as served:
        told = served.get("/v1/models").json()
        one, none = served.get("/v1/models/n/o"), served.get("/v1/models/p")
    assert told["object"] == "list"
    assert [model["id"] for model in told["data"]] == ["auto", "auto:night", "m", "n/o"]
    assert all(set(model) == {"id", "object", "created", "owned_by"} for model in told["data"])
    assert one.json() == told["data"][-1]
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")


def test_a_model_that_the_configuration_does_not_name_is_asked_for(llama_one: EmbeddedServer) -> None:
    with Served(deployment(llama_one.url, served_model=None, pool_tokens=2048)) as served:
        until = time.monotonic() + 10.0
        while MODEL_ALIAS not in served.get("/v1/models").text and time.monotonic() < until:
            time.sleep(0.05)
        assert served.chat(model=MODEL_ALIAS).status_code == 200


@pytest.mark.parametrize("endpoint", PATHS)
def test_a_dry_run_decides_as_a_call_would_and_calls_nobody(endpoint: EndpointName) -> None:
    body = {"model": "auto", "messages": HELLO["messages"], "input": "Hi", "prompt": "Hi"}
    with Server(answers(WHOLE)) as upstream:
        fleet = [deployment(upstream.url, name=name, pool_tokens=tokens) for name, tokens in (("big", 9_000), ("s", 1))]
        with Served(*fleet) as served:
            told = served.client.post(f"/v1/agentroute/decide?endpoint={endpoint}", json=body).json()
            task = served.gateway.reader.read(json.dumps(body).encode(), [], ANYBODY, endpoint).task
            decision = served.router.decide(task)
            again = replay(told["record"], served.router)
        assert not [asked for asked in upstream.asked if asked.method == "POST"]
    assert told["deployment"] == decision.deployment == again.deployment == "big"
    assert told["reason"] == decision.reason
    assert told["rejected"]["s"]["kind"] == "request_size"
    assert told["explanation"].startswith("big for ")


def test_a_dry_run_of_what_nothing_can_take_says_why() -> None:
    with Served(deployment(None, pool_tokens=10)) as served:
        answer = served.client.post("/v1/agentroute/decide", json=HELLO)
        bad = served.client.post("/v1/agentroute/decide?endpoint=images", json=HELLO)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "here: one request needs" in answer.json()["error"]["message"]
    assert bad.json()["error"]["code"] == "unknown_endpoint"


def test_it_is_ready_once_one_endpoint_is_up(llama_one: EmbeddedServer) -> None:
    gone = deployment(f"http://127.0.0.1:{free_port()}", name="gone")
    with Served(gone) as served:
        assert served.get("/health").json() == {"status": "ok"}
        time.sleep(1.5)
        assert served.get("/ready").status_code == 503
    with Served(gone, deployment(llama_one.url)) as served:
        until = time.monotonic() + 10.0
        while served.get("/ready").status_code != 200 and time.monotonic() < until:
            time.sleep(0.05)
        assert served.get("/ready").json() == {"ready": True, "endpoints_up": 1}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/page.js/../../secret", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
    ],
)
def test_what_there_is_not_is_an_error_of_the_api(method: str, path: str, status: int, code: str) -> None:
    with Served(deployment(None)) as served:
        answer = served.client.request(method, path, json={})
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


def metrics_of(text: str) -> dict[str, float]:
    """By name and labels the value."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_requests_are_counted_by_route_deployment_and_outcome(llama_one: EmbeddedServer) -> None:
    with Served(deployment(llama_one.url, pool_tokens=2048), routes=(Route(name="batch"),)) as served:
        served.chat()
        served.chat(model="auto:batch", stream=True)
        served.chat(model="nobody")
        served.ended(3)
        time.sleep(1.5)
        answer = served.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    told = metrics_of(answer.text)
    ours = 'route="batch",deployment="here"'
    assert told[f'agentroute_requests_total{{{ours},outcome="ok"}}'] == 1
    assert told['agentroute_requests_total{route="default",deployment="here",outcome="ok"}'] == 1
    assert told['agentroute_requests_total{route="",deployment="",outcome="model_not_found"}'] == 1
    assert told[f"agentroute_time_to_first_token_seconds_count{{{ours}}}"] == 1
    assert told[f"agentroute_output_tokens_total{{{ours}}}"] == 6
    assert told['agentroute_endpoint_up{deployment="here",endpoint="0"}'] == 1
    assert told['agentroute_requests_waiting{deployment="here",endpoint="0"}'] == 0
    assert told["agentroute_queue_length"] == 0
    assert 0 < told[f"agentroute_request_duration_seconds_sum{{{ours}}}"] < 30
    assert told[f'agentroute_request_duration_seconds_bucket{{{ours},le="+Inf"}}'] == 1


def test_labels_are_capped_and_escaped() -> None:
    metrics = Metrics()
    for i in range(MOST_SERIES + 50):
        metrics.requests.add((f"r{i}", "d", "ok"))
    metrics.requests.add(("r1", "d", "ok"))
    metrics.took.add(('a"b\\c\nd', "e"), 0.3)
    text = metrics.text(())
    told = metrics_of(text)
    assert sum(name.startswith("agentroute_requests_total") for name in told) == MOST_SERIES + 1
    assert told['agentroute_requests_total{route="other",deployment="other",outcome="other"}'] == 50
    assert told['agentroute_requests_total{route="r1",deployment="d",outcome="ok"}'] == 2
    assert 'agentroute_request_duration_seconds_count{route="a\\"b\\\\c\\nd",deployment="e"} 1' in text


def test_a_gauge_that_is_no_number_is_not_known() -> None:
    values = [(("a",), math.nan), (("b",), math.inf), (("c",), 0.25), (("d",), 3.0)]
    told = metrics_of(Metrics().text([("agentroute_kv_used_ratio", "KV.", ("deployment",), values)]))
    assert told == {
        'agentroute_kv_used_ratio{deployment="c"}': 0.25,
        'agentroute_kv_used_ratio{deployment="d"}': 3.0,
    }


def test_buckets_hold_all_that_is_below_their_edge() -> None:
    metrics = Metrics()
    for seconds in (0.001, 0.005, 0.3, 400.0):
        metrics.took.add(("r", "d"), seconds)
    told = metrics_of(metrics.text(()))
    edges = ("0.005", "0.01", "0.25", "0.5", "300", "+Inf")
    name = 'agentroute_request_duration_seconds_bucket{{route="r",deployment="d",le="{}"}}'
    assert [told[name.format(edge)] for edge in edges] == [2, 2, 2, 3, 3, 4]


def test_no_prompt_and_no_answer_stands_in_logs(caplog: pytest.LogCaptureFixture) -> None:
    secret: dict[str, Any] = {"messages": [{"role": "user", "content": "xyzzy"}]}
    broken = json.dumps({"error": {"message": "cannot read xyzzy", "type": "x"}})
    caplog.set_level("DEBUG")
    with Server(answers(broken, status=400)) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        answer = served.chat(**secret)
        served.chat(model="xyzzy")
        served.chat(messages="xyzzy")
        served.ended(3)
        time.sleep(0.1)
    assert answer.status_code == 400
    assert "xyzzy" in answer.text
    ours = [record for record in caplog.records if record.name.startswith(("agentroute", "uvicorn"))]
    assert sum("bad_request" in record.getMessage() for record in ours) >= 1
    assert not [record.getMessage() for record in ours if "xyzzy" in record.getMessage()]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/agentroute/decide"])
def test_an_error_of_our_own_is_told_without_its_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    def broken(body: dict[str, Any], *args: object, **more: object) -> None:
        raise KeyError(body["messages"][0]["content"])

    with Served(deployment(None)) as served:
        monkeypatch.setattr("agentroute.gateway.asked.task_of", broken)
        answer = served.client.post(path, json=HELLO | {"messages": [{"role": "user", "content": "xyzzy"}]})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "xyzzy" not in answer.text + caplog.text
    assert "KeyError" in caplog.text
