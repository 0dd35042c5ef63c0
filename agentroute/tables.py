"""The tables of ``agentroute.toml``: deployments, routes, and what the gateway is told."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from agentroute.errors import suggest
from agentroute.fleet import check_url
from agentroute.latency.points import Statistic
from agentroute.origin import JSONL, Count, Flag, Frozen, Name, NonNegative, Positive, Text, Tokens
from agentroute.shape.model import Capability
from agentroute.task import Priority
from agentroute.variables import VARIABLE

ADAPTERS = (
    "dynamo", "llamacpp", "openai", "sglang", "sglang_router", "transformers", "trtllm", "vllm", "vllm_router",
)  # fmt: skip
"""The names an adapter may have in a configuration file; a test holds them equal to ``agentroute.adapters``."""

Url = Annotated[str, Field(max_length=2_000)]


def _names_a_variable(value: str) -> str:
    # What stands there instead may be the key itself: it is not shown.
    if not re.fullmatch(VARIABLE, value) or len(value) > 200:
        raise ValueError(
            "must be the name of an environment variable such as VLLM_KEY; the key itself is never in a file"
        )
    return value


EnvironmentVariable = Annotated[
    str, AfterValidator(_names_a_variable), Field(json_schema_extra={"pattern": f"^{VARIABLE}$", "maxLength": 200})
]


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
    deny: tuple[Name, ...] = ()
    """Names of the deployments that may not be chosen; default: none."""
    needs: tuple[Capability, ...] = ()
    """Capabilities that all its tasks need, beside their own: tools, json_schema, vision, ...; default: none."""
    priority: Priority | None = None
    """Who waits for its tasks, where they do not say: interactive, agent or batch; default: agent."""
    max_cost_usd: Positive | None = None
    """US dollars that one request may cost at most; a task may ask for less, not for more; default: any."""
    fallbacks: tuple[Name, ...] = ()
    """Routes that are tried, in this order, where none of this one's deployments can take a task now; default: none."""
    quality: dict[Name, float] = Field(default_factory=dict)
    """By skill, the least quality that a model must have, on the scale of the file's own table; default: any."""
    p95_output_tokens: Tokens | None = None
    """So long at most are 95 of 100 answers: what is held in the KV pool for one at first; default: all it may be."""
    description: Text | None = None
    """What it is for, in words: shown where routes are listed."""


class KeyConfig(Frozen):
    """A key that the gateway lets callers in with, and what they may do."""

    name: Name
    """Whom it is for: what logs and accounts call it; unique in the file."""
    env: EnvironmentVariable
    """The environment variable that holds the key; the key itself is never in the file."""
    routes: tuple[Name, ...] | None = Field(None, min_length=1)
    """The routes that it may use; default: all."""
    max_concurrency: Count | None = None
    """Requests in flight at most; default: any number."""
    max_context_tokens: Tokens | None = None
    """Prompt tokens of one request at most; default: as many as fit."""
    admin: Flag = False
    """True: it may see what all keys do, every deployment and the metrics; default false: its own requests."""


class TelemetryConfig(Frozen):
    """What ``agentroute serve`` keeps or sends on of every call: nothing of prompts and answers."""

    records: str | None = Field(default=None, max_length=1_000, pattern=JSONL)
    """A .jsonl file for one record of each call, relative to this file; default: none."""
    records_mib: Positive = 64.0
    """How many MiB it holds before a new one is begun; default 64."""
    records_kept: int = Field(default=5, strict=True, ge=1, le=10_000)
    """How many full ones are kept beside it; default 5."""
    opentelemetry: bool = Field(default=False, strict=True)
    """True: spans and metrics go to where the OTEL_* variables say, by OTLP over HTTP; default false."""


class GatewayConfig(Frozen):
    """What ``agentroute serve`` listens on, and what it takes."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """The address to listen on; default 127.0.0.1, which only this machine reaches."""
    port: int = Field(default=4_200, strict=True, ge=0, le=65_535)
    """The TCP port to listen on, 0 for any that is free; default 4200."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, strict=True, ge=1_024, le=1024**3)
    """The largest request that is read; default 32 MiB."""
    drain_s: NonNegative = 30.0
    """How long requests in flight may go on once it is told to stop; default 30."""
    tls_cert: str | None = Field(default=None, min_length=1, max_length=1_000)
    """A PEM file with the certificate chain, relative to this file; with tls_key; default: no TLS."""
    tls_key: str | None = Field(default=None, min_length=1, max_length=1_000)
    """A PEM file with its private key, relative to this file."""

    @model_validator(mode="after")
    def _has_both_halves_of_tls(self) -> GatewayConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("must give both tls_cert and tls_key, or neither")
        return self
