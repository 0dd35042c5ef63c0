"""Reading what a server says without believing it: the right shape, or a known absence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,60}")


def within(value: Any, *keys: str) -> Mapping[str, Any]:
    """The JSON object that stands under these keys, one in the other; an empty one in place of anything else."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def text_of(content: Any) -> str:
    """The text of a message's content: a string, ``null``, or a list of parts."""
    if isinstance(content, str):
        return content
    if content is None:  # as it is where a piece holds something else
        return ""
    return "".join(part["text"] for part in mappings(content) if isinstance(part.get("text"), str))


def count(value: Any) -> int | None:
    """A whole number from 0 on, else ``None``."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def positive(value: Any, most: int = 1_000_000_000) -> int | None:
    """A whole number from 1 to ``most``, else ``None``: a server's nonsense is unknown, not believed."""
    number = count(value)
    return number if number and number <= most else None


def tokens(value: Any) -> int | None:
    """How many tokens a server counted in one request, else ``None``: more than a hundred million is nonsense."""
    number = count(value)
    return number if number is None or number <= 100_000_000 else None


def term(value: Any) -> str | None:
    """A version or a data type: one short word of letters, digits and ``. _ + -``, else ``None``."""
    return value if isinstance(value, str) and _TERM.fullmatch(value) else None


def mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    """The mappings in a list; nothing when it is not a list."""
    # Nearly all are dicts, and dict comes first: to ask the abstract class takes ten times as long.
    return [item for item in value if isinstance(item, (dict, Mapping))] if isinstance(value, list) else []


def first(value: Any) -> Mapping[str, Any]:
    """The first mapping of a list, or an empty one."""
    for item in value if isinstance(value, list) else ():
        if isinstance(item, (dict, Mapping)):
            return item
    return {}


def choice_in(choices: Any) -> Mapping[str, Any]:
    """Of the choices of an answer, or of a piece of one, that of index 0, or an empty one. No index means 0."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, (dict, Mapping)) and not count(choice.get("index")):
            return choice
    return {}


def word(value: Any) -> str | None:
    """A string that is not empty, else ``None``."""
    return value if isinstance(value, str) and value else None
