"""``agentroute demo``: real servers, real tasks, every choice with its reason."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentroute.cli.options import Json
from agentroute.cli.output import print_json, say
from agentroute.cli.recommend import decision_json
from agentroute.cli.run import reply_json
from agentroute.decision import Decision
from agentroute.latency.estimate import Estimate
from agentroute.reasons import milliseconds
from agentroute.router import Router

if TYPE_CHECKING:
    from agentroute.client import Reply


def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where the profiles are written.")] = Path("agentroute-demo"),
    as_json: Json = False,
) -> None:
    """Start two small llama.cpp servers, measure them, and route three tasks to them. Stops them at the end."""
    from agentroute.client import Client
    from agentroute.demo.run import answer, direct, servers, write_config
    from agentroute.demo.tasks import demands

    started = time.monotonic()
    say("starting two llama.cpp servers with a small model ...")
    with servers() as urls:
        say(f"  up after {time.monotonic() - started:.1f} s; asking and measuring them ...")
        config = write_config(folder, urls, say)
        say(f"wrote {config} and its profiles\n")
        router = Router.from_config(config)
        results = []
        with Client(router, transport=direct()) as client:
            for i, demand in enumerate(demands(), 1):
                decision = router.decide(demand.task)
                if not as_json:
                    _write(f"== {i}. {demand.title} ==\n\n{decision.explain()}\n\n")
                replies = answer(client, demand, _ignore if as_json else _write)
                if not as_json:
                    _write(f"\n{comparison(decision, replies)}\n\n")
                results.append(
                    {
                        "title": demand.title,
                        "decision": decision_json(decision),
                        "replies": [reply_json(reply) for reply in replies],
                    }
                )
        say("stopping the servers ...")
    seconds = time.monotonic() - started
    if as_json:
        print_json("demo", {"config": str(config), "seconds": seconds, "tasks": results})
    say(f"done in {seconds:.0f} s; the profiles are in {folder / 'profiles'}")


def comparison(decision: Decision, replies: list[Reply]) -> str:
    """Predicted against seen, as the mean over the replies, waiting included."""
    waits = [reply.seen.waited_s for reply in replies]
    ttfts = [reply.seen.ttft_s + reply.seen.waited_s for reply in replies if reply.seen.ttft_s is not None]
    rows: tuple[tuple[str, Estimate | None, list[float]], ...] = (
        ("TTFT", decision.ttft_ms, ttfts),
        ("E2E", decision.e2e_ms, [reply.seen.e2e_s + reply.seen.waited_s for reply in replies]),
    )
    lines = []
    for name, predicted, seen in rows:
        expected = "unknown"
        if predicted is not None:
            expected = f"{milliseconds(predicted.mean)} ({milliseconds(predicted.low)}-{milliseconds(predicted.high)})"
        lines.append(f"{name:<5} predicted {expected}, seen {milliseconds(fmean(seen) * 1_000) if seen else 'unknown'}")
    if max(waits) > 0.001:
        waited = sum(wait > 0.001 for wait in waits)
        lines.append(f"      {waited} of {len(waits)} waited for room, {milliseconds(max(waits) * 1_000)} at most")
    return "\n".join(lines)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _ignore(text: Any) -> None:
    """With --json, answers are in the JSON."""
