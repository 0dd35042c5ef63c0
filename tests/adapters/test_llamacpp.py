"""llama.cpp's wire: what it answered, and what the real server answers now."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from agentroute.adapters.base import Load
from agentroute.adapters.llamacpp import LlamaCppAdapter
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.errors import BackendError, FailureKind
from agentroute.probe import converse, probe
from agentroute.profile import KvPool
from agentroute.wire import Answer, Request

WIRE = LlamaCppAdapter()

MODELS = (
    '{"models":[{"name":"smollm2"}],"object":"list","data":[{"id":"smollm2","aliases":["smollm2"],"object":"model",'
    '"created":1795960438,"owned_by":"llamacpp","meta":{"n_vocab":49152,"n_ctx":2048,"n_ctx_train":8192}}]}'
)
PROPS: dict[str, Any] = {
    "default_generation_settings": {"params": {"temperature": 0.8}, "n_ctx": 2048},
    "total_slots": 2,
    "model_alias": "smollm2",
    "modalities": {"vision": False, "video": False, "audio": False},
    "chat_template_caps": {
        "supports_parallel_tool_calls": False,
        "supports_system_role": True,
        "supports_tool_calls": False,
        "supports_tools": False,
    },
    "build_info": "b0-unknown",
}
METRICS = """\
# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# HELP llamacpp:requests_deferred Number of requests deferred
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 3
"""
SLOTS = '[{"id":0,"n_ctx":512,"is_processing":true},{"id":1,"n_ctx":512,"is_processing":false}]'


def ask(answers: dict[str, str | Answer]) -> Any:
    def answer(request: Request) -> Answer:
        found = answers[request.path]
        return found if isinstance(found, Answer) else Answer(200, {}, found.encode())

    return answer


def discover(**changed: Any) -> Any:
    talk: Generator[Request, Answer, Any] = WIRE.discover()
    return converse(talk, ask({"/v1/models": MODELS, "/props": json.dumps(PROPS | changed)}))


def test_props_tell_window_slots_and_what_the_template_can_do() -> None:
    found = discover()
    assert found.models == ("smollm2",)
    assert (found.engine, found.engine_version) == ("llamacpp", None)
    assert (found.max_model_len, found.max_num_seqs) == (2048, 2)
    assert found.capabilities == {
        "tools": False,
        "parallel_tools": False,
        "vision": False,
        "audio": False,
        "json_schema": True,
    }


def test_one_slot_is_a_pool_of_one_block() -> None:
    found = discover(total_slots=1)
    assert found.kv_pool == KvPool(tokens=2048, block_tokens=2048)
    assert found.notes == ()


def test_more_slots_leave_the_pool_unknown_and_say_what_it_could_be() -> None:
    found = discover()
    assert found.kv_pool is None
    assert "4096 tokens" in found.notes[0]
    assert "2048 tokens in all" in found.notes[0]


def test_a_released_build_has_a_version() -> None:
    assert discover(build_info="b6500-1a2b3c4d").engine_version == "b6500-1a2b3c4d"


@pytest.mark.parametrize("nothing", [None, 7, [], {}])
def test_what_props_do_not_say_is_unknown(nothing: Any) -> None:
    found = discover(default_generation_settings=nothing, total_slots=nothing, chat_template_caps=nothing)
    assert found.max_model_len == 2048  # the list of models says it, too
    assert "tools" not in found.capabilities
    if nothing != 7:
        assert found.max_num_seqs is None
        assert found.kv_pool is None


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (METRICS, Load(running=2, waiting=3)),
        (METRICS.replace("\n", "\r\n"), Load(running=2, waiting=3)),
        ('llamacpp:requests_processing{model="a"} 1\n', Load(running=1)),
        ("llamacpp:requests_processing 1e0\n", Load(running=1)),
        ("llamacpp:requests_processing_total 1\n", Load()),
        ("llamacpp:requests_processing e\n", Load()),
        ("", Load()),
    ],
)
def test_metrics_tell_the_load_and_a_missing_gauge_is_unknown(text: str, load: Load) -> None:
    assert converse(WIRE.load(), ask({"/metrics": text})) == load


def test_a_server_without_metrics_has_no_known_load() -> None:
    refusal = Answer(501, {}, b'{"error":{"code":501,"message":"This server does not support metrics endpoint."}}')
    why = "/metrics is switched off; start it with --metrics"
    nobody = Answer(404, {}, b"")
    assert converse(WIRE.load(), ask({"/metrics": refusal, "/slots": nobody})) == Load(hidden=True, said=why)
    for slots, running in ((SLOTS, 1), ("[]", None), ('[{"is_processing": 1}]', None), ("<html>", None)):
        found = converse(WIRE.load(), ask({"/metrics": refusal, "/slots": slots}))
        assert found == Load(running=running, hidden=True, said=why)


def test_a_prompt_that_is_too_long_is_an_overflow_with_its_numbers() -> None:
    body = (
        b'{"error":{"code":400,"message":"request (4127 tokens) exceeds the available context size (2048 tokens), try '
        b'increasing it","type":"exceed_context_size_error","n_prompt_tokens":4127,"n_ctx":2048}}'
    )
    error = WIRE.classify(Answer(400, {}, body))
    assert error.kind is FailureKind.CONTEXT_OVERFLOW
    assert "4127 tokens" in error.detail


def test_a_call_that_does_not_stream_lingers_after_a_disconnect() -> None:
    assert WIRE.release_delay_s(streaming=True) < 1.0 < WIRE.release_delay_s(streaming=False)


# --- the real server


def test_the_real_server_is_discovered(llama_one: EmbeddedServer) -> None:
    found = probe(llama_one.url, WIRE)
    assert found.models == (MODEL_ALIAS,)
    assert (found.max_model_len, found.max_num_seqs) == (2048, 1)
    assert found.kv_pool == KvPool(tokens=2048, block_tokens=2048)
    assert found.capabilities["tools"] is False
    assert found.capabilities["json_schema"] is True


def test_the_real_server_with_a_template_for_tools_offers_them(llama_tools: EmbeddedServer) -> None:
    found = probe(llama_tools.url, WIRE)
    assert found.capabilities["tools"] is True
    assert found.capabilities["parallel_tools"] is True


def test_the_real_server_does_not_say_whether_its_slots_share_their_memory(
    llama_split: EmbeddedServer, llama_unified: EmbeddedServer
) -> None:
    for server, window, slots in ((llama_split, 512, 4), (llama_unified, 256, 2)):
        found = probe(server.url, WIRE)
        assert (found.max_model_len, found.max_num_seqs, found.kv_pool) == (window, slots, None)
    # Should a later llama.cpp say it, this fails, and discovery can use it.
    split, unified = (httpx.get(f"{server.url}/props").json() for server in (llama_split, llama_unified))
    differing = {key for key in split.keys() | unified.keys() if split.get(key) != unified.get(key)}
    assert differing <= {"default_generation_settings", "total_slots", "media_marker"}


def test_the_real_servers_idle_load_is_zero(llama_split: EmbeddedServer) -> None:
    def answer(request: Request) -> Answer:
        response = httpx.get(llama_split.url + request.path)
        return Answer(response.status_code, {name.lower(): v for name, v in response.headers.items()}, response.content)

    found, again = converse(WIRE.load(), answer), converse(WIRE.load(), answer)
    assert (found.running, found.waiting, found.kv_used, found.hidden) == (0, 0, None, False)
    assert found.process is not None and found.process == again.process
    assert found.counted is not None and found.steps is not None


def test_another_runtimes_server_is_told_apart(llama_one: EmbeddedServer) -> None:
    answers: dict[str, str | Answer] = {"/v1/models": MODELS, "/props": Answer(404, {}, b'{"detail":"Not Found"}')}
    with pytest.raises(BackendError) as caught:
        converse(WIRE.discover(), ask(answers))
    assert caught.value.kind is FailureKind.NOT_FOUND
