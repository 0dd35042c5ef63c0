"""The schema of a recorded decision: what ``agentroute.replay`` writes, and checks before it reads it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from agentroute.inputs import Metric
from agentroute.latency.points import Statistic
from agentroute.origin import Flag, Frozen, NonNegative, Positive
from agentroute.task import MAX_CONCURRENCY, MAX_TOKENS, Priority
from agentroute.tokens import Source

SCHEMA_VERSION = 1
MOST = 4_096
"""Deployments and pools that a record may have."""

Infinity = Literal["inf"]
Finite = Annotated[float, Field(strict=True, ge=-1e18, le=1e18, allow_inf_nan=False)]
Tokens = Annotated[float, Field(strict=True, ge=0, le=2 * MAX_TOKENS, allow_inf_nan=False)]
AtLeastOne = Annotated[float, Field(strict=True, ge=1, le=2 * MAX_TOKENS, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)]
Hash = Annotated[int, Field(strict=True, ge=-(2**64), le=2**64)]
Word = Annotated[str, Field(strict=True, max_length=100_000)]
Names = Annotated[tuple[Word, ...], Field(max_length=MOST)]
ByPool = Field(max_length=MOST)
ByRequest = Field(max_length=1_000_000)
Amounts = Annotated[tuple[NonNegative, ...], ByPool]
Rooms = Annotated[tuple[Finite | Infinity, ...], ByPool]
Flags = Annotated[tuple[Flag, ...], ByPool]
_OfDeployments = Annotated[tuple[tuple[Positive, Positive, Positive], ...], ByPool]
Factors = Annotated[tuple[_OfDeployments, ...], Field(min_length=2, max_length=2)]
"""By metric, deployment and load region."""


class RecordedSlo(Frozen):
    """A limit of the task that is not a bare number."""

    value: Positive
    stat: Statistic
    hard: Flag
    from_itl: Flag


Limited = Positive | RecordedSlo | None


class RecordedTask(Frozen):
    """The fields of ``Task``."""

    context_tokens: Whole
    max_output_tokens: Whole | None
    expected_output_tokens: Whole | None
    concurrency: Annotated[int, Field(strict=True, ge=1, le=MAX_CONCURRENCY)]
    ttft_ms: Limited
    tpot_ms: Limited
    deadline_s: Limited
    max_cost_usd: Positive | None
    needs: Names
    quality: dict[str, Finite]
    priority: Priority | None
    allow: Names | None
    deny: Names
    pin: Word | None
    session_id: Word | None
    parent_session_id: Word | None
    step: Whole | None
    shared_prefix_tokens: Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)]
    prefix: Annotated[
        tuple[tuple[Hash, Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)]], ...], Field(max_length=100_000)
    ]
    route: Word
    objective: Word | None
    group: Word | None
    expected_context_tokens: Whole | None
    context_source: Source | None


class RecordedLimit(Frozen):
    """The fields of ``inputs.Limit``."""

    metric: Metric
    limit_ms: Positive
    stat: Statistic
    hard: Flag
    asked_ms: Positive | None
    waited_ms: NonNegative
    from_itl: Flag


class RecordedAsk(Frozen):
    """The fields of ``inputs.Ask``."""

    context_tokens: AtLeastOne
    isl: AtLeastOne
    osl: AtLeastOne
    output_tokens: AtLeastOne
    held_tokens: AtLeastOne
    shared_tokens: Tokens
    output_is_set: Flag
    concurrency: AtLeastOne
    needs: Annotated[int, Field(strict=True, ge=0, lt=2**32)]
    limits: Annotated[tuple[RecordedLimit, ...], Field(max_length=8)]
    allowed: Flags | None
    max_cost_usd: Positive | None
    grown_tokens: NonNegative
    quality: Annotated[tuple[Finite | None, ...], ByPool] | None
    """``null`` is a model of which nobody says how good it is."""


class RecordedQueue(Frozen):
    """The fields of ``inputs.Queue``."""

    backlog_ms: Amounts
    bound: Annotated[tuple[Annotated[int, Field(strict=True, ge=0, lt=MOST)], ...], ByRequest] | None
    budget_ms: Annotated[tuple[Annotated[Positive, Field(ge=1.0)], ...], ByRequest] | None
    lost_ms: Annotated[tuple[NonNegative, ...], ByRequest] | None
    reading: Annotated[tuple[Annotated[NonNegative, Field(lt=1.0)], ...], ByPool] | None
    turns: Amounts | None
    turn_room_ms: Rooms | None


class RecordedOtherwise(Frozen):
    """The fields of ``inputs.Otherwise``."""

    factors: Annotated[tuple[Factors, ...], Field(min_length=4, max_length=4)] | None
    begun_tokens: Amounts | None
    talk_tokens: Amounts | None
    group_tokens: Amounts | None
    siblings: Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)]
    shared: Annotated[tuple[tuple[Whole, Flags], ...], ByPool]


class RecordedState(Frozen):
    """The fields of ``inputs.State``; arrays as nested lists."""

    held: Amounts
    in_flight: Amounts
    siblings: Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)]
    total: NonNegative
    resident: Amounts | None
    own: Amounts | None
    queue: RecordedQueue | None
    cached_tokens: Amounts | None
    up: Flags | None
    shared: Flags | None
    factors: Factors | None
    otherwise: RecordedOtherwise | None


class RecordedDeployment(Frozen):
    """One deployment of the fleet, by name, and a digest of everything that its answers rest on."""

    name: Word
    profile: Word
    digest: Word


class Record(Frozen):
    """A decision and what it read."""

    schema_version: Literal[1]
    kind: Literal["decision"]
    version: Word
    """Of agentroute."""
    decided_at: Finite
    """The router's clock, in seconds."""
    task: RecordedTask
    objective: Word
    room_now: Flag
    """Whether only deployments with room at that moment were asked for."""
    ask: RecordedAsk
    state: RecordedState
    fleet: Annotated[tuple[RecordedDeployment, ...], Field(min_length=1, max_length=MOST)]
    answer: dict[str, Any]
    """What was said; read by people, not by a replay."""
