"""``agentroute spread``: how many siblings of a group go where, before they are launched."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agentroute.cli import options
from agentroute.cli.output import estimate_json, exit_code, print_json, print_table, say
from agentroute.cli.recommend import rejected_json, task_json
from agentroute.errors import NoFeasibleDeployment, UsageError
from agentroute.spill import COLUMNS, order_and_unused, rows, summary
from agentroute.spread import Spread


def spread(
    context: options.Context,
    fanout: Annotated[int, typer.Option("--fanout", help="Siblings in the group.", min=1, show_default=False)],
    output: options.Output = None,
    shared_prefix: Annotated[
        int,
        typer.Option("--shared-prefix", help="Prompt tokens, from the first on, that all siblings share.", min=0),
    ] = 0,
    ttft: options.Ttft = None,
    tpot: options.Tpot = None,
    deadline: Annotated[str | None, typer.Option("--deadline", help="Until the last sibling is done, e.g. 5m.")] = None,
    soft: options.Soft = False,
    need: options.Needs = None,
    objective: Annotated[
        str | None,
        typer.Option("--objective", help="cost: the least money by the deadline; else the least makespan."),
    ] = None,
    route: options.RouteName = "default",
    model: options.Models = None,
    price: options.Prices = None,
    config: options.ConfigFile = None,
    top: Annotated[int, typer.Option("--top", help="How many of the unused to show; 0 shows all.", min=0)] = 8,
    as_json: options.Json = False,
) -> None:
    """Split a group of equal tasks over the deployments: how many where, in which waves, how long, for how much."""
    if shared_prefix > context:
        raise UsageError(f"--shared-prefix must be at most the {context:,} tokens of --context, got {shared_prefix:,}")
    task = options.task(
        context=context,
        output=output,
        concurrency=1,
        shared_prefix=shared_prefix,
        ttft=ttft,
        tpot=tpot,
        deadline=deadline,
        soft=soft,
        needs=need,
        objective=objective,
        route=route,
    )
    router = options.router(config, model, price)
    if shared_prefix and not router.rules.compiled.keeps_prefixes.any():
        say("no deployment reports prefix caching: every sibling holds and reads the shared prefix for itself")
    try:
        plan = router.spread(task, fanout=fanout)
    except NoFeasibleDeployment as error:
        if not as_json:
            raise
        say(f"error: {str(error).splitlines()[0]}")
        nothing = {"task": task_json(task), "fanout": fanout, "placements": [], **rejected_json(error.reasons)}
        print_json("spread", nothing)
        raise typer.Exit(exit_code(error)) from None
    if as_json:
        print_json("spread", _json(plan))
    else:
        _show(plan, top)


def _show(plan: Spread, top: int) -> None:
    typer.echo("\n".join(summary(plan)) + "\n")
    print_table(COLUMNS, rows(plan), right=("siblings", "waves"))
    typer.echo("\n" + "\n".join(order_and_unused(plan, top or None)))


def _json(plan: Spread) -> dict[str, Any]:
    return {
        "task": task_json(plan.task),
        "fanout": plan.fanout,
        "objective": plan.aim,
        "at_once": plan.at_once,
        "makespan_s": estimate_json(plan.makespan),
        "stat": plan.stat,
        "cost_usd": plan.cost_usd,
        "deadline_s": plan.deadline_s,
        "placements": [
            {
                "deployment": placement.deployment,
                "endpoint": placement.site.endpoint,
                "requests": placement.requests,
                "waves": placement.waves,
                "at_once": placement.at_once,
                "most_at_once": placement.site.most,
                "capped_by": placement.site.capped_by,
                "in_flight": placement.site.in_flight,
                "e2e_s": placement.e2e_s,
                "makespan_s": estimate_json(plan.estimate(placement)),
                "cost_usd": placement.cost_usd,
                "contexts_hot": placement.site.hot,
            }
            for placement in plan.placements
        ],
        "spill": [{"deployment": name, "from_fanout": count} for name, count in plan.spill.items()],
        "rejected": plan.unused,
    }
