"""One vLLM engine of 4 slots and 12 blocks of KV memory: what it says, what it takes, and what it does when full."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from heavy import EXACT, client, counter, vllm, words
from large import until

from agentroute import BackendError, FailureKind, Task
from agentroute.adapters import adapter
from agentroute.probe import probe, probe_load, probe_wire
from agentroute.profile import KvPool
from agentroute.shape.sharding import Sharding

WIRE = adapter("vllm")
LONG = Task(context_tokens=350, max_output_tokens=200)
"""3 blocks to read, 4 in the end, 5 at most: three may begin, but not all end, for vLLM keeps one of 12 for itself."""
PREEMPTED = "vllm:num_preemptions_total"
CITY = {"type": "string", "enum": ["Paris", "Oslo"]}
WEATHER = {
    "name": "get_weather",
    "strict": True,
    "parameters": {
        "type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False,
    },
}  # fmt: skip
TOOLS = {
    "tools": [{"type": "function", "function": WEATHER}],
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
}
SUNNY = {
    "type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"],
    "additionalProperties": False,
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SUNNY}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with vllm("--enforce-eager", blocks=12) as running:
        yield running


def test_it_is_known_by_its_answers_and_tells_its_limits(url: str) -> None:
    assert probe_wire(url) == "vllm"
    found = probe(url, WIRE)
    assert found.models == ("tiny",)
    assert (found.engine, found.engine_version) == ("vllm", "0.32.0")
    assert (found.max_model_len, found.max_num_seqs, found.engines) == (1024, 4, 1)
    assert found.kv_pool == KvPool(tokens=1536, block_tokens=128)
    assert (found.sharding, found.prefix_caching, found.weights) == (Sharding(tp=1), True, "torch.bfloat16")


@pytest.mark.parametrize("streaming", [False, True])
def test_a_chat_is_answered_and_counted(url: str, streaming: bool) -> None:
    task = Task(context_tokens=50, max_output_tokens=20)
    with client(url) as one:
        if streaming:
            with one.stream(words(times=10), task=task, body=EXACT) as events:
                seen = list(events)
            reply = events.reply
            assert len(seen) > 2
        else:
            reply = one.chat(words(times=10), task=task, body=EXACT)
    assert reply is not None
    assert reply.text
    assert (reply.finish_reason, reply.usage.completion_tokens) == ("length", 20)
    assert reply.usage.prompt_tokens is not None and 20 < reply.usage.prompt_tokens < 60


@pytest.mark.parametrize("streaming", [False, True])
def test_a_tool_is_called_in_its_strict_form(url: str, streaming: bool) -> None:
    call = answered(url, TOOLS, streaming).tool_calls[0]
    assert call.name == "get_weather"
    assert json.loads(call.arguments)["city"] in CITY["enum"]


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_keeps_to_a_json_schema(url: str, streaming: bool) -> None:
    found = json.loads(answered(url, {"response_format": FORMAT}, streaming).text)
    assert found in ({"sunny": True}, {"sunny": False})


def answered(url: str, body: dict[str, Any], streaming: bool) -> Any:
    task = Task(context_tokens=250, max_output_tokens=300)
    with client(url) as one:
        if not streaming:
            return one.chat(words(times=5), task=task, body=body)
        with one.stream(words(times=5), task=task, body=body) as events:
            list(events)
        return events.reply


def test_a_prompt_beyond_the_window_is_no_fault_of_the_server(url: str) -> None:
    with client(url) as one, pytest.raises(BackendError) as caught:
        one.chat(words(times=1_000), task=Task(context_tokens=900, max_output_tokens=5))
    assert caught.value.kind is FailureKind.CONTEXT_OVERFLOW


def test_a_client_that_leaves_frees_its_place_at_once(url: str) -> None:
    with client(url) as one:
        with one.stream(words(), task=Task(context_tokens=350, max_output_tokens=600), body=EXACT) as events:
            next(iter(events))
            until(lambda: probe_load(url, WIRE).running == 1, most_s=5.0, every_s=0.02)
            assert (probe_load(url, WIRE).kv_used or 0.0) > 0.1
        left = time.monotonic()
        until(lambda: probe_load(url, WIRE).running == 0, most_s=10.0, every_s=0.02)
        assert time.monotonic() - left < 5.0
    assert probe_load(url, WIRE).kv_used == 0.0


def test_what_outgrows_the_kv_memory_is_preempted_and_still_answered(url: str) -> None:
    before, most = counter(url, PREEMPTED), [0, 0]
    with client(url) as one, ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(one.chat, words(i, 70), task=LONG, body=EXACT) for i in range(8)]
        while not all(call.done() for call in calls):
            load = probe_load(url, WIRE)
            most = [max(most[0], load.running or 0), max(most[1], load.waiting or 0)]
            time.sleep(0.1)
        assert [call.result().usage.completion_tokens for call in calls] == [200] * 8
    assert counter(url, PREEMPTED) > before
    assert 2 <= most[0] <= 4 <= most[1]


def test_who_knows_the_kv_memory_sends_no_more_than_it_holds(url: str) -> None:
    before, pool = counter(url, PREEMPTED), probe(url, WIRE).kv_pool
    assert pool is not None
    with client(url, pool) as one, ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(one.chat, words(i, 70), task=LONG, body=EXACT) for i in range(8)]
        assert [call.result().usage.completion_tokens for call in calls] == [200] * 8
    assert counter(url, PREEMPTED) == before
