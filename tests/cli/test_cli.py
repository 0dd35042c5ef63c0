"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys

from console import agentroute

import agentroute as package


def test_it_says_its_version() -> None:
    assert agentroute("--version").out == f"agentroute {package.__version__}\n"


def test_help_names_every_command() -> None:
    out = agentroute("--help").out
    for command in ("recommend", "explain", "run", "init", "profiles", "demo"):
        assert command in out


def test_an_unknown_command_is_a_usage_error() -> None:
    ran = agentroute("recomend")
    assert ran.code == 2
    assert "recommend" in ran.err


def test_help_does_not_wait_for_an_http_client() -> None:
    code = "import sys, agentroute.cli.app; print([m for m in ('httpx', 'tenacity') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
