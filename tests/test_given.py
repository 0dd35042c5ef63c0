"""What a router cannot use is refused in one sentence, before anything is changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from desk import SMALL, Desk
from fleets import Clock, assert_nothing_is_held, fleet, profile, router, task

from agentroute.assessment import Assessment
from agentroute.errors import TaskError, UsageError
from agentroute.router import Router
from agentroute.task import Task


@pytest.mark.parametrize("avoid", [{99}, {-1}, {2}, {True}, {"a"}, {0.0}])
def test_a_pool_to_avoid_is_one_that_is_there(avoid: Any) -> None:
    by = router(profile("a"), profile("b"))
    with pytest.raises(UsageError, match=r"^avoid must hold pools, as Decision.pool says, from 0 to 1, got "):
        by.acquire(task(), avoid=frozenset(avoid))
    assert_nothing_is_held(by)


ASKS: list[Callable[[Router, Any], object]] = [
    lambda by, given: by.decide(given),
    lambda by, given: by.decide_many([task(), given]),
    lambda by, given: by.acquire(given),
    lambda by, given: by.queue(given).result(),
    lambda by, given: by.admit(given),
    lambda by, given: by.spread(given, fanout=3),
    lambda by, given: by.expected_wait_s(given),
]


@pytest.mark.parametrize("given", [None, "hello", {"context_tokens": 5}])
@pytest.mark.parametrize("ask", ASKS)
def test_what_is_no_task_is_refused(ask: Callable[[Router, Any], object], given: Any) -> None:
    with pytest.raises(UsageError, match=r"^a router must be asked with a Task, got "):
        ask(router(profile()), given)


def test_what_is_no_load_is_refused() -> None:
    given: Any = "x"
    with pytest.raises(UsageError, match=r"^what a server says of itself must be a Load, got 'x'$"):
        router(profile()).observe("p", given)


@pytest.mark.parametrize("name", ["session_id", "parent_session_id", "group", "pin", "objective"])
def test_a_name_that_no_record_can_hold_is_refused(name: str) -> None:
    given: Any = {name: "a\ud800"}
    with pytest.raises(TaskError, match=rf"^{name} must be text that UTF-8 can hold"):
        Task(context_tokens=1, **given)
    assert Task(context_tokens=1, session_id="ü\U0001f600").session_id == "ü\U0001f600"


@pytest.mark.parametrize("name", ["route", "allow", "deny"])
def test_a_name_that_is_chosen_by_is_one_that_a_record_can_hold(name: str) -> None:
    for names in ("a\ud800",) if name == "route" else (["a\ud800"], frozenset({"b", "\udfff"})):
        given: Any = {name: names}
        with pytest.raises(TaskError, match=rf"^{name} must be text that UTF-8 can hold"):
            Task(context_tokens=1, **given)
    assert Task(context_tokens=1, route="ü", allow={"ö"}, deny={"ä"}).allow == {"ö"}


def with_own(score: Callable[[Assessment], Any]) -> Router:
    return Router(fleet(profile("a"), profile("b")), objective="mine", objectives={"mine": score}, clock=Clock())


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (np.ones(1), r"shape \(1,\) of float64"),
        (np.ones((1, 2)), r"shape \(1, 2\) of float64"),
        (np.array(["a", "b"]), r"shape \(2,\) of <U1"),
        (np.array([True, False]), r"shape \(2,\) of bool"),
        (None, "None"),
        (1.0, r"1\.0"),
    ],
)
def test_an_objective_of_ones_own_gives_a_number_for_each_deployment(given: Any, got: str) -> None:
    by = with_own(lambda _: given)
    for ask in ASKS[:4]:
        with pytest.raises(
            UsageError, match=rf"^the objective 'mine' must return an array of 2 numbers, .* got {got}$"
        ):
            ask(by, task())
    assert_nothing_is_held(by)


def test_one_may_say_that_it_cannot_tell_and_count_in_whole_numbers() -> None:
    assert with_own(lambda _: np.array([np.nan, 5.0])).decide(task()).deployment == "b"
    assert with_own(lambda _: np.array([2, 1])).decide(task()).deployment == "b"


CALLS: list[Callable[[Router], object]] = [
    lambda by: by.decide(task()),
    lambda by: by.acquire(task()),
    lambda by: by.queue(task()),
    lambda by: by.signs("a"),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("ask", ASKS[:4])
def test_an_objective_that_calls_the_router_back_is_told_so(
    ask: Callable[[Router, Any], object], call: Callable[[Router], object]
) -> None:
    """The router may hold its lock when it asks: it would wait for itself."""
    found: list[BaseException] = []

    def score(a: Assessment) -> Any:
        call(by)
        return a.e2e_ms

    by = with_own(score)

    def asked() -> None:
        try:
            ask(by, task())
        except UsageError as error:
            found.append(error)

    thread = threading.Thread(target=asked, daemon=True)
    thread.start()
    thread.join(5.0)
    assert not thread.is_alive(), "it waits for itself"
    assert [str(error) for error in found] == [
        "the objective 'mine' must not call the router: it is asked in one of its calls"
    ]


def test_what_should_be_done_by_now_tells_no_wait() -> None:
    desk = Desk(profile(kv_blocks=140)).fill()
    desk.free()
    desk.clock.now += 0.5
    lease = desk.router.acquire(SMALL)
    service_ms = lease.decision.e2e_ms
    assert service_ms is not None
    desk.clock.now += service_ms.mean / 1_000.0 - 0.25
    ticket = desk.queue("first")
    assert desk.router.expected_wait_s(ticket) == pytest.approx(0.25), (
        "of the one that runs, not of those that are late"
    )


def test_when_all_that_runs_should_be_done_nobody_can_say_when_it_is() -> None:
    desk = Desk(profile(kv_blocks=70)).fill()
    ticket = desk.queue("first")
    soon = desk.router.expected_wait_s(ticket)
    assert soon is not None
    assert soon > 0.0
    desk.clock.now += soon + 1.0
    assert desk.router.expected_wait_s(ticket) is None
    assert desk.router.expected_wait_s(SMALL) is None
    desk.free()
    assert desk.router.expected_wait_s(ticket) == 0.0
