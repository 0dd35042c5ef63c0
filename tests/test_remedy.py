"""What may be done about a failed call: a table over every kind of failure."""

from __future__ import annotations

import re

import pytest

from agentroute import remedy as module
from agentroute.errors import BackendError, FailureKind
from agentroute.remedy import REMEDIES, Remedy, remedy
from agentroute.state.breaker import FAULTS

TOLD_THE_CALLER = {FailureKind.BAD_REQUEST, FailureKind.CANCELLED, FailureKind.DEADLINE}
NO_FAULTS = {
    FailureKind.BAD_REQUEST, FailureKind.AUTH, FailureKind.NOT_FOUND, FailureKind.CONTEXT_OVERFLOW,
    FailureKind.CANCELLED, FailureKind.DEADLINE, FailureKind.OVERLOADED,
}  # fmt: skip
"""Clients' mistakes, and a server that is full: it is sent less."""
EVERY = pytest.mark.parametrize("kind", list(FailureKind))


def failed(kind: FailureKind, text: str = "") -> BackendError:
    return BackendError(kind, "words", text=text)


@EVERY
def test_another_candidate_may_take_what_is_not_the_callers_own_mistake(kind: FailureKind) -> None:
    assert remedy(failed(kind)).elsewhere is (kind not in TOLD_THE_CALLER)


@EVERY
def test_the_same_endpoint_is_tried_again_only_where_time_can_help(kind: FailureKind) -> None:
    helped = {FailureKind.OVERLOADED, FailureKind.UNAVAILABLE, FailureKind.INTERRUPTED}
    assert remedy(failed(kind)).again is (kind in helped)


@EVERY
def test_neither_a_clients_mistake_nor_a_full_server_opens_a_breaker_and_a_fault_may(kind: FailureKind) -> None:
    assert remedy(failed(kind)).counts_against is (kind not in NO_FAULTS)


def test_the_breaker_is_told_of_exactly_the_faults_that_count() -> None:
    assert {kind for kind in FailureKind if remedy(failed(kind)).counts_against} == FAULTS


@EVERY
@pytest.mark.parametrize(("text", "begun"), [("Once upon", False), ("", True)])
def test_nothing_is_resent_once_content_came_and_the_fault_stays_a_fault(
    kind: FailureKind, text: str, begun: bool
) -> None:
    found = remedy(failed(kind, text), begun=begun)
    assert found == Remedy(again=False, elsewhere=False, counts_against=REMEDIES[kind].counts_against)


def test_the_table_in_the_docstring_is_the_table() -> None:
    told = {
        FailureKind(row[1]): tuple(word == "yes" for word in row.groups()[1:])
        for row in re.finditer(r"^(\w+) +(yes|no) +(yes|no) +(yes|no) ", module.__doc__ or "", re.MULTILINE)
    }
    assert told == {kind: (way.again, way.elsewhere, way.counts_against) for kind, way in REMEDIES.items()}
