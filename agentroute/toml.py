"""Writing TOML: what a profile needs, and no more (tomllib only reads)."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any


def dumps(data: Mapping[str, Any], *, inline: frozenset[str] = frozenset()) -> str:
    """``data`` as TOML. Keys named in ``inline`` hold arrays of tables that are written one inline table a line."""
    return "\n".join(_table(data, (), inline)).strip() + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...], inline: frozenset[str]) -> list[str]:
    lines, tables = [], []
    for key, value in data.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            tables += ["", f"[{_path((*path, key))}]", *_table(value, (*path, key), inline)]
        elif key in inline:
            lines += [f"{_key(key)} = [", *(f"  {_value(item)}," for item in value), "]"]
        elif isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            for item in value:
                tables += ["", f"[[{_path((*path, key))}]]", *_table(item, (*path, key), inline)]
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    return lines + tables


def _path(keys: tuple[str, ...]) -> str:
    return ".".join(_key(key) for key in keys)


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    # A JSON string is a TOML basic string, but for the one control character that JSON leaves as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
