"""Server-sent events, decoded as the bytes arrive. No I/O."""

from __future__ import annotations

import json
import re

from agentroute.errors import BackendError, FailureKind

MAX_EVENT_BYTES = 1 << 20
"""No event may be larger: a server that never ends one must not fill the memory."""

MAX_NAME_BYTES = 100
"""As much of an event's name is kept."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Named(str):
    """The data of an event that has a name (``event: error``)."""

    __slots__ = ("event",)

    event: str

    @classmethod
    def of(cls, data: str, event: str) -> Named:
        """``data`` with the event's name."""
        named = cls(data)
        named.event = event
        return named


class EventDecoder:
    """Turns the bytes of a ``text/event-stream`` into the ``data`` of its events.

    The bytes may be cut anywhere, also inside a character or between ``\\r`` and ``\\n``; each is looked at once.
    Data of an event with a name is ``Named``. Comments and every other field are passed over. ``[DONE]`` is data like
    any other.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the pieces of the line that has not ended yet
        self._data: list[bytes] = []  # the data lines of the event that has not ended yet
        self._name = b""  # the event's
        self._bytes = 0  # of both
        self._after_cr = False  # the last byte was \r, so a \n that follows belongs to it
        self._first = True

    def feed(self, chunk: bytes) -> list[str]:
        """The data of every event that ``chunk`` completes.

        Raises ``BackendError`` (interrupted) for an event above ``MAX_EVENT_BYTES``.
        """
        if self._after_cr and chunk:
            chunk = chunk[1:] if chunk.startswith(b"\n") else chunk
            self._after_cr = False
        if not chunk:
            return []
        done: list[str] = []
        if chunk.startswith(b"data: ") and not self._line and not self._data and b"\r" not in chunk:
            chunk = self._quick(chunk, done)
            if not chunk:
                return done
        self._after_cr = chunk.endswith(b"\r")
        *ended, rest = _LINE_END.split(chunk)
        for piece in ended:
            self._grow(piece)
            line, self._line = b"".join([*self._line, piece]), []
            self._take(line, done)
        if rest:
            self._grow(rest)
            self._line.append(rest)
        return done

    def _quick(self, chunk: bytes, done: list[str]) -> bytes:
        """Take the events that ``chunk`` begins with, where each has one line, of data; what is left of it."""
        head, end, rest = chunk.rpartition(b"\n\n")
        if not end or self._name or len(head) > MAX_EVENT_BYTES:
            return chunk
        events = head.decode("utf-8", errors="replace").split("\n\n")
        for event in events:
            if not event.startswith("data: ") or "\n" in event:
                return chunk
        done += [event[6:] for event in events]
        self._first = False
        return rest

    def may_be_one(self, chunk: bytes) -> bool:
        """Whether an event may begin with ``chunk``, and be no longer."""
        held = self._line or self._data or self._name or self._after_cr
        return not held and len(chunk) <= MAX_EVENT_BYTES

    def flush(self) -> list[str]:
        """The data of an event that the end of the stream completes; the decoder is then as new."""
        done: list[str] = []
        if self._line:
            line, self._line = b"".join(self._line), []
            self._take(line, done)
        self._take(b"", done)
        self._after_cr, self._first = False, True
        return done

    def _grow(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._bytes > MAX_EVENT_BYTES:
            raise BackendError(
                FailureKind.INTERRUPTED, f"the server sent an event of more than {MAX_EVENT_BYTES >> 20} MiB"
            )

    def _take(self, line: bytes, done: list[str]) -> None:
        if self._first:
            self._first, line = False, line.removeprefix(_BOM)
        if not line:
            if self._data:
                data = b"\n".join(self._data).decode("utf-8", errors="replace")
                done.append(Named.of(data, self._name.decode("utf-8", errors="replace")) if self._name else data)
            self._data, self._name, self._bytes = [], b"", 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            return
        if name == b"event":
            self._name = value.removeprefix(b" ")[:MAX_NAME_BYTES]
        self._bytes -= len(line)


class Untold:
    """Takes out of the bytes of a stream the event that holds token counts and no choices.

    It comes only where ``stream_options`` asks for it, and who did not, may well read the first choice of every event.
    An event is handed on once it is whole.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """The whole events up to here, but for that one."""
        if not self._rest and chunk.endswith(b"\n\n") and b'"usage"' not in chunk:
            return chunk  # as nearly all are
        data, begin, out = self._rest + chunk, 0, []
        for found in _BETWEEN.finditer(data):
            event = data[begin : found.end()]
            begin = found.end()
            if not _is_usage(event):
                out.append(event)
        self._rest = data[begin:]
        return b"".join(out)

    def flush(self) -> bytes:
        """What is left at the end of the stream."""
        rest, self._rest = self._rest, b""
        return b"" if _is_usage(rest) else rest


_BETWEEN = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event or not _NO_CHOICES.search(event):
        return False
    try:
        value = json.loads(b"".join(line[5:] for line in event.splitlines() if line.startswith(b"data:")))
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("choices") == [] and isinstance(value.get("usage"), dict)
