"""``agentroute explain``: a decision with every reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from agentroute import replay as records
from agentroute.cli import options
from agentroute.cli.output import exit_code, say
from agentroute.cli.recommend import print_decision, print_refusal
from agentroute.decision import Decision
from agentroute.errors import FileError, NoFeasibleDeployment, UsageError
from agentroute.files import parse, read_text, validate
from agentroute.recorded import Record
from agentroute.router import Router


def explain(
    context: Annotated[int | None, typer.Option("--context", help="Prompt tokens.", min=1, show_default=False)] = None,
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
    record: Annotated[
        Path | None,
        typer.Option("--record", help="Write the decision, or the refusal, and all it read to this .json file."),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            help="Decide again on a record (a .json file), with the --config, --model and --price of then.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Explain a decision: every candidate, what is expected of it, why it won or lost, who was refused and why."""
    if (context is None) == (replay is None):
        raise UsageError("give either --context with the task's other options, or --replay with a record")
    router, task = options.router(config, model, price), None
    try:
        if replay is not None:
            decision = replayed(replay, router)
        else:
            assert context is not None
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
            decision = router.decide(task)
    except NoFeasibleDeployment as refused:
        if record is not None and (kept := refused.record()) is not None:
            write(record, kept)
        if as_json:
            print_refusal("explain", task, refused, text=True)
        say(f"error: {refused.args[0]}")
        typer.echo(refused.explain())
        raise typer.Exit(exit_code(refused)) from None
    if record is not None:
        write(record, decision.record())
    if as_json:
        print_decision("explain", decision, text=True)
    else:
        typer.echo(decision.explain(top=None))


def replayed(path: Path, router: Router) -> Decision:
    """The decision of a record's file, made again; raises ``FileError`` or ``UsageError``, and the recorded refusal."""
    if path.suffix.lower() != ".json":
        raise UsageError(f"--replay must name a .json file, got {str(path)!r}")
    text = read_text(path, FileError)
    read = validate(Record, parse(text, path, FileError), text=text, path=path, error=FileError)
    before = read.answer.get("deployment")
    try:
        decision = records.replay(read, router._compiled, router._own)
    except NoFeasibleDeployment:
        if before is not None:
            say(f"the record, of agentroute {read.version}, says {before!r}; this version refuses")
        raise
    if decision.deployment != before:
        said = "a refusal" if before is None else repr(before)
        say(f"the record, of agentroute {read.version}, says {said}; this version decides otherwise")
    return decision


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record; raises ``FileError``."""
    if path.suffix.lower() != ".json":
        raise UsageError(f"--record must name a .json file, got {str(path)!r}")
    try:
        path.write_text(json.dumps(record, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as problem:
        raise FileError(f"cannot be written: {(problem.strerror or 'unwritable').lower()}", path=path) from None
    say(f"wrote {path}")
