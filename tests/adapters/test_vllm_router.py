"""vLLM's routers: what ``vllm-router`` answered, and what the production stack's shows."""

from __future__ import annotations

import pytest
from replayed import recorded, talk

from agentroute.adapters.base import Load
from agentroute.adapters.vllm_router import VllmRouterAdapter

WIRE = VllmRouterAdapter()
SEEN = "vllm-router-0.1.17"
STACK = """\
vllm:num_requests_running{server="http://a:8000"} 3.0
vllm:num_requests_running{server="http://b:8000"} 2.0
vllm:healthy_pods_total{server="http://a:8000"} 1.0
vllm:healthy_pods_total{server="http://b:8000"} 0.0
"""


def test_a_router_passes_on_what_a_worker_says_of_its_model() -> None:
    found = talk(WIRE.discover(), recorded(SEEN))
    assert (found.models, found.engine, found.wire) == (("smollm2-135m",), "llamacpp", "vllm_router")
    assert (found.max_model_len, found.engines, found.kv_pool) == (512, 2, None)


def test_its_load_is_its_own_and_not_that_of_the_worker_whose_metrics_it_passes_on() -> None:
    answers = recorded(SEEN)
    for worker in answers["/workers"]["workers"]:
        worker["load"] = 2
    assert talk(WIRE.load(), answers) == Load(running=4, alive=True)


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (STACK, Load(running=5, alive=True)),
        (STACK.replace("1.0", "0.0"), Load(running=5, alive=False, said="none of its 2 workers is healthy")),
        ('vllm:healthy_pods_total{server="a"} 1.0\n', Load(running=0, alive=True)),
        # a worker's own metrics, passed on
        ('vllm:num_requests_running{engine="0"} 3.0\n', None),
        ("", None),
    ],
)
def test_the_production_stack_tells_its_load_by_server(text: str, load: Load | None) -> None:
    hidden = Load(hidden=True, said="neither /workers nor /metrics tells of its workers")
    assert talk(WIRE.load(), {"/metrics": text}) == (load or hidden)
