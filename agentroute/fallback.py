"""Fallbacks: the routes whose rules a task is decided by where its own route has no place for it now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from agentroute.compiled import offered
from agentroute.errors import NoFeasibleDeployment, PoolFull, UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.route import Route
from agentroute.task import Task
from agentroute.waiting import Delay, Place

if TYPE_CHECKING:
    from agentroute.lease import Lease

T = TypeVar("T")


def by_name(routes: Iterable[Route]) -> Mapping[str, Route]:
    """Routes by name, ``default`` among them.

    Raises ``UnknownNameError`` for a fallback that is no route, ``UsageError`` for one that leads back to its own route
    and for two routes of one name.
    """
    found: dict[str, Route] = {}
    for route in routes:
        if route.name in found:
            raise UsageError(f"route names must differ, got {route.name!r} twice")
        found[route.name] = route
    found = {"default": Route(name="default"), **found}
    for route in found.values():
        for name in route.fallbacks:
            if name not in found:
                raise UnknownNameError("route", name, found)
        if (around := circle(route.name, _after(found))) is not None:
            raise UsageError(f"the fallbacks of route {route.name!r} lead back to it: {around}")
    return MappingProxyType(found)


def circle(name: str, fallbacks: Mapping[str, Sequence[str]]) -> str | None:
    """The way from a route back to itself over each one's fallbacks, in words; ``None``: there is none."""
    ways: list[tuple[str, ...]] = [(name,)]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        for following in fallbacks.get(way[-1], ()):
            if following == name:
                return " -> ".join((*way, name))
            if following not in seen:
                seen.add(following)
                ways.append((*way, following))
    return None


def _after(routes: Mapping[str, Route]) -> dict[str, tuple[str, ...]]:
    return {name: route.fallbacks for name, route in routes.items()}


def on(task: Task, route: Route, fallback: str) -> Task:
    """``task`` on a fallback of ``route``: by the fallback's rules, but still with all that its own route needs."""
    return replace(task, route=fallback, needs=task.needs | route.needs)


def elsewhere(attempt: Callable[[Task], T], task: Task, route: Route, refused: NoFeasibleDeployment) -> T:
    """What ``attempt`` makes of ``task`` on the first fallback of ``route`` that does not refuse it.

    Raises ``refused`` where all do, or ``PoolFull`` where that is only for now and ``refused`` is for good.
    """
    for name in route.fallbacks:
        try:
            return attempt(on(task, route, name))
        except NoFeasibleDeployment as too:
            if isinstance(too, PoolFull) and not isinstance(refused, PoolFull):
                refused = too
        except UnknownNameError:  # the router goes by other rules meanwhile, which have no such route
            continue
    try:
        raise refused
    finally:
        del refused  # it holds this frame by its traceback, and so what its callers hold, leases among it


def placing(place: Place, routes: Callable[[], Mapping[str, Route]]) -> Place:
    """``place`` for who waits: where its own route has no room for a task now, its fallbacks are asked.

    A task that its own route has room for, but not yet, waits: its fallbacks are for those who find none. ``routes``
    gives the routes of now.
    """

    def placed(task: Task, waited_s: float, closed: frozenset[int] | None) -> Lease | Delay:
        route = routes().get(task.route)
        if route is None or not route.fallbacks:
            return place(task, waited_s, closed)
        refused: NoFeasibleDeployment | None = None
        delays: list[Delay] = []
        try:
            own = place(task, waited_s, closed)
            if not isinstance(own, Delay) or own.again_s:
                return own
            delays.append(own)
        except NoFeasibleDeployment as error:
            refused = error
        for name in route.fallbacks:
            try:
                other = placed(on(task, route, name), waited_s, closed)
            except (NoFeasibleDeployment, UnknownNameError):  # refused, or no longer there
                continue
            if not isinstance(other, Delay):
                return other
            delays.append(other)
        if not delays:
            assert refused is not None
            try:
                raise refused
            finally:
                del refused
        return reduce(_either, delays)

    return placed


def _either(one: Delay, other: Delay) -> Delay:
    """Why a task waits that may go to two routes."""
    known = one.blocks is not None and other.blocks is not None
    return replace(
        one,
        hopeless=one.hopeless and other.hopeless,
        blocks=np.fmin(one.blocks, other.blocks) if known else None,  # type: ignore[arg-type]
        slack_s=min(one.slack_s, other.slack_s),
        among=None,
    )


def misfits(fleet: Fleet, routes: Iterable[Route]) -> Iterator[tuple[str, str]]:
    """Fallbacks that can never take what their route is for: the route's name, and what is wrong.

    None of a fallback's deployments offers what the route needs. What nobody knows of a deployment is no mistake, nor
    is a smaller window: short tasks, too, find no room on their own route.
    """
    known = {"default": Route(name="default"), **{route.name: route for route in routes}}
    for route in known.values():
        if (around := circle(route.name, _after(known))) is not None:
            yield route.name, f"leads back to the route itself: {around}; break the circle"
            continue
        for name in route.fallbacks:
            if (what := _misfit(fleet, route, known[name])) is not None:
                others = (one for one in known.values() if one.name not in (route.name, name))
                fitting = sorted(one.name for one in others if _misfit(fleet, route, one) is None)
                hint = f"{', '.join(map(repr, fitting))} would do" if fitting else "leave it out"
                yield route.name, f"{name!r} can never take what this route is for: {what}; {hint}"


def _misfit(fleet: Fleet, route: Route, fallback: Route) -> str | None:
    """Why a fallback can never take what ``route`` is for."""
    needs, there = route.needs | fallback.needs, _members(fleet, fallback)
    able = [one for one in there if not any(offered(one, need) is False for need in needs)]
    if not able:
        lacking = [need for need in sorted(needs) if all(offered(one, need) is False for one in there)]
        return f"none of its deployments offers {', '.join(lacking or sorted(needs))}"
    return None


def _members(fleet: Fleet, route: Route) -> list[Deployment]:
    """The deployments that a route may choose."""
    allowed = [one for one in fleet.deployments if route.allow is None or one.name in route.allow]
    return [one for one in allowed if one.name not in route.deny]
