"""``transformers serve``: what 5.19 answered on a CPU, and how it dies."""

from __future__ import annotations

from typing import Any

import pytest
from replayed import talk

from agentroute.adapters.base import Load
from agentroute.adapters.transformers import TransformersAdapter
from agentroute.errors import BackendError
from agentroute.wire import Answer

WIRE = TransformersAdapter()
BROKEN_LIST = Answer(500, {}, b"Internal Server Error")
"""What 5.19 answers where nothing was ever downloaded."""


def test_it_tells_its_models_alone_those_that_are_loaded_first() -> None:
    listed = {"data": [{"id": "a", "status": {"value": "unloaded"}}, {"id": "b", "status": {"value": "loaded"}}]}
    found = talk(WIRE.discover(), {"/v1/models": listed})
    assert (found.models, found.engine, found.wire) == (("b", "a"), "transformers", "transformers")
    assert (found.max_model_len, found.max_num_seqs, found.kv_pool) == (None, None, None)
    assert found.capabilities == {"json_schema": False}
    assert "ends its worker for good" in found.notes[0]


def test_a_version_that_cannot_list_its_models_lists_none() -> None:
    assert talk(WIRE.discover(), {"/v1/models": BROKEN_LIST}).models == ()


def test_its_worker_is_alive_until_it_died() -> None:
    assert talk(WIRE.load(), {"/health": {"status": "ok"}}) == Load(alive=True)
    dead = Answer(503, {}, b'{"status":"unhealthy","reason":"cb_worker_dead"}')
    assert talk(WIRE.load(), {"/health": dead}) == Load(alive=False, said="/health says cb_worker_dead")


@pytest.mark.parametrize("answer", [Answer(503, {}, b""), Answer(503, {}, b'{"reason":7}'), Answer(404, {}, b"")])
def test_a_health_that_says_no_reason_is_an_error(answer: Any) -> None:
    with pytest.raises(BackendError):
        talk(WIRE.load(), {"/health": answer})
