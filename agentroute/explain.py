"""A decision in plain text, for a log or a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from agentroute.ceilings import Ceiling, Ceilings
from agentroute.estimate import Estimate, milliseconds

if TYPE_CHECKING:
    from agentroute.decision import Candidate, Decision
    from agentroute.errors import NoFeasibleDeployment
    from agentroute.whatif import Change, Changes

COLUMNS = ("", "deployment", "model", "sharding", "n", "TTFT", "TPOT", "E2E", "KV free", "USD")


def explain(decision: Decision, top: int | None) -> str:
    """The best ``top`` candidates as a table, the reason of every deployment, what would change the answer, and of the
    candidates in the table where they clog and where their numbers come from."""
    order, task = decision._ranked(), decision.task
    names = [deployment.name for deployment in decision._assessment.fleet.deployments]
    shown = [decision._candidate(d) for d in order[:top]]
    output = f"{task.max_output_tokens:,}" if task.max_output_tokens else "unset"
    lines = [
        f"{decision.deployment} for {task.context_tokens:,} context and {output} output tokens, "
        f"{task.concurrency} in flight, by {decision.objective}",
        "",
        *table([COLUMNS, *(row(i, candidate) for i, candidate in enumerate(shown, 1))]),
        *([f"... and {len(order) - len(shown)} more, below with their reasons"] if len(shown) < len(order) else ()),
        "",
    ]
    reasons = [candidate.standing for candidate in shown] + [decision._standing(d) for d in order[len(shown) :]]
    lines += [f"{i:>2}. {names[d]}: {reason}" for i, (d, reason) in enumerate(zip(order, reasons, strict=True), 1)]
    if rejected := decision.rejected:
        lines += ["", "refused:", *(f"    {name}: {reason}" for name, reason in rejected.items())]
    lines += ["", *_changes(decision.changes)]
    lines += ["", "where each clogs first (demand of limit; margin of the concurrency):"]
    lines += [f"{i:>2}. {_clogs(decision._ceilings(d))}" for i, d in enumerate(order[:top], 1)]
    lines += ["", "where the numbers come from (bands: 80 % of the mean):"]
    lines += [f"{i:>2}. {'; '.join(candidate.sources)}" for i, candidate in enumerate(shown, 1)]
    if any(e and e.extrapolated for c in shown for e in (c.ttft_ms, c.tpot_ms)):
        lines += ["", "* outside the measured loads: extrapolated, with a wider band"]
    return "\n".join(lines)


def explain_refusal(refused: NoFeasibleDeployment) -> str:
    """The reason of every deployment, and what would let one take the task."""
    lines = [str(refused.args[0])]
    if refused.reasons:
        lines += ["", "refused:", *(f"    {name}: {reason}" for name, reason in refused.reasons.items())]
    if refused.changes is not None:
        lines += ["", *_lets(refused.changes)]
    return "\n".join(lines)


def _lets(changes: Sequence[Change]) -> Iterator[str]:
    """The smallest change first."""
    if not changes:
        yield "no change of one number of the task would let any deployment take it"
        return
    yield "what would let one take it, the smallest change first:"
    yield from (f"    {change.deployment} would take it {change}" for change in changes)


def _changes(changes: Changes) -> Iterator[str]:
    """The smallest change first."""
    if changes.answer is None:
        yield "no change of one number of the task would change the answer"
        return
    yield "what would change the answer, the smallest change first:"
    if changes.answer.deployment is None:
        yield f"    nothing could take it {changes.answer}"
    yield from (f"    {name} would win {change}" for name, change in changes.wins.items())


def _clogs(found: Ceilings) -> str:
    if found.binding is None:
        return "unknown"
    following = f"; next {_ceiling(found.next)}" if found.next else ""
    return f"{_ceiling(found.binding)}{following}"


def _ceiling(ceiling: Ceiling) -> str:
    margin = "at any concurrency" if ceiling.margin == inf else f"{ceiling.margin:+.0%}"
    return f"{ceiling} ({margin})"


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
