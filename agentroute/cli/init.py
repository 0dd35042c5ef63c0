"""``agentroute init``: ask running servers what they are, and write a configuration that routes at once."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from agentroute.adapters import adapter
from agentroute.adapters.base import Discovery
from agentroute.catalogue import shipped
from agentroute.cli.options import CONFIG, Json
from agentroute.cli.output import print_json, say
from agentroute.config import Config
from agentroute.errors import BackendError, FailureKind, UnknownNameError, UsageError
from agentroute.fleet import check_url
from agentroute.origin import Provenance
from agentroute.profile import Capabilities, Engine, KvPool, Limits, Profile
from agentroute.shape.sharding import Sharding
from agentroute.startup.facts import DEFAULT_BLOCK_TOKENS
from agentroute.toml import dumps

_HEADER = """\
# Written by agentroute init. Each [[deployments]] is one running server group with a profile.
# A profile has no latency curve until you measure one; without it, nothing can be promised, but tasks are routed.
"""

Degree = Annotated[int | None, typer.Option(min=1, help="Split degree; the server does not tell.")]


def init(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Base URLs of running servers.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The configuration to write.")] = CONFIG,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable with the servers' key.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="What they run on, such as h100_sxm.")] = None,
    accelerator_count: Annotated[int | None, typer.Option(min=1, help="How many accelerators each takes.")] = None,
    tp: Degree = None,
    pp: Degree = None,
    ep: Degree = None,
    attention_dp: Degree = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens in each KV pool, where you know it.")] = None,
    as_json: Json = False,
) -> None:
    """Ask running servers what they are and write agentroute.toml and a profile for each.

    What a server does not say stays unknown; accelerator, sharding and KV pool can be given here and are never guessed.
    """
    if accelerator is not None:
        shipped().accelerator(accelerator)
    degrees = {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp}
    sharding = _sharding({key: value for key, value in degrees.items() if value is not None})
    found: list[tuple[str, str, Discovery, Profile]] = []
    names: set[str] = set()
    for url in urls:
        wire, discovery = discover(url, api_key_env)
        name = _name(discovery, names)
        names.add(name)
        profile = profile_of(
            name,
            url,
            discovery,
            accelerator=accelerator,
            accelerator_count=accelerator_count,
            sharding=sharding,
            kv_tokens=kv_tokens,
        )
        found.append((url, wire, discovery, profile))
    folder = output.parent / "profiles"
    files = [output, *(folder / f"{profile.name}.toml" for *_, profile in found)]
    if not force and (there := next((file for file in files if file.exists()), None)):
        raise UsageError(f"{there} is there already; give --force to write over it, or --output for another place")
    whole = {"format": 1, "deployments": _entries(found, api_key_env)}
    try:
        Config.model_validate(whole)
    except ValidationError as error:
        raise UsageError(f"what the server says cannot be written down: {error.errors()[0]['msg']}") from None
    folder.mkdir(parents=True, exist_ok=True)
    for url, _, _, profile in found:
        profile.save(folder / f"{profile.name}.toml", comment=f"What the server at {url} says of itself.")
    output.write_text(_HEADER + "\n" + dumps(whole))
    Config.load(output)
    for url, wire, discovery, profile in found:
        say(f"{url}: {discovery.engine} over the {wire} wire, model {discovery.models[0]}, as {profile.name!r}")
        for note in discovery.notes:
            say(f"  note: {note}")
    if as_json:
        print_json("init", {"config": str(output), "deployments": _entries(found, api_key_env)})
    else:
        typer.echo(f"wrote {output} and {len(found)} profile{'s' if len(found) > 1 else ''} in {folder}")
        say(f"try: agentroute run 'Say hello.' --config {output}")


def discover(url: str, api_key_env: str | None) -> tuple[str, Discovery]:
    """The adapter that fits the server at ``url``, and what the server says of itself.

    Raises ``UsageError`` for a URL that is none, ``BackendError`` for a server that does not answer or lists no model.
    """
    from agentroute.probe import probe
    from agentroute.transport import Timeout

    try:
        check_url(url)
    except ValueError as error:
        raise UsageError(f"URL {error}") from None
    patience = Timeout(read_s=10.0)
    discovery = probe(url, adapter("openai"), api_key_env=api_key_env, timeout=patience)
    if not discovery.models:
        raise BackendError(FailureKind.UNAVAILABLE, "lists no model; is it still loading one?", url=url)
    if discovery.engine == "llamacpp":
        return "llamacpp", probe(url, adapter("llamacpp"), api_key_env=api_key_env, timeout=patience)
    return "openai", discovery


def profile_of(
    name: str,
    url: str,
    discovery: Discovery,
    *,
    accelerator: str | None = None,
    accelerator_count: int | None = None,
    sharding: Sharding | None = None,
    kv_tokens: int | None = None,
) -> Profile:
    """A profile of what a server said, and of what the caller knows; the rest is unknown."""
    reported = Provenance(origin="reported", source=f"the server at {url}", date=dt.date.today())
    limits: dict[str, Any] = {
        "max_model_len": discovery.max_model_len,
        "max_num_seqs": discovery.max_num_seqs,
        "kv_pool": _pool(kv_tokens, discovery) or discovery.kv_pool,
    }
    known = any(value is not None for value in limits.values())
    return Profile(
        format=1,
        name=name,
        model=shipped_model(discovery.models[0]),
        accelerator=accelerator,
        accelerator_count=accelerator_count,
        engine=Engine(name=discovery.engine, version=discovery.engine_version),
        sharding=sharding,
        limits=Limits(**limits, provenance=reported) if known else None,
        capabilities=Capabilities(offers=dict(discovery.capabilities), provenance=reported)
        if discovery.capabilities
        else None,
    )


def _sharding(degrees: dict[str, int]) -> Sharding | None:
    if not degrees:
        return None
    try:
        return Sharding(**degrees)
    except ValidationError as error:
        raise UsageError(f"the sharding is wrong: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _pool(tokens: int | None, discovery: Discovery) -> KvPool | None:
    """The KV pool that the caller knows; llama.cpp slots that split it are blocks that nobody shares."""
    if tokens is None:
        return None
    told = Provenance(origin="reported", source="--kv-tokens, given to agentroute init", date=dt.date.today())
    window, slots = discovery.max_model_len, discovery.max_num_seqs
    if discovery.engine == "llamacpp" and window and slots and tokens == window * slots:
        return KvPool(tokens=tokens, block_tokens=window, provenance=told)
    block = DEFAULT_BLOCK_TOKENS.get(discovery.engine, 1)
    return KvPool(tokens=max(tokens, block), block_tokens=block, provenance=told)


def shipped_model(name: str) -> str | None:
    """The shipped model of this name or hub id, if there is one."""
    try:
        return shipped().model(name).name
    except UnknownNameError:
        return None


def short_name(model: str) -> str:
    """A name for a profile from the id of its model."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.rsplit("/", 1)[-1]).strip("-._")[:60] or "server"


def _name(discovery: Discovery, taken: set[str]) -> str:
    """A short name from the model's id, different from those that are taken."""
    stem = short_name(discovery.models[0])
    candidates = (stem if i == 1 else f"{stem}-{i}" for i in itertools.count(1))
    return next(name for name in candidates if name not in taken)


def _entries(found: list[tuple[str, str, Discovery, Profile]], api_key_env: str | None) -> list[dict[str, str | None]]:
    return [
        {
            "name": profile.name,
            "profile": f"profiles/{profile.name}.toml",
            "base_url": url,
            "adapter": wire,
            "served_model": discovery.models[0],
            "api_key_env": api_key_env,
        }
        for url, wire, discovery, profile in found
    ]
