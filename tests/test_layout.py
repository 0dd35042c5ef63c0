"""The house: three doors at the top, imports that go one way, and a core that knows no clock and no network."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agentroute"

LAYERS: tuple[str, ...] = (
    "errors", "remedy", "toml", "locations", "origin", "estimate", "shape", "capacity", "latency", "profile", "startup",
    "ceilings", "sizing", "fleet",
    "serving", "blocks",
    "outcome", "prefix", "tokens", "task", "route", "lazy", "compiled", "inputs", "policy", "own", "misses", "ranking",
    "assessment", "asks", "quick", "unmeasured",
    "reasons", "expected", "explain", "decision", "refusal", "state", "many", "otherwise", "whatif", "lease", "waiting",
    "fallback", "rules", "split", "spill", "spread", "fanout", "group", "router",
    "admission", "outlook",
    "files", "recorded", "replay", "catalogue", "variables", "tables", "config", "reload",
    "patience", "tries", "hedge", "session", "counting",
    "wire", "sse", "transport", "adapters", "doctor", "probe", "pulse", "portal", "watch", "standing",
    "assembly", "call", "payload", "needs", "hints", "answers", "ended", "errand", "lacks",
    "alarm", "fast", "pools", "passage", "forwarded", "trip", "streamed", "client", "telemetry",
    "integrations", "gateway",
    "bench", "demo", "cli",
)  # fmt: skip
"""Every module or folder at the top of the package, the lowest first; each may import what stands before it."""

LAZY = {("shape", "files"), ("profile", "files"), ("fleet", "catalogue"), ("router", "config"), ("decision", "explain"),
        ("router", "admission")}  # fmt: skip
LAZY |= {("tokens", "files"), ("decision", "replay"), ("decision", "whatif"), ("decision", "outlook")}
LAZY |= {("router", "doctor"), ("errors", "explain"), ("refusal", "replay"), ("refusal", "whatif")}
"""Imports inside a function of what stands later: classmethods that read files, and the text of an explanation."""

CORE = LAYERS[: LAYERS.index("router") + 1]
NO_CORE = {"asyncio", "http", "httpx", "io", "os", "requests", "select", "socket", "ssl", "subprocess", "tempfile"}
NO_CORE |= {"tenacity", "time", "tomllib", "typer", "urllib.request"}
ADAPTERS_MAY = {"adapters", "errors", "toml", "origin", "profile", "shape", "wire"}

CALLED = {"agents": "openai-agents", "opentelemetry": "opentelemetry-api", "pydantic_ai": "pydantic-ai-slim"}
CALLED |= {"yaml": "pyyaml"}
"""Packages by the module that is imported, where they are called otherwise."""
BROUGHT = {"idna": "httpx", "pydantic_core": "pydantic", "rich": "typer"}
"""Parts of another package, which never comes without them."""

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """Every module that ``path`` imports at run time, and whether inside a function."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            yield from ((alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module == "agentroute":
                yield from ((f"agentroute.{alias.name}", lazy) for alias in node.names)
            else:
                yield node.module or "", lazy
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    return tuple(walk(parsed(path), False))


def own(path: Path) -> Iterator[tuple[str, bool]]:
    """The layers of this package that ``path`` imports."""
    for name, lazy in imports(path):
        if name.startswith("agentroute."):
            yield name.split(".")[1], lazy


@pytest.mark.parametrize("name", ["adapters", "cli", "profiles"])
def test_a_door_at_the_top_leads_into_the_package(name: str) -> None:
    door = ROOT / name
    assert door.is_symlink()
    assert door.readlink() == Path("agentroute") / name
    assert door.resolve() == PACKAGE / name
    assert door.is_dir()


def test_every_module_has_its_layer() -> None:
    assert {layer(path) for path in MODULES} <= {*LAYERS, "profiles"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    if layer(path) == "profiles":
        assert not list(own(path))
        return
    place = LAYERS.index(layer(path))
    for name, lazy in own(path):
        if lazy and (layer(path), name) in LAZY:
            continue
        assert LAYERS.index(name) <= place, f"{layer(path)} imports {name}, which stands above it"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if layer(path) in CORE], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_the_core_knows_no_network_no_clock_and_no_disk(path: Path) -> None:
    allowed = {"time"} if layer(path) == "router" else set()
    names = {name for name, _ in imports(path)}
    assert (names | {name.partition(".")[0] for name in names}) & NO_CORE <= allowed


def test_the_router_asks_the_clock_only_by_default() -> None:
    assert re.findall(r"\btime\.\w+", (PACKAGE / "router.py").read_text()) == ["time.monotonic"]


@pytest.mark.parametrize("path", [path for path in MODULES if layer(path) == "adapters"], ids=lambda path: path.stem)
def test_an_adapter_knows_errors_shapes_and_the_wire_alone(path: Path) -> None:
    assert {name for name, _ in own(path)} <= ADAPTERS_MAY
    assert not {name.partition(".")[0] for name, _ in imports(path)} & {"httpx", "asyncio", "socket", "ssl"}


def test_whatever_is_imported_is_asked_for() -> None:
    """By the package or by one of its extras, and not only by something else that either of them asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked_for = chain(project["dependencies"], *project["optional-dependencies"].values())
    names = {name.partition(".")[0] for path in MODULES for name, _ in imports(path)} - sys.stdlib_module_names
    needed = {BROUGHT.get(name, name) for name in names - {"agentroute"}}
    assert {CALLED.get(name, name.replace("_", "-")) for name in needed} <= {
        re.split(r"[^\w-]", need)[0] for need in asked_for
    }


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path))


def test_no_file_of_the_package_knows_the_machine_it_was_written_on() -> None:
    for path in PACKAGE.rglob("*"):
        if path.suffix in {".py", ".toml", ".json", ".md"}:
            found = re.search(r"\.\./shared|/work/|/tmp\b|/home/|/root/|/Users/", path.read_text())
            assert found is None, f"{path.relative_to(ROOT)} mentions {found[0] if found else ''}"


def test_files_stay_small() -> None:
    for path in MODULES:
        assert len(path.read_text().splitlines()) <= 400, path


def test_the_doors_are_links_in_git() -> None:
    done = subprocess.run(
        ["git", "ls-files", "-s", "adapters", "cli", "profiles"], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    if done.returncode or not done.stdout:
        pytest.skip("not a git checkout")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["120000"] * 3
