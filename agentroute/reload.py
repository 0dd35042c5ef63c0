"""Keeping a running router at what its configuration file says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from agentroute.config import Config
from agentroute.errors import UsageError
from agentroute.router import Router

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""The files are looked at so often. Assumed: nobody who saves one minds a second."""

_State = tuple[tuple[int, int, int] | None, ...]


class Reloading:
    """A router over a configuration file, and the file read again when it changes: ``with Reloading(path) as live:``.

    All of a new file applies at once, or, where it has a mistake, nothing of it: the router goes on as before,
    ``refused`` says why, and so does a warning of the logger ``agentroute.reload``. Calls that are under way end where
    they are; what they hold counts on at servers that are still there (the same deployment and URL), as does what was
    learnt of them. A deployment that is gone gets nothing new. Who waits is placed by the new file.

    Inside the block a thread looks at the file, and at the profiles that it names by their file, every ``every_s``
    seconds, and reads them once they have been the same at two looks, for then they are whole; without one, call
    ``look`` or ``reload``. ``on_change`` is called after each change, with the new configuration, by whoever found it;
    no other file is read before it returns. ``before_change`` is called before anything of it applies, and where that
    raises a ``UsageError`` nothing does. Raises ``ConfigError`` where the first file is wrong.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        every_s: float = LOOK_S,
        before_change: Callable[[Config], None] | None = None,
        on_change: Callable[[Config], None] | None = None,
    ) -> None:
        if not isinstance(every_s, int | float) or not 0.0 < every_s < threading.TIMEOUT_MAX:
            raise UsageError(f"every_s must be a number of seconds above 0, got {every_s!r}")
        self.path = Path(path)
        self.config, self._seen = _loaded(self.path, (self.path,))
        """What the router goes by, and the files as they were before it was read."""
        self.router = self.config.router(Router)
        """Always the same one: clients, watchers and queues keep it."""
        self.refused: UsageError | None = None
        """Why the file, as it is now, is not gone by; ``None``: it is."""
        self.reloads = 0
        """How often another file has applied."""
        self._every_s, self._before_change, self._on_change = every_s, before_change, on_change
        self._lock = threading.RLock()  # ``on_change`` may call ``look``
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def reload(self) -> None:
        """Read the file now, whether it has changed or not; raises what it is refused for."""
        with self._lock:
            self._seen = _state(self.config.files)
            try:
                config, seen = _loaded(self.path, self.config.files)
                rules = config.rules(self.router.rules)
                if self._before_change is not None:
                    self._before_change(config)
                self.router.go_by(rules)
            except Exception as problem:
                said = f"{self.path}: {type(problem).__name__}: {problem}"
                self.refused = problem if isinstance(problem, UsageError) else UsageError(said)
                raise
            self.config, self.refused, self._seen = config, None, seen
            self.reloads += 1
            if self._on_change is not None:
                self._on_change(config)

    def look(self) -> bool:
        """Read the file if it, or a profile file, has changed since; whether another one applies now.

        A mistake is told by ``refused`` and in the log, once for each change.
        """
        if _state(self.config.files) == self._seen:
            return False
        try:
            self.reload()
        except UsageError as problem:
            log.warning("the configuration is refused, the one before still applies: %s", problem)
            return False
        log.info("%s applies", self.path)
        return True

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise UsageError("the file is looked at already; leave the block first")
        self._stop.clear()
        self._thread = threading.Thread(target=self._keep_looking, name="agentroute-reload", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _keep_looking(self) -> None:
        before = self._seen
        while not self._stop.wait(self._every_s):
            now = _state(self.config.files)
            if now != before:  # somebody may be writing yet, and half of a file may be one without its keys
                before = now
                continue
            try:
                self.look()
            except Exception:  # of on_change, or of a module that the file names: the next file may be better
                log.exception("the configuration cannot be read again")


def _loaded(path: Path, files: tuple[Path, ...]) -> tuple[Config, _State]:
    """A configuration, and its files as they were before they were read: what changes meanwhile is seen by that.

    ``files`` are those that it had before; where it names others it is read once more.
    """
    while True:
        seen = _state(files)
        config = Config.load(path)
        if config.files == files:
            return config, seen
        files = config.files


def _state(files: tuple[Path, ...]) -> _State:
    """What tells that a file has changed; ``None`` for one that is not there."""
    return tuple(map(_mark, files))


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
