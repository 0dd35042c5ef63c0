"""A log as lines: without colours and what a container puts around them, with the rank that each names.

A log may go on for days, and nearly all of it says nothing of the start. Only lines that hold one of an engine's words
are cut out of the text; the rest is passed over by searching for these words alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LONGEST = 50_000
"""Characters of a line that are looked at; the longest dump of arguments seen has about 10,000."""

MOST_LINES, MOST_CHARACTERS = 20_000, 4_000_000
"""Lines and characters that are cut out of one log. A start on 64 accelerators takes about 2,000 lines."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CRI = re.compile(r"^\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) (?P<end>[FP]) (?P<text>.*)$")
"""Kubernetes: a timestamp, a stream, and whether the line ends here (F) or goes on in the next one (P)."""

_PROCESS = re.compile(r"\((?:EngineCore|Worker|VllmWorker|VllmWorkerProcess|RayWorkerWrapper)(?P<name>[^()]{0,60})\)")
_BRACKET = re.compile(r"^\[[^\[\]]{0,40}?(?P<name>(?: (?:DP|TP|PP|EP|ATTN_CP|MOE_DP)\d+)+)\]")
_MPI = re.compile(r"\[RANK (?P<name>\d+)\]")
_DEGREE = re.compile(r"(DP|TP|PP)[ _]?(?:rank=)?(\d+)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its 1-based number in the file, its text, and the rank that it names (``DP3 TP0``), if any."""

    number: int
    text: str
    rank: str | None = None
    at: int = field(default=0, compare=False)
    """Where it begins in the text that was read, in characters."""


class Place(NamedTuple):
    """A place in a text: characters before it, and the 1-based number of the line that begins there."""

    at: int = 0
    number: int = 1


def plain(text: str) -> str:
    """The text without a terminal's colours; its lines keep their numbers."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def split(text: str, words: Sequence[str] = ("",), since: Place = Place()) -> list[Line]:  # noqa: B008 - it is frozen
    """The lines from ``since`` on that hold one of ``words``, at most ``MOST_LINES`` and ``MOST_CHARACTERS`` of them.

    A line that ends in a backslash goes on in the next, as in a shell script.
    """
    at, number = since
    lines: list[Line] = []
    spent = 0
    ahead = {word: text.find(word, at) for word in words}
    while (places := [place for place in ahead.values() if place >= 0]) and len(lines) < MOST_LINES:
        first = _beginning(text, at, min(places))
        number += text.count("\n", at, first)
        whole, at, taken = _joined(text, first)
        if whole.strip():
            lines.append(Line(number, whole, _rank(whole), first))
        number += text.count("\n", first, at)
        spent += taken
        if spent >= MOST_CHARACTERS:
            break
        for word, place in ahead.items():
            if 0 <= place < at:
                ahead[word] = text.find(word, at)
    return lines


def full(lines: Sequence[Line]) -> bool:
    """Whether ``split`` may have stopped at these lines before the end of the text."""
    return len(lines) >= MOST_LINES or sum(len(line.text) for line in lines) >= MOST_CHARACTERS


def near_the_end(text: str, words: Sequence[str], most: int) -> Place:
    """The first place in ``text`` from which on it holds each of ``words`` at most ``most`` times."""
    begin = 0
    for word in words:
        at = len(text)
        for _ in range(most + 1):
            at = text.rfind(word, 0, at)
            if at < 0:
                break
        else:
            begin = max(begin, text.find("\n", at) + 1 or len(text))
    return Place(begin, 1 + text.count("\n", 0, begin))


def _beginning(text: str, since: int, place: int) -> int:
    """Where the line around ``place`` begins, with those that go on in it, but not before ``since``."""
    first = max(text.rfind("\n", since, place) + 1, since)
    while first > since and place - first < LONGEST:
        before = max(text.rfind("\n", since, first - 1) + 1, since)
        if not _piece(text[before : min(first - 1, before + LONGEST)])[1]:
            break
        first = before
    return first


def _joined(text: str, first: int) -> tuple[str, int, int]:
    """The line that begins at ``first`` with those in which it goes on, the place after them, and their characters."""
    pieces: list[str] = []
    at, taken, more = first, 0, True
    while more and at <= len(text) and taken < LONGEST:
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        piece, more = _piece(text[at : min(end, at + LONGEST)])
        pieces.append(piece)
        taken += len(piece) + 1
        at = end + 1
    return "".join(pieces)[:LONGEST], at, taken


def _piece(raw: str) -> tuple[str, bool]:
    """One line of the file without what stands around it, and whether it goes on in the next."""
    piece, more = _unwrapped(raw.rstrip("\r"))
    piece = plain(piece).rstrip()
    return (piece[:-1], True) if not more and piece.endswith("\\") else (piece, more)


def _unwrapped(raw: str) -> tuple[str, bool]:
    """A line without what Docker or Kubernetes wrote around it, and whether it goes on in the next."""
    if raw.startswith('{"log":'):
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            return raw, False
        text = value.get("log") if isinstance(value, dict) else None
        if isinstance(text, str):
            return text.rstrip("\n").replace("\n", " "), not text.endswith("\n")
    if found := _CRI.match(raw):
        return found["text"], found["end"] == "P"
    return raw, False


def _rank(text: str) -> str | None:
    """The rank that a line names: ``(Worker_DP1_TP0 pid=7)``, ``[2026-01-31 12:00:00 DP3 TP0]``, ``[RANK 2]``."""
    head = text[:300]
    if found := _BRACKET.search(head) or _PROCESS.search(head):
        parts = [f"{kind}{number}" for kind, number in _DEGREE.findall(found["name"])]
        if not parts and (core := re.match(r"_(\d+)\b", found["name"])):  # EngineCore_0, up to vLLM 0.10
            parts = [f"DP{core[1]}"]
        return " ".join(parts) or None
    found = _MPI.search(head)
    return f"rank {int(found['name'][:9])}" if found else None
