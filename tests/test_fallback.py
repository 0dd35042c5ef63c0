"""Fallbacks: where a route's own deployments cannot take a task now, the routes that it names are tried."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
from fleets import assert_nothing_is_held, fleet, profile, task
from hypothesis import given
from hypothesis import strategies as st

from agentroute.errors import NoFeasibleDeployment, PoolFull, UnknownNameError, UsageError
from agentroute.fleet import Fleet
from agentroute.lease import Lease
from agentroute.route import Route
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import Task


def routed(*routes: Route, of: Fleet | None = None) -> Router:
    """Two servers: ``small`` has room for one request of 1,100 tokens and no tools, ``big`` for ten, with tools."""
    return Router(of or FLEET, routes=routes)


FLEET = fleet(
    profile("small", window=2_048, kv_blocks=72, offers={"tools": False}),
    profile("big", window=8_192, kv_blocks=720, offers={"tools": True}),
)
SMALL, BIG = frozenset({"small"}), frozenset({"big"})
FIRST = Route(name="first", allow=SMALL, fallbacks=("second",))
SECOND = Route(name="second", allow=BIG, objective="latency")


def asked(context: int = 1_000, route: str = "first") -> Task:
    return Task(context_tokens=context, max_output_tokens=100, route=route)


def test_what_fits_nowhere_on_its_route_is_decided_by_the_rules_of_its_fallback() -> None:
    decision = routed(FIRST, SECOND).decide(asked(4_000))
    assert (decision.deployment, decision.task.route, decision.objective) == ("big", "second", "latency")


def test_what_fits_stays_on_its_route() -> None:
    decision = routed(FIRST, SECOND).decide(asked())
    assert (decision.deployment, decision.task.route, decision.objective) == ("small", "first", "fit")


def test_many_are_decided_as_each_would_be() -> None:
    router = routed(FIRST, SECOND)
    tasks = [asked(context) for context in (500, 1_000, 4_000, 5_000, 6_000, 7_000, 900, 9_000)]
    found = [one if isinstance(one, NoFeasibleDeployment) else one.deployment for one in router.decide_many(tasks)]
    assert found[:-1] == ["small", "small", "big", "big", "big", "big", "small"]
    assert isinstance(found[-1], NoFeasibleDeployment)


def test_a_full_route_overflows_into_its_fallback_and_back() -> None:
    router = routed(FIRST, SECOND)
    with router.acquire(asked()) as here, router.acquire(asked()) as there, router.admit(asked()) as waited:
        assert [lease.deployment.name for lease in (here, there, waited)] == ["small", "big", "big"]
    with router.acquire(asked()) as again:
        assert again.deployment.name == "small"
    assert_nothing_is_held(router)


def test_a_route_that_is_down_is_left_for_its_fallback() -> None:
    router = routed(FIRST, SECOND)
    router.observe("small", Load(running=0, waiting=0, trouble="unreachable"))
    assert router.decide(asked()).deployment == "big"


def test_who_finds_both_full_waits_and_takes_whichever_has_room_first() -> None:
    router = routed(FIRST, SECOND)
    own, *others = [router.acquire(asked()) for _ in range(11)]
    assert {lease.deployment.name for lease in others} == {"big"}
    ticket = router.queue(asked())
    assert not ticket.done
    with pytest.raises(PoolFull):
        router.acquire(asked())
    others.pop().release()
    assert ticket.result().deployment.name == "big"
    for lease in (own, *others, ticket.result()):
        lease.release()
    assert_nothing_is_held(router)


def test_a_fallback_of_a_fallback_is_tried_and_the_refusal_is_that_of_the_own_route() -> None:
    router = routed(
        Route(name="first", allow=SMALL, fallbacks=("middle",)),
        Route(name="middle", allow=SMALL, fallbacks=("second",)),
        SECOND,
    )
    assert router.decide(asked(4_000)).task.route == "second"
    with pytest.raises(NoFeasibleDeployment) as raised:
        router.decide(asked(9_000))
    assert raised.value.reasons["big"].kind == "not_allowed"


def test_a_group_is_spread_over_the_fallback_where_its_route_takes_none_of_it() -> None:
    plan = routed(FIRST, SECOND).spread(asked(4_000), fanout=8)
    assert {placement.deployment for placement in plan.placements} == {"big"}


def test_how_long_who_comes_now_would_wait_counts_the_fallback() -> None:
    router = routed(FIRST, SECOND)
    assert router.expected_wait_s(asked(4_000)) == 0.0
    with pytest.raises(NoFeasibleDeployment):
        router.expected_wait_s(asked(9_000))


def test_what_a_route_needs_is_needed_on_its_fallback_too() -> None:
    first = Route(name="first", allow=BIG, needs=frozenset({"tools"}), fallbacks=("second",))
    router = routed(first, Route(name="second", allow=SMALL))
    router.observe("big", Load(running=0, waiting=0, trouble="unreachable"))
    with pytest.raises(NoFeasibleDeployment) as raised:
        router.decide(asked())
    assert raised.value.reasons["big"].kind == "down"


@pytest.mark.parametrize(
    ("routes", "error", "message"),
    [
        ((Route(name="a", fallbacks=("b",)),), UnknownNameError, "there is no route 'b'"),
        ((Route(name="a", fallbacks=("a",)),), UsageError, "lead back to it: a -> a"),
        ((Route(name="a", fallbacks=("b",)), Route(name="b", fallbacks=("a",))), UsageError, "a -> b -> a"),
        ((Route(name="a"), Route(name="a")), UsageError, "route names must differ, got 'a' twice"),
    ],
)
def test_fallbacks_that_lead_nowhere_or_round_are_refused(
    routes: tuple[Route, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        routed(*routes)


@given(
    context=st.integers(1, 9_000),
    needs=st.sampled_from([frozenset(), frozenset({"tools"})]),
    of_route=st.sampled_from([frozenset(), frozenset({"tools"})]),
    allow=st.sampled_from([SMALL, BIG]),
    fallback=st.sampled_from([SMALL, BIG]),
    busy=st.integers(0, 11),
)
def test_a_fallback_never_breaks_what_is_needed_nor_the_window(
    context: int,
    needs: frozenset[str],
    of_route: frozenset[str],
    allow: frozenset[str],
    fallback: frozenset[str],
    busy: int,
) -> None:
    router = routed(
        Route(name="first", allow=allow, needs=of_route, fallbacks=("second",)), Route(name="second", allow=fallback)
    )
    held = []
    for _ in range(busy):
        try:
            held.append(router.acquire(task()))
        except PoolFull:
            break
    asked = Task(context_tokens=context, max_output_tokens=100, needs=needs, route="first")
    for attempt in (router.decide, router.acquire):
        try:
            found = attempt(asked)
        except NoFeasibleDeployment:
            continue
        decision = found if not hasattr(found, "decision") else found.decision
        assert decision.deployment in allow | fallback
        assert context + 100 <= {"small": 2_048, "big": 8_192}[decision.deployment]
        if needs | of_route:
            assert decision.deployment == "big"
        if hasattr(found, "release"):
            found.release()
    for lease in held:
        lease.release()
    assert_nothing_is_held(router)


@pytest.mark.parametrize("route", ["first", "second"])
def test_a_refusal_keeps_nothing_alive_once_it_is_caught(route: str) -> None:
    router = routed(FIRST, SECOND)

    def refused() -> weakref.ref[Lease]:
        lease = router.acquire(asked())
        with contextlib.suppress(NoFeasibleDeployment):
            router.decide(asked(9_000, route))
        with contextlib.suppress(NoFeasibleDeployment):
            router.acquire(asked(9_000, route))
        with contextlib.suppress(NoFeasibleDeployment):
            router._waiting._place(asked(9_000, route), 0.0, frozenset())
        return weakref.ref(lease)

    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()
