"""Which adapter speaks a server's wire: every server that was recorded is told by its answers."""

from __future__ import annotations

from typing import Any

import pytest
from replayed import NOT_FOUND, recorded, talk

from agentroute.adapters import ADAPTERS
from agentroute.adapters.which import which
from agentroute.errors import BackendError
from agentroute.wire import Answer

LISTED_BY_VLLM = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 1024}]}
ID = {"x-request-id": "efa2a14c-f361-47fe-9a1b-bd28b867a052"}
HEALTHY = Answer(200, ID, b'{"status":"ok"}')
DEAD = Answer(503, ID, b'{"status":"unhealthy","reason":"cb_worker_dead"}')
BROKEN = Answer(500, {}, b"Internal Server Error")


@pytest.mark.parametrize(
    ("server", "wire"),
    [
        ("dynamo-1.6.1-two-workers", "dynamo"),
        ("sglang-0.5.23-attention-dp4", "sglang"),
        ("sglang-2026-03-tp1", "sglang"),
        ("sglang-router-0.3.2", "sglang_router"),
        ("trtllm-1.3", "trtllm"),
        ("vllm-0.32.0-dp2", "vllm"),
        ("vllm-0.32.0-tp2", "vllm"),
        ("vllm-router-0.1.17", "vllm_router"),
    ],
)
def test_a_recorded_server_is_told_by_its_answers(server: str, wire: str) -> None:
    assert talk(which(), recorded(server)) == wire


@pytest.mark.parametrize(
    ("answers", "wire"),
    [
        ({"/v1/models": LISTED_BY_VLLM}, "vllm"),
        ({"/v1/models": LISTED_BY_VLLM, "/engines": [{"engine_id": "a", "serving_models": ["m"]}]}, "vllm_router"),
        ({"/v1/models": LISTED_BY_VLLM, "/readiness": {"total_workers": 1}}, "sglang_router"),
        (
            {"/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]}, "/readiness": {"status": "ready"}},
            "llamacpp",
        ),
        ({"/v1/models": {"data": [{"id": "org/m", "owned_by": "org"}]}, "/health": HEALTHY}, "transformers"),
        ({"/v1/models": BROKEN, "/health": HEALTHY}, "transformers"),
        ({"/v1/models": BROKEN, "/health": DEAD}, "transformers"),
        ({"/v1/models": {"data": [{"id": "m", "owned_by": "library"}]}}, "openai"),
        ({"/v1/models": {"data": [{"id": "m"}]}, "/health": {"status": "ok"}}, "openai"),
        ({"/v1/models": {"data": []}}, "openai"),
    ],
)
def test_a_server_is_told_by_what_only_it_answers(answers: dict[str, Any], wire: str) -> None:
    assert talk(which(), answers) == wire
    assert wire in ADAPTERS


@pytest.mark.parametrize("models", [NOT_FOUND, BROKEN, Answer(401, {}, b""), "<html>", Answer(503, {}, b"")])
def test_what_lists_no_models_is_no_such_server(models: Any) -> None:
    with pytest.raises(BackendError):
        talk(which(), {"/v1/models": models})
