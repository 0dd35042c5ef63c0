"""OpenTelemetry: what a real SDK exports of calls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from faults import FaultServer, answer, says
from fleets import profile

from agentroute.client import AsyncClient, Client
from agentroute.errors import BackendError, NoFeasibleDeployment, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.router import Router
from agentroute.task import Task
from agentroute.telemetry.otel import OpenTelemetry

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SECRET = "the secret of the prompt"
HI = [{"role": "user", "content": SECRET}]
TASK = Task(context_tokens=20, max_output_tokens=20, session_id="s")


class Telemetry:
    """An SDK that keeps what it is given."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.observer = OpenTelemetry(
            tracer_provider=self.traces, meter_provider=MeterProvider(metric_readers=[self._reader])
        )

    @property
    def spans(self) -> list[Any]:
        return list(self._spans.get_finished_spans())

    def points(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


def router(server: FaultServer) -> Router:
    made = profile(window=1_000, usd_per_million=(1.0, 1.0))
    return Router(Fleet([Deployment("d", made, urls=(server.url,), served_model="m")]))


def test_a_call_is_a_span_with_what_was_predicted_and_what_was_seen(telemetry: Telemetry, server: FaultServer) -> None:
    with (
        Client(router(server), observers=[telemetry.observer]) as client,
        client.stream(HI, task=TASK) as events,
    ):
        list(events)
    (span,) = telemetry.spans
    found = dict(span.attributes)
    assert (span.name, span.kind.name) == ("chat m", "CLIENT")
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.provider.name"] == "vllm"
    assert found["gen_ai.conversation.id"] == "s"
    assert found["gen_ai.request.stream"] is True
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (7, 3)
    assert found["server.address"] == "127.0.0.1"
    assert server.url.endswith(str(found["server.port"]))
    assert found["agentroute.deployment"] == "d"
    assert found["agentroute.predicted.ttft_ms"] > 0
    assert found["agentroute.cost_usd"] == pytest.approx(10e-6)
    assert 0 < found["gen_ai.response.time_to_first_chunk"] * 1e9 < span.end_time - span.start_time
    assert "error.type" not in found
    assert SECRET not in str(found)


def test_metrics_in_seconds_and_tokens(telemetry: Telemetry, server: FaultServer) -> None:
    with Client(router(server), observers=[telemetry.observer]) as client:
        client.chat(HI, task=TASK)
        with client.stream(HI, task=TASK) as events:
            list(events)
    points = telemetry.points()
    (duration,) = points["gen_ai.client.operation.duration"]
    assert duration.count == 2
    assert 0 < duration.sum < 60
    used = points["gen_ai.client.token.usage"]
    assert {dict(point.attributes)["gen_ai.token.type"]: point.sum for point in used} == {"input": 14, "output": 6}
    (first,) = points["gen_ai.client.operation.time_to_first_chunk"]
    assert first.count == 1
    assert {dict(point.attributes)["agentroute.metric"] for point in points["agentroute.prediction.ratio"]} == {
        "ttft", "e2e",
    }  # fmt: skip
    (cost,) = points["agentroute.cost"]
    assert cost.value == pytest.approx(20e-6)
    assert all("s" not in dict(point.attributes).values() for each in points.values() for point in each)


def test_failures_say_what_they_are(telemetry: Telemetry, server: FaultServer) -> None:
    server.fault = says(answer(400, b'{"error":{"message":"no"}}'))
    with Client(router(server), observers=[telemetry.observer]) as client:
        with pytest.raises(BackendError):
            client.chat(HI, task=TASK)
        with pytest.raises(NoFeasibleDeployment):
            client.chat(HI, task=Task(context_tokens=5_000))
    failed, refused = telemetry.spans
    assert (failed.status.status_code.name, failed.attributes["error.type"]) == ("ERROR", "bad_request")
    assert (refused.name, refused.attributes["error.type"]) == ("chat auto", "infeasible")
    assert "gen_ai.usage.input_tokens" not in refused.attributes


def test_a_span_is_a_child_of_the_one_that_the_call_was_made_in(telemetry: Telemetry, server: FaultServer) -> None:
    tracer = telemetry.traces.get_tracer("app")

    async def ask() -> None:
        async with AsyncClient(router(server), observers=[telemetry.observer]) as client:
            with tracer.start_as_current_span("step"):
                await client.chat(HI, task=TASK)

    asyncio.run(ask())
    with Client(router(server), observers=[telemetry.observer]) as client, tracer.start_as_current_span("step"):
        client.chat(HI, task=TASK)
    spans = telemetry.spans
    for step in (span for span in spans if span.name == "step"):
        assert [span.name for span in spans if span.parent and span.parent.span_id == step.context.span_id] == [
            "chat m"
        ]


def test_without_the_package_it_is_said_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(UsageError, match=r"agentroute\[otel\]"):
        OpenTelemetry()
