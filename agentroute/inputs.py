"""What an assessment is made of: the task as numbers, and what is true by then."""

from __future__ import annotations

from typing import Literal, NamedTuple

from agentroute.compiled import Bools, Floats, Ints
from agentroute.latency.points import Statistic

LOADS = (4.0, 16.0)
"""Requests in flight at which the next region of ``State.factors`` begins. Absolute, not relative to the slots: these
are often unknown and seldom the limit (the KV pool is), and what changes with n goes by the count."""

Metric = Literal["ttft_ms", "tpot_ms", "e2e_ms"]


class Limit(NamedTuple):
    """An SLO in milliseconds on one metric. Of many tasks ``limit_ms`` has shape (t, 1), infinite for those without."""

    metric: Metric
    limit_ms: float
    stat: Statistic
    hard: bool
    asked_ms: float | None = None
    """What was asked for, where some of it has gone by in waiting; ``limit_ms`` is what is left."""
    waited_ms: float = 0.0
    """What has gone by."""
    from_itl: bool = False
    """Whether it was given as one on the gap between two tokens."""


class Ask(NamedTuple):
    """A task as numbers; many tasks of one kind as arrays of shape (t, 1)."""

    context_tokens: float
    """Prompt tokens at most."""
    isl: float
    """Prompt tokens expected, for prediction; admission goes by ``context_tokens``."""
    osl: float
    """Output tokens expected."""
    output_tokens: float
    """Output tokens at most, or what is planned for; these must fit the window."""
    held_tokens: float
    """Prompt and answer that are held in the KV pool at the start."""
    shared_tokens: float
    """Of the prompt, those that siblings have in common."""
    output_is_set: bool
    concurrency: float
    needs: int = 0
    """Bits of ``compiled.BIT``."""
    limits: tuple[Limit, ...] = ()
    allowed: Bools | None = None
    """Deployments that route and task allow; ``None``: all."""
    max_cost_usd: float | None = None
    grown_tokens: float = 0.0
    """Prompt and answer of its conversation some steps on; 0: it is no step of one."""
    quality: Floats | None = None
    """How good every deployment's model is at what the task names, by the user's table; ``None``: nobody asks."""

    @property
    def tokens(self) -> float:
        """Prompt and answer together, at most."""
        return self.context_tokens + self.output_tokens


class Queue(NamedTuple):
    """What a prompt meets in every pool, shape (pools,): the prompts before it, and those that it keeps waiting."""

    backlog_ms: Floats
    """Until all prompts sent before it are read."""
    bound: Ints | None
    """Of the requests being answered that have a time to keep, shape (r,), the pools; ``None``: there are none."""
    budget_ms: Floats | None
    """What such a one could lose to the prompts of others when it was placed, shape (r,)."""
    lost_ms: Floats | None
    """What it has lost by now, or will to the prompts that were sent, shape (r,)."""
    reading: Floats | None
    """Share of its time that the pool has lately read prompts in; ``None``: none has."""
    turns: Floats | None
    """Requests a second that come there and have a TTFT to keep; ``None``: none anywhere."""
    turn_room_ms: Floats | None
    """What such a one can wait for the prompts before its own."""


class Otherwise(NamedTuple):
    """What of a state hangs on the task's numbers, for the same task with others. ``None``: nothing of it, anywhere."""

    factors: Floats | None = None
    """``State.factors`` in every context region, shape (4, 2, d, load regions)."""
    begun_tokens: Floats | None = None
    """Tokens that are cached of the messages that the prompt begins with, by pool."""
    talk_tokens: Floats | None = None
    """... of its conversation and its parent's, however long the prompt is."""
    group_tokens: Floats | None = None
    """... of what its group shares; none of them to a task without siblings."""
    siblings: int = 0
    """Requests of its group that are in flight, anywhere, if it has siblings."""
    shared: tuple[tuple[int, Bools], ...] = ()
    """Prefixes that its group holds, by their length in tokens, and in which pools."""


class State(NamedTuple):
    """What is true at the time of a decision, by pool. Arrays are never changed once they are in here."""

    held: Floats
    """Blocks that our own calls hold, and those that others use."""
    in_flight: Floats
    """Requests there, our own and those of others."""
    siblings: int = 0
    """Siblings of the task that are in flight, anywhere; of many tasks shape (t, 1).

    Where each of many tasks meets its own, ``cached_tokens`` and ``shared`` have shape (t, pools), ``factors`` (2, t,
    d, load regions)."""
    total: float = 0.0
    """Everything in flight, anywhere."""
    resident: Floats | None = None
    """What our own requests there keep in the KV cache on average, in thousands of tokens; ``None``: there are none."""
    own: Floats | None = None
    """How many those are."""
    queue: Queue | None = None
    """What a prompt meets there; ``None``: nothing, anywhere."""
    cached_tokens: Floats | None = None
    """Tokens of the task's prompt that are in the KV cache already; ``None``: none anywhere."""
    up: Bools | None = None
    """Whether its breaker lets a request through; ``None``: all do."""
    shared: Bools | None = None
    """Where the prefix that the task shares with siblings is held already; ``None``: nowhere."""
    factors: Floats | None = None
    """What was seen over what was predicted, shape (2, d, load regions); ``None``: nothing was seen."""
    otherwise: Otherwise | None = None
    """What of all this would be another for the same task with other numbers; ``None``: nothing."""


class There(NamedTuple):
    """What a task meets where it is placed; times are milliseconds."""

    deployment: int
    pool: int
    units: float
    """Blocks that one request holds, beside those that siblings hold for it already."""
    prefill_ms: float
    """TTFT with no prompt of our own before it."""
    tpot_ms: float
    ttft_ms: float
    """TTFT behind the prompts of our own, without the wait for a place."""
    service_ms: float
    """E2E without that wait."""
    wait_ms: float
    n_run: float
    factors: tuple[float, float]
    """By what the curves' TTFT and TPOT were multiplied."""
