"""What a call may still try: a table over kinds of failure, and a budget that keeps retries from multiplying."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import deployment, router

from agentroute.decision import Decision
from agentroute.errors import BackendError, FailureKind, UsageError
from agentroute.remedy import REMEDIES
from agentroute.task import Task
from agentroute.tries import Budget, Retry, Tries

KINDS = list(FailureKind)


@pytest.fixture(scope="module")
def here() -> Decision:
    return router(deployment("http://127.0.0.1:9")).decide(Task(context_tokens=10, max_output_tokens=10))


def tries(retry: Retry | None = None, *, retried: int = 0) -> Tries:
    retry = retry or Retry()
    return Tries(retry, Budget(retry.share), retried=retried)


def failed(into: Tries, here: Decision, kind: FailureKind, **more: Any) -> None:
    into.failed(BackendError(kind, "words", deployment="here", **more), here, after_s=0.0, took_s=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_another_server_may_be_asked_where_the_remedy_says_so(here: Decision, kind: FailureKind) -> None:
    after = tries()
    failed(after, here, kind)
    assert after.may_go_on is REMEDIES[kind].elsewhere
    assert after.avoid == {here.pool}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_server_is_asked_again_only_where_the_remedy_says_so(here: Decision, kind: FailureKind) -> None:
    after = tries()
    failed(after, here, kind)
    assert (after.wait_s() is not None) is REMEDIES[kind].again
    assert (here.pool not in after.avoid) is REMEDIES[kind].again


@pytest.mark.parametrize("kind", KINDS)
def test_with_one_attempt_nothing_is_sent_twice(here: Decision, kind: FailureKind) -> None:
    after = tries(Retry(attempts=1))
    failed(after, here, kind)
    assert not after.may_go_on
    assert after.wait_s() is None


@pytest.mark.parametrize(("kind", "denied"), [
    (FailureKind.AUTH, True), (FailureKind.NOT_FOUND, True), (FailureKind.CONTEXT_OVERFLOW, True),
    (FailureKind.OVERLOADED, False), (FailureKind.UNAVAILABLE, False),
])  # fmt: skip
def test_what_every_endpoint_of_a_deployment_would_answer_is_not_asked_of_another_one(
    here: Decision, kind: FailureKind, denied: bool
) -> None:
    after = tries()
    failed(after, here, kind)
    assert after.deny == ({"here"} if denied else set())


@pytest.mark.parametrize(
    ("asked_s", "least", "most"), [(None, 0.0, 0.25), (0.0, 0.0, 0.25), (3.0, 3.0, 3.25), (60.0, None, None)]
)
def test_retry_after_is_honoured_and_not_waited_for_when_it_is_long(
    here: Decision, asked_s: float | None, least: float | None, most: float | None
) -> None:
    after = tries()
    failed(after, here, FailureKind.OVERLOADED, retry_after_s=asked_s)
    wait_s = after.wait_s()
    if least is None or most is None:
        assert wait_s is None
    else:
        assert wait_s is not None and least <= wait_s <= most


def test_who_retries_by_himself_is_not_retried_for(here: Decision) -> None:
    after = tries(retried=1)
    failed(after, here, FailureKind.OVERLOADED)
    assert after.may_go_on, "another candidate may still take it"
    assert after.wait_s() is None
    assert not after.may_hedge()


def test_a_request_that_may_kill_servers_is_not_carried_through_the_fleet(here: Decision) -> None:
    after = tries(Retry(attempts=3))
    for _ in range(2):
        failed(after, here, FailureKind.ENGINE_DEAD)
        assert after.may_go_on
    failed(after, here, FailureKind.ENGINE_DEAD)
    assert not after.may_go_on


def test_servers_that_turned_it_away_cost_no_attempt(here: Decision) -> None:
    after = tries(Retry(attempts=2))
    for _ in range(20):
        failed(after, here, FailureKind.OVERLOADED)
    assert after.may_go_on


@given(st.lists(st.booleans(), max_size=400), st.floats(0.0, 1.0))
def test_no_more_is_repeated_than_the_share_of_calls_and_ten(events: list[bool], share: float) -> None:
    budget, calls, taken = Budget(share), 0, 0
    for is_call in events:
        if is_call:
            budget.called()
            calls += 1
        else:
            taken += budget.take()
    assert taken <= 10 + share * calls + 1e-9
    if not share:
        assert not taken


def test_the_last_error_tells_every_attempt_and_the_longest_text(here: Decision) -> None:
    after = tries()
    failed(after, here, FailureKind.INTERRUPTED, text="once upon")
    last = BackendError(FailureKind.OVERLOADED, "full", deployment="there", status=429)
    after.failed(last, here, after_s=1.5, took_s=0.2)
    told = after.told(last)
    assert [(each.deployment, each.kind, each.after_s) for each in told.attempts] == [
        ("here", FailureKind.INTERRUPTED, 0.0),
        ("there", FailureKind.OVERLOADED, 1.5),
    ]
    assert (told.kind, told.status, told.text) == (FailureKind.OVERLOADED, 429, "once upon")
    assert str(told) == "there: overloaded (HTTP 429): full; before it here after 0.0 s: interrupted: words"


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"attempts": 1.5}, {"attempts": True}, {"share": -0.1}, {"most_wait_s": float("inf")}]
)
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be a"):
        Retry(**wrong)
