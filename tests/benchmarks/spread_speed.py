"""How fast a fan-out is planned, in thread CPU time. Run by ``make bench``."""

from __future__ import annotations

from functools import partial

from timing import per_call

from agentroute.catalogue import shipped
from agentroute.fleet import Fleet
from agentroute.router import Router
from agentroute.task import Slo, Task


def fleet(count: int) -> Fleet:
    """The first shipped profiles, all of which take the tasks below."""
    names = shipped().profile_names[:count]
    return Fleet(shipped().deployment(shipped().profile(name)) for name in names)


def main() -> None:
    """One line for each objective and size, deployments x siblings; ``n`` is the number of different tasks."""
    for deployments, fanout in ((4, 100), (64, 100), (64, 1_000)):
        router = Router(fleet(deployments))
        for objective in ("latency", "cost"):
            tasks = [
                Task(
                    context_tokens=1_000 + 97 * i,
                    max_output_tokens=200 + 13 * i,
                    objective=objective,
                    deadline_s=Slo(60.0, hard=False),
                )
                for i in range(fanout)
            ]
            calls = [partial(router.spread, task, fanout=fanout) for task in tasks[:50]]
            per_call(f"spread_{objective}_{deployments}x{fanout}", calls, batch=1)


if __name__ == "__main__":
    main()
