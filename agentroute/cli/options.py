"""The options that several commands share, and what they make: a task and a router."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentroute.catalogue import shipped
from agentroute.cli.output import say
from agentroute.errors import UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.task import Slo, Task

if TYPE_CHECKING:
    from agentroute.router import Router

CONFIG = Path("agentroute.toml")

_UNITS_MS = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "min": 60_000.0}

Context = Annotated[int, typer.Option("--context", help="Prompt tokens.", min=1, show_default=False)]
Output = Annotated[int | None, typer.Option("--output", help="Output tokens at most.", min=1, show_default=False)]
Concurrency = Annotated[
    int, typer.Option("--concurrency", help="Siblings in flight at once, this one included.", min=1)
]
Ttft = Annotated[str | None, typer.Option("--ttft", help="Time to the first token, e.g. 2s or 800ms.")]
Tpot = Annotated[str | None, typer.Option("--tpot", help="Time per output token, e.g. 40ms.")]
Deadline = Annotated[str | None, typer.Option("--deadline", help="Time to the whole answer, e.g. 30s.")]
Soft = Annotated[bool, typer.Option("--soft", help="Rank by the limits instead of refusing what misses them.")]
Needs = Annotated[list[str] | None, typer.Option("--need", help="A capability such as tools; repeatable.")]
Objective = Annotated[str | None, typer.Option("--objective", help="fit, cost or latency; default: the route's.")]
RouteName = Annotated[str, typer.Option("--route", help="The route of the configuration to follow.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="Only deployments of this model; repeatable.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="An agentroute.toml; default: the one here, else the shipped profiles."),
]
Prices = Annotated[
    list[str] | None, typer.Option("--price", help="What you pay, e.g. h200_sxm=2.9 USD an hour; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with a schema_version.")]


def milliseconds(text: str | None, option: str) -> float | None:
    """A duration such as ``2s`` or ``800ms`` in milliseconds; raises ``UsageError``."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m)", text.strip())
    if found is None or float(found[1]) <= 0:
        raise UsageError(f"{option} must be a duration above 0 with its unit, such as 2s or 800ms, got {text!r}")
    return float(found[1]) * _UNITS_MS[found[2]]


def slo(text: str | None, option: str, *, soft: bool, per_ms: float = 1.0) -> Slo | None:
    """A duration option as an SLO on the mean."""
    value = milliseconds(text, option)
    return None if value is None else Slo(value * per_ms, hard=not soft)


def task(
    *,
    context: int,
    output: int | None,
    concurrency: int,
    shared_prefix: int = 0,
    ttft: str | None,
    tpot: str | None,
    deadline: str | None,
    soft: bool,
    needs: list[str] | None,
    objective: str | None,
    route: str,
) -> Task:
    """The task that the options describe."""
    return Task(
        context_tokens=context,
        max_output_tokens=output,
        concurrency=concurrency,
        shared_prefix_tokens=shared_prefix,
        ttft_ms=slo(ttft, "--ttft", soft=soft),
        tpot_ms=slo(tpot, "--tpot", soft=soft),
        deadline_s=slo(deadline, "--deadline", soft=soft, per_ms=0.001),
        needs=frozenset(needs or ()),
        route=route,
        objective=objective,
    )


def router(config: Path | None, models: list[str] | None = None, prices: list[str] | None = None) -> Router:
    """The router of a configuration, or of the shipped profiles when there is none, with one's own prices."""
    from agentroute.router import Router

    if config is None and not CONFIG.exists():
        say("deciding over the shipped profiles (no agentroute.toml here)")
        whole = Router.shipped()
    else:
        path = config or CONFIG
        say(f"deciding over {path}")
        whole = Router.from_config(path)
    if not models and not prices:
        return whole
    chosen = _only(whole.fleet.deployments, models)
    own = _prices(prices)
    chosen = [
        replace(d, usd_per_accelerator_hour=own.get(d.profile.accelerator or "", d.usd_per_accelerator_hour))
        for d in chosen
    ]
    names = {deployment.name for deployment in chosen}
    routes = [
        replace(route, allow=route.allow & names if route.allow is not None else None, deny=route.deny & names)
        for route in whole.routes.values()
    ]
    return Router(Fleet(chosen), objective=whole.objective, routes=routes)


def _only(deployments: Sequence[Deployment], models: list[str] | None) -> list[Deployment]:
    known = {name for deployment in deployments if (name := deployment.model_name)}
    for model in models or ():
        if model not in known:
            raise UnknownNameError("model", model, known)
    return [deployment for deployment in deployments if not models or deployment.model_name in models]


def _prices(texts: list[str] | None) -> dict[str, float]:
    """``h200_sxm=2.9`` as a name and a number; raises ``UsageError`` or ``UnknownNameError``."""
    prices = {}
    for text in texts or ():
        found = re.fullmatch(r"([^=]+)=(\d+(?:\.\d+)?)", text.strip())
        if found is None or float(found[2]) <= 0:
            raise UsageError(f"--price must be ACCELERATOR=USD_PER_HOUR, such as h200_sxm=2.9, got {text!r}")
        prices[shipped().accelerator(found[1]).name] = float(found[2])
    return prices
