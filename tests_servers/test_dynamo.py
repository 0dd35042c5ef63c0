"""NVIDIA Dynamo: its frontend and KV router over two simulated engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from large import Running, asked_at_once, dynamo, until
from servers import deployment, router

from agentroute import Client, FailureKind, PoolFull, Task, Watcher
from agentroute.adapters import adapter
from agentroute.probe import probe, probe_load, probe_wire
from agentroute.profile import KvPool
from agentroute.wire import Answer

WIRE = adapter("dynamo")
TASK = Task(context_tokens=400, max_output_tokens=150)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dynamo() as running:
        yield running


def words(i: int = 0) -> list[dict[str, str]]:
    """A prompt of some 300 tokens, another one for each ``i``."""
    return [{"role": "user", "content": f"{i} of {i} things: " + "tell me more " * 100}]


def client(url: str) -> Client:
    return Client(router(deployment(url, adapter="dynamo", served_model="tiny")))


def test_it_is_known_by_its_answers_and_tells_the_limits_of_a_worker(server: Running) -> None:
    assert probe_wire(server.url) == "dynamo"
    found = probe(server.url, WIRE)
    assert (found.models, found.engines, found.max_model_len, found.max_num_seqs) == (("tiny",), 2, 1024, 4)
    assert found.kv_pool == KvPool(tokens=2048, block_tokens=16)


def test_its_load_is_that_of_all_who_ask_and_goes_when_they_go(server: Running) -> None:
    first = probe_load(server.url, WIRE)
    assert (first.running, first.waiting, first.alive) == (None, None, True)  # gauges come with the first request
    with client(server.url) as one, ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(one.chat, words(i), task=TASK) for i in range(12)]

        def busy() -> bool:
            load = probe_load(server.url, WIRE)
            in_flight = (load.running or 0) + (load.waiting or 0)
            return in_flight == 12 and bool(load.waiting) and load.kv_used is not None and load.kv_used > 0.5

        until(busy, most_s=20.0, every_s=0.02)
        assert {call.result(120).usage.completion_tokens for call in calls} == {150}
    until(lambda: probe_load(server.url, WIRE).running == 0, most_s=10.0)
    seen = probe_load(server.url, WIRE)
    assert seen.ttft_s is not None and seen.ttft_s.count >= 12


def test_a_client_that_leaves_frees_its_place_at_once(server: Running) -> None:
    with client(server.url) as one:
        with one.stream(words(), task=TASK) as events:
            next(iter(events))
            assert probe_load(server.url, WIRE).running == 1
        left = time.monotonic()
        until(lambda: probe_load(server.url, WIRE).running == 0, most_s=5.0, every_s=0.02)
        assert time.monotonic() - left < 2.0


def test_a_prompt_beyond_the_window_is_no_fault_of_the_server(server: Running) -> None:
    answer = httpx.post(
        f"{server.url}/v1/chat/completions",
        json={"model": "tiny", "messages": [{"role": "user", "content": "tell me more " * 2_000}], "max_tokens": 5},
        timeout=30.0,
    )
    assert answer.status_code == 500  # which is why it must not be asked: see the pre-checks
    assert probe_load(server.url, WIRE).alive is True


def test_an_overload_is_told_by_529() -> None:
    with dynamo("--active-decode-blocks-threshold", "0.1") as strict:
        bodies = [{"model": "tiny", "messages": words(i), "max_tokens": 150} for i in range(16)]
        found = asked_at_once(strict.url, bodies)
    assert set(found) == {200, 529}
    assert {WIRE.classify(Answer(529, {}, body)).kind for body in found[529]} == {FailureKind.OVERLOADED}


def test_a_frontend_without_workers_gets_nothing_though_it_calls_itself_healthy() -> None:
    with dynamo() as server:
        by = router(deployment(server.url, adapter="dynamo", served_model="tiny"))
        watcher = Watcher(by)
        watcher.look()
        assert by.doctor() == []
        server.stop_workers()

        def dead() -> bool:
            watcher.look()
            return [finding.kind for finding in by.doctor()] == ["engine_dead"]

        until(dead, most_s=30.0)
        assert httpx.get(f"{server.url}/health").json()["status"] == "healthy"
        with pytest.raises(PoolFull):
            by.acquire(TASK)
