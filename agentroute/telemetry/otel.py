"""OpenTelemetry: a span and metrics for every call, in the GenAI conventions; what is ours is named ``agentroute.*``.

Needs the extra ``otel``, and a provider that the application sets up. The conventions are those of
https://github.com/open-telemetry/semantic-conventions-genai, of which all is still called "development".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from agentroute.ended import Ended
from agentroute.errors import UsageError
from agentroute.transport import Target

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

_OPERATIONS = {"chat": "chat", "completions": "text_completion", "responses": "chat", "embeddings": "embeddings"}
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4.0**power for power in range(14))
_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)


class OpenTelemetry:
    """An observer that makes spans and metrics. Raises ``UsageError`` without the extra ``otel``.

    ``tracer_provider`` and ``meter_provider``: those of the application unless given. A span is a child of the one
    that the call was made in.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            raise UsageError("OpenTelemetry is not installed; pip install 'agentroute[otel]'") from None
        self._kind, self._failed = trace.SpanKind.CLIENT, trace.StatusCode.ERROR
        self._tracer = trace.get_tracer("agentroute", tracer_provider=tracer_provider)
        meter = metrics.get_meter("agentroute", meter_provider=meter_provider)

        def histogram(name: str, unit: str, text: str, edges: tuple[float, ...]) -> Any:
            return meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=edges)

        self._duration = histogram("gen_ai.client.operation.duration", "s", "How long calls took.", _SECONDS)
        self._first = histogram(
            "gen_ai.client.operation.time_to_first_chunk", "s", "From sending a request to its first token.", _SECONDS
        )
        self._used = histogram("gen_ai.client.token.usage", "{token}", "Tokens, as servers counted them.", _TOKENS)
        self._waited = histogram("agentroute.call.wait", "s", "How long calls waited for room.", _SECONDS)
        self._ratio = histogram(
            "agentroute.prediction.ratio", "1", "What was seen, as a multiple of what was predicted.", _RATIOS
        )
        self._cost = meter.create_counter("agentroute.cost", "USD", "What calls have cost.")

    def __call__(self, ended: Ended) -> None:
        """Make the span of a call, and count it."""
        common = _common(ended)
        end_ns = int(ended.ended_at * 1e9)
        span = self._tracer.start_span(
            f"{common['gen_ai.operation.name']} {common['gen_ai.request.model']}",
            kind=self._kind,
            attributes=common | _more(ended),
            start_time=end_ns - int(ended.took_s * 1e9),
        )
        if "error.type" in common:
            span.set_status(self._failed)
        span.end(end_ns)
        seen = ended.outcome
        self._duration.record(ended.took_s, common)
        self._waited.record(ended.waited_s, common)
        if seen.ttft_ms is not None:
            self._first.record(seen.ttft_ms / 1_000.0, common)
        for kind, tokens in (("input", seen.prompt_tokens), ("output", seen.output_tokens)):
            if tokens is not None:
                self._used.record(tokens, common | {"gen_ai.token.type": kind})
        for metric, ratio in _ratios(ended):
            self._ratio.record(ratio, common | {"agentroute.metric": metric})
        if (usd := ended.usd) is not None:
            self._cost.add(usd, common)


def _common(ended: Ended) -> dict[str, Any]:
    """Attributes with few values, for metrics, too."""
    decision = ended.decision
    model = "auto" if decision is None else decision.model or decision.deployment
    found = {
        "gen_ai.operation.name": _OPERATIONS.get(ended.endpoint, ended.endpoint),
        "gen_ai.request.model": model,
        "agentroute.route": ended.task.route,
    }
    if decision is not None:
        found["gen_ai.provider.name"] = decision.chosen.profile.engine.name
        found["agentroute.deployment"] = decision.deployment
    if ended.result != "ok":
        found["error.type"] = ended.result
    return found


def _more(ended: Ended) -> dict[str, Any]:
    """Those of a span alone."""
    task, decision, seen = ended.task, ended.decision, ended.outcome
    found: dict[str, Any] = {
        "gen_ai.request.stream": ended.streaming,
        "gen_ai.conversation.id": task.session_id,
        "gen_ai.usage.input_tokens": seen.prompt_tokens,
        "gen_ai.usage.output_tokens": seen.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": seen.cached_tokens,
        "gen_ai.response.time_to_first_chunk": None if seen.ttft_ms is None else seen.ttft_ms / 1_000.0,
        "agentroute.waited_s": ended.waited_s,
        "agentroute.attempts.failed": len(ended.attempts),
        "agentroute.parent_session_id": task.parent_session_id,
        "agentroute.cost_usd": ended.usd,
    }
    if decision is not None:
        found["agentroute.objective"] = decision.objective
        for name, estimate in (
            ("ttft_ms", decision.ttft_ms),
            ("tpot_ms", decision.tpot_ms),
            ("e2e_ms", decision.e2e_ms),
        ):
            found[f"agentroute.predicted.{name}"] = None if estimate is None else estimate.mean
        if decision.url is not None:
            url = httpx.URL(Target.of(decision.url, None).root)
            found["server.address"] = url.host
            found["server.port"] = url.port or (443 if url.scheme == "https" else 80)
    return {name: value for name, value in found.items() if value is not None}


def _ratios(ended: Ended) -> list[tuple[str, float]]:
    decision, seen = ended.decision, ended.outcome
    if decision is None or ended.result != "ok":
        return []
    pairs = (
        ("ttft", seen.ttft_ms, decision.ttft_ms),
        ("tpot", seen.tpot_ms, decision.tpot_ms),
        ("e2e", seen.e2e_ms, decision.e2e_ms),
    )
    return [
        (name, value / estimate.mean)
        for name, value, estimate in pairs
        if value is not None and estimate is not None and estimate.mean > 0
    ]
