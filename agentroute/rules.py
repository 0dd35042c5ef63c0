"""What a router goes by until it is given other rules: deployments, routes and objectives, compiled. Never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentroute.asks import Asks, Quality
from agentroute.compiled import CompiledFleet
from agentroute.errors import UnknownNameError, UsageError
from agentroute.fallback import by_name
from agentroute.fleet import Fleet
from agentroute.inputs import Ask
from agentroute.own import own
from agentroute.policy import Objective, Score
from agentroute.policy import objective as objective_by_name
from agentroute.quick import Quick
from agentroute.route import Route
from agentroute.task import Task
from agentroute.unmeasured import Unmeasured


class Rules:
    """Raises ``UnknownNameError`` for an objective or an allowed deployment that is not there.

    ``before``: rules that were there before; where the fleet is the same, it is not compiled again.
    """

    def __init__(
        self,
        fleet: Fleet,
        objective: str,
        routes: Iterable[Route],
        quality: Quality,
        objectives: Mapping[str, Score],
        before: Rules | None = None,
    ) -> None:
        self.fleet = fleet
        self.objective = objective
        """What applies where neither task nor route names one."""
        self.routes = by_name(routes)
        same = before is not None and before.fleet.deployments == fleet.deployments
        self.compiled: CompiledFleet = before.compiled if before is not None and same else CompiledFleet.of(fleet)
        self.own = own(objectives)
        """Objectives of the user's own."""
        self.quick = Quick.of(self.compiled) or Unmeasured.of(self.compiled)
        self.asks = Asks(self.compiled, quality)
        for route in self.routes.values():
            self.asks.mask({*(route.allow or ()), *route.deny})
            self._objective(route.objective or objective)

    def ask(self, task: Task, waited_s: float = 0.0) -> tuple[Ask, str, Objective]:
        """The task as numbers, completed by its route, and the objective to choose by, with its name."""
        route = self.routes.get(task.route)
        if route is None:
            raise UnknownNameError("route", task.route, self.routes)
        name = task.objective or route.objective or self.objective
        ask, objective = self.asks.of(task, route, waited_s), self._objective(name)
        return self.asks.judged(ask, task, route) if name == "quality" else ask, name, objective

    def _objective(self, name: str) -> Objective:
        objective = objective_by_name(name, self.own)
        if name == "cost" and not self.compiled.any_price:
            raise UsageError("the objective 'cost' needs a price; give one deployment's profile a [price]")
        return objective
