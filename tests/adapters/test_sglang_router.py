"""SGLang's router: what one with two llama.cpp servers behind it answered."""

from __future__ import annotations

from typing import Any

import pytest
from replayed import NOT_FOUND, recorded, talk

from agentroute.adapters.base import Load
from agentroute.adapters.sglang_router import WORKERS, SglangRouterAdapter
from agentroute.errors import BackendError
from agentroute.wire import Answer

WIRE = SglangRouterAdapter()
SEEN = "sglang-router-0.3.2"


def load(workers: Any) -> Load:
    return talk(WIRE.load(), {WORKERS: workers})


def test_a_router_tells_its_models_and_how_many_workers_it_has_and_advises_to_name_them() -> None:
    found = talk(WIRE.discover(), recorded(SEEN))
    assert (found.models, found.engine, found.wire) == (("unknown",), "other", "sglang_router")
    assert (found.engines, found.kv_pool, found.max_num_seqs) == (2, None, None)
    assert "of its 2 workers; give each worker's address instead" in found.notes[0]


def test_its_load_is_what_it_has_with_all_workers() -> None:
    busy = {"workers": [{"load": 3, "is_healthy": True}, {"load": 1, "is_healthy": False}]}
    assert load(busy) == Load(running=4, alive=True)


def test_a_load_of_0_is_unknown_for_some_policies_count_none() -> None:
    assert load(recorded(SEEN)[WORKERS]) == Load(alive=True)


def test_it_is_down_when_no_worker_is_healthy() -> None:
    found = load({"workers": [{"load": 0, "is_healthy": False}] * 2})
    assert (found.alive, found.said) == (False, "none of its 2 workers is healthy")


@pytest.mark.parametrize("value", [-1, None, "3", 1.5])
def test_a_load_that_is_none_is_unknown(value: Any) -> None:
    assert load({"workers": [{"load": value}, {"load": 2}]}) == Load(alive=True)


@pytest.mark.parametrize("answer", [NOT_FOUND, {}, {"workers": []}, {"workers": 7}, "<html>"])
def test_a_router_that_lists_nobody_has_no_known_load(answer: Any) -> None:
    assert load(answer) == Load(hidden=True, said="/workers tells no worker")


def test_a_router_that_fails_says_so() -> None:
    with pytest.raises(BackendError):
        load(Answer(503, {}, b""))
