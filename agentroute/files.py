"""Reading TOML and JSON files safely, and saying exactly where one is wrong.

The one place in the core that touches the disk: ``profile.load``, ``config`` and the catalogue come here.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentroute.errors import FileError, shown, suggest
from agentroute.locations import Location, json_lines, line_of, toml_lines
from agentroute.origin import FUNCTION, JSONL

MAX_BYTES = 4 * 1024 * 1024
"""The largest file read: a profile with 10,000 points is about 1 MiB."""

M = TypeVar("M", bound=BaseModel)


def read_text(path: Path, error: type[FileError], *, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file of at most ``max_bytes``, or ``error``."""
    try:
        if path.exists() and not path.is_file():
            raise error("is not a file", path=path)
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
    except OSError as problem:
        reason = (problem.strerror or "unreadable").lower()
        raise error(f"cannot be read: {reason}", path=path) from None
    except ValueError:
        raise error("cannot be read: that is no file name", path=path) from None
    if len(raw) > max_bytes:
        raise error(f"is larger than {max_bytes // 2**20} MiB; split it", path=path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        raise error("is not UTF-8 text; save it as UTF-8", path=path, line=line) from None


def parse(text: str, path: Path, error: type[FileError]) -> dict[str, Any]:
    """The table in ``text``: JSON when the file ends in ``.json``, TOML otherwise."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                places = [found.start() for found in re.finditer(rf"{re.escape(json.dumps(name))}\s*:", text)]
                raise json.JSONDecodeError(f"the key {shown(name)} is given twice", text, max(places, default=0))
            seen.add(name)
        return dict(pairs)

    try:
        if _is_json(path):
            data = json.loads(text, parse_int=_bounded_int, object_pairs_hook=table)
        else:
            data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        found = re.search(r"^(.*) \(at (?:line (\d+), column \d+|end of document)\)$", str(problem), re.DOTALL)
        message, line = (found[1], found[2]) if found else (str(problem), None)
        where = int(line) if line else text.count("\n") + 1
        raise error(f"is not valid TOML: {message[:1].lower()}{message[1:]}", path=path, line=where) from None
    except json.JSONDecodeError as problem:
        message = f"{problem.msg[:1].lower()}{problem.msg[1:]}"
        raise error(f"is not valid JSON: {message}", path=path, line=problem.lineno) from None
    except (ValueError, RecursionError):
        raise error("nests too deeply or holds a number of absurd length", path=path) from None
    if not isinstance(data, dict):
        raise error("must hold one table (a JSON object) at its top", path=path, line=1)
    return data


def _bounded_int(digits: str) -> int | float:
    return int(digits) if len(digits) < 40 else math.inf


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def locate(text: str, path: Path, location: Location) -> int | None:
    """The line of a key in a file's text; failing that, of the table that should hold it."""
    return line_of(json_lines(text) if _is_json(path) else toml_lines(text), location)


def validate(kind: type[M], data: dict[str, Any], *, text: str, path: Path, error: type[FileError]) -> M:
    """``data`` as a ``kind``; the first mistake is raised as one sentence with its key and line."""
    made, found = checked(kind, data, text=text, path=path, error=error)
    if made is None:
        raise found[0]
    return made


def checked(
    kind: type[M], data: dict[str, Any], *, text: str, path: Path, error: type[FileError]
) -> tuple[M | None, list[FileError]]:
    """``data`` as a ``kind``, or every mistake in it, one for each key, what explains others first."""
    try:
        return kind.model_validate(data), []
    except ValidationError as problem:
        details = sorted(problem.errors(), key=_rank)
    found: dict[Location, FileError] = {}
    for one in details:
        location, table = _followed(kind, one["loc"])
        location += tuple(one.get("ctx", {}).get("at", ()))
        if location not in found:
            line = locate(text, path, location) or 1
            found[location] = error(_sentence(table, one, location), path=path, key=dotted(location), line=line)
    # A table is complained of beside what is wrong in it: a list of one bad table as empty, a union for its other form.
    within = {at[:length] for at in found for length in range(len(at))}
    return None, [problem for at, problem in found.items() if at not in within]


def _rank(details: ErrorDetails) -> tuple[int, int]:
    """What to say first: an unknown key explains a missing one; of a union's complaints, the one that went deepest."""
    return {"extra_forbidden": 0, "missing": 2}.get(details["type"], 1), -len(details["loc"])


def _followed(kind: type[BaseModel], location: Location) -> tuple[Location, type[BaseModel] | None]:
    """The location as a person wrote it, and the model of the table that its last key stands in.

    Pydantic puts the member of a union that it tried into a location, and ``[key]`` behind a dict's bad key; nobody
    wrote those, so they are told apart by following the annotations.
    """
    here: Any = kind
    written: list[int | str] = []
    table: type[BaseModel] | None = None
    for part in location:
        members = _members(here)
        if len(members) > 1:
            here = next((member for member in members if part in _tags(member)), None)
            continue
        here = members[0] if members else None
        origin = get_origin(here)
        if _is_model(here):
            table = here
            field = here.model_fields.get(str(part))
            here = field.annotation if field else None
        elif origin is dict and part != "[key]":
            table, here = None, get_args(here)[1]
        elif origin is tuple:
            here = get_args(here)[0]
        elif part == "[key]" or (here is None and written and isinstance(part, str)):
            continue
        written.append(part)
    return tuple(written), table


def _members(annotation: Any) -> list[Any]:
    """The members of a union without ``None``; anything else is its only member."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return [inner for member in get_args(annotation) if member is not type(None) for inner in _members(member)]
    return [annotation] if annotation is not None else []


def _tags(member: Any) -> set[Any]:
    """What pydantic may call a member of a union: its name, or the ``kind`` that tells it from the others."""
    kind = member.model_fields.get("kind") if _is_model(member) else None
    return {getattr(member, "__name__", None), *(get_args(kind.annotation) if kind else ())}


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def dotted(location: Location) -> str | None:
    """``("points", 3, "isl")`` as a person writes it: ``points[3].isl``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or None


def _sentence(table: type[BaseModel] | None, details: ErrorDetails, location: Location) -> str:
    given = details.get("input")
    match details["type"]:
        case "extra_forbidden":
            known = list(table.model_fields) if table else []
            return f"unknown key; {suggest(str(location[-1]), known)}"
        case "missing":
            return "is missing; it must be given"
        case "misplaced":
            return details["msg"]
        case "string_pattern_mismatch":
            return f"{_FORMS.get(details['ctx']['pattern'], _NAME)}, got {shown(given)}"
        case "value_error":
            return str(details.get("ctx", {}).get("error", details["msg"]))
        case _:
            message = details["msg"].replace("Input should be", "must be").replace(" after validation", "")
            for python, here in _WORDS:
                message = message.replace(python, here)
            return f"{message}, got {shown(given)}"


_NAME = "must begin with a letter or digit, then letters, digits and . _ / @ : + -"
_FORMS = {JSONL: "must be the name of a file and end in .jsonl", FUNCTION: "must be module:function"}
"""By pattern what a text must be that is no name."""
_WORDS = (
    ("must be a valid tuple", "must be a list"),
    ("must be a valid dictionary", "must be a table"),
    ("Tuple should have", "must have"),
)
"""Kinds of Python, and what they are called in a file."""
