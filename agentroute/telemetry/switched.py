"""The observers that a configuration switches on, for a process of agentroute's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agentroute.ended import Observer
from agentroute.errors import UsageError
from agentroute.tables import TelemetryConfig
from agentroute.telemetry.otel import OpenTelemetry
from agentroute.telemetry.records import Records


@contextmanager
def switched_on(settings: TelemetryConfig, beside: Path = Path()) -> Iterator[list[Observer]]:
    """The observers, until the block is left: then what waits is written and sent.

    ``beside`` is the folder that the file of records is relative to. Raises ``UsageError`` for a file that cannot be
    written, or a package that is not installed.
    """
    with ExitStack() as stack:
        found: list[Observer] = []
        if settings.records is not None:
            path = beside / settings.records
            made = Records(path, max_mib=settings.records_mib, keep=settings.records_kept)
            found.append(stack.enter_context(made))
        if settings.opentelemetry:
            found.append(stack.enter_context(exported()))
        yield found


@contextmanager
def exported() -> Iterator[OpenTelemetry]:
    """Spans and metrics by the providers of this process, or where it has none, sent by OTLP over HTTP to where the
    ``OTEL_*`` variables say. Raises ``UsageError`` without the extra ``otlp``."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise UsageError("OpenTelemetry's exporter is not installed; pip install 'agentroute[otlp]'") from None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # as by opentelemetry-instrument
        yield OpenTelemetry()
        return
    told = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if told else {"service.name": "agentroute"})
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    try:
        yield OpenTelemetry(tracer_provider=spans, meter_provider=meters)
    finally:
        spans.shutdown()
        meters.shutdown()
