"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("quickstart.py", "A first token within 1 ms is refused by all"),
        ("fan_out.py", " s  "),
    ],
)
def test_an_example_runs(name: str, says: str) -> None:
    ran = subprocess.run([sys.executable, "-W", "error", EXAMPLES / name], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert says in ran.stdout
    assert ran.stderr == ""


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"quickstart.py", "fan_out.py"}
