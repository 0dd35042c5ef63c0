"""A talk with a real server: its usage, and what is estimated before the next step."""

from __future__ import annotations

from typing import Any

from servers import deployment, router

from agentroute.catalogue import shipped
from agentroute.client import Client
from agentroute.demo.embedded import EmbeddedServer
from agentroute.tokens import Previous, estimate, of_model


def test_the_usage_of_one_step_tells_the_next_almost_exactly(llama_one: EmbeddedServer) -> None:
    own = of_model(shipped().model("smollm2-135m"))
    talk: list[dict[str, Any]] = [{"role": "user", "content": "The ferry was late, as it always was. " * 20}]
    with Client(router(deployment(llama_one.url))) as client:
        first = client.chat(talk, body={"max_tokens": 24})
        assert first.usage.prompt_tokens is not None
        assert abs(estimate(talk, fingerprint=own).value / first.usage.prompt_tokens - 1.0) < 0.28
        previous = Previous.of(talk, first.usage.prompt_tokens, first.usage.completion_tokens)
        talk += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Why was it late?"}]
        second = client.chat(talk, body={"max_tokens": 1})
    count = estimate(talk, fingerprint=own, previous=previous)
    assert second.usage.prompt_tokens is not None
    assert count.source == "usage"
    assert abs(count.value - second.usage.prompt_tokens) <= 8
    assert second.usage.prompt_tokens <= count.upper
