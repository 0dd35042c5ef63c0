"""When a second server is asked for the same answer: only where the headroom is thin. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentroute.policy import SLO_MARGIN

if TYPE_CHECKING:
    from agentroute.decision import Decision

THIN = 1.0 - SLO_MARGIN
"""A predicted TTFT that uses so much of its SLO leaves thin headroom: less than the margin that decisions keep."""
LATE = 2.0
"""Where it does not, a first token is late after so many times the high end of what was predicted. Assumed."""
AT_LEAST_S = 0.25
"""No sooner: a hedge doubles the work, and a prediction of a few milliseconds is one of noise. Assumed."""


def hedge_after_s(decision: Decision, *, streaming: bool) -> float | None:
    """After how many seconds without an answer a second server is asked; ``None``: never, since nothing is predicted.

    With thin headroom once the predicted mean has passed, else once the answer is late. Of a stream the first token
    counts, else the whole answer.
    """
    predicted = decision.ttft_ms if streaming else decision.e2e_ms
    if predicted is None:
        return None
    limit_ms = decision.limit_ms("ttft_ms" if streaming else "e2e_ms")
    thin = limit_ms is not None and predicted.mean > THIN * limit_ms
    return max(AT_LEAST_S, (predicted.mean if thin else LATE * predicted.high) / 1_000.0)
