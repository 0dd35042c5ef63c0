"""How long a call is waited for: by what was predicted of it, else by fixed seconds. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentroute.errors import UsageError

if TYPE_CHECKING:
    from agentroute.decision import Decision

TIMES = 4.0
"""A wait may be so many times the high end of the predicted band of the mean. A single request scatters more widely
than the mean: the measured p99 over the mean is seldom above 3. Assumed."""
GAP_TIMES = 50.0
"""... and a gap between two tokens so many times TPOT: a step of another's prefill may stand between them. Assumed."""
AT_LEAST_S = 10.0
"""No prediction shortens a wait below this: a first request to a vLLM that has just started took 13 s. Assumed."""
AFTER_THE_END_S = 5.0
"""How long to wait for usage and ``[DONE]`` once the model has said why it stopped. Assumed."""


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long to wait, in seconds. Raises ``UsageError`` for a negative or endless wait.

    Where TTFT and TPOT are predicted, a call waits ``times`` the high end of what is predicted, but at least
    ``at_least_s``, and never longer than these fixed waits.
    """

    connect_s: float = 5.0
    """Until a server accepts a connection."""
    read_s: float = 600.0
    """The longest silence of a server: the whole generation of an answer that is not streamed."""
    queue_s: float = 300.0
    """Until a pool that is full has room; 0: do not wait."""
    total_s: float = 7_200.0
    """The whole call, with all that is tried for it; a stream counts while it is read."""
    times: float = TIMES
    """So many times the predicted time is waited for; 0: predictions shorten nothing."""
    at_least_s: float = AT_LEAST_S
    """No prediction shortens a wait below this."""

    def __post_init__(self) -> None:
        for name in ("connect_s", "read_s", "total_s", "at_least_s", "queue_s", "times"):
            value, may_be_0 = getattr(self, name), name in ("queue_s", "times")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and (value > 0 or (may_be_0 and value == 0))):
                least = "0 or more" if may_be_0 else "above 0"
                unit = "number" if name == "times" else "number of seconds"
                raise UsageError(f"{name} must be a finite {unit}, {least}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Patience:
    """The waits of one request, in seconds."""

    first_s: float
    """Until the first content; of an answer that is not streamed, until all of it is there."""
    gap_s: float
    """From one piece of a stream to the next."""
    total_s: float
    """Until the end of the answer."""


def surely_s(timeout: Timeout, left_s: float = math.inf) -> float:
    """What no wait is shorter than, whatever is predicted, in seconds; ``left_s`` are left of the whole call."""
    return max(0.0, min(timeout.at_least_s, timeout.read_s, timeout.total_s, left_s))


def patience(decision: Decision, timeout: Timeout, *, streaming: bool, left_s: float = math.inf) -> Patience:
    """How long to wait for what was decided on. What is not predicted gets the fixed waits.

    first = times x TTFT; gap = ``GAP_TIMES`` x TPOT; total = times x (TTFT + (max output - 1) x TPOT), each with the
    high end of its band; the total at most ``left_s``, what is left of the whole call. Without a limit on the output
    nobody can say how long the whole may take.
    """
    ttft, tpot = decision.ttft_ms, decision.tpot_ms
    if not timeout.times or ttft is None or tpot is None:
        first_s, gap_s, total_s = timeout.read_s, timeout.read_s, timeout.total_s
    else:
        first_s = _bounded(timeout.times * ttft.high, timeout)
        gap_s = _bounded(GAP_TIMES * tpot.high, timeout)
        most = decision.task.max_output_tokens
        all_ms = math.inf if most is None else timeout.times * (ttft.high + (most - 1) * tpot.high)
        total_s = min(max(all_ms / 1_000.0, timeout.at_least_s), timeout.total_s)
    whole_s = min(timeout.read_s, total_s)
    return Patience(first_s if streaming else whole_s, gap_s, max(0.0, min(total_s, left_s)))


def _bounded(ms: float, timeout: Timeout) -> float:
    return min(max(ms / 1_000.0, timeout.at_least_s), timeout.read_s)
