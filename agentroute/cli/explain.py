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
from agentroute.files import MAX_BYTES, parse, read_text, validate
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
            help="Decide again on a record (a .json file, or a .jsonl of calls), with the --config, --model and "
            "--price of then.",
        ),
    ] = None,
    line: Annotated[
        int | None,
        typer.Option("--line", help="Which line of a .jsonl file, from 1.  [default: the last]", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Explain a decision: every candidate, what is expected of it, why it won or lost, who was refused and why."""
    if (context is None) == (replay is None):
        raise UsageError("give either --context with the task's other options, or --replay with a record")
    router, task = options.router(config, model, price), None
    try:
        if replay is not None:
            decision = replayed(replay, router, line)
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


def replayed(path: Path, router: Router, line: int | None = None) -> Decision:
    """The decision of a record's file, made again; raises ``FileError`` or ``UsageError``, and the recorded refusal."""
    kind = (path.with_suffix("") if path.suffix[1:].isdigit() else path).suffix.lower()  # calls.jsonl.1 is an older one
    if kind not in (".json", ".jsonl"):
        raise UsageError(f"--replay must name a .json or .jsonl file, got {str(path)!r}")
    if kind == ".json" and line is not None:
        raise UsageError("--line is for .jsonl files; a .json file holds one record")
    if kind == ".json":
        text = read_text(path, FileError)
        read = validate(Record, parse(text, path, FileError), text=text, path=path, error=FileError)
    else:
        read = of_call(path, line)
    before = read.answer.get("deployment")
    try:
        decision = records.replay(read, router.rules.compiled, router.rules.own)
    except NoFeasibleDeployment:
        if before is not None:
            say(f"the record, of agentroute {read.version}, says {before!r}; this version refuses")
        raise
    if decision.deployment != before:
        said = "a refusal" if before is None else repr(before)
        say(f"the record, of agentroute {read.version}, says {said}; this version decides otherwise")
    return decision


def of_call(path: Path, line: int | None) -> Record:
    """The decision in a line of a file of calls, the last one unless said; raises ``FileError`` or ``UsageError``."""
    if line is not None and line < 1:
        raise UsageError(f"--line counts from 1, got {line}")
    found, number = "", 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            while text := file.readline(MAX_BYTES):
                number += 1
                found = text
                if number == line:
                    break
    except OSError as problem:
        raise FileError(f"cannot be read: {(problem.strerror or 'unreadable').lower()}", path=path) from None
    if not found or number < (line or 1):
        raise FileError(f"holds {number:,} lines, no line {line or 1:,}", path=path)
    try:
        call = json.loads(found)
    except (ValueError, RecursionError):
        raise FileError("is not valid JSON", path=path, line=number) from None
    if not isinstance(call, dict) or not isinstance(call.get("decision"), dict):
        raise FileError("that call holds no decision", path=path, line=number)
    return validate(Record, call["decision"], text="", path=path, error=FileError)


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record; raises ``FileError``."""
    if path.suffix.lower() != ".json":
        raise UsageError(f"--record must name a .json file, got {str(path)!r}")
    try:
        path.write_text(json.dumps(record, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as problem:
        raise FileError(f"cannot be written: {(problem.strerror or 'unwritable').lower()}", path=path) from None
    say(f"wrote {path}")
