"""What the README shows, for the tests that hold it to what really happens."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = [(kind, lines.splitlines()) for kind, lines in re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S)]
"""Every block, and the language that it is marked with."""

COMMANDS = [line for kind, lines in BLOCKS if kind == "console" for line in lines if line.startswith("$ ")]
"""Every line that is to be typed."""

OUTPUTS = {
    lines[0].removeprefix("$ agentroute "): lines[1:]
    for kind, lines in BLOCKS
    if kind == "console" and lines[0].startswith("$ agentroute ") and not lines[1].startswith("$ ")
}
"""What is shown below a command alone, by its words."""


def block(begins: str) -> str:
    """The block that begins so."""
    (found,) = (lines for _, lines in BLOCKS if lines[0].startswith(begins))
    return "\n".join(found) + "\n"


def table(begins: str) -> list[list[str]]:
    """The cells of the table whose heading begins so, but for the heading."""
    rows = TEXT.partition(f"\n{begins}")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]
