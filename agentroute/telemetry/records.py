"""One line of JSON for every call: what was decided on what, and what became of it."""

from __future__ import annotations

import json
import logging
import queue
import threading
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentroute.ended import Ended
from agentroute.errors import FileError, UsageError, shown
from agentroute.replay import record_of

SCHEMA_VERSION = 1
WAITING = 1_000
"""Calls that may wait to be written; a decision keeps what it read, some 10 KiB. Assumed."""


class Records:
    """Writes a record of every call to a ``.jsonl`` file, and begins a new file when it is full.

    ``agentroute explain --replay FILE --line N`` decides again on any of them. A thread of its own makes and writes the
    records; where it cannot keep up they are dropped, and counted in ``dropped``. ``keep`` files are kept beside the
    one that is written (``calls.jsonl.1`` is the newest). Close it, or use it as a context manager.

    No word of a prompt or of an answer is written, nor what servers said of a failure, which may quote them; the names
    of sessions are.
    """

    def __init__(self, path: str | Path, *, max_mib: float = 64.0, keep: int = 5) -> None:
        path = Path(path)
        if path.suffix.lower() != ".jsonl":
            raise UsageError(f"records go to a .jsonl file, got {str(path)!r}")
        if not isinstance(max_mib, int | float) or isinstance(max_mib, bool) or not 0 < max_mib < 1e6:
            raise UsageError(f"max_mib must be a number above 0, got {shown(max_mib)}")
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            raise UsageError(f"keep must be a whole number, at least 1, got {shown(keep)}")
        try:
            self._file = _File(path, maxBytes=max(1, int(max_mib * 2**20)), backupCount=keep, encoding="utf-8")
        except OSError as problem:
            raise FileError(f"cannot be written: {(problem.strerror or 'unwritable').lower()}", path=path) from None
        self.dropped = 0
        """Calls that were not written: the disk was too slow, or full."""
        self._calls: queue.Queue[Ended | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._write, name="agentroute-records", daemon=True)
        self._thread.start()

    def __call__(self, ended: Ended) -> None:
        """Have a call recorded."""
        try:
            self._calls.put_nowait(ended)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what waits, and close the file."""
        if self._thread.is_alive():
            self._calls.put(None)
            self._thread.join()
        with suppress(OSError):  # it was counted when the line was written
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self) -> None:
        while (ended := self._calls.get()) is not None:
            try:
                self._file.line(json.dumps(record(ended), allow_nan=False))
            except Exception:
                self.dropped += 1
                logging.getLogger("agentroute").exception("a call could not be recorded")


def record(ended: Ended) -> dict[str, Any]:
    """A call for ``json.dumps``; ``decision`` is a record of ``agentroute.replay``, or of its refusal, or ``None``."""
    task, seen = ended.task, ended.outcome
    made = None if ended.refused is None else ended.refused.record()
    if ended.decision is not None:
        made = record_of(ended.decision)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "call",
        "ended_at": ended.ended_at,
        "endpoint": ended.endpoint,
        "streaming": ended.streaming,
        "route": task.route,
        "session_id": task.session_id,
        "parent_session_id": task.parent_session_id,
        "step": task.step,
        "deployment": None if ended.decision is None else ended.decision.deployment,
        "model": None if ended.decision is None else ended.decision.model,
        "result": ended.result,
        "waited_s": ended.waited_s,
        "took_s": ended.took_s,
        "ttft_ms": seen.ttft_ms,
        "tpot_ms": seen.tpot_ms,
        "e2e_ms": seen.e2e_ms,
        "prompt_tokens": seen.prompt_tokens,
        "cached_tokens": seen.cached_tokens,
        "output_tokens": seen.output_tokens,
        "usd": ended.usd,
        "attempts": [
            {
                "deployment": attempt.deployment,
                "kind": attempt.kind.value,
                "status": attempt.status,
                "after_s": attempt.after_s,
                "took_s": attempt.took_s,
            }
            for attempt in ended.attempts
        ],
        "decision": made,
    }


class _File(RotatingFileHandler):
    """The standard library's rotation, for lines that are no log records."""

    def line(self, text: str) -> None:
        made = logging.LogRecord("agentroute", logging.INFO, "", 0, text, None, None)
        if self.shouldRollover(made):
            self.doRollover()
        if self.stream is None:
            self.stream = self._open()
        self.stream.write(text + "\n")
        self.stream.flush()
