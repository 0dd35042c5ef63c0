"""Reading TOML and JSON files safely, and saying exactly where one is wrong.

The one place in the core that touches the disk: ``profile.load``, ``config`` and the catalogue come here.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentroute.errors import FileError, suggest

MAX_BYTES = 4 * 1024 * 1024
"""The largest file read: a profile with 10,000 points is about 1 MiB."""

M = TypeVar("M", bound=BaseModel)
Location = tuple[int | str, ...]


def read_text(path: Path, error: type[FileError]) -> str:
    """The text of a file of at most ``MAX_BYTES``, or ``error``."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as problem:
        reason = (problem.strerror or "unreadable").lower()
        raise error(f"cannot be read: {reason}", path=path) from None
    if len(raw) > MAX_BYTES:
        raise error(f"is larger than {MAX_BYTES // 2**20} MiB; split it", path=path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        raise error("is not UTF-8 text; save it as UTF-8", path=path, line=line) from None


def parse(text: str, path: Path, error: type[FileError]) -> dict[str, Any]:
    """The table in ``text``: JSON when the file ends in ``.json``, TOML otherwise."""
    try:
        data = json.loads(text, parse_int=_bounded_int) if path.suffix == ".json" else tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        found = re.search(r"^(.*) \(at (?:line (\d+), column \d+|end of document)\)$", str(problem))
        message, line = (found[1], found[2]) if found else (str(problem), None)
        where = int(line) if line else text.count("\n") + 1
        raise error(f"is not valid TOML: {message.lower()}", path=path, line=where) from None
    except json.JSONDecodeError as problem:
        message = f"is not valid JSON: {problem.msg.lower()}"
        raise error(message, path=path, line=problem.lineno) from None
    except (ValueError, RecursionError):
        raise error("nests too deeply or holds a number of absurd length", path=path) from None
    if not isinstance(data, dict):
        raise error("must hold one table (a JSON object) at its top", path=path, line=1)
    return data


def _bounded_int(digits: str) -> int | float:
    return int(digits) if len(digits) < 40 else math.inf


def validate(kind: type[M], data: dict[str, Any], *, text: str, path: Path, error: type[FileError]) -> M:
    """``data`` as a ``kind``; the first mistake is raised as one sentence with its key and line."""
    try:
        return kind.model_validate(data)
    except ValidationError as problem:
        details = min(problem.errors(), key=_rank)
        location = tuple(part for part in details["loc"] if not _is_union_tag(part))
        line = locate(text, location) if path.suffix != ".json" else locate_json(text, location)
        raise error(_sentence(kind, details, location), path=path, key=dotted(location), line=line) from None


def _rank(details: ErrorDetails) -> int:
    """An unknown key explains a missing one better than the reverse."""
    return {"extra_forbidden": 0, "missing": 2}.get(details["type"], 1)


def _is_union_tag(part: int | str) -> bool:
    """Pydantic puts the member of a union that it tried into the location; a person did not write that."""
    return isinstance(part, str) and (part in {"float", "int", "str", "bool"} or part[:1].isupper() or "[" in part)


def dotted(location: Location) -> str | None:
    """``("points", 3, "isl")`` as a person writes it: ``points[3].isl``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or None


def _sentence(kind: type[BaseModel], details: ErrorDetails, location: Location) -> str:
    given, context = details.get("input"), details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            known = _fields_at(kind, location[:-1])
            return f"unknown key; {suggest(str(location[-1]), known)}"
        case "missing":
            return "is missing; it must be given"
        case "value_error":
            return str(context.get("error", details["msg"]))
        case _:
            message = details["msg"].replace("Input should be", "must be")
            shown = repr(given)
            return f"{message}, got {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _fields_at(kind: type[BaseModel], location: Location) -> list[str]:
    """The keys allowed in the table at ``location``."""
    here: type[BaseModel] | None = kind
    for part in location:
        if isinstance(part, int) or here is None:
            continue
        field = here.model_fields.get(part)
        here = _model_in(field.annotation) if field else None
    return [field.alias or name for name, field in here.model_fields.items()] if here else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if found := _model_in(inner):
            return found
    return None


_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")


def locate(text: str, location: Location) -> int | None:
    """The line of a key in a TOML text, found by scanning; failing that, the line of its table.

    Good for files as people write them: headers, ``key = value`` and inline tables one per line.
    """
    lines = text.splitlines()
    start, end, rest = 0, len(lines), list(location)
    best: int | None = None
    table: list[str] = []
    while rest and isinstance(key := rest[0], str):
        nth = rest[1] if len(rest) > 1 and isinstance(rest[1], int) else 0
        header = _find_header(lines, ".".join([*table, key]), nth, start)
        if header is None:
            break
        table.append(key)
        rest.pop(0)
        best, start = header + 1, header + 1
        if rest and isinstance(rest[0], int):
            rest.pop(0)
    end = next((i for i in range(start, len(lines)) if _HEADER.match(lines[i])), len(lines))
    return _find_key(lines, start, end, rest) or best


def _find_header(lines: list[str], name: str, nth: int, start: int) -> int | None:
    seen = 0
    for i in range(start, len(lines)):
        found = _HEADER.match(lines[i])
        if found and found[2].replace('"', "").replace(" ", "") == name.replace(" ", ""):
            if seen == nth:
                return i
            seen += 1
    return None


def _find_key(lines: list[str], start: int, end: int, rest: list[int | str]) -> int | None:
    """The line of the deepest part of ``rest`` between two lines; an index counts the inline tables after its key."""
    at: int | None = None
    for i, part in enumerate(rest):
        if isinstance(part, int):
            opened = [n for n in range(start, end) if lines[n].lstrip().startswith("{")]
            if part < len(opened):
                at = start = opened[part]
                end = opened[part + 1] if part + 1 < len(opened) else end
        else:
            pattern = re.compile(rf'(?:^|[{{,])\s*"?{re.escape(part)}"?\s*=')
            found = next((n for n in range(start, end) if pattern.search(lines[n])), None)
            if found is None:
                break
            at = start = found
            if i + 1 < len(rest) and isinstance(rest[i + 1], int):
                start = found + 1
    return at + 1 if at is not None else None


def locate_json(text: str, location: Location) -> int | None:
    """The line of a key in a JSON text: each name is looked for after the one before it."""
    position, found = 0, False
    for i, part in enumerate(location):
        if isinstance(part, int):
            continue
        nth = location[i - 1] if i and isinstance(location[i - 1], int) else 0
        for _ in range(int(nth) + 1):
            hit = re.compile(rf'"{re.escape(part)}"\s*:').search(text, position)
            if hit is None:
                break
            position, found = hit.end(), True
    return text.count("\n", 0, position) + 1 if found else None
