"""``agentroute explain``: a decision with every reason."""

from __future__ import annotations

import typer

from agentroute.cli import options
from agentroute.cli.recommend import print_decision


def explain(
    context: options.Context,
    output: options.Output = None,
    concurrency: options.Concurrency = 1,
    ttft: options.Ttft = None,
    tpot: options.Tpot = None,
    deadline: options.Deadline = None,
    soft: options.Soft = False,
    need: options.Needs = None,
    objective: options.Objective = None,
    route: options.RouteName = "default",
    model: options.Models = None,
    price: options.Prices = None,
    config: options.ConfigFile = None,
    as_json: options.Json = False,
) -> None:
    """Explain a decision: every candidate, what is expected of it, why it won or lost, who was refused and why."""
    task = options.task(
        context=context,
        output=output,
        concurrency=concurrency,
        ttft=ttft,
        tpot=tpot,
        deadline=deadline,
        soft=soft,
        needs=need,
        objective=objective,
        route=route,
    )
    router = options.router(config, model, price)
    if as_json:
        print_decision("explain", router, task, text=True)
    else:
        typer.echo(router.decide(task).explain())
