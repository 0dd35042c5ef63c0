"""The README's table of frameworks: its lines are those that the examples run."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from programs import EXAMPLES, NEEDS
from scripted import Played
from servers import deployment, router

ROOT = EXAMPLES.parents[1]


def rows() -> dict[str, list[str]]:
    """By example, or the framework's name where it has none, the lines that the README shows."""
    table = (ROOT / "README.md").read_text().partition("| framework | its way |")[2].partition("\n\n")[0]
    found = {}
    for row in table.splitlines()[2:]:
        name, _, lines, _ = row.strip("|").split(" | ")
        file = re.search(r"\(examples/agents/(\w+\.py)\)", name)
        found[file[1] if file else name.strip()] = re.findall(r"`(.+?)`", lines)
    return found


ROWS = rows()
OTHER = "else, on httpx or httpx2"


def test_every_example_is_a_row() -> None:
    assert set(ROWS) == {*NEEDS, OTHER}


@pytest.mark.parametrize("name", NEEDS)
def test_the_two_lines_of_a_row_are_run_by_its_example(name: str) -> None:
    run = [line.strip() for line in (EXAMPLES / name).read_text().splitlines()]
    assert len(ROWS[name]) == 2
    assert set(ROWS[name]) <= set(run)


@pytest.mark.parametrize("module", [name for name in ("httpx", "httpx2") if find_spec(name)])
def test_the_two_lines_of_the_row_without_an_example_route(module: str) -> None:
    with Played() as server:
        by = router(deployment(server.url, served_model="played"))
        names: dict[str, Any] = {"httpx": import_module(module), "router": by}
        for line in ROWS[OTHER]:
            exec(line, names)
        with names["client"] as client:
            body = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}
            answer = client.post("/chat/completions", json=body)
        assert answer.headers["x-agentroute-deployment"] == "here"
        assert server.bodies == [{**body, "model": "played"}]
