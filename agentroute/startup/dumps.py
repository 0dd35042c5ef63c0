"""The three ways in which engines write down their arguments: ``a=1, b='x'``, ``{'a': 1}`` and ``--a 1``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

_OPEN, _CLOSE, _QUOTES = set("([{"), set(")]}"), {"'", '"'}
LONGEST_COMMAND = 20_000
"""Characters of a command line that are looked at."""

_OPTION = re.compile(r"--?[A-Za-z]")
_SECRET = re.compile(
    r"(?:^|_)(?:api_?keys?|keys?|token|secret|password|passwd|credentials?|auth)(?:_|$)", re.IGNORECASE
)
"""Options whose value must never be taken for anything else."""

_WORD = re.compile(r"""(?:[^\s'"\\]++|\\.|'[^']*+'|"(?:[^"\\]++|\\.)*+")++""", re.DOTALL)
_PART = re.compile(r"""\\(.)|'([^']*+)'|"((?:[^"\\]++|\\.)*+)\"""", re.DOTALL)
_LEVEL = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\[[DIWE]\] ")
_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_HEAD = re.compile(r"\s*(?:[A-Za-z_][\w.]*\(|\{)?")
_KEY = re.compile(r"(?P<quote>['\"]?)(?P<key>[A-Za-z_]\w*)(?P=quote)\s*[=:](?!=)\s*")
_BARE = re.compile(r"[^\s,()\[\]{}'\"<>]+")
_BRACKETS = re.compile(r"[()\[\]{}'\"]")
_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?)([kKmMgG]?)")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def fields(text: str) -> dict[str, str]:
    """The keys of ``Args(a=1, b='x', c=C(d=2))`` or ``{'a': 1}`` and their values' text: ``{"a": "1", "b": "x"}``.

    Only the outermost level counts, values in brackets are left out, and what comes first stays. It ends where the
    outermost bracket closes.
    """
    out: dict[str, str] = {}
    at = _match_end(_HEAD, text, 0)
    while at < len(text):
        if text[at] in _CLOSE or _unclosed(text, at):
            break
        found = _KEY.match(text, at)
        if found is None:
            at = _skip(text, at)
            continue
        at = found.end()
        if _unclosed(text, at):
            break
        if string := _STRING.match(text, at):
            out.setdefault(found["key"], string[0][1:-1])
            at = string.end()
        elif bare := _BARE.match(text, at):
            at = bare.end()
            if at < len(text) and text[at] in _OPEN:
                at = _closed(text, at)
            else:
                out.setdefault(found["key"], bare[0])
    return out


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _unclosed(text: str, at: int) -> bool:
    """Whether a quote here is never closed: the text was cut, and nothing after it can be told apart."""
    return text[at : at + 1] in _QUOTES and _STRING.match(text, at) is None


def _skip(text: str, at: int) -> int:
    """Past whatever stands here: a string, something in brackets, or one word or character."""
    if string := _STRING.match(text, at):
        return string.end()
    if text[at] in _OPEN:
        return _closed(text, at)
    return max(_match_end(_BARE, text, at), at + 1)


def _closed(text: str, at: int) -> int:
    """Past the bracket that closes the one here; the end of the text when none does."""
    depth = 0
    while found := _BRACKETS.search(text, at):
        at = found.end()
        if found[0] in _OPEN:
            depth += 1
        elif found[0] in _CLOSE:
            depth -= 1
            if depth <= 0:
                return at
        elif _unclosed(text, found.start()):
            break
        else:
            at = _match_end(_STRING, text, found.start())
    return len(text)


def called(text: str, name: re.Pattern[str]) -> tuple[str | None, dict[str, str]] | None:
    """The model and the options of the command ``name`` in a line; ``None`` where it is only spoken of.

    The model is the word right after the command, or ``None``. A later word without dashes may as well be the value of
    an option, such as a key, and is never taken for it.
    """
    found = name.search(text)
    if found is None or _LEVEL.search(text, 0, found.start()):
        return None
    words = _words(text[found.end() :])
    if not words or _OPTION.match(words[0]):
        return None, options(words)
    return (words[0], options(words)) if len(words) == 1 or _OPTION.match(words[1]) else None


def _words(text: str) -> list[str]:
    """The words of a command line, as a shell reads them; with quotes that are never closed, as they stand."""
    text = text[:LONGEST_COMMAND]
    if _WORD.sub("", text).strip():
        return text.split()
    return [_PART.sub(_unquoted, word) for word in _WORD.findall(text)]


def _unquoted(part: re.Match[str]) -> str:
    escaped, single, double = part.groups()
    return re.sub(r'\\(["\\])', r"\1", double) if double is not None else single if escaped is None else escaped


def options(words: Sequence[str]) -> dict[str, str]:
    """The options of a command line by name, without dashes and with ``_``: ``{"tp_size": "8", "kv_unified": ""}``.

    An option's value is the rest after ``=``, or the next word unless that is an option, too. The last one counts.
    Where a key's option has no value, that of the next option may be the key: only a number is taken for what it says.
    """
    out: dict[str, str] = {}
    keyless = False
    for word, following in pairwise([*words, ""]):
        if not _OPTION.match(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and not _OPTION.match(following):
            value = following
        out[name] = "" if keyless and whole(value) is None else value
        keyless = not value and _SECRET.search(name) is not None
    return out


def first(values: Mapping[str, str], *keys: str) -> str | None:
    """The value of the first of ``keys`` that is there and says something; ``None`` is no value."""
    said = (values.get(key) for key in keys)
    return next((value for value in said if value and value != "None"), None)


def whole(text: str | None, most: int = 1_000_000_000) -> int | None:
    """A whole number from 1 to ``most``: ``8``, ``131,072``, ``128k`` (128,000), ``128K`` (131,072); else ``None``."""
    found = _NUMBER.fullmatch(text.strip()[:40]) if text else None
    if found is None:
        return None
    value = float(found[1].replace(",", "")) * _SCALE[found[2]]
    return int(value) if value == int(value) and 1 <= value <= most else None


def amount(text: str | None) -> float | None:
    """A number above 0 with decimals, such as the GiB of a pool; else ``None``."""
    found = re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text) if text else None
    return float(found[0]) or None if found else None
