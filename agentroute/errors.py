"""Every error that agentroute raises on purpose.

::

    AgentrouteError
    ├── UsageError                 what the caller wrote is wrong
    │   ├── FileError              ... in a file: names the file, the key, the line
    │   │   ├── ProfileError       a profile, a model file or an accelerator file
    │   │   └── ConfigError        agentroute.toml
    │   ├── TaskError              ... in a task or one of its SLOs
    │   ├── UnknownNameError       a model, profile, route or adapter that does not exist
    │   └── RefusedError           a request that the gateway does not let in
    ├── NoFeasibleDeployment       a true answer: nothing in the fleet can take the task
    │   └── PoolFull               something can, but has no room at this moment
    └── BackendError               a server, or the way to it, failed; see ``FailureKind``

A user's mistake and a server's fault are different branches, so that ``except BackendError`` never hides a typo.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentroute.answers import ErrorAnswer
    from agentroute.reasons import Reason
    from agentroute.refusal import Refused
    from agentroute.whatif import Change


LONGEST_NAME = 256
"""Characters of a wrong name that are compared with the known ones: with millions of them that takes seconds."""


class AgentrouteError(Exception):
    """The root of every error that agentroute raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross process borders with all they carry, whatever their constructor asks for."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[AgentrouteError], args: tuple[Any, ...], state: dict[str, Any]) -> AgentrouteError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(AgentrouteError):
    """What the caller asked for or wrote is wrong; sending it again cannot help."""


class FileError(UsageError):
    """A file is wrong: one sentence that names the file, the line, the key, and what would be right.

    ``path`` is the file, ``key`` the dotted key (or ``None``), ``line`` the 1-based line (or ``None``).
    """

    def __init__(self, message: str, *, path: Path, key: str | None = None, line: int | None = None) -> None:
        self.path, self.key, self.line = path, key, line
        where = f"{path}:{line}" if line is not None else str(path)
        super().__init__(f"{where}: {key}: {message}" if key else f"{where}: {message}")


class ProfileError(FileError):
    """A profile, a model file or an accelerator file is wrong."""


class ConfigError(FileError):
    """An ``agentroute.toml`` is wrong."""


class TaskError(UsageError):
    """A task or one of its SLOs is wrong: a negative count, a NaN, an unknown need."""


class UnknownNameError(UsageError):
    """A name that is not there; the message suggests the closest one that is."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.what, self.name = what, name
        given = repr(name) if len(name) <= LONGEST_NAME else f"{name[:60]!r}..."
        super().__init__(f"there is no {what} {given}; {suggest(name, known)}")


class RefusedError(UsageError):
    """The gateway answers a request with an error, without asking any server; ``answer`` is what it says."""

    def __init__(self, answer: ErrorAnswer) -> None:
        self.answer = answer
        super().__init__(str(answer.error["message"]))


class NoFeasibleDeployment(AgentrouteError):  # noqa: N818 - the answer's name, kept in the public API
    """No deployment can take the task. Why not is worked out when somebody asks."""

    def __init__(self, message: str, reasons: Mapping[str, Reason] | None = None, on: Refused | None = None) -> None:
        self._reasons, self._on = reasons, on
        super().__init__(message)

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """One reason for each deployment; its ``str`` is a sentence."""
        if self._reasons is None:
            self._reasons = {} if self._on is None else self._on.reasons()
        return self._reasons

    @property
    def changes(self) -> tuple[Change, ...] | None:
        """By number of the task the smallest change that would let some deployment take it, the smallest of all first;
        ``None`` where it was no decision on one task that refused it (a plan of many, a wait that took too long)."""
        return None if self._on is None else self._on.changes()

    def record(self) -> dict[str, Any] | None:
        """What it was refused on, as ``Decision.record()``: replayed, it is refused again. ``None`` as ``changes``."""
        return None if self._on is None else self._on.record()

    def explain(self) -> str:
        """Why, as plain text: the reason of every deployment, and what would let one take it."""
        from agentroute.explain import explain_refusal

        return explain_refusal(self)

    def __str__(self) -> str:
        return self.told(self.reasons)

    def told(self, names: Container[str]) -> str:
        """What it says, with the reasons of some deployments alone: for whoever may not know of the others."""
        told = (f"\n  {name}: {reason}" for name, reason in self.reasons.items() if name in names)
        return str(self.args[0]) + "".join(told)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {**self.__dict__, "_reasons": self.reasons, "_on": self._on and self._on.told()}
        return _restored, (type(self), self.args, state)


class PoolFull(NoFeasibleDeployment):
    """At least one deployment can take the task, but none has room for it at this moment."""


class FailureKind(StrEnum):
    """What went wrong at a backend, classified once, where the answer is first seen."""

    CONTEXT_OVERFLOW = "context_overflow"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    ENGINE_DEAD = "engine_dead"
    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    BAD_REQUEST = "bad_request"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request of a call that failed: where, how, and when it began and how long it took, in seconds."""

    deployment: str | None
    url: str | None
    kind: FailureKind
    detail: str
    status: int | None
    after_s: float
    """From the moment that the caller asked."""
    took_s: float

    def __str__(self) -> str:
        http = f" (HTTP {self.status})" if self.status is not None else ""
        who = self.deployment or "backend"
        return f"{who} after {self.after_s:.1f} s: {self.kind.replace('_', ' ')}{http}: {self.detail}"


class BackendError(AgentrouteError):
    """A call to a backend failed.

    ``kind`` says how, ``status`` is the HTTP status (``None`` when there was none), ``detail`` the server's own words,
    ``retry_after_s`` what it asked for, ``text`` what had arrived of the answer before an interruption. ``attempts``
    holds every request that was sent for the call, in order, this one included; all of them failed.
    """

    def __init__(
        self,
        kind: FailureKind,
        detail: str,
        *,
        deployment: str | None = None,
        url: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
        text: str = "",
        attempts: Sequence[Attempt] = (),
    ) -> None:
        self.kind, self.detail, self.deployment, self.url = kind, detail, deployment, url
        self.status, self.retry_after_s, self.text = status, retry_after_s, text
        self.attempts = tuple(attempts)
        who = " at ".join(part for part in (deployment, url) if part) or "backend"
        http = f" (HTTP {status})" if status is not None else ""
        before = "".join(f"; before it {attempt}" for attempt in self.attempts[:-1])
        super().__init__(f"{who}: {kind.replace('_', ' ')}{http}: {detail}{before}")


def suggest(name: str, known: Iterable[str]) -> str:
    """Half a sentence that helps after a wrong name: the closest known one, or a short list."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name[: LONGEST_NAME + 1], names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return "there are none to choose from"
    shown = ", ".join(names[:12])
    return f"known: {shown}{', ...' if len(names) > 12 else ''}"


def counted(count: int, noun: str) -> str:
    """So many of something: ``1 point``, ``2,601 points``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shown(value: object) -> str:
    """What a person gave, for the end of a sentence: its repr, cut to 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a number of absurd length"
    except RecursionError:
        return "something that is nested too deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."
