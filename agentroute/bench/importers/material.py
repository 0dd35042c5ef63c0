"""A result file as records or rows: JSON, JSON lines, CSV and the plain YAML of reports, read safely."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentroute.bench.importers import plain_yaml
from agentroute.bench.importers.lost import Lost
from agentroute.bench.importers.run import NO_WORD, date_of, engine_of, version_of
from agentroute.errors import FileError, counted
from agentroute.files import read_text
from agentroute.profile import EngineName

MAX_BYTES = 64 * 1024 * 1024
"""The largest result file that is read: one with every request of a long run is about 30 MiB."""

MAX_RECORDS = 200_000
"""The most records or rows of one file."""


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object and where it stands. Nothing in it is trusted to be of the type that it should be.

    What is there and is asked for as something else is unknown, and is told in ``lost``. A null and an empty text say
    nothing, and are not.
    """

    data: Mapping[str, Any]
    where: str = ""
    """``line 3``, ``[2]``, or an empty text for the whole file."""
    lost: Lost = field(default_factory=Lost)
    inside_of: tuple[str, ...] = ()
    """The keys of the objects that it is in."""

    def get(self, *keys: str) -> Any:
        """The value under ``keys``, one inside the other, or ``None``."""
        here: Any = self.data
        for key in keys:
            here = here.get(key) if isinstance(here, Mapping) else None
        return here

    def has(self, *keys: str) -> bool:
        """Whether every one of ``keys`` is at the top."""
        return all(key in self.data for key in keys)

    def number(self, *keys: str) -> float | None:
        """A finite number, or ``None``; bare ``Infinity`` and ``NaN``, which many tools write, are none."""
        value = self.get(*keys)
        if (found := number(value)) is None:
            self.lose(value, "a finite number", *keys)
        return found

    def lose(self, value: object, wanted: str, *keys: str) -> None:
        """Tell that ``value``, which stands under ``keys``, is not ``wanted``."""
        if value is not None and value != "":
            self.lost.add(".".join((*self.inside_of, *keys)), self.where, value, wanted)

    def count(self, *keys: str) -> int | None:
        """A whole number of at least 1, also where it is written as text, as ``--metadata`` does; or ``None``.

        0 and "none" say that there is nothing to count.
        """
        value = self.get(*keys)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
            value = int(value)
        found = number(value)
        if found is not None and found >= 1 and found == int(found) and found < 1e9:
            return int(found)
        if not (found == 0 or (isinstance(value, str) and value.strip().lower() in NO_WORD)):
            self.lose(value, "a whole number", *keys)
        return None

    def text(self, *keys: str) -> str | None:
        """A text that can be written as UTF-8 and is not empty, or ``None``."""
        value = self.get(*keys)
        if not isinstance(value, str):
            self.lose(value, "a text", *keys)
            return None
        return value.encode("utf-8", "replace").decode()[:1_000] or None

    def date(self, *keys: str) -> dt.date | None:
        """The day of a time, written as text or as seconds since 1970 (UTC); or ``None``."""
        value = self.get(*keys)
        found = date_of(value) if isinstance(value, str) or number(value) is not None else None
        if found is None:
            self.lose(value, "a date", *keys)
        return found

    def engine(self, *keys: str) -> EngineName | None:
        """The engine that a text means; or ``None``."""
        word = self.text(*keys)
        found = engine_of(word)
        if found is None and word is not None and word.strip().lower() not in NO_WORD:
            self.lose(word, "an engine that is known here", *keys)
        return found

    def version(self, *keys: str) -> str | None:
        """A version without a leading v; ``None`` where it is none, or a word for not knowing it."""
        word = self.text(*keys)
        found = version_of(word)
        if found is None and word is not None and word.strip().lower() not in NO_WORD:
            self.lose(word, "a version", *keys)
        return found

    def inside(self, *keys: str) -> Record:
        """The object under ``keys``; an empty one where there is none."""
        value = self.get(*keys)
        if not isinstance(value, Mapping):
            self.lose(value, "an object", *keys)
            value = {}
        return Record(value, self.where, self.lost, (*self.inside_of, *keys))

    def records(self, *keys: str) -> list[Record]:
        """The objects in the list under ``keys``."""
        value = self.get(*keys)
        prefix = f"{self.where} " if self.where else ""
        if not isinstance(value, list):
            self.lose(value, "a list", *keys)
            value = []
        found = []
        for i, item in enumerate(value):
            if isinstance(item, Mapping):
                found.append(Record(item, f"{prefix}{'.'.join(keys)}[{i}]", self.lost))
            else:
                self.lose(item, "an object", *keys[:-1], f"{keys[-1]}[{i}]")
        return found

    def numbers(self, *keys: str) -> list[float] | None:
        """A list of finite numbers, or ``None`` where it is none or holds anything else."""
        value = self.get(*keys)
        if not isinstance(value, list):
            self.lose(value, "a list", *keys)
            return None
        found = [number(item) for item in value]
        if None in found:
            i = found.index(None)
            self.lost.add(".".join((*self.inside_of, *keys)) + f"[{i}]", self.where, value[i], "a finite number")
            return None
        return [item for item in found if item is not None] or None


@dataclass(frozen=True, slots=True)
class Material:
    """A file as read: ``records`` of JSON or YAML, or ``rows`` of CSV, the first of which is the head."""

    path: Path
    records: Sequence[Record] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: tuple[str, ...] = ()
    lost: Lost = field(default_factory=Lost)
    """Where the records tell what they could not use; an importer that makes records of rows gives it to them."""

    @property
    def first(self) -> Record:
        """The first record; an empty one where there is none."""
        return self.records[0] if self.records else Record({}, lost=self.lost)

    @property
    def head(self) -> tuple[str, ...]:
        """The first row, without blanks around the names; empty where there is none."""
        return tuple(cell.strip() for cell in self.rows[0]) if self.rows else ()


def number(value: object) -> float | None:
    """A finite number as a float, or ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond what a float holds
        return None


def read(path: Path) -> Material:
    """The records or rows of a file of at most ``MAX_BYTES``; raises ``FileError`` for what cannot be read as such."""
    text = read_text(path, FileError, max_bytes=MAX_BYTES)
    if "\0" in text:
        raise FileError("is not a text file; give the JSON, JSON lines or CSV that a benchmark wrote", path=path)
    if not text.strip():
        raise FileError("is empty; give the file that a benchmark wrote", path=path)
    lost = Lost()
    if path.suffix.lower() in {".yaml", ".yml"}:
        return Material(path, records=[Record(plain_yaml.loads(text, path), lost=lost)], lost=lost)
    if text.lstrip()[0] in "{[" and path.suffix.lower() != ".csv":
        return _json(path, text, lost)
    return Material(path, rows=_rows(path, text), lost=lost)


def _json(path: Path, text: str, lost: Lost) -> Material:
    try:
        whole = _loads(text, path)
    except json.JSONDecodeError as problem:
        return _json_lines(path, text, lost, problem)
    if isinstance(whole, Mapping):
        return Material(path, records=[Record(whole, lost=lost)], lost=lost)
    items = whole if isinstance(whole, list) else []
    records = [Record(item, f"[{i}]", lost) for i, item in enumerate(items) if isinstance(item, Mapping)]
    bad = [i for i, item in enumerate(items) if not isinstance(item, Mapping)]
    notes = _left_out("item", [f"[{i}]" for i in bad])
    return Material(path, records=_bounded(records, path), notes=notes, lost=lost)


def _left_out(noun: str, places: Sequence[str]) -> tuple[str, ...]:
    if not places:
        return ()
    are, first = ("is", "") if len(places) == 1 else ("are", "the first of them ")
    return (f"{counted(len(places), noun)} {are} no JSON object and {are} left out: {first}{places[0]}",)


def _json_lines(path: Path, text: str, lost: Lost, problem: json.JSONDecodeError) -> Material:
    """One object a line. A line that is none is left out and counted, for a tool may die while it appends one."""
    records, bad = [], []
    for i, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = _loads(line, path)
        except json.JSONDecodeError:
            item = None
        if isinstance(item, Mapping):
            records.append(Record(item, f"line {i}", lost))
        else:
            bad.append(i)
    if not records:
        message = f"{problem.msg[:1].lower()}{problem.msg[1:]}"
        raise FileError(f"is not valid JSON: {message}", path=path, line=problem.lineno)
    notes = _left_out("line", [f"line {i}" for i in bad])
    return Material(path, records=_bounded(records, path), notes=notes, lost=lost)


def _loads(text: str, path: Path) -> Any:
    try:
        return json.loads(text, parse_int=_bounded_int)
    except RecursionError:
        raise FileError("nests too deeply for a result of a benchmark", path=path) from None


def _bounded_int(digits: str) -> int | float:
    return int(digits) if len(digits) < 40 else math.inf


def _rows(path: Path, text: str) -> Sequence[Sequence[str]]:
    try:
        return _bounded([row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if any(row)], path)
    except csv.Error as problem:
        raise FileError(f"is neither JSON nor CSV: {problem}", path=path) from None


def _bounded(items: list[Any], path: Path) -> list[Any]:
    if len(items) > MAX_RECORDS:
        raise FileError(f"holds {len(items):,} records; at most {MAX_RECORDS:,} are read, so split it", path=path)
    return items
