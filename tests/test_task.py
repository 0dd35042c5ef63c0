"""What an agent may ask for, and what it may not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.catalogue import shipped
from agentroute.errors import TaskError
from agentroute.prefix import Mark
from agentroute.task import CAPABILITIES, MAX_CONCURRENCY, MAX_TOKENS, Slo, Task, slo
from agentroute.tokens import Previous

NOT_COUNTS: list[Any] = [0, -1, 1.0, 1.5, True, "5", None, math.nan, math.inf, 10**400, 10**5_000, [1]]
NOT_TIMES: list[Any] = [0, 0.0, -1, -0.5, True, "5", math.nan, math.inf, -math.inf, [1.0], 10**400, 10**5_000]


def shown(value: object) -> str:
    return f"10^{len(hex(value))}" if isinstance(value, int) and value > 1e9 else repr(value)


@pytest.mark.parametrize("value", NOT_COUNTS, ids=shown)
@pytest.mark.parametrize("name", ["context_tokens", "max_output_tokens", "concurrency", "expected_context_tokens"])
def test_a_count_is_a_whole_number_above_zero(name: str, value: Any) -> None:
    values: dict[str, Any] = {"context_tokens": 5, name: value}
    if value is None and name in {"max_output_tokens", "expected_context_tokens"}:
        assert getattr(Task(**values), name) is None
        return
    with pytest.raises(TaskError, match=f"^{name} must be a whole number from 1 to") as raised:
        Task(**values)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    ("name", "most"),
    [("context_tokens", MAX_TOKENS), ("max_output_tokens", MAX_TOKENS), ("concurrency", MAX_CONCURRENCY)],
)
def test_a_count_has_a_greatest_value(name: str, most: int) -> None:
    values: dict[str, Any] = {"context_tokens": 5, name: most}
    assert getattr(Task(**values), name) == most
    with pytest.raises(TaskError, match=f"{name} must be a whole number from 1 to {most:,}, got {most + 1}"):
        Task(**values | {name: most + 1})


def test_no_more_tokens_are_expected_than_there_are_at_most() -> None:
    assert Task(context_tokens=5, expected_context_tokens=5).expected_context_tokens == 5
    with pytest.raises(TaskError, match="from 1 to 5, got 6"):
        Task(context_tokens=5, expected_context_tokens=6)


@pytest.mark.parametrize("value", NOT_TIMES, ids=shown)
@pytest.mark.parametrize("name", ["ttft_ms", "tpot_ms", "deadline_s"])
def test_an_slo_is_a_finite_number_above_zero(name: str, value: Any) -> None:
    with pytest.raises(TaskError, match=f"^{name} must be a finite number above 0 or an Slo") as raised:
        Task(**{"context_tokens": 5, name: value})
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize("value", [*NOT_TIMES, None, 1e12], ids=shown)
def test_the_value_of_an_slo_is_a_finite_number_above_zero(value: Any) -> None:
    with pytest.raises(TaskError, match=r"^an SLO's value must be a finite number above 0") as raised:
        Slo(value)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize("stat", ["p42", "P95", "", "median", None, 95])
def test_the_statistic_of_an_slo_is_one_of_five(stat: Any) -> None:
    with pytest.raises(TaskError, match="must be one of mean, p50, p90, p95, p99, got"):
        Slo(1.0, stat)


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_a_number_that_a_task_accepts_is_an_slo(value: float) -> None:
    try:
        accepted = Task(context_tokens=1, ttft_ms=value)
    except TaskError:
        return
    assert slo(accepted.ttft_ms) == Slo(value)


def test_a_bare_number_is_a_hard_mean() -> None:
    assert slo(5.0) == Slo(5.0, stat="mean", hard=True)
    assert slo(None) is None
    assert slo(Slo(5.0, hard=False)) == Slo(5.0, hard=False)


@pytest.mark.parametrize(
    "needs", [{"tools"}, ["tools", "tools"], ("tools",), frozenset({"tools"}), {"tools": 1}.keys()]
)
def test_needs_are_a_set_however_they_are_given(needs: Any) -> None:
    asked = Task(context_tokens=1, needs=needs)
    assert asked.needs == frozenset({"tools"})
    assert hash(asked) == hash(Task(context_tokens=1, needs=frozenset({"tools"})))


@pytest.mark.parametrize("needs", ["tools", 5, None, b"tools", [["tools"]], {"toolz"}, {5}, {""}])
def test_other_needs_are_refused(needs: Any) -> None:
    with pytest.raises(TaskError):
        Task(context_tokens=1, needs=needs)


def test_a_wrong_need_suggests_the_closest() -> None:
    with pytest.raises(TaskError, match="there is no capability 'toolz' to need; did you mean 'tools'\\?"):
        Task(context_tokens=1, needs={"toolz"})


@pytest.mark.parametrize("need", CAPABILITIES)
def test_every_capability_may_be_needed(need: str) -> None:
    assert Task(context_tokens=1, needs={need}).needs == {need}


@pytest.mark.parametrize("wrong", [{"route": None}, {"route": 5}, {"objective": 5}, {"route": ["default"]}])
def test_a_route_and_an_objective_are_names(wrong: dict[str, Any]) -> None:
    with pytest.raises(TaskError):
        Task(context_tokens=1, **wrong)


def test_a_task_is_given_by_name_only() -> None:
    with pytest.raises(TypeError):
        Task(5)  # type: ignore[call-arg]


def test_equal_tasks_are_siblings() -> None:
    assert len({Task(context_tokens=5, needs={"tools"}), Task(context_tokens=5, needs=["tools"])}) == 1  # type: ignore[arg-type]


# ---- from messages


def test_a_task_for_messages_has_an_upper_bound_and_an_expectation() -> None:
    asked = Task.from_messages([{"role": "user", "content": "one line, " * 60}], max_output_tokens=50, route="chat")
    assert asked.expected_context_tokens is not None
    assert 140 < asked.expected_context_tokens < 220 < asked.context_tokens < 440
    assert (asked.max_output_tokens, asked.route, asked.needs) == (50, "chat", frozenset())


def test_a_task_with_tools_needs_tools_and_counts_them() -> None:
    messages, tool = [{"role": "user", "content": "hi"}], {"type": "function", "function": {"name": "f" * 300}}
    asked = Task.from_messages(messages, tools=[tool])
    assert asked.needs == {"tools"}
    assert asked.context_tokens > Task.from_messages(messages).context_tokens + 100


def test_a_task_says_where_its_tokens_come_from() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert Task.from_messages(messages).context_source == "generic fingerprint"
    assert Task.from_messages(messages, model=shipped().model("qwen3-32b")).context_source == "fingerprint"
    asked = Task.from_messages(messages, served_tokens=17)
    assert (asked.context_tokens, asked.expected_context_tokens, asked.context_source) == (17, 17, "server")
    before = Previous.of(messages, 900)
    assert Task.from_messages(messages, previous=before, served_tokens=17).context_source == "usage"
    assert Task(context_tokens=5).context_source is None
    assert Task(context_tokens=17, expected_context_tokens=17) == Task.from_messages(messages, served_tokens=17)


@pytest.mark.parametrize("source", ["guess", 5, ""])
def test_there_is_no_other_source(source: Any) -> None:
    with pytest.raises(TaskError, match="context_source must be one of usage, server"):
        Task(context_tokens=5, context_source=source)


@pytest.mark.parametrize(
    "prefix",
    [5, "ab", [[1, 2]], [(1,)], [(1, 2, 3)], [(1, -5)], [(1, math.nan)], [("x", 3)], [(2**70, 5)], [(1, True)]],
)
def test_a_prefix_is_pairs_of_a_hash_and_a_number_of_tokens(prefix: Any) -> None:
    with pytest.raises(TaskError, match="prefix must hold"):
        Task(context_tokens=1_000, prefix=prefix)


def test_a_prefix_may_be_any_row_of_marks() -> None:
    marks = (Mark(7, 0), Mark(2**64 - 1, 900))
    assert Task(context_tokens=1_000, prefix=iter(marks)) == Task(context_tokens=1_000, prefix=marks)  # type: ignore[arg-type]
    assert {Task(context_tokens=1_000, prefix=marks)}


def test_no_messages_are_a_task_all_the_same() -> None:
    assert Task.from_messages([]).context_tokens >= 1
