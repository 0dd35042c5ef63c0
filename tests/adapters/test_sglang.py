"""SGLang's wire: what a server answered in SGLang's documentation, what its source would, and what is not believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.adapters.base import Discovery, Load, Total
from agentroute.adapters.prometheus import METRICS
from agentroute.adapters.sglang import LOADS, SglangAdapter
from agentroute.errors import BackendError
from agentroute.probe import converse
from agentroute.profile import KvPool
from agentroute.shape.sharding import Sharding
from agentroute.wire import Answer, Request

WIRE = SglangAdapter()
DATA = Path(__file__).parents[1] / "data" / "servers"
NOT_FOUND = Answer(404, {}, b'{"detail":"Not Found"}')
SECRET = "sk-not-a-real-key"
NOW = "sglang-0.5.23-attention-dp4"
KEYS = ["internal_states", "memory_usage", "token_capacity", "token_capacity_swa", "max_total_num_tokens", "page_size"]
KEYS += ["tp_size", "attn_dp_size", "dp_size", "ep_size", "loads", "accelerator"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
)


def recorded(name: str) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return answers


def discover(answers: dict[str, Any]) -> Discovery:
    def answer(request: Request) -> Answer:
        found = answers.get(request.path, NOT_FOUND)
        return found if isinstance(found, Answer) else Answer(200, {}, json.dumps(found).encode())

    return converse(WIRE.discover(), answer)


def told(**info: Any) -> Discovery:
    """What a server with these fields, and otherwise the one with four replicas of attention, says."""
    answers = recorded(NOW)
    answers["/server_info"] |= info
    return discover(answers)


def load(value: Any, status: int = 200) -> Load:
    return converse(WIRE.load(), lambda request: Answer(status, {}, json.dumps(value).encode()))


def test_the_documented_server_is_discovered() -> None:
    found = discover(recorded("sglang-2026-03-tp1"))
    assert (found.models, found.engine) == (("qwen/qwen2.5-0.5b-instruct",), "sglang")
    assert found.engine_version == "0.0.0.dev1+gf97c09dac"
    assert (found.max_model_len, found.max_num_seqs, found.max_num_batched_tokens) == (32_768, 128, 8192)
    assert found.kv_pool == KvPool(tokens=20_480, block_tokens=1)
    assert found.sharding == Sharding()
    assert (found.weights, found.kv, found.device) == (None, "auto", None)
    assert found.capabilities == {"vision": False, "audio": False}
    assert (found.notes, found.pool_notes) == ((), ())


def test_a_server_with_replicas_of_attention_is_counted_by_rank() -> None:
    found = discover(recorded(NOW))
    assert (found.engine_version, found.device) == ("0.5.23", "NVIDIA H200")
    assert found.sharding == Sharding(tp=2, attention_dp=4, ep=8)  # SGLang counts the replicas inside tp_size = 8
    assert found.engines == 4
    assert found.kv_pool == KvPool(tokens=786_944, block_tokens=64)  # the least of the ranks
    assert found.max_num_seqs == 250  # what a rank settled on, not its share of the 1024 that were asked for
    assert found.max_num_batched_tokens == 2048
    assert (found.weights, found.kv) == ("fp8", "fp8_e4m3")
    assert found.capabilities == {"tools": True, "vision": False, "audio": False}
    assert (found.notes, found.pool_notes) == ((), ())


@pytest.mark.parametrize(
    ("info", "first"),
    [
        ({}, None),
        ({"enable_priority_scheduling": False, "schedule_low_priority_values_first": True}, None),
        ({"enable_priority_scheduling": True}, "higher"),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": False}, "higher"),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, "lower"),
    ],
)
def test_priorities_count_in_the_direction_that_it_was_started_with(info: dict[str, Any], first: str | None) -> None:
    assert told(**info).priority == first


def test_no_key_of_the_server_leaves_its_answer() -> None:
    answers = recorded(NOW)
    assert SECRET in json.dumps(answers)
    assert SECRET not in repr(discover(answers))


@pytest.mark.parametrize(
    ("info", "sharding"),
    [
        ({"attn_dp_size": 1, "dp_size": 4}, Sharding(tp=2, attention_dp=4, ep=8)),  # before attn_dp_size
        ({"attn_dp_size": None, "dp_size": 4}, Sharding(tp=2, attention_dp=4, ep=8)),
        ({"attn_dp_size": 1, "dp_size": 2, "enable_dp_attention": False}, Sharding(tp=8, attention_dp=2, ep=8)),
        ({"attn_dp_size": 4, "dp_size": 2}, Sharding(tp=2, attention_dp=8, ep=8)),
        ({"attn_dp_size": 1, "enable_dp_attention": False, "ep_size": 1}, Sharding(tp=8)),
        ({"attn_dp_size": 1, "enable_dp_attention": False, "pp_size": 2}, Sharding(tp=8, pp=2, ep=8)),
        ({"attn_dp_size": 1, "enable_dp_attention": False, "dcp_size": 4}, Sharding(tp=8, ep=8, dcp=4)),
    ],
)
def test_replicas_stand_beside_tp(info: dict[str, Any], sharding: Sharding) -> None:
    assert told(**info).sharding == sharding


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"tp_size": None}, "does not tell its sharding"),
        ({"tp_size": "8"}, "does not tell its sharding"),
        ({"tp_size": 6}, "do not fit each other"),
        ({"ep_size": 3}, "do not fit each other"),
        ({"attn_cp_size": 2}, "attn_cp_size and moe_dp_size"),
        ({"moe_dp_size": 2}, "attn_cp_size and moe_dp_size"),
        ({"disaggregation_mode": "decode"}, "the decode side of a disaggregated deployment"),
    ],
)
def test_a_split_that_a_profile_cannot_hold_is_unknown_and_said(info: dict[str, Any], says: str) -> None:
    found = told(**info)
    assert (found.sharding, found.engines) == (None, None)
    assert says in found.notes[0]


@pytest.mark.parametrize(
    ("info", "pool", "noted"),
    [
        ({"internal_states": []}, (787_456, 64), None),
        ({"internal_states": [{}]}, (787_456, 64), None),
        ({"internal_states": None, "dcp_size": 2}, (787_456, 128), None),
        ({"page_size": None}, (786_944, 1), "does not tell the size of a page"),
        ({"internal_states": [{"memory_usage": {"token_capacity": 6400, "token_capacity_swa": 5120}}]},
         (6400, 64), "a pool of their own, of 5,120 tokens"),
        ({"internal_states": [], "max_total_num_tokens": None}, None, None),
        ({"internal_states": [], "max_total_num_tokens": 63}, None, None),
    ],
)  # fmt: skip
def test_the_pool_is_that_of_one_rank(info: dict[str, Any], pool: tuple[int, int] | None, noted: str | None) -> None:
    found = told(**info)
    assert found.kv_pool == (KvPool(tokens=pool[0], block_tokens=pool[1]) if pool else None)
    assert len(found.pool_notes) == (noted is not None) and (noted or "") in "".join(found.pool_notes)
    assert ("the KV pool is unknown" in "".join(found.notes)) is (pool is None)


@pytest.mark.parametrize(
    ("info", "slots", "step"),
    [
        ({"internal_states": []}, 256, 2048),
        ({"internal_states": [], "attn_dp_size": 1, "enable_dp_attention": False}, 1024, 2048),
        ({"internal_states": [], "max_running_requests": None, "chunked_prefill_size": -1}, None, 16_384),
        ({"internal_states": [], "max_running_requests": 2, "chunked_prefill_size": None}, 1, None),
    ],
)
def test_slots_are_those_of_one_rank_and_a_step_is_a_chunk(
    info: dict[str, Any], slots: int | None, step: int | None
) -> None:
    found = told(**info)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (slots, step)


def test_the_new_routes_come_before_the_old_ones() -> None:
    answers = recorded(NOW)
    answers |= {"/get_server_info": {"version": "0.0.1"}, "/get_model_info": {"has_image_understanding": True}}
    found = discover(answers)
    assert (found.engine_version, found.capabilities["vision"]) == ("0.5.23", False)


def test_a_server_that_tells_no_arguments_leaves_slots_and_split_unknown() -> None:
    few = {"version": "0.5.23", "max_total_num_tokens": 4096, "internal_states": []}
    found = discover(recorded(NOW) | {"/server_info": few, LOADS: NOT_FOUND})
    assert (found.sharding, found.max_num_seqs, found.weights, found.device) == (None, None, None, None)
    assert found.kv_pool == KvPool(tokens=4096, block_tokens=1)


def test_a_router_before_it_tells_the_models_alone() -> None:
    router = {"router_manager": True, "routers_count": 1, "workers_count": 2}  # as sglang-router 0.3.2 answered
    found = discover({"/v1/models": recorded(NOW)["/v1/models"], "/get_server_info": router})
    assert (found.max_model_len, found.kv_pool, found.sharding) == (163_840, None, None)
    assert len(found.notes) == 2


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"7", b"null", b"[" * 100_000, b"\xff", b'{"tp_size":[]}'])
def test_answers_that_need_not_come_are_unknown_in_any_shape(body: bytes) -> None:
    odd = Answer(200, {}, body)
    found = discover(recorded(NOW) | {"/server_info": odd, "/model_info": odd, LOADS: odd})
    assert (found.engine_version, found.sharding, found.kv_pool, found.max_num_seqs) == (None, None, None, None)
    assert found.capabilities == {}


def test_the_list_of_models_must_come() -> None:
    with pytest.raises(BackendError):
        discover({})


@given(ANYTHING)
def test_no_answer_breaks_the_conversation(value: Any) -> None:
    answers = {"/v1/models": recorded(NOW)["/v1/models"], "/server_info": value, "/model_info": value, LOADS: value}
    assert discover(answers).models == ("deepseek-ai/DeepSeek-V3",)


# --- the load


def test_the_load_is_that_of_all_ranks() -> None:
    found = load(recorded(NOW)[LOADS])
    assert (found.running, found.waiting) == (10, 1)
    assert found.kv_used == pytest.approx(0.15)


@pytest.mark.parametrize(
    "value",
    [{}, {"loads": None}, {"loads": []}, {"loads": [{}]}, {"loads": [{"num_running_reqs": "3", "token_usage": 7}]},
     {"loads": [{"num_running_reqs": 3, "num_waiting_reqs": 1, "token_usage": 0.5}, {}]}],
)  # fmt: skip
def test_what_a_rank_does_not_say_is_unknown(value: Any) -> None:
    assert load(value) == Load()


def test_a_server_without_the_route_has_no_known_load_and_one_that_fails_says_so() -> None:
    assert load({}, 404) == Load(hidden=True, said="/metrics is not there; start it with --enable-metrics")
    with pytest.raises(BackendError):
        load({}, 503)
    with pytest.raises(BackendError):
        load([])


def test_metrics_stand_in_for_a_route_that_is_not_there_and_add_the_times() -> None:
    text = b"sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n"
    times = b"sglang:time_to_first_token_seconds_sum 1.5\nsglang:time_to_first_token_seconds_count 3\n"
    metrics = Answer(200, {}, text + times)
    old = converse(WIRE.load(), lambda request: metrics if request.path == METRICS else NOT_FOUND)
    assert old == Load(3, 1, 0.5, ttft_s=Total(1.5, 3.0))
    loads = Answer(200, {}, json.dumps(recorded(NOW)[LOADS]).encode())
    new = converse(WIRE.load(), lambda request: metrics if request.path == METRICS else loads)
    assert (new.running, new.waiting, new.ttft_s) == (10, 1, Total(1.5, 3.0))


@pytest.mark.parametrize(("off", "caching"), [(False, True), (True, False), (None, None), ("no", None)])
def test_a_radix_cache_that_is_not_switched_off_keeps_prompts(off: Any, caching: bool | None) -> None:
    assert told(disable_radix_cache=off).prefix_caching is caching
