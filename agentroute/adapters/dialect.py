"""How one runtime differs from the shared wire in what it is asked: its names, what it refuses, what it cannot bear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentroute.adapters.base import Endpoint, Served
from agentroute.adapters.structured import Constraint, Writer, constraints
from agentroute.errors import BackendError, FailureKind

HINTS = frozenset(
    {
        "metadata", "priority", "prompt_cache_key", "request_id", "safety_identifier", "service_tier", "store", "user",
    }
)  # fmt: skip
"""Fields that no answer depends on: left out for a server that would refuse them."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a runtime wants said otherwise. The default says everything as the caller does."""

    server: str = "this server"
    """What people call it, for messages."""
    lacks: frozenset[str] = frozenset()
    """Names of the endpoints that it has not, as it is started in any way."""
    limit: str | None = None
    """The name of the limit on an answer that every version knows; ``None``: the caller's own stays."""
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By endpoint, all that it knows, where it refuses the rest."""
    drops: frozenset[str] = frozenset()
    """Fields that change nothing there, and that some versions refuse: left out."""
    ignores: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Fields that it takes and drops though the answer depends on them, and the values for which that does no harm."""
    clashes: tuple[frozenset[str], ...] = ()
    """Fields that it refuses together; ``stream`` counts as one."""
    structured: Mapping[Constraint, Writer] | None = None
    """How it is told what shape an answer must have; ``None``: the caller's way stays."""
    own: frozenset[str] = frozenset()
    """Fields for that which it knows itself: they stay."""
    says_auto: bool = False
    """It calls no tool unless ``tool_choice`` says so, where OpenAI's wire means ``auto``."""
    overlong: str = ""
    """What becomes of a prompt that is longer than its window, where that is bad."""
    overfull: str = ""
    """What becomes of a request that is larger than its KV memory, where that is bad."""
    unset_output: int = 0
    """Tokens that it plans for where no limit is set."""

    def put(self, endpoint: Endpoint, payload: Mapping[str, Any], served: Served, *, stream: bool) -> dict[str, Any]:
        """The caller's fields in this runtime's words; raises ``BackendError`` (not_found) for what it has none for."""
        if endpoint.name in self.lacks:
            raise BackendError(
                FailureKind.NOT_FOUND, f"not sent: {self.server} has no {endpoint.path}; use another server for it"
            )
        out = dict(payload)
        if endpoint.limits:
            self._limit(endpoint, out, served)
        if endpoint.name in ("chat", "completions"):
            if self.says_auto and out.get("tools") and out.get("tool_choice") is None:
                out["tool_choice"] = "auto"
            self._constrain(out)
            self._refuse(endpoint, out, stream)
        return out

    def refusal(self, prompt_tokens: int, max_tokens: int | None, served: Served) -> BackendError | None:
        """Why a request must not be sent, where the runtime would handle it badly: in the window, in the memory."""
        window, pool = served.window, served.pool_tokens
        if self.overlong and window is not None and prompt_tokens >= window:
            return _overflow(
                f"a prompt of up to {prompt_tokens:,} tokens leaves no room for an answer in {self.server}'s window of "
                f"{window:,}, and {self.overlong}; send at most {window - 1:,}"
            )
        asked = max_tokens or self.unset_output
        if self.overfull and pool is not None and prompt_tokens + asked > pool:
            answer = f" and an answer of {asked:,}" if asked else ""
            return _overflow(
                f"a prompt of up to {prompt_tokens:,} tokens{answer} does not fit {self.server}'s KV memory of "
                f"{pool:,}, and {self.overfull}; prompt and answer may have {pool:,} together"
            )
        return None

    def _limit(self, endpoint: Endpoint, out: dict[str, Any], served: Served) -> None:
        """One limit, under the name that the runtime knows, and no longer than its window leaves for an answer."""
        set_ = [name for name in endpoint.limits if out.get(name) is not None]
        if self.limit is not None and set_ and endpoint.name in ("chat", "completions"):
            value = out[set_[0]]
            for name in endpoint.limits:
                out.pop(name, None)
            out[self.limit], set_ = value, [self.limit]
        if served.window is None:
            return
        for name in set_:
            if isinstance(out[name], int) and out[name] >= served.window > 1:
                out[name] = served.window - 1

    def _constrain(self, out: dict[str, Any]) -> None:
        if self.structured is None:
            return
        for kind, name, value in list(constraints(out)):
            if name in self.own:
                continue
            if (write := self.structured.get(kind)) is None:
                raise _lacks(f"{self.server} cannot hold an answer to a {kind}")
            del out[name]
            out.update(write(value))

    def _refuse(self, endpoint: Endpoint, out: dict[str, Any], stream: bool) -> None:
        known = self.fields.get(endpoint.name)
        for name in [name for name in out if known is not None and name not in known]:
            if name not in HINTS and name not in self.drops:
                raise _lacks(f"{self.server} refuses requests with the field {name!r}")
            del out[name]
        for name, harmless in self.ignores.items():
            if out.get(name) is not None and out[name] not in harmless:
                raise _lacks(f"{self.server} takes the field {name!r} and drops it")
        asked = {name for name, value in out.items() if value} | ({"stream"} if stream else set())
        for clash in self.clashes:
            if clash <= asked:
                raise _lacks(f"{self.server} refuses {' and '.join(sorted(clash))} together")


PLAIN = Dialect()
"""Everything as the caller says it."""


def priority(urgency: int, served: Served) -> Mapping[str, Any]:
    """``priority`` as vLLM and SGLang have it: a whole number, sent only where the server schedules by it.

    vLLM serves lower values first and takes none for 0; any other is an error where it does not schedule by priority,
    says the field's description (0.32, ``chat_completion/protocol.py``; the engine of that version passes over it).
    SGLang serves higher ones first, or lower ones with ``--schedule-low-priority-values-first``, takes none for last
    of all and may answer 503 where it does not schedule by them (0.5.23, ``managers/scheduler.py``).
    """
    if served.priority is None:
        return {}
    return {"priority": -urgency if served.priority == "lower" else urgency}


def _overflow(words: str) -> BackendError:
    return BackendError(FailureKind.CONTEXT_OVERFLOW, f"not sent: {words}")


def _lacks(words: str) -> BackendError:
    return BackendError(FailureKind.NOT_FOUND, f"not sent: {words}; leave it out, or use another server")
