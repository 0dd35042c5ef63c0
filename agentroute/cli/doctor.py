"""``agentroute doctor``: what is wrong with the deployments of a configuration, or may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from agentroute.adapters import adapter
from agentroute.adapters.base import Discovery, Load
from agentroute.cli.init import discover, heard_from, model_of
from agentroute.cli.options import CONFIG, Json
from agentroute.cli.output import EXIT_FAILURE, print_json, say
from agentroute.config import Config
from agentroute.doctor.finding import SEVERITIES, Finding, worst_first
from agentroute.doctor.running import at_this_moment
from agentroute.doctor.server import disagreements
from agentroute.doctor.setup import cautions
from agentroute.errors import AgentrouteError, BackendError, UsageError, counted
from agentroute.fleet import Deployment
from agentroute.startup.names import printable

AT_ONCE = 16
"""Servers that are asked at the same time."""
PROGRESS_S = 2.0
"""Whoever waits is told for whom, every so many seconds."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of asking one endpoint. ``error`` says why there is no ``said``."""

    wire: str = "openai"
    said: Discovery | None = None
    load: Load = field(default_factory=Load)
    error: str = ""


Asked = tuple[str, str | None, str]
"""An endpoint's URL, the environment variable with its key, and the adapter of its deployment."""


def doctor(
    config: Annotated[Path, typer.Option("--config", help="The deployments.")] = CONFIG,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no server; look at the files alone.")] = False,
    as_json: Json = False,
) -> None:
    """Tell what is wrong with the deployments, or may be: where profiles disagree with their servers, and bad splits.

    Every server is asked what it is and what it does now; one that does not answer is a finding, too. Curves that
    drift, breakers that are open and pools that thrash are known to the router that runs: ask it with router.doctor().

    Exit 1 where something is wrong; warnings and notes alone exit 0.
    """
    if not config.exists():
        raise UsageError(f"there is no {printable(config)}; write one with: agentroute init http://HOST:PORT")
    deployments = Config.load(config).fleet().deployments
    heard = {} if offline else ask_all({asked for deployment in deployments for asked in _endpoints(deployment)})
    found = cautions(deployments)
    for deployment in deployments:
        found += [one for asked in _endpoints(deployment) if asked in heard for one in _of(deployment, asked, heard)]
    by_name = {d.name: worst_first([one for one in found if one.deployment == d.name]) for d in deployments}
    counts = Counter(finding.severity for finding in found)
    if as_json:
        whole = [_json(deployment, heard, by_name[deployment.name]) for deployment in deployments]
        print_json("doctor", {"deployments": whole, "counts": {kind: counts[kind] for kind in SEVERITIES}})
    else:
        for deployment in deployments:
            _print(deployment, heard, by_name[deployment.name])
        said = ", ".join(f"{counts[kind]} {kind}" for kind in SEVERITIES if counts[kind])
        typer.echo(f"{counted(len(deployments), 'deployment')}: {said or 'nothing found'}")
    if counts["wrong"]:
        raise typer.Exit(EXIT_FAILURE)


def ask_all(endpoints: Iterable[Asked]) -> dict[Asked, Heard]:
    """What every endpoint says, asked at the same time; who takes long is told on stderr."""
    endpoints = sorted(endpoints, key=str)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="doctor") as pool:
        asking = {pool.submit(_ask, *endpoint): endpoint for endpoint in endpoints}
        waiting = set(asking)
        while waiting:
            _, waiting = wait(waiting, timeout=PROGRESS_S)
            if waiting:
                url = printable(min(asking[future][0] for future in waiting))
                more = ", ..." if len(waiting) > 1 else ""
                say(f"waiting for {len(waiting)} of {counted(len(endpoints), 'server')} ({url}{more})")
        return {endpoint: future.result() for future, endpoint in asking.items()}


def _ask(url: str, api_key_env: str | None, wire: str) -> Heard:
    """What one endpoint says: by its own account of its engine, else by the adapter that the configuration names."""
    from agentroute.patience import Timeout
    from agentroute.probe import probe, probe_load

    patience = Timeout(read_s=10.0)
    try:
        spoken, said = discover(url, api_key_env)
    except AgentrouteError as error:
        return Heard(error=str(error))
    try:
        if spoken == "openai" != wire:
            more = probe(url, adapter(wire), api_key_env=api_key_env, timeout=patience)
            spoken, said = (wire, more) if more.models else (spoken, said)
        load = probe_load(url, adapter(spoken), api_key_env=api_key_env, timeout=patience)
    except BackendError:  # it answers, but not to this
        load = Load()
    return Heard(spoken, said, load)


def _endpoints(deployment: Deployment) -> list[Asked]:
    return [(url, deployment.api_key_env, deployment.adapter) for url in dict.fromkeys(deployment.urls)]


def _of(deployment: Deployment, asked: Asked, heard: dict[Asked, Heard]) -> list[Finding]:
    """What is found at one endpoint."""
    answer, url = heard[asked], printable(asked[0])
    if answer.said is None:
        return [Finding("unreachable", deployment.name, f"cannot be asked: {printable(answer.error)}", "wrong")]
    where = url if len(deployment.urls) > 1 else None
    model = model_of(answer.said, deployment.served_model)
    found = disagreements(deployment, answer.said, url=where, model=model)
    return [*found, *at_this_moment(deployment, answer.load, f"at {where}, " if where else "")]


def _print(deployment: Deployment, heard: dict[Asked, Heard], found: Sequence[Finding]) -> None:
    typer.echo(f"{deployment.name} (profile {deployment.profile.name})")
    for asked in _endpoints(deployment):
        if (answer := heard.get(asked)) and answer.said:
            typer.echo(f"  {'':7}  {printable(asked[0])}: {heard_from(answer.wire, answer.said)}")
    for finding in found:
        typer.echo(f"  {finding.severity:7}  {finding.kind.replace('_', ' ')}: {finding.text}")
    if not found:
        typer.echo(f"  {'':7}  nothing found")


def _json(deployment: Deployment, heard: dict[Asked, Heard], found: Sequence[Finding]) -> dict[str, Any]:
    endpoints = []
    for asked in _endpoints(deployment):
        answer = heard.get(asked, Heard())
        said = answer.said
        endpoints.append(
            {
                "url": asked[0],
                "asked": asked in heard,
                "answers": said is not None,
                "engine": said.engine if said else None,
                "engine_version": said.engine_version if said else None,
                "models": list(said.models) if said else [],
            }
        )
    findings = [
        {"kind": one.kind, "severity": one.severity, "text": one.text, "numbers": dict(one.numbers)} for one in found
    ]
    return {
        "deployment": deployment.name,
        "profile": deployment.profile.name,
        "endpoints": endpoints,
        "findings": findings,
    }
