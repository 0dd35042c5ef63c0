"""vLLM's wire: what servers of 0.32.0 answered, and what is not believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.adapters.base import Discovery, Load, Total
from agentroute.adapters.prometheus import METRICS
from agentroute.adapters.vllm import HEALTH, SERVER_INFO, VllmAdapter
from agentroute.errors import BackendError, FailureKind
from agentroute.probe import converse
from agentroute.profile import KvPool
from agentroute.shape.sharding import Sharding
from agentroute.wire import Answer, Request

WIRE = VllmAdapter()
DATA = Path(__file__).parents[1] / "data" / "servers"
NOT_FOUND = Answer(404, {}, b'{"detail":"Not Found"}')
EXPERTS = {"enable_expert_parallel": True, "is_moe_model": True}
KEYS = ["vllm_config", "parallel_config", "scheduler_config", "model_config", "cache_config", "version", "dtype"]
KEYS += ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "block_size", "num_gpu_blocks"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
)


def recorded(name: str) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return answers | {METRICS: "\n".join(answers[METRICS])}


def discover(answers: dict[str, Any]) -> Discovery:
    def answer(request: Request) -> Answer:
        found = answers.get(request.path, NOT_FOUND)
        if isinstance(found, Answer):
            return found
        return Answer(200, {}, (found if isinstance(found, str) else json.dumps(found)).encode())

    return converse(WIRE.discover(), answer)


def load(text: str, status: int = 200) -> Load:
    return converse(WIRE.load(), lambda request: Answer(status, {}, text.encode()))


def labels(**said: Any) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in said.items())
    return f"vllm:cache_config_info{{{inside}}} 1.0\n"


def configured(**parallel: Any) -> Discovery:
    """What a server with these degrees, and otherwise the one with two tensor ranks, says."""
    answers = recorded("vllm-0.32.0-tp2")
    answers[SERVER_INFO]["vllm_config"]["parallel_config"] |= parallel
    return discover(answers)


@pytest.mark.parametrize(
    ("server", "sharding", "tokens", "block", "slots", "step"),
    [
        ("vllm-0.32.0-tp2", Sharding(tp=2), 1536, 128, 4, 4096),
        ("vllm-0.32.0-pp2", Sharding(pp=2), 1536, 128, 8, 4096),
        ("vllm-0.32.0-dp2", Sharding(attention_dp=2), 1536, 128, 8, 2048),
        ("vllm-0.32.0-dsv3", Sharding(), 233_008, 16, 8, 2048),
    ],
)
def test_a_server_in_development_mode_tells_everything(
    server: str, sharding: Sharding, tokens: int, block: int, slots: int, step: int
) -> None:
    found = discover(recorded(server))
    assert (found.models, found.engine, found.engine_version) == (("tiny",), "vllm", "0.32.0")
    assert (found.max_model_len, found.max_num_seqs, found.max_num_batched_tokens) == (1024, slots, step)
    assert found.kv_pool == KvPool(tokens=tokens, block_tokens=block)
    assert (found.sharding, found.engines) == (sharding, sharding.attention_dp)
    assert (found.weights, found.kv) == ("torch.bfloat16", "torch.bfloat16")
    assert (found.notes, found.pool_notes) == ((), ())


def test_priorities_count_only_where_the_scheduler_goes_by_them() -> None:
    answers = recorded("vllm-0.32.0-tp2")
    scheduler = answers[SERVER_INFO]["vllm_config"]["scheduler_config"]
    assert (scheduler["policy"], discover(answers).priority) == ("fcfs", None)
    scheduler["policy"] = "priority"
    assert discover(answers).priority == "lower"
    assert discover(answers | {SERVER_INFO: NOT_FOUND}).priority is None


def test_outside_development_mode_the_pool_is_known_and_the_split_is_not() -> None:
    found = discover(recorded("vllm-0.32.0-tp2") | {SERVER_INFO: NOT_FOUND})
    assert found.kv_pool == KvPool(tokens=1536, block_tokens=128)
    assert (found.sharding, found.max_num_seqs, found.max_num_batched_tokens) == (None, None, None)
    assert (found.weights, found.kv, found.engines) == (None, "auto", 1)
    assert found.notes == ("vLLM does not tell its sharding outside its development mode; give it, or write it down",)


def test_engines_are_counted_in_the_metrics_and_the_pool_is_that_of_one() -> None:
    found = discover(recorded("vllm-0.32.0-dp2") | {SERVER_INFO: NOT_FOUND})
    assert (found.engines, found.sharding) == (2, None)
    assert found.kv_pool == KvPool(tokens=1536, block_tokens=128)  # the label num_gpu_blocks counts both: 24
    assert found.notes[0].startswith("2 data-parallel engines answer here, each with a KV pool of its own; ")


@pytest.mark.parametrize(
    ("running", "engines"),
    [
        ([""], 1),
        (['{engine="0"}'], 1),
        (['{engine="0"}', '{engine="1"}'], 2),
        (['{engine="7"}'], 1),
        ([], 1),
    ],
)
def test_a_cache_without_the_label_is_not_another_engine(running: list[str], engines: int) -> None:
    gauges = "".join(f"vllm:num_requests_running{label} 0.0\n" for label in running)
    metrics = labels(block_size=16, num_gpu_blocks=100) + gauges
    found = discover(recorded("vllm-0.32.0-tp2") | {METRICS: metrics, SERVER_INFO: NOT_FOUND})
    assert found.engines == engines
    assert found.kv_pool == KvPool(tokens=1600 // engines, block_tokens=16)


def test_without_metrics_the_configuration_tells_the_pool() -> None:
    found = discover(recorded("vllm-0.32.0-dp2") | {METRICS: NOT_FOUND})
    assert found.kv_pool == KvPool(tokens=1536, block_tokens=128)
    assert (found.engines, found.sharding) == (None, Sharding(attention_dp=2))


def test_the_older_configuration_in_words_is_not_read() -> None:
    words = {"vllm_config": "model='tiny', tensor_parallel_size=2, pipeline_parallel_size=1"}
    assert discover(recorded("vllm-0.32.0-tp2") | {SERVER_INFO: words}).sharding is None


@pytest.mark.parametrize(
    ("parallel", "sharding"),
    [
        (EXPERTS, Sharding(tp=2, ep=2)),
        (EXPERTS | {"data_parallel_size": 4}, Sharding(tp=2, attention_dp=4, ep=8)),
        (EXPERTS | {"is_moe_model": False}, Sharding(tp=2)),
        ({"decode_context_parallel_size": 2}, Sharding(tp=2, dcp=2)),
    ],
)
def test_experts_are_spread_over_tp_x_dp(parallel: dict[str, Any], sharding: Sharding) -> None:
    assert configured(**parallel).sharding == sharding


@pytest.mark.parametrize(
    ("parallel", "says"),
    [
        ({"data_parallel_size": 8, "data_parallel_external_lb": True}, "one of several addresses of 8"),
        ({"data_parallel_size": 8, "data_parallel_hybrid_lb": True}, "one of several addresses of 8"),
        ({"prefill_context_parallel_size": 2}, "a split of the prompt's context"),
        ({"decode_context_parallel_size": 3}, "do not fit each other"),
        ({"tensor_parallel_size": None}, "does not tell its sharding"),
        ({"tensor_parallel_size": "2"}, "does not tell its sharding"),
        ({"tensor_parallel_size": 10**9}, "does not tell its sharding"),
    ],
)
def test_a_split_that_a_profile_cannot_hold_is_unknown_and_said(parallel: dict[str, Any], says: str) -> None:
    found = configured(**parallel)
    assert found.sharding is None
    assert says in found.notes[0]


@pytest.mark.parametrize(
    ("model", "cache_dtype", "weights", "kv"),
    [
        ({"quantization": "fp8", "dtype": "torch.bfloat16"}, "auto", "fp8", "auto"),
        ({"quantization": "fp8", "dtype": "torch.bfloat16"}, "fp8_e4m3", "fp8", "fp8_e4m3"),
        ({"quantization": None, "dtype": "torch.float16"}, "auto", "torch.float16", "torch.float16"),
        ({"quantization": 7, "dtype": None}, "auto", None, "auto"),
    ],
)
def test_the_kv_type_is_the_models_own_only_where_nothing_is_quantised(
    model: dict[str, Any], cache_dtype: str, weights: str | None, kv: str
) -> None:
    answers = recorded("vllm-0.32.0-tp2")
    answers[SERVER_INFO]["vllm_config"]["model_config"] |= model
    answers[METRICS] = labels(cache_dtype=cache_dtype)
    found = discover(answers)
    assert (found.weights, found.kv) == (weights, kv)


@pytest.mark.parametrize(
    ("said", "pool", "noted"),
    [
        # all alike: the tokens are the requests of 1024 tokens that fit, times 1024
        ({"block_size": 16, "num_gpu_blocks": 100, "kv_cache_size_tokens": 1600}, (1600, 16), None),
        ({"block_size": 100, "num_gpu_blocks": 33, "kv_cache_size_tokens": 3072}, (3072, 100), None),
        ({"block_size": 16, "num_gpu_blocks": 100, "kv_cache_size_tokens": 2400}, (2400, 16), "not all layers keep"),
        ({"block_size": 16, "num_gpu_blocks": 100}, (1600, 16), "tells its blocks, not its tokens"),
        ({"block_size": 16, "num_gpu_blocks": 100, "kv_cache_size_tokens": "None"}, (1600, 16), "tells its blocks"),
        ({"block_size": 16, "effective_attention_block_size": 32, "num_gpu_blocks": 50, "kv_cache_size_tokens": 1600},
         (1600, 32), None),
        ({"block_size": 16, "kv_cache_size_tokens": 1600}, (1600, 16), None),
        ({"block_size": 16, "num_gpu_blocks": "None"}, None, None),
        ({"num_gpu_blocks": 100, "kv_cache_size_tokens": 1600}, None, None),
        ({"block_size": 0, "num_gpu_blocks": 100}, None, None),
        ({"block_size": 16, "num_gpu_blocks": "1e3"}, None, None),
        ({"block_size": 16, "num_gpu_blocks": "9" * 5000}, None, None),
        ({"block_size": 16, "kv_cache_size_tokens": 8}, None, None),
        ({}, None, None),
    ],
)  # fmt: skip
def test_the_labels_of_the_cache_tell_one_engines_pool(
    said: dict[str, Any], pool: tuple[int, int] | None, noted: str | None
) -> None:
    answers = recorded("vllm-0.32.0-tp2") | {METRICS: labels(**said), SERVER_INFO: NOT_FOUND}
    found = discover(answers)
    assert found.kv_pool == (KvPool(tokens=pool[0], block_tokens=pool[1]) if pool else None)
    assert [noted in note for note in found.pool_notes] == ([True] if noted else []) if noted else not found.pool_notes
    assert ("the KV pool is unknown" in found.notes[0]) is (pool is None)


def test_ranks_that_share_a_sequence_widen_the_block() -> None:
    answers = recorded("vllm-0.32.0-tp2")
    answers[METRICS] = labels(block_size=16, num_gpu_blocks=100, kv_cache_size_tokens=3200)
    answers[SERVER_INFO]["vllm_config"]["parallel_config"]["decode_context_parallel_size"] = 2
    found = discover(answers)
    assert found.kv_pool == KvPool(tokens=3200, block_tokens=32)
    assert found.pool_notes == ()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (NOT_FOUND, "/metrics answers 404"),
        (Answer(200, {}, b"<!doctype html><title>Welcome</title>"), "/metrics shows no vllm:cache_config_info"),
        (Answer(200, {}, b"\xff\xfe\x00" * 1000), "/metrics shows no vllm:cache_config_info"),
        (Answer(200, {}, b"vllm:cache_config_info{" + b"a" * 1_000_000), "/metrics shows no vllm:cache_config_info"),
    ],
)
def test_metrics_that_say_nothing_leave_the_pool_unknown(answer: Answer, says: str) -> None:
    found = discover(recorded("vllm-0.32.0-tp2") | {METRICS: answer, SERVER_INFO: NOT_FOUND})
    assert found.kv_pool is None
    assert says in found.notes[0]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"7", b"null", b"[" * 100_000, b"\xff", b'{"vllm_config":[]}'])
def test_answers_that_need_not_come_are_unknown_in_any_shape(body: bytes) -> None:
    odd = Answer(200, {}, body)
    found = discover(recorded("vllm-0.32.0-tp2") | {"/version": odd, SERVER_INFO: odd})
    assert (found.engine_version, found.sharding, found.max_num_seqs) == (None, None, None)
    assert found.kv_pool == KvPool(tokens=1536, block_tokens=128)


def test_a_version_that_is_none_is_unknown() -> None:
    assert discover(recorded("vllm-0.32.0-tp2") | {"/version": {"version": "<b>0.32"}}).engine_version is None


def test_the_list_of_models_must_come() -> None:
    with pytest.raises(BackendError) as caught:
        discover(recorded("vllm-0.32.0-tp2") | {"/v1/models": Answer(200, {}, b"<html></html>")})
    assert caught.value.kind is FailureKind.UNAVAILABLE


@given(ANYTHING, st.text())
def test_no_answer_breaks_the_conversation(value: Any, text: str) -> None:
    answers = recorded("vllm-0.32.0-tp2") | {"/version": value, SERVER_INFO: value, METRICS: labels(block_size=text)}
    assert discover(answers).models == ("tiny",)


# --- the load

RUNNING, WAITING, USED = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            f'{RUNNING}{{engine="0"}} 3.0\n{WAITING}{{engine="0"}} 5.0\n{USED}{{engine="0"}} 0.25\n',
            Load(3, 5, 0.25, process="0"),
        ),
        (f'{RUNNING}{{engine="0"}} 3.0\n{RUNNING}{{engine="1"}} 1.0\n', Load(running=4, process="0 1")),
        (f'{USED}{{engine="0"}} 0.5\n{USED}{{engine="1"}} 0.25\n', Load(kv_used=0.375)),
        ("vllm:gpu_cache_usage_perc 0.5\n", Load(kv_used=0.5)),
        (f'{WAITING}_by_reason{{engine="0",reason="capacity"}} 7.0\n', Load()),
        (f"{RUNNING} 0\r\n{WAITING} 0\r\n", Load(0, 0)),
        (f"{RUNNING} NaN\n{USED} NaN\n{WAITING} many\n", Load()),
        (f"{RUNNING} -1\n{USED} 1.5\n", Load()),
        ("<html></html>", Load()),
        ("", Load()),
    ],
)
def test_metrics_tell_the_load_of_all_engines_and_a_missing_gauge_is_unknown(text: str, found: Load) -> None:
    assert load(text) == replace(found, alive=True)


def test_recorded_metrics_tell_an_idle_server() -> None:
    assert load(recorded("vllm-0.32.0-dp2")[METRICS]) == Load(0, 0, 0.0, alive=True, process="0 1")


def test_a_server_without_metrics_has_no_known_load_and_one_that_fails_says_so() -> None:
    assert load("", 404) == Load(hidden=True, said="/metrics is not there")
    with pytest.raises(BackendError):
        load("", 503)


STALE = f'{RUNNING}{{engine="0"}} 6.0\n{WAITING}{{engine="0"}} 0.0\n{USED}{{engine="0"}} 0.5\n'
"""What the metrics of an engine that died kept saying, for 3.5 s, while requests failed."""


def asked(metrics: Answer, health: Answer) -> Load:
    answers = {METRICS: metrics, HEALTH: health}
    return converse(WIRE.load(), lambda request: answers[request.path])


def test_an_engine_that_died_says_so_through_its_front_while_its_gauges_stand() -> None:
    found = asked(Answer(200, {}, STALE.encode()), Answer(503, {}, b""))
    assert (found.alive, found.said) == (False, "/health answers 503: the engine died")
    assert (found.running, found.kv_used) == (6, 0.5)


@pytest.mark.parametrize(("health", "alive"), [(200, True), (404, None), (401, None), (500, False)])
def test_only_a_failing_health_is_a_dead_engine(health: int, alive: bool | None) -> None:
    assert asked(Answer(403, {}, b""), Answer(health, {}, b"")).alive is alive


def test_an_engine_that_sleeps_is_not_alive() -> None:
    state = 'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {}\n'
    asleep = asked(Answer(200, {}, state.format("0.0").encode()), Answer(200, {}, b""))
    assert (asleep.alive, asleep.said) == (False, "it was put to sleep")
    assert asked(Answer(200, {}, state.format("1.0").encode()), Answer(200, {}, b"")).alive is True


def test_what_a_process_adds_up_is_told() -> None:
    text = (
        "process_start_time_seconds 1.79596062515e+09\n"
        'vllm:time_to_first_token_seconds_sum{engine="0"} 0.5\nvllm:time_to_first_token_seconds_count{engine="0"} 9.0\n'
        'vllm:request_prompt_tokens_sum{engine="0"} 90.0\nvllm:request_prompt_tokens_count{engine="0"} 9.0\n'
        'vllm:iteration_tokens_total_count{engine="0"} 7.0\nvllm:prompt_tokens_total{engine="0"} 90.0\n'
    )
    found = asked(Answer(200, {}, text.encode()), Answer(200, {}, b""))
    assert found.process == "1795960625.15"
    assert (found.ttft_s, found.isl, found.osl) == (Total(0.5, 9.0), Total(90.0, 9.0), None)
    assert (found.counted, found.steps) == (97.0, 7.0)


def test_a_lora_adapter_is_a_name_beside_its_bases() -> None:
    answers = recorded("vllm-0.32.0-tp2")
    answers["/v1/models"]["data"] += [{"id": "sql", "root": "/loras/sql", "parent": "tiny", "owned_by": "vllm"}]
    found = discover(answers)
    assert (found.models, found.parents, found.root) == (("tiny", "sql"), {"sql": "tiny"}, "models/tiny-llama")


@pytest.mark.parametrize(("label", "caching"), [("True", True), ("False", False), ("None", None)])
def test_the_labels_of_the_cache_tell_whether_prompts_are_kept(label: str, caching: bool | None) -> None:
    metrics = labels(block_size=16, num_gpu_blocks=100, enable_prefix_caching=label)
    found = discover(recorded("vllm-0.32.0-tp2") | {METRICS: metrics, SERVER_INFO: NOT_FOUND})
    assert found.prefix_caching is caching
