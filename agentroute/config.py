"""``agentroute.toml``: the deployments of a fleet and the routes over them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from agentroute.catalogue import shipped
from agentroute.compiled import pools
from agentroute.errors import ConfigError, UnknownNameError, UsageError, suggest
from agentroute.files import locate, parse, read_text, validate
from agentroute.fleet import Deployment, Fleet, check_url
from agentroute.latency.points import Statistic
from agentroute.origin import Flag, Frozen, Name, Positive, Tokens
from agentroute.policy import OBJECTIVES, Score
from agentroute.profile import Profile
from agentroute.route import Route
from agentroute.task import Slo

ADAPTERS = (
    "dynamo", "llamacpp", "openai", "sglang", "sglang_router", "transformers", "trtllm", "vllm", "vllm_router",
)  # fmt: skip
"""The names an adapter may have in a configuration file; a test holds them equal to ``agentroute.adapters``."""

Url = Annotated[str, Field(max_length=2_000)]
EnvironmentVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]


class SloTable(Frozen):
    """An SLO with its statistic, and whether it is hard."""

    value: Positive
    """The limit, in the unit of the key that holds it."""
    stat: Statistic = "mean"
    """The statistic it is about; default mean."""
    hard: Flag = False
    """True: a deployment that is not predicted to keep it is refused; default false: it ranks lower."""


class DeploymentConfig(Frozen):
    """One running server group."""

    name: Name
    """Its name, unique in the file."""
    profile: str = Field(min_length=1, max_length=1_000)
    """A shipped profile's name, or the path of a profile file relative to this one (it ends in .toml or .json)."""
    base_url: Url | None = None
    """The server's base URL, with or without /v1."""
    urls: tuple[Url, ...] = ()
    """Several base URLs, when it has identical replicas; instead of base_url."""
    adapter: str = "openai"
    """Which wire it speaks; default openai."""
    served_model: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """The model id on the wire; default: the first that the server lists."""
    api_key_env: EnvironmentVariable | None = None
    """The environment variable that holds the server's key; default: no key."""
    pool: Name | None = None
    """A name for its KV memory, when another deployment stands on the same; default: its own."""

    @field_validator("adapter")
    @classmethod
    def _adapter_exists(cls, value: str) -> str:
        if value not in ADAPTERS:
            raise ValueError(f"there is no adapter {value!r}; {suggest(value, ADAPTERS)}")
        return value

    @field_validator("base_url", "urls")
    @classmethod
    def _urls_are_plain(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for url in (value,) if isinstance(value, str) else value or ():
            check_url(url)
        return value

    @model_validator(mode="after")
    def _has_an_endpoint(self) -> DeploymentConfig:
        if (self.base_url is None) == (not self.urls):
            raise ValueError("must give either base_url or urls")
        return self

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Every base URL."""
        return (self.base_url,) if self.base_url else self.urls


class RouteConfig(Frozen):
    """What applies to the tasks of one route."""

    objective: str | None = None
    """fit, cost, latency, quality or one of the file's own; default: the file's objective."""
    ttft_ms: Positive | SloTable | None = None
    """Time to the first token in milliseconds; a bare number is a soft mean."""
    tpot_ms: Positive | SloTable | None = None
    """Time per output token in milliseconds; a bare number is a soft mean."""
    deadline_s: Positive | SloTable | None = None
    """Time to the whole answer in seconds; a bare number is a soft mean."""
    allow: tuple[Name, ...] | None = Field(None, min_length=1)
    """Names of the deployments that may be chosen; default: all."""
    quality: dict[Name, float] = Field(default_factory=dict)
    """By skill, the least quality that a model must have, on the scale of the file's own table; default: any."""
    p95_output_tokens: Tokens | None = None
    """So long at most are 95 of 100 answers: what is held in the KV pool for one at first; default: all it may be."""


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
    objectives: dict[Name, Annotated[str, Field(pattern=r"^[\w.]+:\w+$", max_length=500)]] = Field(default_factory=dict)
    """Your own objectives by name, each a function as ``module:function``; default none."""
    routes: dict[Name, RouteConfig] = Field(default_factory=dict)
    """Routes by name; ``default`` applies to tasks that name none."""
    _path: Path = PrivateAttr(default=Path("agentroute.toml"))
    _profiles: tuple[Profile, ...] = PrivateAttr(default=())

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a configuration and the profiles it names; raises ``ConfigError`` or ``ProfileError``."""
        path = Path(path)
        text = read_text(path, ConfigError)
        config = validate(cls, parse(text, path, ConfigError), text=text, path=path, error=ConfigError)
        config._path = path
        config._check_names(text)
        config._profiles = tuple(config._profile(i, text) for i in range(len(config.deployments)))
        try:
            pools(config.fleet().deployments)
        except UsageError as problem:
            raise ConfigError(str(problem), path=path) from None
        return config

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
                quality=route.quality,
                p95_output_tokens=route.p95_output_tokens,
            )
            for name, route in self.routes.items()
        ]

    def own_objectives(self) -> dict[str, Score]:
        """The functions that ``objectives`` names; raises ``ConfigError`` for one that is not there."""
        return {name: self._function(name, where) for name, where in self.objectives.items()}

    def _function(self, name: str, where: str) -> Score:
        module, _, function = where.partition(":")
        try:
            found: Score = getattr(import_module(module), function)
        except (ImportError, AttributeError) as problem:
            said = f"{where!r} cannot be imported ({problem}); it must be a module and a function in it"
            raise ConfigError(said, path=self._path, key=f"objectives.{name}") from None
        return found

    def _check_names(self, text: str) -> None:
        for key, objective in self._named_objectives():
            if objective not in (objectives := {*OBJECTIVES, *self.objectives}):
                message = f"there is no objective {objective!r}; {suggest(objective, objectives)}"
                line = locate(text, self._path, key)
                raise ConfigError(message, path=self._path, key=".".join(key), line=line)
        for name in self.prices:
            if name not in (known := shipped().accelerator_names):
                message = f"there is no accelerator {name!r}; {suggest(name, known)}"
                line = locate(text, self._path, ("prices", name))
                raise ConfigError(message, path=self._path, key=f"prices.{name}", line=line)
        names = [deployment.name for deployment in self.deployments]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise self._error(f"there is a deployment {name!r} already; give each its own", text, i, "name")
        for route, declared in self.routes.items():
            for name in declared.allow or ():
                if name not in names:
                    line = locate(text, self._path, ("routes", route, "allow"))
                    message = f"there is no deployment {name!r}; {suggest(name, names)}"
                    raise ConfigError(message, path=self._path, key=f"routes.{route}.allow", line=line)

    def _named_objectives(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield ("objective",), self.objective
        for name, route in self.routes.items():
            if route.objective is not None:
                yield ("routes", name, "objective"), route.objective

    def _profile(self, i: int, text: str) -> Profile:
        name = self.deployments[i].profile
        if name.endswith((".toml", ".json")):
            return shipped().load(self._path.parent / name)
        try:
            return shipped().profile(name)
        except UnknownNameError as problem:
            raise self._error(str(problem), text, i, "profile") from None

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

    def _error(self, message: str, text: str, i: int, key: str) -> ConfigError:
        line = locate(text, self._path, ("deployments", i, key))
        return ConfigError(message, path=self._path, key=f"deployments[{i}].{key}", line=line)


def _slo(value: float | SloTable | None) -> float | Slo | None:
    return Slo(value.value, stat=value.stat, hard=value.hard) if isinstance(value, SloTable) else value
