"""The YAML of reports: tables in tables of plain values, and no more. Anything else is refused, never guessed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentroute.errors import FileError

MAX_DEPTH = 30
"""Tables inside each other; reports have five."""

_LINE = re.compile(r"( *)([\w.\-/]+):(?: +(.*))?")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def loads(text: str, path: Path) -> dict[str, Any]:
    """``text`` as tables; raises ``FileError`` with the line of the first thing that is not understood."""
    top: dict[str, Any] = {}
    open_tables: list[tuple[int, dict[str, Any]]] = [(-1, top)]
    for i, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        found = _LINE.fullmatch(line.rstrip())
        if found is None:
            raise FileError("is not a line of the plain YAML that is read here (key: value)", path=path, line=i)
        depth, key, value = len(found[1]), found[2], found[3]
        while open_tables[-1][0] >= depth:
            open_tables.pop()
        here = open_tables[-1][1]
        if value is None:
            if len(open_tables) > MAX_DEPTH:
                raise FileError("nests too deeply for a result of a benchmark", path=path, line=i)
            here[key] = {}
            open_tables.append((depth, here[key]))
        else:
            here[key] = _value(value)
    return top


def _value(word: str) -> Any:
    if word in {"null", "~"}:
        return None
    if word in {"true", "false"}:
        return word == "true"
    if _NUMBER.fullmatch(word) and len(word) < 40:
        return float(word)
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
