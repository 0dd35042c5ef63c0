"""Running the command line inside a test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from agentroute.cli.app import app


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def agentroute(*args: str, stdin: str | None = None) -> Ran:
    """Run ``agentroute`` with ``args``; an exception that is not an exit is raised."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=stdin, catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)
