"""What a caller says of a request beyond its body: by which names, what comes first, and what it cannot do."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import agentroute
from agentroute.errors import UsageError
from agentroute.hints import HEADERS, NOTHING, Hint, current, from_headers, from_metadata, hint, route_of, task_of
from agentroute.route import Route
from agentroute.task import Slo, Task

HELLO = [{"role": "user", "content": "Hello"}]
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x-agentroute-route", "batch", Hint(route="batch")),
        ("x-agentroute-concurrency", "8", Hint(concurrency=8)),
        ("x-agentroute-deadline-s", "30", Hint(deadline_s=30.0)),
        ("x-agentroute-ttft-ms", "800.5", Hint(ttft_ms=800.5)),
        ("x-agentroute-tpot-ms", "20", Hint(tpot_ms=20.0)),
        ("x-agentroute-priority", "batch", Hint(priority="batch")),
        ("x-agentroute-session-id", "run 7", Hint(session_id="run 7")),
        ("x-agentroute-parent-session-id", "run 6", Hint(parent_session_id="run 6")),
        ("x-agentroute-step", "3", Hint(step=3)),
        ("x-agentroute-expected-output-tokens", "200", Hint(expected_output_tokens=200)),
        ("x-agentroute-shared-prefix-tokens", "0", Hint(shared_prefix_tokens=0)),
        ("x-agentroute-needs", "tools, vision", Hint(needs=frozenset({"tools", "vision"}))),
        ("x-agentroute-max-cost-usd", "0.01", Hint(max_cost_usd=0.01)),
        ("x-llm-d-slo-ttft-ms", "500", Hint(ttft_ms=500.0)),
        ("x-slo-ttft-ms", "500", Hint(ttft_ms=500.0)),
        ("x-llm-d-slo-tpot-ms", "15", Hint(tpot_ms=15.0)),
        ("x-slo-tpot-ms", "15", Hint(tpot_ms=15.0)),
        ("x-session-id", "a", Hint(session_id="a")),
        ("x-claude-code-session-id", "a", Hint(session_id="a")),
        ("x-session-affinity", "a", Hint(session_id="a")),
        ("session-id", "a", Hint(session_id="a")),
        ("x-litellm-session-id", "a", Hint(session_id="a")),
        ("x-dynamo-session-id", "a", Hint(session_id="a")),
        ("x-dynamo-parent-session-id", "a", Hint(parent_session_id="a")),
        ("x-smg-priority", "system", Hint(priority="interactive")),
        ("x-smg-priority", "interactive", Hint(priority="interactive")),
        ("x-smg-priority", "default", Hint(priority="agent")),
        ("x-smg-priority", "bulk", Hint(priority="batch")),
        ("x-stainless-retry-count", "2", Hint(retried=2)),
    ],
)
def test_a_header_is_a_hint(name: str, text: str, said: Hint) -> None:
    assert from_headers({name: text}) == said
    assert from_headers([(name.title(), f" {text} ")]) == said


def test_every_name_of_a_header_is_in_the_table_above() -> None:
    tried = {mark.args[1][i][0] for mark in test_a_header_is_a_hint.pytestmark for i in range(len(mark.args[1]))}  # type: ignore[attr-defined]
    assert tried == {name for names in HEADERS.values() for name in names}
    assert set(HEADERS) == {field.name for field in dataclasses.fields(Hint)}


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, NOTHING),
        ({"x-session-id": "general", "x-agentroute-session-id": "ours"}, Hint(session_id="ours")),
        ({"x-agentroute-session-id": "ours", "x-session-id": "general"}, Hint(session_id="ours")),
        ({"x-slo-ttft-ms": "1", "x-llm-d-slo-ttft-ms": "2"}, Hint(ttft_ms=2.0)),
        ([("x-session-id", "first"), ("X-Session-Id", "second")], Hint(session_id="first")),
        ({"authorization": "Bearer x", "x-request-id": "7", "accept": "*/*"}, NOTHING),
    ],
)
def test_the_most_particular_header_comes_first(headers: Any, said: Hint) -> None:
    assert from_headers(headers) == said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x-agentroute-concurrency", "many"),
        ("x-agentroute-concurrency", "0"),
        ("x-agentroute-concurrency", "-1"),
        ("x-agentroute-concurrency", "1.5"),
        ("x-agentroute-concurrency", "²"),
        ("x-agentroute-concurrency", "9" * 5_000),
        ("x-agentroute-deadline-s", "soon"),
        ("x-agentroute-deadline-s", "nan"),
        ("x-agentroute-deadline-s", "inf"),
        ("x-llm-d-slo-ttft-ms", "-5"),
        ("x-slo-tpot-ms", "0"),
        ("x-agentroute-priority", "system"),
        ("x-smg-priority", "batch"),
        ("x-agentroute-session-id", ""),
        ("x-session-id", "a" * 257),
        ("session-id", "a\x07"),
        ("x-agentroute-needs", "tools,flying"),
        ("x-agentroute-max-cost-usd", "free"),
        ("x-stainless-retry-count", "-1"),
        ("x-agentroute-route", ""),
    ],
)
def test_a_malformed_header_is_named(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}") as caught:
        from_headers({name: text})
    assert len(str(caught.value)) < 250


@given(st.sampled_from([name for names in HEADERS.values() for name in names]), st.text(max_size=30))
@example("x-agentroute-route", ",")
@example("x-agentroute-needs", " ,")
def test_a_header_is_a_hint_or_a_usage_error(name: str, text: str) -> None:
    try:
        said = from_headers({name: text})
    except UsageError as error:
        assert str(error).startswith(name)
    else:
        no_need = name in HEADERS["needs"] and not any(part.strip() for part in text.split(","))
        assert (said == NOTHING) == (no_need or (name == "x-stainless-retry-count" and not said.retried))


@pytest.mark.parametrize(
    "name",
    ["x-gateway-destination-endpoint", "x-session-token", "x-data-parallel-rank", "x-agentroute-url", "host",
     "x-agentroute-allow", "x-agentroute-pin", "x-agentroute-deployment", "x-agentroute-max-output-tokens"],
)  # fmt: skip
def test_no_header_chooses_a_server(name: str) -> None:
    assert from_headers({name: "http://10.0.0.1:8000"}) == NOTHING


def test_no_hint_names_a_server_or_lifts_a_limit() -> None:
    said = {field.name for field in dataclasses.fields(Hint)}
    assert not said & {
        "url",
        "base_url",
        "pin",
        "allow",
        "deny",
        "deployment",
        "objective",
        "max_output_tokens",
        "quality",
    }
    every = Hint(
        route="fast", concurrency=8, deadline_s=5, ttft_ms=5, tpot_ms=5, priority="interactive", session_id="s",
        parent_session_id="p", step=2, expected_output_tokens=10**6, shared_prefix_tokens=10**6,
        needs=frozenset({"tools"}), max_cost_usd=1, retried=3,
    )  # fmt: skip
    task = task_of({"messages": HELLO, "max_tokens": 16}, every)
    assert (task.pin, task.allow, task.deny, task.objective) == (None, None, frozenset(), None)
    assert task.max_output_tokens == task.expected_output_tokens == 16
    assert task.shared_prefix_tokens == task.context_tokens


@pytest.mark.parametrize("field", ["ttft_ms", "tpot_ms", "deadline_s"])
@pytest.mark.parametrize(
    ("of_route", "said", "held"),
    [
        (None, 100.0, Slo(100.0, hard=False)),
        (200.0, 100.0, Slo(100.0, hard=False)),
        (50.0, 100.0, None),
        (Slo(200.0, stat="p95"), 100.0, Slo(100.0, stat="p95")),
        (Slo(50.0, stat="p95"), 100.0, None),
        (50.0, None, None),
    ],
)
def test_of_a_hints_slo_and_the_routes_the_stricter_counts(
    field: str, of_route: Any, said: float | None, held: Slo | None
) -> None:
    """``None``: the task leaves it to the route."""
    limit: dict[str, Any] = {field: of_route}
    hinted: dict[str, Any] = {field: said}
    task = task_of({"messages": HELLO}, Hint(**hinted), route=Route(name="r", **limit))
    assert getattr(task, field) == held


@pytest.mark.parametrize(
    ("body", "said", "left"),
    [
        ({}, NOTHING, None),
        ({"metadata": None}, NOTHING, None),
        ({"metadata": {"user": "u"}}, NOTHING, {"user": "u"}),
        ({"metadata": {"agentroute_concurrency": "8"}}, Hint(concurrency=8), None),
        ({"metadata": {"agentroute_concurrency": 8, "user": "u"}}, Hint(concurrency=8), {"user": "u"}),
        ({"metadata": {"agentroute_needs": ["vision"]}}, Hint(needs=frozenset({"vision"})), None),
        ({"metadata": {"agentroute_deadline_s": "30"}}, Hint(deadline_s=30.0), None),
        ({"nvext": {"agent_hints": {"priority": 5}}}, Hint(priority="interactive"), None),
        ({"nvext": {"agent_hints": {"osl": 300}}}, Hint(expected_output_tokens=300), None),
        ({"nvext": {"agent_hints": {"priority": -1}}}, Hint(priority="batch"), None),
        ({"nvext": {"agent_hints": {"priority": 0}}}, Hint(priority="agent"), None),
        ({"nvext": {"router": {"ttft_target": 400, "itl_target": 20.5}}}, Hint(ttft_ms=400, tpot_ms=20.5), None),
        ({"nvext": {"router": None, "agent_hints": []}}, NOTHING, None),
        (
            {"nvext": {"agent_hints": {"osl": 3}}, "metadata": {"agentroute_expected_output_tokens": "5"}},
            Hint(expected_output_tokens=5),
            None,
        ),
    ],
)  # fmt: skip
def test_a_body_holds_hints(body: dict[str, Any], said: Hint, left: Any) -> None:
    before = repr(body)
    assert from_metadata(body) == (said, left)
    assert repr(body) == before


def test_metadata_without_hints_is_the_same_object() -> None:
    body = {"metadata": {"user": "u"}}
    assert from_metadata(body)[1] is body["metadata"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"metadata": {"agentroute_concurrency": "many"}}, "metadata.agentroute_concurrency"),
        ({"metadata": {"agentroute_concurrency": True}}, "metadata.agentroute_concurrency"),
        ({"metadata": {"agentroute_deadline_s": {}}}, "metadata.agentroute_deadline_s"),
        ({"metadata": {"agentroute_needs": 7}}, "metadata.agentroute_needs"),
        ({"metadata": {"agentroute_needs": [[]]}}, "metadata.agentroute_needs"),
        ({"metadata": {"agentroute_priority": []}}, "metadata.agentroute_priority"),
        ({"metadata": {"agentroute_session_id": 7}}, "metadata.agentroute_session_id"),
        ({"metadata": {"agentroute_deadline": 7}}, "there is no hint 'agentroute_deadline' in metadata; did you"),
        ({"nvext": {"agent_hints": {"osl": "long"}}}, "nvext.agent_hints.osl"),
        ({"nvext": {"agent_hints": {"osl": 10**400}}}, "nvext.agent_hints.osl"),
        ({"nvext": {"agent_hints": {"priority": "high"}}}, "nvext.agent_hints.priority"),
        ({"nvext": {"router": {"ttft_target": -1}}}, "nvext.router.ttft_target"),
        ({"nvext": {"router": {"itl_target": 10**400}}}, "nvext.router.itl_target"),
    ],
)  # fmt: skip
def test_a_malformed_hint_in_a_body_is_named(body: dict[str, Any], where: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_metadata(body)
    assert str(caught.value).startswith(where)


@pytest.mark.parametrize(
    ("model", "route"),
    [("auto", "default"), ("auto:batch", "batch"), ("auto:", None), ("gpt-5", None), ("automatic", None), (None, None)],
)
def test_a_models_name_asks_for_a_route(model: object, route: str | None) -> None:
    assert route_of(model) == route


def test_blocks_nest_and_end() -> None:
    assert current() == NOTHING
    with agentroute.hint(concurrency=8, deadline_s=30):
        with hint(deadline_s=5, needs=["tools"]) as both:
            assert current() is both
            assert both == Hint(concurrency=8, deadline_s=5, needs=frozenset({"tools"}))
        assert current() == Hint(concurrency=8, deadline_s=30)
    assert current() == NOTHING


def test_a_hint_that_makes_no_sense_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"^concurrency must be a whole number from 1"), hint(concurrency=0):
        pass
    assert current() == NOTHING


def test_tasks_and_threads_of_asyncio_take_hints_along_and_a_pool_does_not() -> None:
    async def work() -> list[Hint]:
        async def inner() -> Hint:
            return current()

        return [await asyncio.create_task(inner()), await asyncio.to_thread(current)]

    with hint(concurrency=8) as said, ThreadPoolExecutor(1) as pool:
        assert asyncio.run(work()) == [said, said]
        assert pool.submit(current).result() == NOTHING
        assert pool.submit(contextvars.copy_context().run, current).result() == said


def test_what_comes_first_is_said_over_what_comes_behind() -> None:
    inner, outer = (
        Hint(step=2, needs=frozenset({"tools"}), retried=1),
        Hint(step=1, route="r", needs=frozenset({"vision"})),
    )
    assert inner.over(outer) == Hint(step=2, route="r", needs=frozenset({"tools", "vision"}), retried=1)
    assert outer.over(inner) == Hint(step=1, route="r", needs=frozenset({"tools", "vision"}), retried=1)
    assert NOTHING.over(outer) is outer


@pytest.mark.parametrize(
    ("body", "needs"),
    [
        ({}, set()),
        ({"tools": []}, set()),
        ({"tools": [TOOL]}, {"tools"}),
        ({"tools": [TOOL], "parallel_tool_calls": True}, {"tools", "parallel_tools"}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools"}),
        ({"response_format": SCHEMA}, {"json_schema"}),
        ({"response_format": {"type": "text"}}, set()),
        ({"text": {"format": {"type": "json_schema"}}}, {"json_schema"}),
        ({"messages": [{"role": "user", "content": [PIXEL, {"type": "text", "text": "?"}]}]}, {"vision"}),
        ({"messages": [{"role": "user", "content": [SOUND]}]}, {"audio"}),
        ({"logprobs": True}, {"logprobs"}),
        ({"top_logprobs": 2}, {"logprobs"}),
        ({"logprobs": False}, set()),
    ],
)
def test_what_a_body_needs_is_found_in_it(body: dict[str, Any], needs: set[str]) -> None:
    assert task_of({"messages": HELLO, **body}, NOTHING).needs == needs
    assert task_of({"messages": HELLO, **body}, Hint(needs=frozenset({"reasoning"}))).needs == needs | {"reasoning"}


def test_a_chat_is_counted_as_the_client_counts_it() -> None:
    body = {"messages": HELLO * 9, "tools": [TOOL], "max_completion_tokens": 77}
    assert task_of(body, NOTHING) == Task.from_messages(HELLO * 9, tools=[TOOL], max_output_tokens=77)


@pytest.mark.parametrize(
    ("endpoint", "body", "at_least", "limit"),
    [
        ("chat", {"messages": HELLO, "max_tokens": 5}, 2, 5),
        ("chat", {"messages": HELLO}, 2, None),
        ("completions", {"prompt": "word " * 100, "max_tokens": 5}, 90, 5),
        ("completions", {"prompt": list(range(100))}, 100, None),
        ("responses", {"input": "word " * 100, "max_output_tokens": 5}, 90, 5),
        ("responses", {"input": HELLO, "instructions": "word " * 100}, 90, None),
        ("embeddings", {"input": "word " * 100}, 90, 1),
        ("embeddings", {"input": [[1, 2, 3], [4, 5]]}, 3, 1),
    ],
)
def test_each_endpoint_has_a_prompt_and_a_limit(
    endpoint: Any, body: dict[str, Any], at_least: int, limit: int | None
) -> None:
    task = task_of(body, NOTHING, endpoint=endpoint)
    assert at_least <= (task.expected_context_tokens or 0) <= min(task.context_tokens, 1.5 * at_least + 60)
    assert task.max_output_tokens == limit


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("chat", {}),
        ("chat", {"messages": "hello"}),
        ("chat", {"messages": [7]}),
        ("chat", {"messages": HELLO, "max_tokens": 0}),
        ("chat", {"messages": HELLO, "max_tokens": "many"}),
        ("completions", {"prompt": 7}),
        ("completions", {"prompt": ["one", "two"]}),
        ("embeddings", {"input": 7}),
        ("responses", {"input": [None]}),
    ],
)
def test_a_body_that_makes_no_sense_is_a_usage_error(endpoint: Any, body: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        task_of(body, NOTHING, endpoint=endpoint)
