"""vLLM's routers: ``vllm-router``, and that of the production stack.

``vllm-router`` 0.1.17 was asked with two llama.cpp servers behind it: it has SGLang's routes, and passes any other one
on to its workers in turn, ``/metrics`` included, which is therefore not read there. The production stack's router was
read in its source (``vllm_router/routers``): it shows its own metrics under the engine's names, by server.
"""

from __future__ import annotations

from dataclasses import replace

from agentroute.adapters.base import Conversation, Load
from agentroute.adapters.openai import items
from agentroute.adapters.prometheus import METRICS, Metrics
from agentroute.adapters.sglang_router import DIALECT, WORKERS, SglangRouterAdapter, workers_of
from agentroute.wire import Answer, Request

LIST = "/list_workers"
"""What ``vllm-router`` has and SGLang's router has not."""
ENGINES = "/engines"
"""What the production stack's router has and no engine has."""


class VllmRouterAdapter(SglangRouterAdapter):
    """A vLLM router, with any OpenAI-compatible servers behind it."""

    name = "vllm_router"
    dialect = replace(DIALECT, server="vLLM's router")  # its breakers are SGLang's; that they count alike is assumed

    def load(self) -> Conversation[Load]:
        """Ask for the workers, or, of the production stack, for the metrics that name servers."""
        answer = yield Request(WORKERS)
        if workers_of(answer):
            talk = super().load()
            next(talk)
            try:
                talk.send(answer)
            except StopIteration as stop:
                load: Load = stop.value
                return load
        return of_stack(Metrics.of((yield Request(METRICS))))


def of_stack(metrics: Metrics) -> Load:
    """The load that the production stack's router shows; samples that name no server are a worker's, passed on."""
    running = [value for labels, value in metrics.samples("vllm:num_requests_running") if labels.get("server")]
    healthy = [value for labels, value in metrics.samples("vllm:healthy_pods_total") if labels.get("server")]
    if not healthy and not running:
        return Load(hidden=True, said=f"neither {WORKERS} nor {METRICS} tells of its workers")
    busy = int(sum(running)) if all(0 <= value < 1e9 for value in running) else None
    if healthy and not any(healthy):
        return Load(running=busy, alive=False, said=f"none of its {len(healthy)} workers is healthy")
    return Load(running=busy if running else 0, alive=True if healthy else None)


def is_stack(engines: Answer) -> bool:
    """Whether an answer to ``/engines`` is the production stack's."""
    return any("serving_models" in engine for engine in items(engines))
