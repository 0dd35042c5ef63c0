"""What may be done about a failed call: one answer for each kind of failure. No I/O and no waiting.

=================  =====  =========  ==============  ==========================================================
kind               again  elsewhere  counts against  why
=================  =====  =========  ==============  ==========================================================
context_overflow   no     yes        no              the same request never fits there; a larger window may do
overloaded         yes    yes        no              full now, not broken: it is sent less, until ``retry_after_s``
unavailable        yes    yes        yes             it starts, restarts, or a proxy lost it
engine_dead        no     yes        yes             only a restart helps, which takes minutes
interrupted        yes    yes        yes             nothing was answered yet, so nothing is doubled
... once begun     no     no         yes             sent again it would answer twice
timeout            no     yes        yes             it may still be at work on it: again would double its load
deadline           no     no         no              the caller's own time is over, whatever the server does
bad_request        no     no         no              the caller's mistake
auth               no     yes        no              this deployment's key is wrong; another's may be right
not_found          no     yes        no              this deployment's model or path is wrong
cancelled          no     no         no              nobody waits for it any more
=================  =====  =========  ==============  ==========================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from agentroute.errors import BackendError, FailureKind


@dataclass(frozen=True, slots=True)
class Remedy:
    """What may be done about a failure; where both are false, only the caller can be told."""

    again: bool
    """The same request may be sent to the same endpoint, after a pause."""
    elsewhere: bool
    """Another candidate may take it, if it fits there."""
    counts_against: bool
    """It is the server's fault, which its breaker is told of. A client's mistake never is."""


REMEDIES: dict[FailureKind, Remedy] = {
    FailureKind.CONTEXT_OVERFLOW: Remedy(again=False, elsewhere=True, counts_against=False),
    FailureKind.OVERLOADED: Remedy(again=True, elsewhere=True, counts_against=False),
    FailureKind.UNAVAILABLE: Remedy(again=True, elsewhere=True, counts_against=True),
    FailureKind.ENGINE_DEAD: Remedy(again=False, elsewhere=True, counts_against=True),
    FailureKind.INTERRUPTED: Remedy(again=True, elsewhere=True, counts_against=True),
    FailureKind.TIMEOUT: Remedy(again=False, elsewhere=True, counts_against=True),
    FailureKind.DEADLINE: Remedy(again=False, elsewhere=False, counts_against=False),
    FailureKind.BAD_REQUEST: Remedy(again=False, elsewhere=False, counts_against=False),
    FailureKind.AUTH: Remedy(again=False, elsewhere=True, counts_against=False),
    FailureKind.NOT_FOUND: Remedy(again=False, elsewhere=True, counts_against=False),
    FailureKind.CANCELLED: Remedy(again=False, elsewhere=False, counts_against=False),
}
"""Before any content came."""


def remedy(error: BackendError, *, begun: bool = False) -> Remedy:
    """What may be done about this failure.

    ``begun``: content was handed to the caller already, be it text, reasoning or a tool call (``error.text`` alone
    tells of text). Nothing is resent then, whatever the kind; the server's fault stays its fault.
    """
    found = REMEDIES[error.kind]
    if begun or error.text:
        return Remedy(again=False, elsewhere=False, counts_against=found.counts_against)
    return found
