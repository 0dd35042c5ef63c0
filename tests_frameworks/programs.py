"""The examples of agents: what each needs, and what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples" / "agents"


@dataclass(frozen=True)
class Need:
    """What an example is made for."""

    package: str
    """As it is called where it is installed from."""
    module: str
    """One that has to be there."""
    by_gateway: bool = False
    """It is given the address and the key of a gateway, else a configuration."""
    steps: int = 2
    """So often it asks."""
    tools: tuple[str, ...] = ("weather",)
    """The tools that reach the server as such, and not as words of a prompt."""


NEEDS = {
    "openai_sdk.py": Need("openai", "openai"),
    "pydantic_ai_agent.py": Need("pydantic-ai-slim", "pydantic_ai"),
    "langchain_agent.py": Need("langchain", "langchain"),
    "openai_agents_agent.py": Need("openai-agents", "agents"),
    "gateway.py": Need("openai", "openai", by_gateway=True),
    "crewai_agent.py": Need("crewai", "crewai", by_gateway=True),
    "dspy_agent.py": Need("dspy", "dspy", by_gateway=True, steps=3, tools=()),
}

QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    "NO_COLOR": "1",
}
"""So that the frameworks talk to nobody but the models."""


def run(path: Path, *args: Any, home: Path) -> list[str]:
    """The lines that a program prints; what it keeps in its user's home it keeps in ``home``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "DSPY_", "CREWAI_"))}
    ran = subprocess.run(
        [sys.executable, path, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**kept, **QUIET, "HOME": str(home), "OPENAI_API_KEY": "theirs"},
    )
    assert ran.returncode == 0, ran.stderr
    return [line.strip() for line in ran.stdout.splitlines()]


def example(name: str) -> Path:
    """The file of an example; a test that needs it is skipped where its framework is not installed."""
    if find_spec(NEEDS[name].module) is None:
        pytest.skip(f"{NEEDS[name].package} is not installed here")
    return EXAMPLES / name
