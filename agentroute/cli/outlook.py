"""The table of ``agentroute profiles show``: what a deployment offers to short, long and very long requests."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import typer

from agentroute.ceilings import NAMES, Ceiling
from agentroute.cli.output import estimate_json, print_table
from agentroute.cli.size import band, ceilings_json, span
from agentroute.estimate import Estimate, milliseconds
from agentroute.fleet import Deployment
from agentroute.outlook import Outlook, outlook

CONTEXTS = (8_000, 32_000, 128_000)
COLUMNS = (
    "context", "n_max", "USD/request at n_max", "TTFT at n = 1", "TTFT at n_max", "binding ceiling", "next ceiling",
)  # fmt: skip


def print_outlook(deployment: Deployment, output: int) -> None:
    """The table, and under it what it does not show."""
    offers = [outlook(deployment, context, output) for context in CONTEXTS]
    typer.echo(f"\nwhat it offers to requests with {output:,} output tokens (bands: low-high):")
    print_table(COLUMNS, (_row(offer) for offer in offers), right=("context",))
    for line in _remarks(offers):
        typer.echo(f"  {line}")


def outlook_json(deployment: Deployment, output: int) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [_json(outlook(deployment, context, output)) for context in CONTEXTS]


def _row(offer: Outlook) -> tuple[str, ...]:
    found = offer.ceilings
    return (
        f"{offer.workload.isl:,}",
        f"{span(offer.n_max, ',.0f')} ({offer.n_max.source})" if offer.n_max else "unknown",
        f"{span(offer.cost_usd, '.2g')} ({offer.cost_usd.kind})" if offer.cost_usd else "unknown",
        _time(offer.ttft_alone_ms),
        _time(offer.ttft_full_ms),
        _ceiling(found.binding),
        _ceiling(found.next),
    )


def _time(estimate: Estimate | None) -> str:
    if estimate is None:
        return "unknown"
    said = f"{milliseconds(estimate.low)}-{milliseconds(estimate.high)}"
    return f"{said} ({estimate.kind})"


def _ceiling(ceiling: Ceiling | None) -> str:
    if ceiling is None:
        return "unknown"
    if ceiling.n_c.mean == inf:
        return "none"
    return f"{NAMES[ceiling.kind]} at {ceiling.n_c.mean:,.0f}"


def _remarks(offers: list[Outlook]) -> Iterator[str]:
    """Cautions and what is unknown, each once."""
    yield from dict.fromkeys(str(caution) for offer in offers for caution in offer.ceilings.cautions)
    unknown: dict[str, list[str]] = {}
    for offer in offers:
        for kind, reason in offer.ceilings.unknown.items():
            names = unknown.setdefault(reason, [])
            if NAMES[kind] not in names:
                names.append(NAMES[kind])
    yield from (f"{', '.join(names)} unknown: {reason}" for reason, names in unknown.items())


def _json(offer: Outlook) -> dict[str, Any]:
    return {
        "context_tokens": offer.workload.isl,
        "output_tokens": offer.workload.osl,
        "n_max": band(offer.n_max) if offer.n_max else None,
        "ttft_alone_ms": estimate_json(offer.ttft_alone_ms),
        "ttft_full_ms": estimate_json(offer.ttft_full_ms),
        "cost_usd": estimate_json(offer.cost_usd),
        **ceilings_json(offer.ceilings),
    }
