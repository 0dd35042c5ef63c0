"""``${NAME}`` and ``${NAME:-default}`` in the strings of a file: what the environment says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentroute.errors import ConfigError, FileError
from agentroute.files import dotted, locate
from agentroute.locations import Location

VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
"""What an environment variable may be called."""
_USE = re.compile(r"\$\{([^}]*)\}")
_INSIDE = re.compile(rf"({VARIABLE})(?::-(.*))?", re.DOTALL)
_NAMES_ONE = ("env", "api_key_env")
"""Keys whose value is itself the name of a variable: nothing is put in there, so that no key can end up in a file's
values, or in what is said of them."""


def substituted(
    data: dict[str, Any], environment: Mapping[str, str], *, text: str, path: Path
) -> tuple[dict[str, Any], list[FileError]]:
    """``data`` with the variables in its string values put in, and what could not be.

    A variable that is not set, or empty, takes its default, as in a shell; without one it is a mistake.
    """
    found: list[FileError] = []

    def within(value: Any, at: Location) -> Any:
        if isinstance(value, dict):
            return {key: within(item, (*at, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [within(item, (*at, i)) for i, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value or (at and at[-1] in _NAMES_ONE):
            return value
        for message in _wrong(value, environment):
            found.append(ConfigError(message, path=path, key=dotted(at), line=locate(text, path, at)))
        return _USE.sub(lambda use: _value(use, environment), value)

    return within(data, ()), found


def _wrong(value: str, environment: Mapping[str, str]) -> Iterator[str]:
    if "${" in _USE.sub("", value):
        yield "${ is not closed by a }; write ${NAME} or ${NAME:-default}"
    for use in _USE.finditer(value):
        inside = _INSIDE.fullmatch(use[1])
        if "${" in use[1]:
            yield f"{use[0]}}} has a variable inside of another one; a default must be plain text"
        elif inside is None:
            yield f"{use[0]} is no variable; write ${{NAME}} or ${{NAME:-default}}"
        elif inside[2] is None and inside[1] not in environment:
            yield f"the environment variable {inside[1]} is not set; set it, or write ${{{inside[1]}:-default}}"


def _value(use: re.Match[str], environment: Mapping[str, str]) -> str:
    inside = _INSIDE.fullmatch(use[1])
    if inside is None:
        return use[0]
    value = environment.get(inside[1], "")
    return value if value or inside[2] is None else inside[2]
