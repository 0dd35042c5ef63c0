"""Where the last start in a log begins: a log often holds several, and only the last says what runs now."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentroute.startup.lines import Line, Place, near_the_end, split

MOST_SIGNS = 2_000
"""Lines of one sign that are looked at, from the end of the log on: a server that fails and is started again for days
writes more."""

_BANNER_LINES = 20
"""How far before a start's first sign its banner, which may be printed several times, is looked for, in lines."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A line that an engine writes when it starts."""

    word: str
    """What it always holds."""
    pattern: re.Pattern[str]
    """How it reads, with groups named ``version`` and ``model`` where it says them."""
    once: Literal["start", "rank"] | None = None
    """Whether a start writes it only once, or each of its ranks does; ``None`` for a banner."""
    engines: re.Pattern[str] | None = None
    """How it tells the number of data-parallel engines, which, where they name no rank, each write it."""


@dataclass(frozen=True, slots=True)
class Start:
    """The last start of a log."""

    place: Place
    """Where it begins."""
    starts: int
    """How many starts were seen; with 0 or 1, the place is the beginning."""


def last_start(text: str, signs: Sequence[Sign]) -> Start:
    """Where the last start in a log begins.

    A new one begins with a sign that the engine, or the same rank, writes only once in a start, or with another version
    or model than before.
    """
    words = [sign.word for sign in signs]
    lines = split(text, words, near_the_end(text, words, MOST_SIGNS))
    begun, count = Place(), 0
    seen = _Seen()
    banner: Line | None = None
    for line in lines:
        for sign in signs:
            found = sign.pattern.search(line.text) if sign.word in line.text else None
            if found is None:
                continue
            said = found.groupdict()
            version, model = (said.get("version") or "").rstrip(".-+") or None, said.get("model")
            changed = seen.differs(sign, version, model)
            if count == 0:
                count = 1
            elif changed or seen.again(sign, line):
                count += 1
                first = banner if banner and not changed and line.number - banner.number <= _BANNER_LINES else line
                begun, seen = Place(first.at, first.number), _Seen()
            seen.note(sign, line, version, model)
            banner = None if sign.once else line
    return Start(begun, count)


class _Seen:
    """What the signs of one start have said so far."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.models: dict[str, str] = {}
        self.times: Counter[tuple[str, str | None]] = Counter()
        self.engines = 1

    def differs(self, sign: Sign, version: str | None, model: str | None) -> bool:
        """Whether this is another version than any sign's before, or another model than the same sign's."""
        return (version or self.version) != (self.version or version) or (
            bool(model) and self.models.get(sign.word, model) != model
        )

    def again(self, sign: Sign, line: Line) -> bool:
        """Whether this sign has been there as often as one start writes it."""
        most = self.engines if sign.once == "rank" and line.rank is None else 1
        return sign.once is not None and self.times[sign.word, line.rank] >= most

    def note(self, sign: Sign, line: Line, version: str | None, model: str | None) -> None:
        self.version = version or self.version
        if model:
            self.models[sign.word] = model
        self.times[sign.word, line.rank] += 1
        if sign.engines and (found := sign.engines.search(line.text)):
            self.engines = max(self.engines, int(found[1]))
