"""How the command line speaks: tables and JSON on stdout, chatter and errors on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentroute.errors import AgentrouteError, BackendError, NoFeasibleDeployment
from agentroute.estimate import Estimate

SCHEMA_VERSION = 1
"""The version of every ``--json`` output; a key is only ever added within a version."""

PIPE_WIDTH = 200
"""Columns when stdout is not a terminal, so that a table in a file or a pipe is not broken."""

EXIT_FAILURE, EXIT_USAGE, EXIT_INFEASIBLE = 1, 2, 3


def stdout() -> Console:
    """Where data goes."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def say(message: str) -> None:
    """A line of chatter, on stderr."""
    typer.echo(message, err=True)


def print_json(command: str, data: Mapping[str, Any]) -> None:
    """One JSON object on stdout, with the schema's version and the command's name first."""
    whole = {"schema_version": SCHEMA_VERSION, "command": command, **data}
    typer.echo(json.dumps(plain(whole), ensure_ascii=False, indent=2, allow_nan=False))


def estimate_json(estimate: Estimate | None) -> dict[str, Any] | None:
    """An estimate as JSON, or ``None`` when unknown."""
    if estimate is None:
        return None
    return {
        "mean": estimate.mean,
        "low": estimate.low,
        "high": estimate.high,
        "source": estimate.source,
        "extrapolated": estimate.extrapolated,
        "interpolated": estimate.interpolated,
    }


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """A table on stdout, or, where it does not fit, a paragraph for each row. Cells are plain text, never markup.

    Columns named in ``right`` are right-aligned.
    """
    typer.echo("\n".join(table_text(columns, rows, right=right)))


def table_text(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> list[str]:
    """The lines of the same."""
    console, cells = stdout(), [tuple(row) for row in rows]
    widths = [max(_width(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    if sum(widths) + 2 * len(widths) > console.width:
        paragraphs = []
        for row in cells:
            paragraphs.append("  ".join(" ".join(part.split()) for part in row[:2]).strip())
            for column, cell in zip(columns[2:], row[2:], strict=True):
                paragraphs.append(f"    {column}: {' '.join(cell.split())}")
        return paragraphs
    style = "" if "NO_COLOR" in os.environ else "bold"
    table = Table(box=None, pad_edge=False, header_style=style, padding=(0, 2, 0, 0))
    rights = set(right)
    for column in columns:
        table.add_column(Text(column), justify="right" if column in rights else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as capture:
        console.print(table)
    # rich pads every line to the table's width; a file or a pipe should not hold that.
    return [line.rstrip() for line in capture.get().splitlines()]


def _width(cell: str) -> int:
    return max((len(line) for line in cell.split("\n")), default=0)


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction in per cent; nothing where it is unknown."""
    return "" if value is None else f"{100 * value:.{digits}f} %"


def report(error: AgentrouteError) -> int:
    """Say an error on stderr; the exit code it deserves."""
    say(f"error: {error}")
    return exit_code(error)


def exit_code(error: AgentrouteError) -> int:
    """1 for a failing backend, 3 when nothing is feasible, 2 for everything that the caller can mend."""
    if isinstance(error, BackendError):
        return EXIT_FAILURE
    return EXIT_INFEASIBLE if isinstance(error, NoFeasibleDeployment) else EXIT_USAGE


def plain(value: Any) -> Any:
    """``value`` without what JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
