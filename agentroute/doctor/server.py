"""Where a profile disagrees with the running server. What either side does not say is no disagreement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from agentroute.adapters.base import Discovery
from agentroute.compiled import offered, window_tokens
from agentroute.doctor.finding import Finding, Kind, Severity
from agentroute.fleet import Deployment
from agentroute.profile import Profile
from agentroute.startup.devices import ACCELERATORS
from agentroute.startup.dtypes import kv_type, weights_type

POOL_VARIES = 0.01
"""Engines measure at start what memory is left for KV, so that two starts of one server differ by about this share:
that much is a note. Assumed."""

_SAME = (
    {"fp4", "mxfp4"}, {"fp4", "nvfp4"}, {"int4", "awq"}, {"int4", "gptq"}, {"fp8", "fp8_e4m3"}, {"fp8", "fp8_e5m2"},
)  # fmt: skip
"""Data types of which one is the general word for the other."""


class _Limit(NamedTuple):
    """A limit of the server: its key in ``Limits`` and in ``Discovery``, its words, and what comes of a wrong one."""

    kind: Kind
    key: str
    words: str
    too_high: str
    too_low: str
    severity: Severity
    """Of one that is too high; one that is too low is a warning."""


_LIMITS = (
    _Limit(
        "window",
        "max_model_len",
        "a window of {:,} tokens",
        "longer requests are sent there, and refused",
        "longer requests are kept from it",
        "wrong",
    ),
    _Limit(
        "slots",
        "max_num_seqs",
        "{:,} slots",
        "requests that are taken to run wait there",
        "requests are taken to wait that would run",
        "wrong",
    ),
    _Limit(
        "step_tokens",
        "max_num_batched_tokens",
        "{:,} tokens in one step",
        "prompts are read in smaller steps than is reckoned with",
        "prompts are read in larger steps than is reckoned with",
        "warning",
    ),
)


def disagreements(
    deployment: Deployment, said: Discovery, *, url: str | None = None, model: str | None = None
) -> list[Finding]:
    """Where the profile of ``deployment`` disagrees with what its server ``said``.

    ``url`` is the endpoint that was asked, where there are several; ``model`` the shipped model that answers there to
    the deployment's name for it, ``None`` when there is none. Another engine is told alone: all else follows from it.
    """
    found = list(_engine(deployment, said))
    if not found:
        parts = (_adapter, _version, _limits, _pool, _prefixes, _priority, _split, _types, _capabilities)
        found = [*_model(deployment, said, model), *(one for part in parts for one in part(deployment, said))]
    return [replace(finding, text=f"at {url}, {finding.text}") for finding in found] if url else found


def _engine(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    own = deployment.profile.engine.name
    if "other" not in (own, said.engine) and own != said.engine:
        text = f"the profile is of {own}, the server is {said.engine}: KV rules and times are another engine's"
        yield Finding("engine", deployment.name, f"{text}; make one with agentroute profiles from-server", "wrong")


def _adapter(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    spoken = said.wire or said.engine
    if spoken not in ("other", "openai") and deployment.adapter not in ("openai", spoken):
        text = f"the adapter is {deployment.adapter}, the server is {spoken}: its load cannot be read"
        yield Finding("adapter", deployment.name, f'{text}; set adapter = "{spoken}"', "wrong")


def _model(deployment: Deployment, said: Discovery, model: str | None) -> Iterator[Finding]:
    served, own = deployment.served_model, deployment.profile.model
    if served and said.models and served not in said.models:
        text = f"served_model is {served!r}, which the server does not list: calls are refused"
        yield Finding("model", deployment.name, f"{text}; set it to {said.models[0]!r}", "wrong")
    elif own and model and model != own:
        text = f"the profile is of {own}, the server has {model}: nothing of the shape is right"
        yield Finding("model", deployment.name, f"{text}; take a profile of that model", "wrong")


def _version(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    """The engine's version, or, where the profile names none, that of its measurements."""
    profile, server = deployment.profile, said.engine_version
    measured = {block.provenance.engine_version for block in profile.measurements} - {None}
    own = profile.engine.version or (measured.pop() if len(measured) == 1 else None)
    if own is None or server is None or _plain(own) == _plain(server):
        return
    what = "is of" if profile.engine.version else "was measured on"
    text = f"the profile {what} {profile.engine.name} {own}, the server runs {server}: "
    if profile.measurements:
        text += "its times may be off by now; measure it again with agentroute measure"
    else:
        text += "KV rules depend on the version; set engine.version"
    yield Finding("version", deployment.name, text, "warning")


def _plain(version: str) -> str:
    """Without what only says how it was built: ``v0.11.0+cu128`` is 0.11.0."""
    return version.removeprefix("v").partition("+")[0]


def _limits(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    """Window, slots, and tokens of one step. Where no window is given, the model's length is what decisions assume."""
    limits = deployment.profile.limits
    for limit in _LIMITS:
        own, server = getattr(limits, limit.key, None), getattr(said, limit.key)
        words = "the profile says " + limit.words
        if limit.kind == "window" and own is None:
            own, words = window_tokens(deployment)[0], "the profile says no window and the model {:,} tokens"
        if own is None or server is None or own == server:
            continue
        high = own > server
        text = f"{words.format(own)}, the server {server:,}: {limit.too_high if high else limit.too_low}"
        severity = limit.severity if high else "warning"
        numbers = {"profile": own, "server": server}
        yield Finding(limit.kind, deployment.name, f"{text}; set limits.{limit.key} to {server}", severity, numbers)


def _pool(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    """The tokens of one KV memory, those of a block, and how many memories there are."""
    profile, name = deployment.profile, deployment.name
    own, server = profile.limits.kv_pool if profile.limits else None, said.kv_pool
    if own and server and own.tokens != server.tokens:
        least = min(own.tokens, server.tokens)
        apart = abs(own.tokens - server.tokens)
        high = own.tokens > server.tokens
        text = f"the profile says a KV pool of {own.tokens:,} tokens, the server {server.tokens:,}: "
        text += f"{apart:,} tokens too many are handed out" if high else f"{apart:,} tokens stay unused"
        text += f"; set limits.kv_pool.tokens to {server.tokens}"
        # Of a figure that itself needs a note, nobody can say that the other one is wrong.
        severity: Severity = "wrong" if high and not said.pool_notes else "warning"
        if apart <= POOL_VARIES * least:
            severity = "note"
        text += "".join(f" ({note})" for note in said.pool_notes)
        yield Finding("kv_pool", name, text, severity, {"profile": own.tokens, "server": server.tokens})
    if own and server and own.block_tokens != server.block_tokens:
        text = f"the profile says KV blocks of {own.block_tokens:,} tokens, the server {server.block_tokens:,}: what a "
        text += f"request takes is rounded wrongly; set limits.kv_pool.block_tokens to {server.block_tokens}"
        numbers = {"profile": own.block_tokens, "server": server.block_tokens}
        yield Finding("kv_block", name, text, "warning", numbers)


def _prefixes(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    """Whether prompts are kept for others that begin alike."""
    own, server = getattr(deployment.profile.limits, "prefix_caching", None), said.prefix_caching
    if own is None or server is None or own == server:
        return
    text = f"the profile has prefix caching as {_yes(own)}, the server as {_yes(server)}: a shared prefix is "
    text += "held and read once only in decisions" if own else "held and read anew for each sibling in decisions"
    text += f"; set limits.prefix_caching to {_yes(server)}"
    yield Finding("prefix_caching", deployment.name, text, "wrong" if own else "warning")


def _priority(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    """Which values of a priority come first, where both say that it schedules by them."""
    own, server = getattr(deployment.profile.limits, "priority", None), said.priority
    if own and server and own != server:
        text = f"the profile says that {own} priorities come first, the server {server} ones: who is urgent is served "
        text += f'last; set limits.priority = "{server}"'
        yield Finding("priority", deployment.name, text, "wrong")


def _split(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    """Split and accelerators; how a server splits prefill and decode apart, it does not say."""
    profile, name = deployment.profile, deployment.name
    own, server = profile.sharding, said.sharding
    if own and server and own != server:
        text = f"the profile says {own} ({own.accelerators} accelerators), the server {server} ({server.accelerators})"
        text += ": KV pool, times and cost are another split's; set [sharding]"
        yield Finding("split", name, text, "wrong", {"profile": own.accelerators, "server": server.accelerators})
    elif not server and said.engines is not None and _counts_memories(profile) and profile.kv_memories != said.engines:
        key = "sharding.attention_dp" if own and not (profile.limits and profile.limits.engines) else "limits.engines"
        text = f"the profile says {profile.kv_memories} KV memories ({key.partition('.')[2]}), the server has "
        text += f"{said.engines} engines with one each; set {key} to {said.engines}"
        yield Finding("split", name, text, "wrong", {"profile": profile.kv_memories, "server": said.engines})
    elif server and not own and not profile.disaggregated and profile.accelerators not in (None, server.accelerators):
        count = profile.accelerators or 0
        text = f"the profile says {count} accelerators, the server's split ({server}) takes {server.accelerators}: the "
        text += f"cost is another's; set accelerator_count to {server.accelerators}"
        yield Finding("split", name, text, "wrong", {"profile": count, "server": server.accelerators})
    device = ACCELERATORS.get(said.device) if said.device else None
    if profile.accelerator and device and profile.accelerator != device:
        text = f"the profile says {profile.accelerator}, the server runs on {device}: times and cost are another's"
        yield Finding("accelerator", name, f'{text}; set accelerator = "{device}"', "wrong")


def _counts_memories(profile: Profile) -> bool:
    """Whether it matters how many KV memories there are, and the profile speaks of the whole of them."""
    limits = profile.limits
    told = profile.sharding or (limits and (limits.engines or limits.kv_pool))
    return told is not None and profile.disaggregated is None


def _types(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    """Data types of weights and KV cache."""
    own = deployment.profile.precision
    both: tuple[tuple[Kind, str, str | None, str | None], ...] = (
        ("weights_type", "weights", own.weights, weights_type(said.weights)),
        ("kv_type", "kv", own.kv, kv_type(said.kv)),
    )
    for kind, key, profile, server in both:
        if profile and server and profile != server and {profile, server} not in _SAME:
            what = "a KV cache" if key == "kv" else "weights"
            text = f"the profile says {what} in {profile}, the server {server}: bytes, room and times are another's"
            yield Finding(kind, deployment.name, f'{text}; set precision.{key} = "{server}"', "wrong")


def _capabilities(deployment: Deployment, said: Discovery) -> Iterator[Finding]:
    """What is offered, as a decision takes it to be: as the profile says, else as the model does."""
    own = deployment.profile.capabilities
    for name, server in said.capabilities.items():
        taken = offered(deployment, name)
        if taken is None or taken == server:
            continue
        who = "profile" if own and name in own.offers else "model"
        text = f"the {who} has {name} as {_yes(taken)}, the server as {_yes(server)}: "
        text += f"tasks that need it are {'sent there' if taken else 'kept from it'}"
        text += f"; set capabilities.offers.{name} to {_yes(server)}"
        yield Finding("capability", deployment.name, text, "wrong" if taken else "warning")


def _yes(value: bool) -> str:
    return "true" if value else "false"
