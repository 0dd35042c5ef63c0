"""The examples of agents run as they stand, with the real packages: a tool call and a final answer, all routed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from scripted import Played

EXAMPLES = Path(__file__).parents[1] / "examples" / "agents"
NEEDS = {
    "openai_sdk.py": "openai",
    "pydantic_ai_agent.py": "pydantic_ai",
    "langchain_agent.py": "langchain",
    "openai_agents_agent.py": "agents",
}
"""By example the package that it is for."""


@pytest.fixture
def server() -> Iterator[Played]:
    with Played() as server:
        yield server


def run(name: str, *args: Any) -> str:
    """What an example prints."""
    if find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed here")
    keys = {"OPENAI_API_KEY", "OPENAI_BASE_URL"}
    environment = {name: value for name, value in os.environ.items() if name not in keys}
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**environment, "OPENAI_API_KEY": "theirs"},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_an_agent_calls_its_tool_and_answers(name: str, server: Played, tmp_path: Path) -> None:
    assert run(name, server.config(tmp_path)).strip() == "The tool said: It is sunny in Paris."
    first, second = server.bodies
    assert first["model"] == second["model"] == "played"
    assert first["tools"] == second["tools"]
    assert second["messages"][-1]["content"] == "It is sunny in Paris."
    assert [asked.target for asked in server.asked if asked.body] == ["/v1/chat/completions"] * 2
    assert "theirs" not in json.dumps([dict(asked.headers) for asked in server.asked])
