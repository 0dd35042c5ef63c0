"""What an importer found in a file and could not use, so that it is told: values that are not what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentroute.errors import counted, shown


@dataclass(frozen=True, slots=True)
class Lost:
    """Values of one file that are taken as unknown, each once, in the order in which they were met."""

    _found: dict[tuple[str, str], str] = field(default_factory=dict)
    """What is wrong with a value, by its key and its place."""

    def add(self, key: str, where: str, value: object, wanted: str) -> None:
        """``value`` is under ``key`` (dotted) at ``where`` (``line 3``, or an empty text), and is not ``wanted``."""
        self._found.setdefault((key, where), f"is {said(value)}, not {wanted}")

    def notes(self) -> tuple[str, ...]:
        """One sentence for each key and kind of value, with the first place and how many there are."""
        places: dict[tuple[str, str], list[str]] = {}
        for (key, where), wrong in self._found.items():
            places.setdefault((key, wrong), []).append(where)
        return tuple(_note(key, wrong, wheres) for (key, wrong), wheres in places.items())


def said(value: object) -> str:
    """A value as its file writes it: ``Infinity``, ``NaN``, ``true``, a text in quotes."""
    match value:
        case bool():
            return str(value).lower()
        case float() if value != value:
            return "NaN"
        case float() if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        case list():
            return "a list"
        case dict():
            return "an object"
        case str():
            return shown(value.encode("utf-8", "replace").decode())
        case _:
            return shown(value)


def _note(key: str, wrong: str, wheres: Sequence[str]) -> str:
    more = f" and {counted(len(wheres) - 1, 'other place')}" if len(wheres) > 1 else ""
    place = f"{wheres[0]}{more}: " if wheres[0] else ""
    return f"{place}{key} {wrong}; it is taken as unknown"
