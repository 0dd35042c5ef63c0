"""What a person should know of deployments as they are set up, whatever their servers say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from agentroute.capacity.kv import Unknown
from agentroute.ceilings import CautionKind, Stand
from agentroute.compiled import window_tokens
from agentroute.doctor.finding import Finding, Kind, Severity
from agentroute.fleet import Deployment
from agentroute.outlook import stand
from agentroute.shape.sharding import Sharding

_CAUTIONS: dict[CautionKind, tuple[Kind, Severity, str]] = {
    "experts_cross": ("experts_cross", "warning", "keep ep within one of them, or expect the steps to slow down"),
    "tensors_cross": ("tensors_cross", "warning", "keep tp within one of them, and split layers (pp) across"),
    "kv_copied": ("kv_copied", "note", "attention replicas (attention_dp) or dcp would keep it once"),
}
"""What is made of a caution about the split, and what to do."""


def cautions(deployments: Sequence[Deployment]) -> list[Finding]:
    """Splits that cross a tight domain or copy KV, windows beyond the KV pool, and addresses that are named twice."""
    found: list[Finding] = []
    for deployment in deployments:
        where = stand(deployment)
        found += [*_of_split(deployment, where), *_of_window(deployment, where)]
    return [*found, *_of_addresses(deployments)]


def _of_split(deployment: Deployment, where: Stand) -> Iterator[Finding]:
    """Cautions about the split; where prefill is apart, about both."""
    apart = deployment.profile.disaggregated
    if deployment.profile.sharding is None and apart is None:
        return
    sides: dict[str, Sharding] = {"": where.sharding}
    if apart:
        sides = {"prefill: ": apart.prefill.sharding, "decode: ": apart.decode.sharding}
    for side, split in sides.items():
        for caution in replace(where, sharding=split).cautions:
            kind, severity, advice = _CAUTIONS[caution.kind]
            numbers: dict[str, float] = {"tp": split.tp, "ep": split.ep}
            if deployment.accelerator is not None:
                numbers["domain"] = deployment.accelerator.tight_domain_accelerators
            yield Finding(kind, deployment.name, f"{side}{caution}; {advice}", severity, numbers)


def _of_window(deployment: Deployment, where: Stand) -> Iterator[Finding]:
    """A window that not even the high end of the KV pool's band holds one request of."""
    window, source = window_tokens(deployment)
    if window is None or isinstance(where.holding, Unknown):
        return
    longest = int(where.holding.longest_tokens(window).high)
    if longest >= window:
        return
    sure = deployment.profile.pool is not None
    text = f"the window is {window:,} tokens ({source}), but the KV pool holds {longest:,} of one request"
    text += "" if sure else " at most (derived)"
    text += f": a longer one that somebody else sends may never end; start the server with a window of {longest:,}"
    certain = sure and source != "assumed"
    yield Finding(
        "window_over_pool", deployment.name, text, "warning" if certain else "note", {"window": window, "pool": longest}
    )


def _of_addresses(deployments: Iterable[Deployment]) -> Iterator[Finding]:
    """One address that stands for several KV memories: what is held there is counted apart, and so twice."""
    by_address: dict[str, list[Deployment]] = {}
    for deployment in deployments:
        for url in deployment.urls:
            by_address.setdefault(_address(url), []).append(deployment)
    for address, named in by_address.items():
        first = named[0]
        for other in named[1:]:
            if other is first:
                text = f"{address} is among its urls twice, each with a KV memory of its own; name it once"
                yield Finding("pool_not_shared", other.name, text, "wrong")
            elif other.pool is None or other.pool != first.pool:
                yield _not_shared(first, other, address)


def _not_shared(first: Deployment, other: Deployment, address: str) -> Finding:
    text = (
        f"{address} is the address of {first.name}, too, but they do not share a pool: its KV memory is counted twice"
    )
    pool = first.pool or other.pool or first.name
    ids = {first.served_model, other.served_model}
    if None in ids or len(ids) == 1:
        return Finding("pool_not_shared", other.name, f'{text}; set pool = "{pool}" for both', "wrong")
    text += f', unless the models behind it stand on different accelerators; else set pool = "{pool}" for both'
    return Finding("pool_not_shared", other.name, text, "warning")


def _address(url: str) -> str:
    """The root of a base URL, with or without /v1."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"
