"""``agentroute demo``: real servers, real tasks, every choice with its reason."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentroute.cli.options import Json
from agentroute.cli.output import print_json, say
from agentroute.cli.recommend import decision_json
from agentroute.cli.run import reply_json
from agentroute.estimate import Estimate, milliseconds
from agentroute.router import Router

if TYPE_CHECKING:
    from agentroute.client import Reply


def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where the profiles are written.")] = Path("agentroute-demo"),
    as_json: Json = False,
) -> None:
    """Start two small llama.cpp servers, measure them, and route three tasks to them. Stops them at the end."""
    from agentroute.client import Client
    from agentroute.demo.run import adirect, answer, servers, write_config
    from agentroute.demo.tasks import demands

    started = time.monotonic()
    say("starting two llama.cpp servers with a small model ...")
    with servers() as urls, _farewell():
        say(f"  up after {time.monotonic() - started:.1f} s; asking and measuring them ...")
        config = write_config(folder, urls, say)
        say(f"wrote {config} and its profiles\n")
        router = Router.from_config(config)
        results = []
        with Client(router, transport=adirect()) as client:
            for i, demand in enumerate(demands(), 1):
                decision = router.decide(demand.task)
                if not as_json:
                    _write(f"== {i}. {demand.title} ==\n\n{decision.explain()}\n\n")
                replies = answer(client, demand, _ignore if as_json else _write)
                if not as_json:
                    _write(f"\n{comparison(replies)}\n\n")
                results.append(
                    {
                        "title": demand.title,
                        "decision": decision_json(decision),
                        "replies": [reply_json(reply) for reply in replies],
                    }
                )
    seconds = time.monotonic() - started
    if as_json:
        print_json("demo", {"config": str(config), "seconds": seconds, "tasks": results})
    say(f"done in {seconds:.0f} s; the profiles are in {folder / 'profiles'}")


@contextmanager
def _farewell() -> Iterator[None]:
    try:
        yield
    finally:
        say("stopping the servers ...")


def comparison(replies: list[Reply]) -> str:
    """What each call was predicted when it was made, against what was seen; means over the calls."""
    rows: tuple[tuple[str, list[Estimate | None], list[float | None]], ...] = (
        ("TTFT", [r.decision.ttft_ms for r in replies], [r.seen.ttft_s for r in replies]),
        ("E2E", [r.decision.e2e_ms for r in replies], [r.seen.e2e_s for r in replies]),
    )
    lines = []
    for name, estimates, seconds in rows:
        known, seen = [e for e in estimates if e], [s * 1_000 for s in seconds if s is not None]
        expected = "unknown"
        if known:
            mean, low, high = (milliseconds(fmean(getattr(e, end) for e in known)) for end in ("mean", "low", "high"))
            expected = f"{mean} ({low}-{high})"
        lines.append(
            f"{name:<5} predicted when it was sent {expected}, seen {milliseconds(fmean(seen)) if seen else 'unknown'}"
        )
    waits = [r.seen.waited_s for r in replies if r.seen.waited_s > 0.001]
    if waits:
        most = milliseconds(max(waits) * 1_000)
        lines.append(f"      {len(waits)} of {len(replies)} waited for room before they were sent, {most} at most")
    return "\n".join(lines)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _ignore(text: Any) -> None:
    """With --json, answers are in the JSON."""
