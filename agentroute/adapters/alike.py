"""The pieces of one stream of a chat: nearly all are alike, to the byte, but for their text."""

from __future__ import annotations

import re

_TEXT = re.compile(r'"delta"\s*:\s*\{\s*"content"\s*:\s*"')


class Alike:
    """Reads the text out of a piece that differs from one before it by its text alone.

    Reading the JSON of every piece takes ten times as long. What stands before and after the text is compared, and a
    text in which a quote or a backslash stands, or what is not printable, is left to the JSON's reader.
    """

    __slots__ = ("_after", "_before", "_head", "_tail")

    def __init__(self) -> None:
        self._before, self._after = "", ""
        self._head, self._tail = b"", b""
        """The same as bytes, with what makes an event of them."""

    def text_in(self, chunk: bytes) -> str | None:
        """The text of a piece that came as one event, alone and whole, as most do; ``None``: it has to be decoded."""
        head, tail = self._head, self._tail
        if not head or not chunk.startswith(head) or not chunk.endswith(tail) or len(chunk) < len(head) + len(tail):
            return None
        try:
            return _as_it_stands(chunk[len(head) : -len(tail)].decode())
        except UnicodeDecodeError:
            return None

    def text(self, data: str) -> str | None:
        """Its text; ``None``: it has to be read."""
        before, after = self._before, self._after
        if (
            not before
            or not data.startswith(before)
            or not data.endswith(after)
            or len(data) < len(before) + len(after)
        ):
            return None
        return _as_it_stands(data[len(before) : -len(after)])

    def learn(self, data: str, text: str) -> None:
        """``text`` was read out of ``data``, and nothing else was in it.

        The frame is learnt only where there is no doubt where the text stands: the one ``delta`` holds it alone, and
        no key is written with a backslash.
        """
        found = _TEXT.search(data)
        if found is None or "\\" in data or data.count('"delta"') != 1:
            return
        before, rest = data[: found.end()], data[found.end() :]
        if rest.startswith(text) and re.match(r'"\s*\}', rest[len(text) :]):
            self._before, self._after = before, rest[len(text) :]
            self._head, self._tail = f"data: {before}".encode(), f"{self._after}\n\n".encode()


def _as_it_stands(text: str) -> str | None:
    """A text in JSON that means itself, to its next quote; ``None``: it may not."""
    return text if '"' not in text and "\\" not in text and text.isprintable() else None
