"""The environments that ``make test-frameworks`` tries: nothing is skipped there that was to be tried."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from programs import NEEDS

HERE = Path(__file__).parent
FILES = sorted(path for path in HERE.glob("*.txt") if path.name != "requirements.txt")
OWN = HERE / f"{Path(sys.prefix).name}.txt"


def pins(path: Path) -> dict[str, str]:
    """By package the version that is to be tried."""
    named = (line.split("==") for line in path.read_text().splitlines() if "==" in line)
    return {name.partition("[")[0]: version for name, version in named}


@pytest.mark.skipif(OWN not in FILES, reason="this environment is not one of make test-frameworks")
def test_what_is_to_be_tried_is_installed() -> None:
    assert {name: version(name) for name in pins(OWN)} == pins(OWN)


def test_every_examples_package_is_in_an_environment() -> None:
    everywhere = {name for path in FILES for name in pins(path)}
    assert {need.package for need in NEEDS.values()} <= everywhere
