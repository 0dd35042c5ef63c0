"""The README: its commands print what it shows, its configuration is one, and what it names is there.

What ``doctor`` and ``status`` print is held to it beside their own tests, which start servers for them.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import readme
import typer
from click import Context
from console import agentroute
from fleets import broken, written

from agentroute.catalogue import shipped
from agentroute.cli.app import COMMANDS, app
from agentroute.config import Config

HERE = [command for command in readme.OUTPUTS if command.split()[0] in ("recommend", "size", "spread")]
"""What asks no server."""


def test_the_first_screens_show_what_can_be_asked_without_a_server() -> None:
    assert [command.split()[0] for command in HERE] == ["recommend", "size", "spread"]
    assert {command.split()[0] for command in readme.OUTPUTS} - {"recommend", "size", "spread"} == {"doctor", "status"}


@pytest.mark.parametrize("command", HERE, ids=lambda command: command.split()[0])
def test_a_command_prints_what_is_shown_below_it(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its data, and maybe what it says beside that; ``...`` stands for the rest of both."""
    monkeypatch.chdir(tmp_path)
    ran, shown = agentroute(*shlex.split(command)), readme.OUTPUTS[command]
    assert ran.code == 0
    data, said = ran.out.rstrip().splitlines(), ran.err.splitlines()
    if shown[-1] == "...":
        assert shown[:-1] == data[: len(shown) - 1]
        assert len(shown) > 5
    else:
        assert shown == data + [line for line in said if line in shown]


def options(command: str) -> set[str]:
    """The options of a command, or of all in a group."""
    first, *rest = command.split()
    found: Any = typer.main.get_command(app)
    found = found.get_command(Context(found), first)
    inner = getattr(found, "commands", {})
    commands = [inner[rest[0]]] if inner and rest and rest[0] in inner else list(inner.values()) or [found]
    return {option for one in commands for parameter in one.params for option in parameter.opts}


def asked_for() -> Iterator[tuple[str, str]]:
    """Every option that the README gives to a command, and the command."""
    said = [line.removeprefix("$ agentroute ") for line in readme.COMMANDS if line.startswith("$ agentroute ")]
    said += re.findall(r"`agentroute ([^`]+)`", readme.TEXT)
    for cells in readme.table("| command | what it does |"):
        command = cells[0].strip("`").removeprefix("agentroute ")
        said += [f"{command} {words}" for words in re.findall(r"`((?:list )?--[^`]+)`", " ".join(cells[1:]))]
    for words in said:
        for option in re.findall(r"(?<=\s)--[a-z][a-z-]*", words):
            yield words, option


@pytest.mark.parametrize(("words", "option"), sorted(set(asked_for())))
def test_a_command_has_the_options_that_it_is_given(words: str, option: str) -> None:
    assert option in options(words)


def test_every_command_but_the_one_that_serves_has_json() -> None:
    assert [command for command in COMMANDS if "--json" not in options(command)] == ["serve"]
    assert "`--json` on every command but `serve`" in readme.TEXT


def test_every_command_stands_in_the_table() -> None:
    told = {cells[0].strip("`").split()[1] for cells in readme.table("| command | what it does |")}
    assert told == set(COMMANDS)


def test_every_target_of_make_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (readme.ROOT / "Makefile").read_text(), re.M))
    told = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", readme.TEXT))
    assert {"demo", "test"} <= told <= targets


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    written(tmp_path / "profiles", "format = 1\nname = 'long'\nengine = { name = 'vllm' }\n", "long.toml")
    routes = broken(readme.block("# agentroute.toml"), "my_policies:frugal", "own_objective:busiest")
    text = routes + "[routes.batch]\n" + readme.block("[gateway]")  # whose key may use that route
    config, mistakes = Config.read(written(tmp_path, text, "agentroute.toml"))
    assert not mistakes
    assert config is not None
    assert list(config.routes) == ["interactive", "batch"]
    assert [key.name for key in config.keys] == ["night-jobs", "operator"]


def test_as_many_profiles_ship_as_are_told_of() -> None:
    points = (readme.ROOT / "tests" / "data" / "latency_points.csv").read_text().splitlines()
    loads = sum(line[:1].isdigit() for line in points)
    assert f" {len(shipped().profile_names)} ship in\n" in readme.TEXT
    assert f"out of one table of {loads:,} measured loads\n" in readme.TEXT


PYTHON = ["\n".join(lines) for kind, lines in readme.BLOCKS if kind == "python"]


def test_what_is_imported_is_there() -> None:
    named = set()
    for text in PYTHON:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("agentroute"):
                named |= {(node.module, alias.name) for alias in node.names}
    assert ("agentroute", "Router") in named
    for module, name in named:
        assert hasattr(import_module(module), name), f"{module} has no {name}"
