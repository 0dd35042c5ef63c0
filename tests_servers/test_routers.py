"""SGLang's and vLLM's routers, each over two llama.cpp servers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from large import BIN, Running, asked_at_once, in_front, until
from servers import deployment, router

from agentroute import Client, FailureKind, PoolFull, Task, Watcher
from agentroute.adapters import adapter
from agentroute.probe import probe, probe_load, probe_wire
from agentroute.wire import Answer

HI = [{"role": "user", "content": "Tell me a long story."}]
TASK = Task(context_tokens=50, max_output_tokens=100)


@pytest.fixture(scope="module")
def sglang() -> Iterator[Running]:
    with in_front(BIN / "sglang-router", "launch") as running:
        yield running


@pytest.fixture(scope="module")
def vllm() -> Iterator[Running]:
    with in_front(BIN / "vllm-router") as running:
        yield running


@pytest.fixture(scope="module")
def in_turn() -> Iterator[Running]:
    with in_front(BIN / "vllm-router", policy="round_robin") as running:
        yield running


@pytest.fixture(params=["sglang", "vllm"])
def either(request: pytest.FixtureRequest) -> tuple[str, Running]:
    return request.param, request.getfixturevalue(request.param)


def test_it_is_known_by_its_answers_and_tells_how_many_workers_it_has(either: tuple[str, Running]) -> None:
    name, server = either
    assert probe_wire(server.url) == f"{name}_router"
    found = probe(server.url, adapter(f"{name}_router"))
    assert (found.engines, found.kv_pool, found.wire) == (2, None, f"{name}_router")


def test_its_load_is_what_it_has_with_its_workers(either: tuple[str, Running]) -> None:
    name, server = either
    wire = adapter(f"{name}_router")
    assert (probe_load(server.url, wire).running, probe_load(server.url, wire).alive) == (None, True)
    by = router(deployment(server.url, adapter=wire.name))
    with Client(by) as client, ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(client.chat, HI, task=TASK) for _ in range(3)]
        until(lambda: probe_load(server.url, wire).running == 3, most_s=20.0, every_s=0.02)
        assert all(call.result(120).text for call in calls)
    until(lambda: probe_load(server.url, wire).running is None, most_s=10.0)


def test_a_policy_that_does_not_weigh_load_counts_none(in_turn: Running) -> None:
    wire = adapter("vllm_router")
    with Client(router(deployment(in_turn.url, adapter=wire.name))) as client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.chat, HI, task=TASK)
        seen = [probe_load(in_turn.url, wire).running for _ in range(3)]
        assert not call.done()
        assert call.result(120).text
    assert seen == [None] * 3


def test_metrics_that_a_router_passes_on_are_noticed_to_be_several_servers(in_turn: Running) -> None:
    by = router(deployment(in_turn.url, adapter="llamacpp"))
    watcher = Watcher(by)

    def mixed() -> bool:
        watcher.look()
        return [finding.kind for finding in by.doctor()] == ["load_mixed"]

    until(mixed, most_s=20.0)


def test_a_full_queue_is_told_by_an_empty_408() -> None:
    few = ("--max-concurrent-requests", "1", "--queue-size", "1", "--queue-timeout-secs", "1")
    with in_front(BIN / "sglang-router", "launch", *few) as server:
        found = asked_at_once(server.url, [{"model": "smollm2-135m", "messages": HI, "max_tokens": 100}] * 6)
    assert set(found) == {200, 408}
    assert set(found[408]) == {b""}
    assert adapter("sglang_router").classify(Answer(408, {}, b"")).kind is FailureKind.OVERLOADED


def test_a_router_without_healthy_workers_gets_nothing() -> None:
    often = ("--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-check-timeout-secs", "1")
    with in_front(BIN / "sglang-router", "launch", *often) as server:
        by = router(deployment(server.url, adapter="sglang_router"))
        watcher = Watcher(by)
        watcher.look()
        assert by.doctor() == []
        server.stop_workers()

        def dead() -> bool:
            watcher.look()
            return [finding.kind for finding in by.doctor()] == ["engine_dead"]

        until(dead, most_s=30.0)
        with pytest.raises(PoolFull):
            by.acquire(TASK)
