"""``agentroute init``: ask running servers what they are, and write a configuration that routes at once."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from agentroute.adapters import adapter
from agentroute.adapters.base import Discovery
from agentroute.catalogue import shipped
from agentroute.cli.options import CONFIG, Json
from agentroute.cli.output import print_json, say
from agentroute.cli.schema import CONFIG_SCHEMA, config_schema
from agentroute.config import Config
from agentroute.errors import BackendError, FailureKind, UnknownNameError, UsageError
from agentroute.fleet import check_url
from agentroute.origin import Provenance
from agentroute.profile import Capabilities, Engine, KvPool, Limits, Precision, Profile
from agentroute.shape.sharding import Sharding
from agentroute.startup.devices import ACCELERATORS
from agentroute.startup.dtypes import kv_type, weights_type
from agentroute.startup.facts import DEFAULT_BLOCK_TOKENS
from agentroute.startup.names import printable, without_secrets
from agentroute.toml import dumps

_HEADER = f"""\
#:schema ./{CONFIG_SCHEMA}
# Written by agentroute init. Each [[deployments]] is one running server group with a profile.
# A profile has no latency curve until you measure one; without it, nothing can be promised, but tasks are routed.
"""

Degree = Annotated[int | None, typer.Option(min=1, help="Split degree, where the server does not tell it.")]


@dataclass(frozen=True, slots=True)
class Known:
    """What the caller knows of a server; it comes before what the server says."""

    accelerator: str | None = None
    accelerator_count: int | None = None
    degrees: Mapping[str, int] = field(default_factory=dict)
    """Degrees of the split, by their names in ``Sharding``."""
    kv_tokens: int | None = None
    """Tokens in each KV pool."""

    def options(self) -> list[str]:
        """The accelerators and the degrees as options of a command."""
        given: dict[str, object] = {"accelerator": self.accelerator, "accelerator-count": self.accelerator_count}
        given |= {name.replace("_", "-"): degree for name, degree in self.degrees.items()}
        return [f"--{name} {value}" for name, value in given.items() if value is not None]

    def beside(self, reported: Provenance, notes: Sequence[str] = ()) -> Provenance:
        """``reported``, with what the caller knows and ``notes`` noted."""
        options = self.options()
        said = [*notes, *([f"given by hand: {', '.join(options)}"] if options else [])]
        return reported.model_copy(update={"notes": "; ".join(said)}) if said else reported


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
    What is given here comes before what a server says.
    """
    if accelerator is not None:
        shipped().accelerator(accelerator)
    degrees = {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp}
    known = Known(
        accelerator,
        accelerator_count,
        {key: value for key, value in degrees.items() if value is not None},
        kv_tokens,
    )
    found: list[tuple[str, str, Discovery, Profile]] = []
    names: set[str] = set()
    for url in urls:
        wire, discovery = discover(url, api_key_env)
        name = _name(discovery, names)
        names.add(name)
        found.append((url, wire, discovery, profile_of(name, url, discovery, known)))
    folder = output.parent / "profiles"
    files = [output, *(folder / f"{profile.name}.toml" for *_, profile in found)]
    if not force and (there := next((file for file in files if file.exists()), None)):
        raise UsageError(
            f"{printable(there)} is there already; give --force to write over it, or --output for another place"
        )
    whole = {"format": 1, "deployments": _entries(found, api_key_env)}
    try:
        Config.model_validate(whole)
    except ValidationError as error:
        raise UsageError(f"what the server says cannot be written down: {error.errors()[0]['msg']}") from None
    folder.mkdir(parents=True, exist_ok=True)
    for url, _, _, profile in found:
        profile.save(folder / f"{profile.name}.toml", comment=f"What the server at {printable(url)} says of itself.")
    (output.parent / CONFIG_SCHEMA).write_text(config_schema() + "\n")
    output.write_text(_HEADER + "\n" + dumps(whole))
    Config.load(output)
    for url, wire, discovery, profile in found:
        say(f"{printable(url)}: {heard_from(wire, discovery)}, as {profile.name!r}")
        for note in (*notes_of(discovery), *_overruled(discovery, known)):
            say(f"  note: {note}")
    if as_json:
        print_json("init", {"config": str(output), "deployments": _entries(found, api_key_env)})
    else:
        profiles = f"{len(found)} profile{'s' if len(found) > 1 else ''} in {printable(folder)}"
        typer.echo(f"wrote {printable(output)} and {profiles}")
        say(f"try: agentroute run 'Say hello.' --config {printable(output)}")


def discover(url: str, api_key_env: str | None) -> tuple[str, Discovery]:
    """The adapter that fits the server at ``url``, and what the server says of itself.

    Raises ``UsageError`` for a URL that is none, ``BackendError`` for a server that does not answer or lists no model.
    """
    from agentroute.patience import Timeout
    from agentroute.probe import probe, probe_wire

    try:
        check_url(url)
    except ValueError as error:
        raise UsageError(f"URL {error}") from None
    patience = Timeout(read_s=10.0)
    wire = probe_wire(url, api_key_env=api_key_env, timeout=patience)
    discovery = probe(url, adapter(wire), api_key_env=api_key_env, timeout=patience)
    if not discovery.models:
        raise BackendError(FailureKind.UNAVAILABLE, "lists no model; is it still loading one?", url=url)
    return wire, discovery


def profile_of(name: str, url: str, discovery: Discovery, known: Known | None = None) -> Profile:
    """A profile of what a server said, and of what the caller knows; the rest is unknown.

    Raises ``UsageError`` when what the caller knows does not fit together.
    """
    known = known or Known()
    reported = Provenance(origin="reported", source=f"the server at {printable(url)}", date=dt.date.today())
    sharding = _sharding(discovery, known)
    limits: dict[str, Any] = {
        "max_model_len": discovery.max_model_len,
        "max_num_seqs": discovery.max_num_seqs,
        "max_num_batched_tokens": discovery.max_num_batched_tokens,
        "kv_pool": _pool(known.kv_tokens, discovery) or _told_pool(discovery, reported),
        "engines": discovery.engines if sharding is None and (discovery.engines or 1) > 1 else None,
        "prefix_caching": discovery.prefix_caching,
        "priority": discovery.priority,
    }
    said = any(value is not None for value in limits.values())
    return Profile(
        format=1,
        name=name,
        model=model_of(discovery),
        accelerator=known.accelerator or _accelerator(discovery),
        accelerator_count=known.accelerator_count,
        engine=Engine(name=discovery.engine, version=discovery.engine_version),
        precision=Precision(weights=weights_type(discovery.weights), kv=kv_type(discovery.kv)),
        sharding=sharding,
        provenance=known.beside(reported),
        limits=Limits(**limits, provenance=reported) if said else None,
        capabilities=Capabilities(offers=dict(discovery.capabilities), provenance=reported)
        if discovery.capabilities
        else None,
    )


def heard_from(wire: str, discovery: Discovery) -> str:
    """Who answered, and with which model."""
    return f"{discovery.engine} over the {wire} wire, model {model_id(discovery.models[0])}"


def notes_of(discovery: Discovery) -> tuple[str, ...]:
    """What a person should be told of what a server said."""
    notes = (*discovery.notes, *(f"the KV pool: {note}" for note in discovery.pool_notes))
    if discovery.device and _accelerator(discovery) is None:
        return (*notes, "the catalogue has no accelerator of the name that the server says")
    return notes


def _accelerator(discovery: Discovery) -> str | None:
    """The shipped accelerator of the name that the server says."""
    return ACCELERATORS.get(discovery.device) if discovery.device else None


def _stated(discovery: Discovery) -> dict[str, int]:
    """The degrees of the split that the server states."""
    if discovery.sharding:
        return discovery.sharding.model_dump()
    return {"attention_dp": discovery.engines} if discovery.engines else {}


def _sharding(discovery: Discovery, known: Known) -> Sharding | None:
    """The split: the caller's degrees, and beside them the server's. Of engines alone, no split is known."""
    count = known.accelerator_count
    if not known.degrees:
        sharding = discovery.sharding
        return sharding if sharding is None or count in (None, sharding.accelerators) else None
    try:
        sharding = Sharding(**{**_stated(discovery), **known.degrees})
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        beside = f" (the server says {discovery.sharding})" if discovery.sharding else ""
        raise UsageError(f"the sharding is wrong: {reason}{beside}") from None
    if count not in (None, sharding.accelerators):
        raise UsageError(
            f"--accelerator-count is {count}, but the split ({sharding}) takes {sharding.accelerators}; give one that "
            "fits the other"
        )
    return sharding


def _overruled(discovery: Discovery, known: Known) -> list[str]:
    """Where the caller knows it differently from the server."""
    stated, accelerator, pool = _stated(discovery), _accelerator(discovery), discovery.kv_pool
    both: list[tuple[str, object, object]] = [
        (f"--{name.replace('_', '-')}", degree, stated[name])
        for name, degree in known.degrees.items()
        if stated.get(name, degree) != degree
    ]
    if known.accelerator and accelerator and known.accelerator != accelerator:
        both.append(("--accelerator", known.accelerator, accelerator))
    if known.kv_tokens and pool and known.kv_tokens != pool.tokens:
        both.append(("--kv-tokens", known.kv_tokens, pool.tokens))
    if known.accelerator_count and not known.degrees and discovery.sharding and not _sharding(discovery, known):
        both.append(("--accelerator-count", known.accelerator_count, discovery.sharding.accelerators))
    return [f"{option} {given} is written down, though the server says {told}" for option, given, told in both]


def _told_pool(discovery: Discovery, reported: Provenance) -> KvPool | None:
    """The KV pool that the server tells, with what its reader must know."""
    if discovery.kv_pool is None or not discovery.pool_notes:
        return discovery.kv_pool
    own = reported.model_copy(update={"notes": "; ".join(discovery.pool_notes)})
    return discovery.kv_pool.model_copy(update={"provenance": own})


def _pool(tokens: int | None, discovery: Discovery) -> KvPool | None:
    """The KV pool that the caller knows; llama.cpp slots that split it are blocks that nobody shares."""
    if tokens is None:
        return None
    told = Provenance(origin="reported", source="--kv-tokens, given to agentroute init", date=dt.date.today())
    window, slots = discovery.max_model_len, discovery.max_num_seqs
    if discovery.engine == "llamacpp" and window and slots and tokens == window * slots:
        return KvPool(tokens=tokens, block_tokens=window, provenance=told)
    block = DEFAULT_BLOCK_TOKENS.get(discovery.engine, 1)
    if discovery.engine != "llamacpp" and discovery.kv_pool:
        block = discovery.kv_pool.block_tokens
    return KvPool(tokens=max(tokens, block), block_tokens=block, provenance=told)


def model_of(discovery: Discovery, served: str | None = None) -> str | None:
    """The shipped model that answers to the name ``served``, or to the first one: by that name, or, of a LoRA adapter
    the name of its base, else by what that was loaded from."""
    if not discovery.models:
        return None
    name = served if served in discovery.models else discovery.models[0]
    base = discovery.parents.get(name, name)
    if (found := shipped_model(base)) is not None or discovery.root is None or base != discovery.models[0]:
        return found
    return shipped_model(model_id(discovery.root))


def shipped_model(name: str) -> str | None:
    """The shipped model of this name or hub id, if there is one."""
    try:
        return shipped().model(name).name
    except UnknownNameError:
        return None


def model_id(given: str) -> str:
    """What an engine was given as its model, as a hub id or the last part of a path; never a whole path or URL.

    ``org/name`` stays; a folder of the hub's cache, ``.../models--org--name/...``, is that id, too.
    """
    name = without_secrets(given) or ""
    if cached := re.search(r"models--([\w.-]{1,90}?)--([\w.-]{1,100})", name):
        return f"{cached[1]}/{cached[2]}"
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,90}/[\w.-]{1,100}", name, re.ASCII) and not name.endswith(".gguf"):
        return name
    return short_name(name.replace("\\", "/").rstrip("/").removesuffix(".gguf"))


def short_name(model: str) -> str:
    """A name for a profile from the id of its model."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.rsplit("/", 1)[-1]).strip("-._")[:60] or "server"


def _name(discovery: Discovery, taken: set[str]) -> str:
    """A short name from the model's id, different from those that are taken."""
    stem = short_name(model_id(discovery.models[0]))
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
