"""``agentroute run``: decide, call, stream the answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentroute.cli import options
from agentroute.cli.output import estimate_json, print_json, say
from agentroute.cli.recommend import decision_json
from agentroute.errors import UsageError
from agentroute.estimate import milliseconds
from agentroute.router import Router
from agentroute.task import Task
from agentroute.wire import TextDelta

if TYPE_CHECKING:
    from agentroute.client import Client, Reply

MAX_PROMPT_BYTES = 8 * 1024 * 1024
_CONTROL = {code: None for code in (*range(32), 127, *range(128, 160)) if code not in (9, 10)}
"""A server's answer must not command the terminal that shows it."""


def run(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    system: Annotated[str | None, typer.Option("--system", help="A system message before it.")] = None,
    output: options.Output = 256,
    ttft: options.Ttft = None,
    tpot: options.Tpot = None,
    deadline: options.Deadline = None,
    soft: options.Soft = False,
    need: options.Needs = None,
    objective: options.Objective = None,
    route: options.RouteName = "default",
    config: Annotated[Path, typer.Option("--config", help="The deployments and routes.")] = options.CONFIG,
    as_json: options.Json = False,
) -> None:
    """Ask the best deployment and stream its answer to stdout; the decision goes to stderr."""
    from agentroute.client import Client

    if prompt == "-":
        prompt = sys.stdin.read(MAX_PROMPT_BYTES + 1)
    if not prompt.strip() or len(prompt) > MAX_PROMPT_BYTES:
        raise UsageError("the prompt must hold some text, and at most 8 MiB of it")
    if not config.exists():
        raise UsageError(f"there is no {config}; write one with: agentroute init http://HOST:PORT")
    router = Router.from_config(config)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    task = Task.from_messages(
        messages,
        max_output_tokens=output,
        ttft_ms=options.slo(ttft, "--ttft", soft=soft),
        tpot_ms=options.slo(tpot, "--tpot", soft=soft),
        deadline_s=options.slo(deadline, "--deadline", soft=soft, per_ms=0.001),
        needs=frozenset(need or ()),
        route=route,
        objective=objective,
    )
    with Client(router) as client:
        reply = _streamed(client, messages, task, echo=not as_json)
    if as_json:
        print_json("run", reply_json(reply))
    else:
        say(seen(reply))


def _streamed(client: Client, messages: list[dict[str, Any]], task: Task, *, echo: bool) -> Reply:
    from agentroute.assembly import paired

    with client.stream(messages, task=task) as events:
        chosen, terminal = events.decision, sys.stdout.isatty()
        say(f"{chosen.deployment}: {chosen.candidates[0].standing}")
        for event in events:
            if echo and isinstance(event, TextDelta):
                text = paired(event.text)
                sys.stdout.write(text.translate(_CONTROL) if terminal else text)
                sys.stdout.flush()
        reply = events.reply
    if echo:
        sys.stdout.write("\n")
        sys.stdout.flush()
    if reply is None:
        raise AssertionError("a stream ended without a reply and without an error")
    return reply


def seen(reply: Reply) -> str:
    """Predicted against seen, in one line."""
    parts = []
    for name, predicted, seen_s in (
        ("TTFT", reply.decision.ttft_ms, reply.seen.ttft_s),
        ("E2E", reply.decision.e2e_ms, reply.seen.e2e_s),
    ):
        if seen_s is not None:
            expected = f"{milliseconds(predicted.mean)} predicted" if predicted else "no prediction"
            parts.append(f"{name} {milliseconds(seen_s * 1_000)} seen, {expected}")
    usage = reply.usage
    parts.append(f"{usage.prompt_tokens or '?'} prompt and {usage.completion_tokens or '?'} answer tokens")
    return "; ".join(parts)


def reply_json(reply: Reply) -> dict[str, Any]:
    """A reply as JSON."""
    return {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "usage": {
            "prompt_tokens": reply.usage.prompt_tokens,
            "completion_tokens": reply.usage.completion_tokens,
            "cached_tokens": reply.usage.cached_tokens,
        },
        "seen": {"ttft_s": reply.seen.ttft_s, "e2e_s": reply.seen.e2e_s, "waited_s": reply.seen.waited_s},
        "predicted": {
            "ttft_ms": estimate_json(reply.decision.ttft_ms),
            "e2e_ms": estimate_json(reply.decision.e2e_ms),
        },
        "decision": decision_json(reply.decision),
    }
