"""Writing a configuration of what another tool's file said, and a profile for each of its servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentroute.cli.init import shipped_model
from agentroute.cli.schema import CONFIG_SCHEMA, config_schema
from agentroute.errors import UsageError
from agentroute.fallback import circle
from agentroute.origin import Provenance
from agentroute.profile import Engine, Profile
from agentroute.startup.facts import Started
from agentroute.startup.names import printable
from agentroute.toml import dumps

_HEADER = f"""\
#:schema ./{CONFIG_SCHEMA}
# Written by agentroute config import. A profile says only what the file said: look it over with
# `agentroute doctor`, and have `agentroute measure` measure its curve.
"""


@dataclass(frozen=True, slots=True)
class Server:
    """One server of which a file speaks."""

    name: str
    url: str
    adapter: str
    engine: str
    model: str | None
    """The model as the server calls it."""
    api_key_env: str | None = None
    group: str | None = None
    """What the file calls it together with others that are as good."""
    started: Started | None = None
    where: str = ""


@dataclass(slots=True)
class Imported:
    """What a file said, and what of it cannot be carried over."""

    servers: list[Server] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fallbacks: dict[str, list[str]] = field(default_factory=dict)
    """By group the groups that are tried after it."""


def write(found: Imported, output: Path | None, *, force: bool) -> str:
    """The configuration as TOML; with ``output`` it is written, with a profile for each server beside it."""
    names = _names((server.name for server in found.servers), _deployment)
    profiles = [_profile(name, server) for name, server in zip(names, found.servers, strict=True)]
    whole: dict[str, Any] = {"format": 1, "deployments": []}
    for name, server in zip(names, found.servers, strict=True):
        entry = {"name": name, "profile": f"profiles/{name}.toml", "base_url": server.url, "adapter": server.adapter}
        whole["deployments"].append(entry | {"served_model": server.model, "api_key_env": server.api_key_env})
    if routes := _routes(found, names):
        whole["routes"] = routes
    text = _HEADER + "\n" + dumps(whole)
    if output is None:
        return text
    folder = output.parent / "profiles"
    files = [output, *(folder / f"{name}.toml" for name in names)]
    if not force and (there := next((one for one in files if one.exists()), None)):
        raise UsageError(f"{printable(there)} is there already; give --force to write over it, or another --output")
    folder.mkdir(parents=True, exist_ok=True)
    for name, profile in zip(names, profiles, strict=True):
        profile.save(folder / f"{name}.toml", comment="What an imported file said of the server.")
    (output.parent / CONFIG_SCHEMA).write_text(config_schema() + "\n")
    output.write_text(text)
    return text


def _profile(name: str, server: Server) -> Profile:
    if (started := server.started) is None:
        engine = Engine.model_validate({"name": server.engine})
        return Profile(format=1, name=name, model=server.model and shipped_model(server.model), engine=engine)
    reported = Provenance(origin="reported", source=server.where)
    return Profile(
        format=1,
        name=name,
        model=shipped_model(started.model.value) if started.model else None,
        engine=Engine(name=started.engine, version=started.version.value if started.version else None),
        precision=started.precision(),
        sharding=started.sharding(),
        provenance=reported,
        limits=started.limits(reported),
    )


def _routes(found: Imported, names: Sequence[str]) -> dict[str, Any]:
    """A route for each group, over its servers, and its fallbacks."""
    groups: dict[str, list[str]] = {}
    for name, server in zip(names, found.servers, strict=True):
        if server.group is not None:
            groups.setdefault(server.group, []).append(name)
    called = dict(zip(groups, _names(groups, _route), strict=True))
    after: dict[str, list[str]] = {}
    for group, wanted in found.fallbacks.items():
        for other in wanted:
            if group not in groups or other not in groups:
                found.notes.append(f"the fallback {group} -> {other}")
            elif circle(group, {**after, group: [other]}) is not None:
                found.notes.append(f"the fallback {group} -> {other}, which would lead in a circle")
            else:
                after.setdefault(group, []).append(other)
    routes: dict[str, Any] = {}
    for group, members in groups.items():
        routes[called[group]] = {"allow": members}
        if group in after:
            routes[called[group]]["fallbacks"] = [called[one] for one in after[group]]
    return routes


def _names(wanted: Iterable[str], plain: Callable[[str], str]) -> list[str]:
    """A name for each, in letters that one may have; what is taken already gets a number behind it."""
    given: list[str] = []
    for name in wanted:
        one, number = plain(name), 2
        while one in given:
            one, number = f"{plain(name)}-{number}", number + 1
        given.append(one)
    return given


def _deployment(name: str) -> str:
    """A deployment's name, and that of its profile's file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "server"


def _route(name: str) -> str:
    """A route's name."""
    return re.sub(r"[^A-Za-z0-9._/@:+ -]+", "-", name).lstrip("._/@:+ -") or "route"
