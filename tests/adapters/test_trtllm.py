"""trtllm-serve, by its documented answers."""

from __future__ import annotations

from typing import Any

import pytest
from replayed import NOT_FOUND, recorded, talk

from agentroute.adapters.base import Discovery, Load, Total
from agentroute.adapters.trtllm import HEALTH, PROMETHEUS, TrtllmAdapter
from agentroute.errors import BackendError
from agentroute.profile import KvPool
from agentroute.shape.sharding import Sharding
from agentroute.wire import Answer

WIRE = TrtllmAdapter()
READ = "trtllm-1.3"


def discover(changed: dict[str, Any] | None = None) -> Discovery:
    return talk(WIRE.discover(), recorded(READ) | (changed or {}))


def load(changed: dict[str, Any] | None = None) -> Load:
    return talk(WIRE.load(), recorded(READ) | (changed or {}))


def test_the_metrics_tell_pool_slots_window_and_what_it_runs_on() -> None:
    found = discover()
    assert (found.models, found.engine, found.engine_version) == (("meta-llama/Llama-3-8B",), "trtllm", "1.3.0")
    assert (found.max_model_len, found.max_num_seqs, found.max_num_batched_tokens) == (4096, 64, 8192)
    assert found.kv_pool == KvPool(tokens=32_000, block_tokens=32)
    assert (found.weights, found.kv, found.device) == ("float16", "auto", "NVIDIA H100 80GB HBM3")
    assert (found.sharding, found.prefix_caching, found.notes) == (Sharding(), True, ())


def test_several_tensor_ranks_may_be_used_in_more_than_one_way() -> None:
    text = recorded(READ)[PROMETHEUS].replace('tensor_parallel_size="1"', 'tensor_parallel_size="4"')
    assert discover({PROMETHEUS: text}).sharding is None


def test_without_prometheus_the_last_step_tells_the_pool() -> None:
    found = discover({PROMETHEUS: NOT_FOUND})
    assert found.kv_pool == KvPool(tokens=101_256 * 32, block_tokens=32)


@pytest.mark.parametrize("steps", [NOT_FOUND, "[]", "[7]", "{}", "<html>", [{"kvCacheStats": {"maxNumBlocks": -1}}]])
def test_a_server_that_has_done_nothing_yet_tells_no_pool(steps: Any) -> None:
    found = discover({PROMETHEUS: NOT_FOUND, "/metrics": steps})
    assert found.kv_pool is None
    assert "only once it has answered a request" in found.notes[0]


def test_the_load_is_told_with_the_times() -> None:
    found = load()
    assert (found.running, found.waiting, found.kv_used, found.alive) == (5, 3, 0.6, True)
    assert found.ttft_s == Total(0.5, 2.0)


def test_without_prometheus_the_last_step_tells_the_load_and_the_queue_is_unknown() -> None:
    assert load({PROMETHEUS: NOT_FOUND}) == Load(1, None, 3 / 101_256, alive=True)
    steps = [{"numActiveRequests": 9, "numQueuedRequests": 9}, {"numActiveRequests": 2, "numQueuedRequests": 3}]
    assert load({PROMETHEUS: NOT_FOUND, "/metrics": steps}) == Load(2, 3, alive=True)
    assert load({PROMETHEUS: NOT_FOUND, "/metrics": "[]"}) == Load(alive=True)


def test_an_engine_that_died_says_so_through_its_front() -> None:
    found = load({HEALTH: Answer(503, {}, b"LLM is unavailable. Please check the server logs for more details.")})
    assert (found.alive, found.said) == (False, "/health answers 503: the engine died")


def test_a_server_without_metrics_has_no_known_load_and_one_that_fails_says_so() -> None:
    nothing = {PROMETHEUS: NOT_FOUND, "/metrics": NOT_FOUND}
    assert load(nothing) == Load(alive=True, hidden=True, said="/metrics is not there")
    with pytest.raises(BackendError):
        load({PROMETHEUS: Answer(500, {}, b"")})
