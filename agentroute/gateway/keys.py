"""Who calls, and what they may do."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from agentroute.answers import ErrorAnswer, refusal
from agentroute.errors import RefusedError, UsageError
from agentroute.tables import KeyConfig


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is."""

    name: str | None = None
    """The name of the key; ``None`` where no keys are set."""
    routes: frozenset[str] | None = None
    """The routes that it may use; ``None``: all."""
    max_concurrency: int | None = None
    """Requests in flight at most; ``None``: any number."""
    max_context_tokens: int | None = None
    """Prompt tokens of one request at most; ``None``: any number."""
    admin: bool = True
    """Whether it may see what other keys do, and every deployment."""

    def may(self, route: str) -> bool:
        """Whether it may use a route."""
        return self.routes is None or route in self.routes


ANYBODY = Caller()


class Keys:
    """The keys that let callers in, kept as digests. Raises ``UsageError`` for one that is not in the environment."""

    def __init__(self, declared: Iterable[KeyConfig], environment: Mapping[str, str] = os.environ) -> None:
        self._in_flight: dict[str, int] = {}
        self._callers = _callers(declared, environment)

    def replace(self, declared: Iterable[KeyConfig], environment: Mapping[str, str] = os.environ) -> None:
        """Let in by these from now on, or, where one is not set, by those as before; raises ``UsageError``."""
        self._callers = _callers(declared, environment)

    def check(self, declared: Iterable[KeyConfig], environment: Mapping[str, str] = os.environ) -> None:
        """Raise ``UsageError`` where one of these is not set, or set twice."""
        _callers(declared, environment)

    @property
    def required(self) -> bool:
        """Whether a caller needs a key."""
        return bool(self._callers)

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Whose request this is, by its ``Authorization: Bearer KEY``; raises ``RefusedError`` (401).

        Digests are compared, with all keys, in constant time: how long it takes tells nothing of them.
        """
        if not self._callers:
            return ANYBODY
        given = _digest(_bearer(headers))
        found: Caller | None = None
        for digest, caller in self._callers:
            if hmac.compare_digest(digest, given):
                found = caller
        if found is None:
            raise RefusedError(_UNKNOWN)
        return found

    @contextmanager
    def in_flight(self, caller: Caller) -> Iterator[None]:
        """Hold one of a caller's places; raises ``RefusedError`` (429) where all are taken."""
        if caller.name is None:
            yield
            return
        now = self._in_flight.get(caller.name, 0)
        if caller.max_concurrency is not None and now >= caller.max_concurrency:
            said = f"this key may have {caller.max_concurrency:,} requests in flight, and has"
            raise RefusedError(refusal(429, said, kind="rate_limit_error", code="rate_limit_exceeded"))
        self._in_flight[caller.name] = now + 1
        try:
            yield
        finally:
            self._in_flight[caller.name] -= 1


_UNKNOWN: ErrorAnswer = refusal(
    401, "the request has no valid key; send it as Authorization: Bearer KEY", code="invalid_api_key"
)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What stands behind ``Bearer``; nothing where there is no such header, or more than one."""
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1:
        return b""
    scheme, _, secret = found[0].strip().partition(b" ")
    return secret.strip() if scheme.lower() == b"bearer" else b""


def _callers(declared: Iterable[KeyConfig], environment: Mapping[str, str]) -> list[tuple[bytes, Caller]]:
    callers: list[tuple[bytes, Caller]] = []
    for key in declared:
        secret = environment.get(key.env, "")
        if not secret.strip():
            raise UsageError(f"key {key.name!r}: the environment variable {key.env} is not set")
        caller = Caller(
            name=key.name,
            routes=None if key.routes is None else frozenset(key.routes),
            max_concurrency=key.max_concurrency,
            max_context_tokens=key.max_context_tokens,
            admin=key.admin,
        )
        digest = _digest(secret.strip().encode())
        for other, whose in callers:
            if other == digest:
                raise UsageError(f"keys {whose.name!r} and {key.name!r} are the same; give each its own")
        callers.append((digest, caller))
    return callers
