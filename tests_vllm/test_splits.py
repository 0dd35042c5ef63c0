"""vLLM on two workers, by tensors, by layers and as two engines; and with a latent KV cache: what it says and does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from heavy import EXACT, client, vllm, words
from large import asked_at_once, until

from agentroute import BackendError, Client, FailureKind, Task
from agentroute.adapters import adapter
from agentroute.adapters.base import Discovery
from agentroute.probe import probe, probe_load
from agentroute.profile import KvPool
from agentroute.shape.sharding import Sharding
from agentroute.wire import Answer

WIRE = adapter("vllm")
TASK = Task(context_tokens=350, max_output_tokens=100)
SPLITS = {
    "tp": (("--tensor-parallel-size", "2", "--enforce-eager"), Sharding(tp=2), 1),
    # Eager, a second stage has no tensors to begin with (0.32.0): its engine dies of the first request.
    "pp": (("--pipeline-parallel-size", "2"), Sharding(pp=2), 1),
    "dp": (("--data-parallel-size", "2", "--enforce-eager"), Sharding(attention_dp=2), 2),
}


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_told_with_the_kv_memory_of_one_engine_and_its_load_is_that_of_all(split: str) -> None:
    options, sharding, engines = SPLITS[split]
    with vllm(*options, blocks=24, workers=2) as url:
        found = probe(url, WIRE)
        assert (found.sharding, found.engines, found.max_num_seqs) == (sharding, engines, 4)
        assert found.kv_pool == KvPool(tokens=24 * 128, block_tokens=128)
        all_are_seen_and_answered(url, found, 5 * engines)


def test_a_latent_cache_has_small_blocks_and_a_full_queue_is_told_in_two_ways() -> None:
    with vllm("--enforce-eager", "--max-num-queued-reqs", "2", shape="mla") as url:
        found = probe(url, WIRE)
        assert (found.sharding, found.engines, found.prefix_caching) == (Sharding(tp=1), 1, False)
        assert found.kv_pool is not None
        # 512 of latent and 64 of position, 2 bytes each, in 4 layers, of 1 GiB
        assert found.kv_pool.block_tokens == 16
        assert found.kv_pool.tokens == pytest.approx(2**30 / ((512 + 64) * 2 * 4), rel=0.001)
        with client(url) as one:
            assert one.chat(words(), task=TASK, body=EXACT).usage.completion_tokens == 100
        body = {"model": "tiny", "max_tokens": 50, "stream": True, **EXACT}
        with ThreadPoolExecutor(1) as aside:
            burst = aside.submit(asked_at_once, url, [{**body, "messages": words(i)} for i in range(16)])
            until(lambda: in_flight(url) >= 2, most_s=60.0, every_s=0.02)
            # Who comes together may all be let in, and be told inside of a 200; who comes when it is full is not.
            late = asked_at_once(url, [{**body, "messages": words(16)}])
            answers = burst.result()
        until(lambda: in_flight(url) == 0, most_s=60.0)
        assert set(late) == {503} and set(answers) <= {200, 503}
        refused = late[503] + answers.get(503, [])
        assert {WIRE.classify(Answer(503, {}, body)).kind for body in refused} == {FailureKind.OVERLOADED}
        inside = [body for body in answers[200] if b'"error"' in body]
        assert {told(body) for body in inside} <= {FailureKind.OVERLOADED}
        assert 0 < len(answers[200]) - len(inside) < 16  # some got through
        with client(url) as one, ThreadPoolExecutor(12) as threads:
            ends = list(threads.map(lambda i: ended(one, i), range(12)))
        assert set(ends) <= {50, FailureKind.OVERLOADED} and 50 in ends


def in_flight(url: str) -> int:
    """Requests that run or wait."""
    load = probe_load(url, WIRE)
    return (load.running or 0) + (load.waiting or 0)


def told(body: bytes) -> FailureKind:
    """What the event of a stream says that holds an error."""
    event = next(line for line in body.splitlines() if b'"error"' in line)
    return WIRE.classify(Answer(503, {}, event.removeprefix(b"data: "))).kind


def ended(one: Client, i: int) -> int | FailureKind | None:
    """How many tokens a stream brought, or why it ended."""
    try:
        with one.stream(words(i), task=Task(context_tokens=350, max_output_tokens=50), body=EXACT) as events:
            list(events)
    except BackendError as error:
        return error.kind
    return events.reply.usage.completion_tokens if events.reply else None


def all_are_seen_and_answered(url: str, found: Discovery, count: int) -> None:
    """So many requests, more than there are slots, show in its load; so does that they are gone."""
    with client(url) as one, ThreadPoolExecutor(count) as threads:
        calls = [threads.submit(one.chat, words(i), task=TASK, body=EXACT) for i in range(count)]

        def busy() -> bool:
            load = probe_load(url, WIRE)
            return (load.running or 0) + (load.waiting or 0) == count and (load.kv_used or 0.0) > 0.1

        until(busy, most_s=60.0, every_s=0.02)
        assert {call.result(300).usage.completion_tokens for call in calls} == {100}
    until(lambda: probe_load(url, WIRE).running == 0, most_s=10.0)
    seen = probe_load(url, WIRE)
    assert (seen.waiting, seen.kv_used, seen.alive) == (0, 0.0, True)
    assert seen.osl is not None and seen.osl.sum >= 100 * count
