"""What may be said of a call that ended."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentroute.errors import FailureKind, UsageError
from agentroute.outcome import Outcome

FIELDS = ("ttft_ms", "tpot_ms", "e2e_ms", "prompt_tokens", "output_tokens", "cached_tokens", "retry_after_s")


def test_what_nobody_saw_is_unknown() -> None:
    outcome = Outcome()
    assert all(getattr(outcome, name) is None for name in FIELDS)
    assert outcome.failure is None


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf, 1e12, True, "12", [3]])
def test_what_cannot_have_been_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} must be a number from 0 to 1e12 or None, got "):
        Outcome(**{name: value})


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [0, 1, 2.5, 9.9e11])
def test_what_can_have_been_is_taken(name: str, value: Any) -> None:
    assert getattr(Outcome(**{name: value}), name) == value


@pytest.mark.parametrize("failure", [*FailureKind, *map(str, FailureKind)])
def test_a_failure_has_one_of_the_kinds(failure: Any) -> None:
    assert Outcome(failure=failure).failure == failure


@pytest.mark.parametrize("failure", ["overload", "", True, 503, ["timeout"]])
def test_another_kind_is_refused(failure: Any) -> None:
    with pytest.raises(UsageError, match="failure must be one of context_overflow, overloaded, "):
        Outcome(failure=failure)
