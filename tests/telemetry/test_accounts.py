"""Accounts: sums by route, session and parent, of what servers counted and what prices say."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fleets import profile
from fleets import router as routed
from hypothesis import given
from hypothesis import strategies as st

from agentroute.decision import Decision
from agentroute.ended import Ended
from agentroute.errors import UsageError
from agentroute.outcome import Outcome
from agentroute.task import Task
from agentroute.telemetry import Accounts


def decided(**price: Any) -> Decision:
    return routed(profile(**price)).decide(Task(context_tokens=100, max_output_tokens=10))


PRICED = decided(usd_per_million=(2.0, 10.0))
FREE = decided()


def ended(
    task: Task | None = None, *, decision: Decision | None = PRICED, result: str = "ok", **seen: int | float
) -> Ended:
    return Ended(
        endpoint="chat",
        streaming=False,
        task=task or Task(context_tokens=100),
        decision=decision,
        result=result,
        refused=None,
        outcome=Outcome(**seen),  # type: ignore[arg-type]
        attempts=(),
        ended_at=time.time(),
        waited_s=0.0,
        took_s=1.0,
    )


def test_tokens_and_dollars_of_a_call_by_its_price_per_token() -> None:
    accounts = Accounts()
    accounts(ended(prompt_tokens=1_000, output_tokens=100, cached_tokens=400))
    total = accounts.total
    assert (total.calls, total.failed) == (1, 0)
    assert (total.prompt_tokens, total.cached_tokens, total.output_tokens) == (1_000, 400, 100)
    assert total.usd == pytest.approx(0.003)
    assert (total.uncounted, total.unpriced) == (0, 0)


def test_by_the_hour_a_call_pays_its_share_of_the_time() -> None:
    by_hour = decided(usd_per_hour=3.6, gpus=2)
    one = ended(decision=by_hour, e2e_ms=10_000.0)
    assert one.usd == pytest.approx(2 * 3.6 / 3_600 * 10.0 / by_hour.candidates[0].n_run)


def test_what_is_not_known_is_not_counted_as_nothing() -> None:
    accounts = Accounts()
    accounts(ended(decision=FREE))
    assert (accounts.total.uncounted, accounts.total.unpriced, accounts.total.usd) == (1, 1, 0.0)


def test_a_failure_is_a_call_without_a_price() -> None:
    accounts = Accounts()
    accounts(ended(result="timeout"))
    accounts(ended(decision=None, result="infeasible"))
    assert (accounts.total.calls, accounts.total.failed, accounts.total.unpriced) == (2, 2, 0)


def test_a_sub_agent_counts_for_its_parent_in_every_step() -> None:
    """Only its first step says who the parent is."""
    accounts = Accounts()
    accounts(ended(Task(context_tokens=10, session_id="main", route="r"), prompt_tokens=1))
    accounts(ended(Task(context_tokens=10, session_id="sub", parent_session_id="main"), prompt_tokens=10))
    accounts(ended(Task(context_tokens=10, session_id="sub", step=2), prompt_tokens=100))
    assert accounts.parents["main"].prompt_tokens == 110
    assert {name: one.prompt_tokens for name, one in accounts.sessions.items()} == {"main": 1, "sub": 110}
    assert {name: one.calls for name, one in accounts.routes.items()} == {"r": 1, "default": 2}


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 1_000)), max_size=40), st.integers(1, 4))
def test_the_total_keeps_what_bounded_accounts_forget(calls: list[tuple[str, int]], most: int) -> None:
    accounts = Accounts(most=most)
    for name, tokens in calls:
        accounts(ended(Task(context_tokens=10, session_id=name), prompt_tokens=tokens))
    assert accounts.total.prompt_tokens == sum(tokens for _, tokens in calls)
    recent = list(dict.fromkeys(name for name, _ in reversed(calls)))[:most]
    assert set(accounts.sessions) == set(recent)


@pytest.mark.parametrize("most", [0, -1, True, 1.5])
def test_a_bound_that_is_none_is_refused(most: Any) -> None:
    with pytest.raises(UsageError, match="most must be a whole number"):
        Accounts(most=most)
