"""The OpenAI SDK through the transport, against real llama.cpp servers: all that a direct call brings, and no more.

Run with both: 3.0 and later are built on httpx2, those before it on httpx.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import faults
import pytest
from faults import FaultServer
from fleets import profile
from servers import deployment, router

import agentroute
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.fleet import Deployment, Fleet
from agentroute.integrations.openai import async_openai_client, openai_client
from agentroute.router import Router

openai = pytest.importorskip("openai")

HELLO = [{"role": "user", "content": "Say hello"}]
FIXED = {"max_tokens": 12, "temperature": 0, "seed": 7, "extra_body": {"cache_prompt": False}}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
# This small model calls a tool once its answer is begun for it.
WEATHER = [{"role": "user", "content": "Weather in Paris?"}, {"role": "assistant", "content": "<tool_call>\n"}]
TOOLS = {"tools": [TOOL], "tool_choice": "required", **FIXED, "max_tokens": 60}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
FORM = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": SCHEMA}}


def direct(server: EmbeddedServer) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")


def said(answer: Any) -> Any:
    """An answer without what differs between any two: its id, its times."""
    told = answer.model_dump()
    for name in ("id", "created", "timings", "system_fingerprint"):
        told.pop(name, None)
    for choice in told["choices"]:
        for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or ():
            call.pop("id", None)
    return told


def both(server: EmbeddedServer, ask: Callable[[Any, str], Any]) -> tuple[Any, Any]:
    """The same asked through the transport and directly."""
    with openai_client(router(deployment(server.url))) as client:
        through = ask(client, "auto")
    with direct(server) as client:
        return through, ask(client, MODEL_ALIAS)


@pytest.mark.parametrize("more", [{}, {"response_format": FORM}, {"logprobs": True}])
def test_an_answer_is_that_of_a_direct_call(llama_one: EmbeddedServer, more: dict[str, Any]) -> None:
    def ask(client: Any, model: str) -> Any:
        return client.chat.completions.create(model=model, messages=HELLO, **FIXED, **more)

    through, straight = both(llama_one, ask)
    assert said(through) == said(straight)
    assert through.usage.prompt_tokens > 0 and through.usage.completion_tokens > 0


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_a_stream_is_that_of_a_direct_call_chunk_by_chunk(llama_one: EmbeddedServer, options: dict[str, Any]) -> None:
    def ask(client: Any, model: str) -> Any:
        stream = client.chat.completions.create(model=model, messages=HELLO, stream=True, **FIXED, **options)
        return [said(chunk) for chunk in stream]

    through, straight = both(llama_one, ask)
    assert through == straight
    assert len(through) > 5


@pytest.mark.parametrize("streaming", [False, True])
def test_a_tool_call_is_that_of_a_direct_call(llama_tools: EmbeddedServer, streaming: bool) -> None:
    def ask(client: Any, model: str) -> Any:
        answer = client.chat.completions.create(model=model, messages=WEATHER, stream=streaming, **TOOLS)
        return [said(chunk) for chunk in answer] if streaming else said(answer)

    through, straight = both(llama_tools, ask)
    assert through == straight
    assert "get_weather" in json.dumps(through)


def test_a_parsed_answer_has_its_shape(llama_one: EmbeddedServer) -> None:
    from pydantic import BaseModel

    class Shape(BaseModel):
        ok: bool

    with openai_client(router(deployment(llama_one.url))) as client:
        answer = client.chat.completions.parse(model="auto", messages=HELLO, response_format=Shape, max_tokens=200)
    assert isinstance(answer.choices[0].message.parsed, Shape)


def test_the_async_client_streams_and_can_be_left(llama_one: EmbeddedServer) -> None:
    by = router(deployment(llama_one.url))

    async def ask() -> tuple[Any, Any]:
        async with async_openai_client(by) as client:
            async with await client.chat.completions.create(
                model="auto", messages=HELLO, stream=True, max_tokens=500, extra_body={"ignore_eos": True}
            ) as stream:
                first = await anext(aiter(stream))
            with agentroute.hint(concurrency=2):
                answer = await client.chat.completions.create(model="auto", messages=HELLO, **FIXED)
            return first, answer

    first, answer = asyncio.run(ask())
    assert first.choices
    assert answer.choices[0].message.content


def test_the_decision_is_in_the_headers(llama_one: EmbeddedServer) -> None:
    with openai_client(router(deployment(llama_one.url))) as client:
        raw = client.chat.completions.with_raw_response.create(model="auto", messages=HELLO, **FIXED)
    assert raw.headers["x-agentroute-deployment"] == "here"


# --- what fails


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


def only(server: FaultServer) -> Router:
    return Router(Fleet([Deployment("one", profile(window=1_000), urls=(server.url,), served_model="m")]))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (faults.says(faults.answer(503, b'{"error": {"message": "starting"}}')), "InternalServerError"),
        (faults.says(faults.answer(400, b'{"error": {"message": "no"}}')), "BadRequestError"),
        (faults.says(faults.answer(429, b'{"error": {"message": "busy"}}')), "RateLimitError"),
        (faults.says(faults.answer(401, b'{"error": {"message": "key"}}')), "InternalServerError"),
    ],
)
def test_the_sdk_sends_nothing_again_that_was_tried(server: FaultServer, fault: Any, kind: str) -> None:
    server.fault = fault
    eager = openai_client(only(server)).with_options(max_retries=5)
    with eager as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="auto", messages=HELLO)
    assert type(caught.value).__name__ == kind
    assert server.retries[0] is None
    assert server.asked.total() <= agentroute.Retry().attempts


def test_a_prompt_that_fits_nowhere_is_the_error_that_agents_know(server: FaultServer) -> None:
    with openai_client(only(server)) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "word " * 5_000}])
    assert caught.value.code == "context_length_exceeded"
    assert not server.asked


def test_a_stream_that_breaks_is_an_error_of_the_sdk_after_its_text(server: FaultServer) -> None:
    server.fault = faults.reset_after_content
    text = ""
    with openai_client(only(server)) as client, pytest.raises(openai.APIError, match="interrupted"):
        for chunk in client.chat.completions.create(model="auto", messages=HELLO, stream=True):
            text += chunk.choices[0].delta.content or ""
    assert text == "be"
