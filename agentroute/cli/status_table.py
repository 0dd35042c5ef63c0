"""The table of ``agentroute status``, and the same as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from agentroute.cli.init import model_id
from agentroute.cli.output import SCHEMA_VERSION, estimate_json, plain, table_text
from agentroute.estimate import milliseconds
from agentroute.standing import Standing
from agentroute.startup.names import printable

COLUMNS = ("deployment", "endpoint", "state", "engine", "model", "run/wait", "KV", "breaker", "TTFT predicted", "seen")
WIDTH = 10
"""Cells of a KV bar."""


def lines(shown: Sequence[Standing]) -> Iterator[str]:
    """The table, what was found, and what it cannot show."""
    yield from table_text(COLUMNS, (_row(one) for one in shown))
    for one in shown:
        if one.state == "silent":
            yield f"  {one.deployment.name}: {printable(one.url)}: {printable(one.vital.said)}"
        for finding in one.findings:
            yield f"  {finding.deployment}: {finding.severity}: {finding.kind.replace('_', ' ')}: {finding.text}"
    up = sum(one.state == "up" for one in shown)
    yield f"{up} of {len(shown)} up"


def status_json(shown: Sequence[Standing]) -> dict[str, Any]:
    """The same for a program."""
    return {"endpoints": [_json(one) for one in shown], "up": sum(one.state == "up" for one in shown)}


def print_json_line(command: str, data: Mapping[str, Any]) -> None:
    """One JSON object on one line of stdout, at once."""
    whole = {"schema_version": SCHEMA_VERSION, "command": command, **data}
    typer.echo(json.dumps(plain(whole), ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    sys.stdout.flush()


def _row(one: Standing) -> tuple[str, ...]:
    load, said = one.vital.load, one.said
    return (
        one.deployment.name,
        printable(one.url),
        one.state,
        f"{said.engine} {said.engine_version or ''}".strip() if said else "unknown",
        model_id(one.deployment.served_model or said.models[0]) if said and said.models else "unknown",
        f"{_count(load.running)}/{_count(load.waiting)}" if one.state == "up" else "-",
        _bar(load.kv_used) if one.state == "up" else "-",
        _breaker(one.closed_in_s),
        f"{milliseconds(one.predicted_ms.mean)}{'*' if one.predicted_ms.extrapolated else ''}"
        if one.predicted_ms
        else "unknown",
        milliseconds(one.vital.ttft_ms) if one.vital.ttft_ms is not None else "unknown",
    )


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _bar(share: float | None) -> str:
    """``█████░░░░░ 50%``, in what the terminal can show."""
    if share is None:
        return "unknown"
    full, empty = ("█", "░") if _shows("█░") else ("#", ".")
    cells = round(share * WIDTH)
    return f"{full * cells}{empty * (WIDTH - cells)} {share:.0%}"


def _shows(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _breaker(closed_in_s: float | None) -> str:
    if closed_in_s is None:
        return "closed"
    return f"open, {closed_in_s:.0f} s" if closed_in_s > 0 else "half-open"


def _json(one: Standing) -> dict[str, Any]:
    vital, said = one.vital, one.said
    return {
        "deployment": one.deployment.name,
        "url": one.url,
        "state": one.state,
        "trouble": vital.trouble,
        "said": vital.said or None,
        "engine": said.engine if said else None,
        "engine_version": said.engine_version if said else None,
        "models": list(said.models) if said else [],
        "running": vital.load.running,
        "waiting": vital.load.waiting,
        "kv_used": vital.load.kv_used,
        "breaker_closed_in_s": one.closed_in_s,
        "breaker": "closed" if one.closed_in_s is None else "open" if one.closed_in_s > 0 else "half-open",
        "ttft_predicted_ms": estimate_json(one.predicted_ms),
        "ttft_predicted_of": {"context_tokens": one.size[0], "output_tokens": one.size[1]},
        "ttft_seen_ms": vital.ttft_ms,
        "ttft_seen_over_s": vital.ttft_s,
        "findings": [
            {"kind": f.kind, "severity": f.severity, "text": f.text, "numbers": dict(f.numbers)} for f in one.findings
        ],
    }
