"""A decision in plain text, for a log or a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentroute.estimate import Estimate, milliseconds

if TYPE_CHECKING:
    from agentroute.decision import Candidate, Decision

COLUMNS = ("", "deployment", "model", "sharding", "n", "TTFT", "TPOT", "E2E", "KV free", "USD")


def explain(decision: Decision) -> str:
    """The candidates as a table, a reason and the sources of each, and the refused with their reasons."""
    candidates, task = decision.candidates, decision.task
    output = f"{task.max_output_tokens:,}" if task.max_output_tokens else "unset"
    lines = [
        f"{decision.deployment} for {task.context_tokens:,} context and {output} output tokens, "
        f"{task.concurrency} in flight, by {decision.objective}",
        "",
        *table([COLUMNS, *(row(i, candidate) for i, candidate in enumerate(candidates, 1))]),
        "",
    ]
    lines += [f"{i:>2}. {candidate.deployment}: {candidate.standing}" for i, candidate in enumerate(candidates, 1)]
    if decision.rejected:
        lines += ["", "refused:", *(f"    {name}: {reason}" for name, reason in decision.rejected.items())]
    lines += ["", "where the numbers come from (bands: 80 % of the mean):"]
    lines += [f"{i:>2}. {'; '.join(candidate.sources)}" for i, candidate in enumerate(candidates, 1)]
    if any(e and e.extrapolated for c in candidates for e in (c.ttft_ms, c.tpot_ms)):
        lines += ["", "* outside the measured loads: extrapolated, with a wider band"]
    return "\n".join(lines)


def row(rank: int, candidate: Candidate) -> tuple[str, ...]:
    """A candidate's cells, in the order of ``COLUMNS``."""
    running = (
        f"{candidate.n_run}+{candidate.n - candidate.n_run}" if candidate.n_run < candidate.n else f"{candidate.n}"
    )
    return (
        str(rank),
        candidate.deployment,
        candidate.model or "unknown",
        candidate.sharding or "unknown",
        running,
        *(span(e) for e in (candidate.ttft_ms, candidate.tpot_ms, candidate.e2e_ms)),
        f"{candidate.headroom.free}/{candidate.headroom.blocks}" if candidate.headroom else "unknown",
        f"{candidate.cost_usd.mean:.2g}" if candidate.cost_usd else "unknown",
    )


def span(estimate: Estimate | None) -> str:
    """An estimate with its band: ``305 ms (262 ms-354 ms)``, with a star when extrapolated."""
    if estimate is None:
        return "unknown"
    star = "*" if estimate.extrapolated else ""
    return f"{milliseconds(estimate.mean)}{star} ({milliseconds(estimate.low)}-{milliseconds(estimate.high)})"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as left-aligned columns."""
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in rows]
