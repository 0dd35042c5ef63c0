"""``agentroute recommend``: which deployment should take a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any, NoReturn

import typer

from agentroute.cli import options
from agentroute.cli.output import estimate_json, exit_code, print_json, print_table, report, say
from agentroute.decision import Candidate, Decision
from agentroute.errors import NoFeasibleDeployment
from agentroute.explain import row
from agentroute.reasons import Reason
from agentroute.task import Slo, Task
from agentroute.whatif import Change, Changes

COLUMNS = ("#", "profile", "model", "sharding", "n", "TTFT", "TPOT", "E2E", "KV headroom", "USD/request")


def recommend(
    context: options.Context,
    output: options.Output = None,
    concurrency: options.Concurrency = 1,
    ttft: options.Ttft = None,
    tpot: options.Tpot = None,
    deadline: options.Deadline = None,
    soft: options.Soft = False,
    need: options.Needs = None,
    objective: options.Objective = None,
    route: options.RouteName = "default",
    model: options.Models = None,
    price: options.Prices = None,
    config: options.ConfigFile = None,
    top: Annotated[int, typer.Option("--top", help="How many candidates to show; 0 shows all.", min=0)] = 8,
    as_json: options.Json = False,
) -> None:
    """Rank the deployments that can take a task: winner first, the refused with a reason, every number's origin."""
    task = options.task(
        context=context,
        output=output,
        concurrency=concurrency,
        ttft=ttft,
        tpot=tpot,
        deadline=deadline,
        soft=soft,
        needs=need,
        objective=objective,
        route=route,
    )
    router = options.router(config, model, price)
    try:
        decision = router.decide(task)
    except NoFeasibleDeployment as refused:
        if as_json:
            print_refusal("recommend", task, refused)
        report(refused)
        for change in refused.changes or ():
            say(f"{change.deployment} would take it {change}")
        raise typer.Exit(exit_code(refused)) from None
    if as_json:
        print_decision("recommend", decision)
    else:
        show(decision, top or len(decision.candidates))


def print_decision(command: str, decision: Decision, *, text: bool = False) -> None:
    """A decision as JSON, with its explanation and record where ``text`` is asked for."""
    more: dict[str, Any] = {}
    if text:
        more = {
            "text": decision.explain(top=None),
            "changes": changes_json(decision.changes),
            "record": decision.record(),
        }
    print_json(command, decision_json(decision) | more)


def print_refusal(command: str, task: Task | None, refused: NoFeasibleDeployment, *, text: bool = False) -> NoReturn:
    """A refusal as JSON, with its explanation and record where ``text`` is asked for; it ends the command with its exit
    code."""
    say(f"error: {refused.args[0]}")
    asked = task_json(task) if task else None
    answer = {"task": asked, "winner": None, "candidates": [], **rejected_json(refused.reasons)}
    answer["changes"] = None if refused.changes is None else [change_json(change) for change in refused.changes]
    print_json(command, answer | ({"text": refused.explain(), "record": refused.record()} if text else {}))
    raise typer.Exit(exit_code(refused)) from None


def show(decision: Decision, top: int) -> None:
    """A decision as tables for people."""
    candidates, task = decision.candidates, decision.task
    output = f"{task.max_output_tokens:,}" if task.max_output_tokens else "unset"
    asked = f"{task.context_tokens:,} context + {output} output tokens x {task.concurrency}"
    typer.echo(f"{decision.deployment}: {candidates[0].standing}\n({asked}, objective {decision.objective})\n")
    shown = candidates[:top]
    print_table(COLUMNS, (_cells(i, candidate) for i, candidate in enumerate(shown, 1)), right=("#", "n"))
    if any(e and e.extrapolated for c in shown for e in (c.ttft_ms, c.tpot_ms)):
        typer.echo("* outside the measured loads: extrapolated, with a wider band")
    if len(candidates) > 1:
        typer.echo("\nwhy not first:")
    for i, candidate in enumerate(shown[1:], 2):
        typer.echo(f"  {i:>2}  {candidate.standing}")
    if len(candidates) > top:
        typer.echo(f"      ... and {len(candidates) - top} more; --top 0 shows all")
    if decision.rejected:
        typer.echo("\nrejected:")
        for name, reason in decision.rejected.items():
            typer.echo(f"      {name}: {reason}")
    typer.echo("\nwhere the numbers come from (bands: 80 % of the mean):")
    for i, candidate in enumerate(shown, 1):
        typer.echo(f"  {i:>2}  " + "; ".join(candidate.sources))


def _cells(rank: int, candidate: Candidate) -> tuple[str, ...]:
    number, deployment, model, sharding, n, ttft, tpot, e2e, _, usd = row(rank, candidate)
    profile = deployment if deployment == candidate.profile else f"{deployment} ({candidate.profile})"
    headroom = candidate.headroom
    kv = f"{headroom.free - headroom.needed:,} of {headroom.blocks:,} blocks" if headroom else "unknown"
    return number, profile, model, sharding, n, _two(ttft), _two(tpot), _two(e2e), kv, usd


def _two(span: str) -> str:
    """An estimate over its band, so that the table stays narrow."""
    return span.replace(" (", "\n(", 1)


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision as JSON."""
    return {
        "task": task_json(decision.task),
        "objective": decision.objective,
        "winner": decision.deployment,
        "candidates": [dict(_candidate(candidate)) for candidate in decision.candidates],
        **rejected_json(decision.rejected),
    }


def rejected_json(reasons: Mapping[str, Reason]) -> dict[str, Any]:
    """Why each was refused, as a sentence, and as its kind and numbers."""
    return {
        "rejected": {name: str(reason) for name, reason in reasons.items()},
        "reasons": {name: asdict(reason) for name, reason in reasons.items()},
    }


def changes_json(changes: Changes) -> list[dict[str, Any]]:
    """The smallest change of all that changes the answer, and those that make others win, the smallest first.

    A deployment that is ``null``: nothing could take the task.
    """
    found = list(changes.wins.values())
    if changes.answer is not None and changes.answer not in found:
        found.insert(0, changes.answer)
    return [change_json(change) for change in found]


def change_json(change: Change) -> dict[str, Any]:
    """One change as JSON."""
    return {"deployment": change.deployment, "field": change.field, "value": change.value, "text": str(change)}


def _candidate(candidate: Candidate) -> Iterator[tuple[str, Any]]:
    yield from (
        ("deployment", candidate.deployment),
        ("model", candidate.model),
        ("profile", candidate.profile),
        ("sharding", candidate.sharding),
        ("n", candidate.n),
        ("n_run", candidate.n_run),
        ("wait_ms", candidate.wait_ms),
    )
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "cost_usd"):
        yield name, estimate_json(getattr(candidate, name))
    headroom = candidate.headroom
    yield (
        "kv_blocks",
        headroom and {"free": headroom.free, "total": headroom.blocks, "needed": headroom.needed},
    )
    yield from (("standing", candidate.standing), ("sources", candidate.sources))


def task_json(task: Task) -> dict[str, Any]:
    """A task as JSON."""
    return {
        "context_tokens": task.context_tokens,
        "max_output_tokens": task.max_output_tokens,
        "concurrency": task.concurrency,
        "shared_prefix_tokens": task.shared_prefix_tokens,
        "ttft_ms": _slo(task.ttft_ms),
        "tpot_ms": _slo(task.tpot_ms),
        "deadline_s": _slo(task.deadline_s),
        "needs": sorted(task.needs),
        "route": task.route,
    }


def _slo(value: float | Slo | None) -> dict[str, Any] | None:
    if value is None:
        return None
    slo = value if isinstance(value, Slo) else Slo(value)
    return {"value": slo.value, "stat": slo.stat, "hard": slo.hard}
