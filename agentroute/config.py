"""``agentroute.toml``: the deployments of a fleet, the routes over them, and what the gateway is told."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal, TypeVar

from pydantic import Field, PrivateAttr

from agentroute.catalogue import shipped
from agentroute.compiled import pools
from agentroute.errors import ConfigError, FileError, UnknownNameError, UsageError, suggest
from agentroute.fallback import misfits
from agentroute.files import checked, dotted, locate, parse, read_text
from agentroute.fleet import Deployment, Fleet
from agentroute.locations import Location
from agentroute.origin import FUNCTION, Frozen, Name, Positive
from agentroute.own import wrong
from agentroute.policy import OBJECTIVES, Score
from agentroute.profile import Profile
from agentroute.route import Route
from agentroute.router import Router
from agentroute.rules import Rules
from agentroute.tables import DeploymentConfig, GatewayConfig, KeyConfig, RouteConfig, SloTable, TelemetryConfig
from agentroute.task import Slo
from agentroute.variables import substituted

R = TypeVar("R", bound=Router)
PROFILE_FILES = (".toml", ".json")
"""How the name of a profile ends that is a file beside the configuration, and not a shipped one."""


class Config(Frozen):
    """A whole ``agentroute.toml``."""

    format: Literal[1] = 1
    """The version of this file format; default 1."""
    objective: str = "fit"
    """What routes optimise unless they say otherwise: fit, cost, latency, quality or an own one; default fit."""
    deployments: tuple[DeploymentConfig, ...] = Field(min_length=1, max_length=1_000)
    """The running server groups."""
    prices: dict[Name, Positive] = Field(default_factory=dict)
    """What you pay: US dollars for an hour of one accelerator, by its name; default: the shipped table."""
    quality: dict[Name, dict[Name, float]] = Field(default_factory=dict)
    """By model and skill, how good it is, on a scale of your own; default: nobody says."""
    objectives: dict[Name, Annotated[str, Field(pattern=FUNCTION, max_length=500)]] = Field(default_factory=dict)
    """Your own objectives by name, each a function as ``module:function``, of a module that Python finds or that stands
    beside this file; default none."""
    routes: dict[Name, RouteConfig] = Field(default_factory=dict)
    """Routes by name; ``default`` applies to tasks that name none."""
    gateway: GatewayConfig = GatewayConfig()
    """What ``agentroute serve`` listens on."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """What ``agentroute serve`` keeps or sends on of every call."""
    keys: tuple[KeyConfig, ...] = Field((), max_length=10_000)
    """Who may call the gateway; default: anybody who reaches it."""
    _path: Path = PrivateAttr(default=Path("agentroute.toml"))
    _profiles: tuple[Profile, ...] = PrivateAttr(default=())
    _own: Mapping[str, Score] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a configuration and the profiles it names; raises ``ConfigError`` or ``ProfileError``."""
        config, found = cls.read(path)
        if config is None or found:
            raise found[0]
        return config

    @classmethod
    def read(cls, path: str | Path) -> tuple[Config | None, list[FileError]]:
        """A configuration with every mistake in it, as far as one does not hide another; ``None``: it is no such file.

        Tables and keys that are wrong in themselves hide what they refer to.
        """
        path = Path(path)
        try:
            text = read_text(path, ConfigError)
            data = parse(text, path, ConfigError)
        except ConfigError as problem:
            return None, [problem]
        data, found = substituted(data, os.environ, text=text, path=path)
        config, wrong = checked(cls, data, text=text, path=path, error=ConfigError)
        if config is None or found:
            return None, [*found, *wrong]
        config._path = path
        return config, [*found, *config._mistakes(text)]

    def _mistakes(self, text: str) -> list[FileError]:
        """What the tables say that does not fit together; reads the profiles, and imports one's own objectives."""
        found: list[FileError] = []
        profiles: list[Profile] = []
        for location, message in self._names():
            found.append(self._error(message, text, location))
        for i in range(len(self.deployments)):
            try:
                profiles.append(self._profile(i, text))
            except FileError as problem:
                found.append(problem)
        own: dict[str, Score] = {}
        for name, where in self.objectives.items():
            try:
                own[name] = self._function(where)
            except UsageError as problem:
                found.append(self._error(str(problem), text, ("objectives", name)))
        if found:
            return found
        self._profiles, self._own = tuple(profiles), own
        fleet = self.fleet()
        try:
            pools(fleet.deployments)
        except UsageError as problem:
            return [ConfigError(str(problem), path=self._path)]
        unfit = misfits(fleet, self.router_routes())
        return [self._error(message, text, ("routes", route, "fallbacks")) for route, message in unfit]

    def fleet(self) -> Fleet:
        """The deployments, with their profiles, models, accelerators and prices looked up."""
        return Fleet(
            self._deployment(declared, profile)
            for declared, profile in zip(self.deployments, self._profiles, strict=True)
        )

    def router_routes(self) -> list[Route]:
        """The routes; a bare SLO is soft."""
        return [
            Route(
                name=name,
                objective=route.objective,
                ttft_ms=_slo(route.ttft_ms),
                tpot_ms=_slo(route.tpot_ms),
                deadline_s=_slo(route.deadline_s),
                allow=frozenset(route.allow) if route.allow is not None else None,
                deny=frozenset(route.deny),
                needs=frozenset(route.needs),
                priority=route.priority,
                max_cost_usd=route.max_cost_usd,
                quality=route.quality,
                p95_output_tokens=route.p95_output_tokens,
                fallbacks=route.fallbacks,
                description=route.description,
            )
            for name, route in self.routes.items()
        ]

    @property
    def folder(self) -> Path:
        """Where the file stands, and what relative paths in it are relative to."""
        return self._path.parent

    @property
    def files(self) -> tuple[Path, ...]:
        """The file itself, and those of the profiles that it names by their file."""
        profiles = (one.profile for one in self.deployments)
        return self._path, *(self.folder / name for name in profiles if name.endswith(PROFILE_FILES))

    def rules(self, before: Rules | None = None) -> Rules:
        """What a router is to go by from now on; ``before`` is what it goes by yet. Raises ``UsageError``."""
        routes, own = self.router_routes(), self.own_objectives()
        return Rules(self.fleet(), self.objective, routes, self.quality, own, before)

    def router(self, kind: type[R], *, clock: Callable[[], float] = time.monotonic) -> R:
        """A router of this kind over the deployments and routes."""
        return kind(
            self.fleet(),
            objective=self.objective,
            routes=self.router_routes(),
            quality=self.quality,
            objectives=self.own_objectives(),
            clock=clock,
        )

    def own_objectives(self) -> Mapping[str, Score]:
        """The functions that ``objectives`` names."""
        return self._own

    def _function(self, where: str) -> Score:
        module, _, function = where.partition(":")
        try:
            found: Score = getattr(_module(module, self.folder), function)
        except (Exception, SystemExit) as problem:  # whatever such a module does when it is imported
            why = str(problem) or type(problem).__name__
            raise UsageError(
                f"{where!r} cannot be imported ({why}); it must be a module, which Python finds or which stands "
                "beside this file, and a function in it"
            ) from None
        if said := wrong(found):
            raise UsageError(f"{where!r} {said}")
        return found

    def _names(self) -> Iterator[tuple[Location, str]]:
        """Names that are not there, or are there twice: where they stand, and what is wrong."""
        for location, objective in self._named_objectives():
            if objective not in (objectives := {*OBJECTIVES, *self.objectives}):
                yield location, f"there is no objective {objective!r}; {suggest(objective, objectives)}"
        for name in self.objectives:
            if name in OBJECTIVES:
                yield ("objectives", name), f"there is a built-in objective {name!r} already; give yours another name"
        for name in self.prices:
            if name not in (known := shipped().accelerator_names):
                yield ("prices", name), f"there is no accelerator {name!r}; {suggest(name, known)}"
        names = [deployment.name for deployment in self.deployments]
        for i, name in enumerate(names):
            if name in names[:i]:
                yield ("deployments", i, "name"), f"there is a deployment {name!r} already; give each its own"
        routes = {"default", *self.routes}
        for route, declared in self.routes.items():
            for key, listed in (("allow", declared.allow or ()), ("deny", declared.deny)):
                for name in listed:
                    if name not in names:
                        yield ("routes", route, key), f"there is no deployment {name!r}; {suggest(name, names)}"
            if {*(declared.allow or names)} <= {*declared.deny}:
                yield ("routes", route, "deny"), "leaves no deployment that may be chosen; deny fewer, or allow more"
            for name in declared.fallbacks:
                if name not in routes:
                    yield ("routes", route, "fallbacks"), f"there is no route {name!r}; {suggest(name, routes)}"
        callers = [key.name for key in self.keys]
        for i, caller in enumerate(self.keys):
            if caller.name in callers[:i]:
                yield ("keys", i, "name"), f"there is a key {caller.name!r} already; give each its own"
            if (other := next((key.name for key in self.keys[:i] if key.env == caller.env), None)) is not None:
                yield (
                    ("keys", i, "env"),
                    f"{caller.env} is the variable of the key {other!r} already; give each its own",
                )
            for name in caller.routes or ():
                if name not in routes:
                    yield ("keys", i, "routes"), f"there is no route {name!r}; {suggest(name, routes)}"

    def _named_objectives(self) -> Iterator[tuple[Location, str]]:
        yield ("objective",), self.objective
        for name, route in self.routes.items():
            if route.objective is not None:
                yield ("routes", name, "objective"), route.objective

    def _profile(self, i: int, text: str) -> Profile:
        name = self.deployments[i].profile
        if name.endswith(PROFILE_FILES):
            return shipped().load(self._path.parent / name)
        try:
            return shipped().profile(name)
        except UnknownNameError as problem:
            raise self._error(str(problem), text, ("deployments", i, "profile")) from None

    def _deployment(self, declared: DeploymentConfig, profile: Profile) -> Deployment:
        known = shipped().deployment(profile)
        return Deployment(
            name=declared.name,
            profile=profile,
            model=known.model,
            accelerator=known.accelerator,
            usd_per_accelerator_hour=self.prices.get(profile.accelerator or "", known.usd_per_accelerator_hour),
            urls=declared.endpoints,
            adapter=declared.adapter,
            served_model=declared.served_model,
            api_key_env=declared.api_key_env,
            pool=declared.pool,
        )

    def _error(self, message: str, text: str, location: Location) -> ConfigError:
        line = locate(text, self._path, location)
        return ConfigError(message, path=self._path, key=dotted(location), line=line)


def _module(name: str, beside: Path) -> ModuleType:
    """A module that Python finds, or one in the folder ``beside``: a command looks only where it is installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        folder = str(beside.resolve())
        if problem.name != name.partition(".")[0] or folder in sys.path:
            raise
    invalidate_caches()
    sys.path.append(folder)
    try:
        return import_module(name)
    finally:
        sys.path.remove(folder)


def _slo(value: float | SloTable | None) -> float | Slo | None:
    return Slo(value.value, stat=value.stat, hard=value.hard) if isinstance(value, SloTable) else value
