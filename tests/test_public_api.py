"""The public names: one sorted list, each documented, and none that costs anything before it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import agentroute

NAMES = [name for name in agentroute.__all__ if name != "__version__"]
HEAVY = ("httpx", "numpy", "pydantic", "rich", "tenacity", "typer")


def test_the_names_are_sorted_and_told_once() -> None:
    assert list(agentroute.__all__) == sorted(set(agentroute.__all__))


def test_the_names_are_those_of_the_lazy_table() -> None:
    assert set(NAMES) == set(agentroute._HOME)
    assert dir(agentroute) == list(agentroute.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_real_and_documented(name: str) -> None:
    value = getattr(agentroute, name)
    if name == "Event":
        assert all(kind.__name__ in NAMES for kind in value.__args__)
        return
    assert value.__name__ == name
    assert value.__module__.startswith("agentroute.")
    assert (inspect.getdoc(value) or "").strip()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "Event"])
def test_the_public_methods_of_a_name_are_documented(name: str) -> None:
    for attribute, value in vars(getattr(agentroute, name)).items():
        if attribute.startswith("_") or not (callable(value) or isinstance(value, property | classmethod)):
            continue
        assert (inspect.getdoc(value) or "").strip(), f"{name}.{attribute}"


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'agentroute' has no attribute 'Ruoter'"):
        _ = agentroute.Ruoter


def loaded(code: str) -> set[str]:
    """Top-level modules after running ``code`` in a fresh interpreter."""
    code += "\nimport sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_no_framework() -> None:
    assert not loaded("import agentroute") & set(HEAVY)


def test_deciding_loads_no_way_to_the_network() -> None:
    ask = "from agentroute import Router, Task\nRouter.shipped().decide(Task(context_tokens=100)).explain()"
    assert not loaded(ask) & {"httpx", "httpcore", "tenacity", "typer", "rich", "asyncio", "ssl"}


def test_what_the_readme_names_is_public() -> None:
    """Whoever reads it there knows no module to import it from."""
    assert {"Load", "LocalTokenizer", "Outcome", "Previous", "Retry", "Session", "Slo", "Timeout"} <= set(NAMES)
