"""What calls have used and cost, by route, by session and by parent session."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentroute.ended import Ended
from agentroute.errors import UsageError, shown

MOST = 10_000


@dataclass(frozen=True, slots=True)
class Account:
    """A sum over calls. Tokens and dollars are of those whose server counted them or whose price is known."""

    calls: int = 0
    failed: int = 0
    """Of ``calls``, those that did not end with an answer."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of ``prompt_tokens``, those that were found in a KV cache."""
    output_tokens: int = 0
    uncounted: int = 0
    """Calls that were answered, and whose tokens the server did not count."""
    usd: float = 0.0
    unpriced: int = 0
    """Calls that were answered, and whose cost is not known."""

    def plus(self, ended: Ended) -> Account:
        """With one call more."""
        seen, usd, answered = ended.outcome, ended.usd, ended.result == "ok"
        counted = seen.prompt_tokens is not None or seen.output_tokens is not None
        return replace(
            self,
            calls=self.calls + 1,
            failed=self.failed + (not answered),
            prompt_tokens=self.prompt_tokens + (seen.prompt_tokens or 0),
            cached_tokens=self.cached_tokens + (seen.cached_tokens or 0),
            output_tokens=self.output_tokens + (seen.output_tokens or 0),
            uncounted=self.uncounted + (answered and not counted),
            usd=self.usd + (usd or 0.0),
            unpriced=self.unpriced + (answered and usd is None),
        )


class Accounts:
    """An account for everything, for each route, each session and each parent session. Safe to share between threads.

    Sessions beyond ``most`` (and routes, and parents) push out those that were used least recently; the totals keep
    them. A call of a sub-agent counts for its parent, too, where it says which that is.
    """

    def __init__(self, *, most: int = MOST) -> None:
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise UsageError(f"most must be a whole number, at least 1, got {shown(most)}")
        self._most = most
        self._lock = threading.Lock()
        self._total = Account()
        self._by: dict[str, OrderedDict[str, Account]] = {
            "route": OrderedDict(), "session": OrderedDict(), "parent": OrderedDict(),
        }  # fmt: skip
        self._parent_of: OrderedDict[str, str] = OrderedDict()

    def __call__(self, ended: Ended) -> None:
        """Count a call."""
        task = ended.task
        with self._lock:
            self._total = self._total.plus(ended)
            for kind, name in (("route", task.route), ("session", task.session_id), ("parent", self._parent(ended))):
                if name is not None:
                    accounts = self._by[kind]
                    accounts[name] = accounts.get(name, Account()).plus(ended)
                    _bound(accounts, name, self._most)

    def _parent(self, ended: Ended) -> str | None:
        """A session says who its parent is in its first step; the steps after it belong to him as well."""
        task = ended.task
        if task.session_id is None:
            return task.parent_session_id
        if task.parent_session_id is not None:
            self._parent_of[task.session_id] = task.parent_session_id
        parent = self._parent_of.get(task.session_id)
        if parent is not None:
            _bound(self._parent_of, task.session_id, self._most)
        return parent

    @property
    def total(self) -> Account:
        """Of all calls."""
        return self._total

    @property
    def routes(self) -> Mapping[str, Account]:
        """By route."""
        return self._copy("route")

    @property
    def sessions(self) -> Mapping[str, Account]:
        """By session."""
        return self._copy("session")

    @property
    def parents(self) -> Mapping[str, Account]:
        """By parent session: what its sub-agents have used, without its own calls."""
        return self._copy("parent")

    def _copy(self, kind: str) -> Mapping[str, Account]:
        with self._lock:
            return dict(self._by[kind])


def _bound(of: OrderedDict[str, Account] | OrderedDict[str, str], used: str, most: int) -> None:
    of.move_to_end(used)
    while len(of) > most:
        of.popitem(last=False)
