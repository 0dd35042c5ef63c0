"""A log as lines: without colours and what a container puts around them, with the rank that each names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

LONGEST = 50_000
"""Characters of a line that are looked at; the longest dump of arguments seen has about 10,000."""

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


def split(text: str) -> list[Line]:
    """The lines of a log; one that ends in a backslash goes on in the next, as in a shell script."""
    lines: list[Line] = []
    begun: tuple[int, str] | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        piece, more = _unwrapped(raw[:LONGEST].rstrip("\r"))
        piece = (_COLOUR.sub("", piece) if "\x1b" in piece else piece).rstrip()
        if not more and piece.endswith("\\"):
            piece, more = piece[:-1], True
        first, before = begun or (number, "")
        whole = (before + piece)[:LONGEST]
        if more:
            begun = (first, whole)
            continue
        begun = None
        if whole.strip():
            lines.append(Line(first, whole, _rank(whole)))
    if begun is not None and begun[1].strip():
        lines.append(Line(*begun, _rank(begun[1])))
    return lines


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
