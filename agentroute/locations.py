"""Where each key of a TOML or JSON text stands: a map from its path to its line.

Both scanners are for texts that a real parser has accepted; they only keep count of lines.
"""

from __future__ import annotations

import itertools
import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator

Location = tuple[int | str, ...]
Lines = dict[Location, int]

_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""+|\'\'\'.*?\'\'\'+|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'',
    re.DOTALL,
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]+")
_BLANK = re.compile(r"(?:[\s,]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")


def line_of(lines: Lines, location: Location) -> int | None:
    """The line of a key; failing that, of the table that should hold it."""
    for length in range(len(location), 0, -1):
        if (line := lines.get(location[:length])) is not None:
            return line
    return None


def toml_lines(text: str) -> Lines:
    """The line of every key and array element of a TOML text."""
    return _Toml(text).scan()


def json_lines(text: str) -> Lines:
    """The line of every key and array element of a JSON text."""
    scanner = _Json(text)
    try:
        scanner.value(())
    except RecursionError:
        return {}
    return scanner.lines


class _Scanner(ABC):
    """A place in a text, and the lines of what was found in it so far."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: Lines = {}
        self._starts = [0, *(i + 1 for i, character in enumerate(text) if character == "\n")]

    def here(self, path: Location) -> None:
        """Note that ``path`` stands here; the first place counts."""
        self.lines.setdefault(path, bisect_right(self._starts, self.at))

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Pass over what matches here, and return it."""
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found[0]

    def peek(self) -> str:
        """The character here, or nothing at the end."""
        return self.text[self.at : self.at + 1]

    def value(self, path: Location) -> None:
        """Pass over a value, noting what is in it."""
        self.skip(_BLANK)
        match self.peek():
            case "[":
                for element in self._until("]"):
                    self.here((*path, element))
                    self.value((*path, element))
            case "{":
                for _ in self._until("}"):
                    self.pair(path)
            case _:
                if not self.skip(_STRING) and not self.skip(_SCALAR):
                    self.at += 1

    @abstractmethod
    def pair(self, table: Location) -> None:
        """Pass over a key and its value, noting where the key stands."""

    def _until(self, end: str) -> Iterator[int]:
        """The number of each thing up to the closing bracket, which is passed over, too."""
        self.at += 1
        for number in itertools.count():
            self.skip(_BLANK)
            if self.peek() in (end, ""):
                break
            yield number
        self.at += 1


class _Toml(_Scanner):
    def scan(self) -> Lines:
        table: Location = ()
        elements: dict[Location, int] = {}
        self.skip(_BLANK)
        while self.at < len(self.text):
            start = self.at
            if self.peek() == "[":
                double = self.text.startswith("[[", self.at)
                self.at += 2 if double else 1
                table = self._table(self._keys(), elements, double=double)
                self.here(table)
                self.at += 2 if double else 1
            else:
                self.pair(table)
            self.skip(_BLANK)
            if self.at == start:
                break
        return self.lines

    def _table(self, keys: list[str], elements: dict[Location, int], *, double: bool) -> Location:
        """The path of a header: a key that names an array of tables means its last element."""
        path: Location = ()
        for i, key in enumerate(keys):
            path = (*path, key)
            if double and i == len(keys) - 1:
                elements[path] = elements.get(path, -1) + 1
            if path in elements:
                path = (*path, elements[path])
        return path

    def _keys(self) -> list[str]:
        """A dotted key."""
        keys = []
        while True:
            self.skip(_SPACE)
            quoted = self.skip(_STRING)
            keys.append(quoted[1:-1] if quoted else self.skip(_BARE))
            self.skip(_SPACE)
            if self.peek() != ".":
                return keys
            self.at += 1

    def pair(self, table: Location) -> None:
        keys = self._keys()
        for i in range(len(keys)):
            self.here((*table, *keys[: i + 1]))
        self.at += 1
        self.value((*table, *keys))


class _Json(_Scanner):
    def pair(self, table: Location) -> None:
        key = (*table, json.loads(self.skip(_STRING)))
        self.here(key)
        self.at = self.text.index(":", self.at) + 1
        self.value(key)
