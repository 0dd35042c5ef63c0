"""Dynamo's frontend: what one with two workers answered."""

from __future__ import annotations

from typing import Any

import pytest
from replayed import NOT_FOUND, recorded, talk

from agentroute.adapters.base import Discovery, Load, Total
from agentroute.adapters.dynamo import DynamoAdapter
from agentroute.errors import BackendError
from agentroute.profile import KvPool
from agentroute.wire import Answer

WIRE = DynamoAdapter()
SEEN = "dynamo-1.6.1-two-workers"


def discover(**changed: Any) -> Discovery:
    return talk(WIRE.discover(), recorded(SEEN) | {f"/{name}": answer for name, answer in changed.items()})


def load(**changed: Any) -> Load:
    return talk(WIRE.load(), recorded(SEEN) | {f"/{name}": answer for name, answer in changed.items()})


def test_the_frontend_tells_the_limits_of_one_worker_and_how_many_there_are() -> None:
    found = discover()
    assert (found.models, found.engine, found.wire) == (("tiny",), "dynamo", "dynamo")
    assert (found.max_model_len, found.max_num_seqs, found.max_num_batched_tokens) == (1024, 4, 8192)
    assert found.kv_pool == KvPool(tokens=128 * 16, block_tokens=16)
    assert found.engines == 2
    assert found.notes == ("the frontend does not tell the split of its workers; give it, or write it down",)


def test_without_metrics_the_window_is_known_and_the_pool_is_not() -> None:
    found = discover(metrics=NOT_FOUND)
    assert (found.max_model_len, found.kv_pool, found.engines) == (1024, None, 2)
    assert "the KV pool is unknown" in found.notes[0]


def test_what_waits_has_no_first_token_yet_and_a_pool_that_is_given_away_twice_is_full() -> None:
    found = load()
    assert (found.running, found.waiting, found.kv_used) == (4, 8, 1.0)
    assert (found.alive, found.hidden) == (True, False)
    assert found.ttft_s == Total(0.018901419, 1.0)
    assert (found.isl, found.osl) == (Total(4.0, 1.0), Total(4.0, 1.0))


def test_an_idle_frontend_is_idle() -> None:
    told = recorded(SEEN)
    models = "\n".join(line for line in told["/metrics"].splitlines() if "_model_" in line)
    found = load(metrics=f"{models}\n{told['idle']}")
    assert (found.running, found.waiting, found.kv_used) == (0, 0, 0.0)


def test_without_its_kv_router_the_use_of_the_pool_is_unknown() -> None:
    text = recorded(SEEN)["/metrics"]
    without = "\n".join(line for line in text.splitlines() if "active_decode_blocks" not in line)
    assert load(metrics=without).kv_used is None


def test_a_frontend_without_workers_calls_itself_healthy_and_is_not_alive() -> None:
    found = load(health={"status": "healthy", "endpoints": [], "instances": []})
    assert (found.alive, found.said) == (False, "the frontend has no worker")


def test_workers_that_only_read_prompts_are_not_counted() -> None:
    health = recorded(SEEN)["/health"]
    health["instances"] += [{"component": "prefill", "endpoint": "generate", "instance_id": 7}]
    assert discover(health=health).engines == 2
    assert load(health=health).alive is True
    only = [one for one in health["instances"] if one["component"] == "prefill"]
    assert load(health={"instances": only}).alive is False


@pytest.mark.parametrize("health", [NOT_FOUND, {}, [], "ready", {"instances": 7}])
def test_a_health_that_lists_nobody_says_nothing(health: Any) -> None:
    assert load(health=health).alive is None
    assert discover(health=health).engines is None


def test_metrics_that_are_not_shown_leave_the_load_unknown_and_those_that_fail_are_an_error() -> None:
    assert load(metrics=NOT_FOUND) == Load(alive=True, hidden=True, said="/metrics is not there")
    with pytest.raises(BackendError):
        load(metrics=Answer(503, {}, b""))
