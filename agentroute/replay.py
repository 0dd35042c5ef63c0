"""A decision as JSON with everything it read, and the same decision made again from it.

Numbers come back exactly: JSON holds the shortest text that reads as the same float. An infinity is the text ``"inf"``,
what is unknown and what is not there is ``null``. A record holds the task's names (session, group) and the hashes of
its prefix, never any text of the prompt.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import ValidationError

import agentroute
from agentroute.assessment import Assessment
from agentroute.compiled import CompiledFleet
from agentroute.decision import Decision
from agentroute.errors import UsageError, shown, suggest
from agentroute.files import dotted
from agentroute.fleet import Deployment
from agentroute.inputs import Ask, Limit, Otherwise, Queue, State
from agentroute.policy import Objective, objective
from agentroute.recorded import (
    SCHEMA_VERSION,
    Factors,
    Record,
    RecordedAsk,
    RecordedDeployment,
    RecordedOtherwise,
    RecordedSlo,
    RecordedState,
    RecordedTask,
)
from agentroute.refusal import Assessed, refusal
from agentroute.task import Slo, Task

if TYPE_CHECKING:
    from agentroute.estimate import Estimate

DIGEST_LETTERS = 16


def record_of(decision: Decision) -> dict[str, Any]:
    """A decision as a ``Record`` that ``json.dumps`` takes."""
    answer: dict[str, Any] = {"deployment": decision.deployment, "model": decision.model}
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "cost_usd"):
        answer[name] = _estimate(getattr(decision, name))
    return _record(decision.task, decision.objective, decision._assessment, decision.decided_at, answer)


def record_of_refusal(refused: Assessed) -> dict[str, Any]:
    """The same of a task that nothing could take: the answer is no deployment, and why."""
    answer = {"deployment": None, "reasons": {name: str(reason) for name, reason in refused.reasons().items()}}
    return _record(refused.task, refused.by.name, refused.assessment, refused.decided_at, answer)


def _record(task: Task, objective: str, a: Assessment, decided_at: float, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "decision",
        "version": agentroute.__version__,
        "decided_at": decided_at,
        "task": {field.name: _plain(getattr(task, field.name)) for field in fields(Task)},
        "objective": objective,
        "room_now": a.room_now,
        "ask": _plain(a.ask),
        "state": _plain(a.state),
        "fleet": _fleet(a.fleet),
        "answer": answer,
    }


def replay(
    record: Mapping[str, Any] | Record, fleet: CompiledFleet, own: Mapping[str, Objective] = MappingProxyType({})
) -> Decision:
    """The decision that ``fleet`` makes on what a record holds: the same, with exactly the same numbers.

    ``own`` are the user's own objectives, by name.

    Raises ``UsageError`` for what is no record, or one of another fleet; ``NoFeasibleDeployment`` where nothing can.
    """
    read = record if isinstance(record, Record) else _read(record)
    _check_fleet(read, fleet)
    ask, state = _ask(read.ask), _state(read.state)
    _check_sizes(ask, state, fleet)
    task = Task(**{name: _field(getattr(read.task, name)) for name in RecordedTask.model_fields})
    assessment = Assessment(fleet, ask, state, room_now=read.room_now)
    by = objective(read.objective, own)
    best = assessment.best(by)
    if best is None:
        raise refusal(task, by, assessment, read.decided_at)
    return Decision.of(task, by, assessment, fleet.deployments[best], best, read.decided_at)


def _read(record: object) -> Record:
    if not isinstance(record, Mapping):
        raise UsageError(f"a record must be a mapping as Decision.record() gives it, got {shown(record)}")
    if record.get("schema_version") != SCHEMA_VERSION:
        version = shown(record.get("schema_version"))
        raise UsageError(f"a record's schema_version must be {SCHEMA_VERSION}, got {version}")
    try:
        return Record.model_validate(dict(record))
    except ValidationError as problem:
        first = problem.errors()[0]
    what = first["msg"].replace("Input should be", "must be")
    raise UsageError(f"the record's {dotted(first['loc'])}: {what}, got {shown(first.get('input'))}")


def _check_fleet(read: Record, fleet: CompiledFleet) -> None:
    """Raise ``UsageError`` that names the first deployment which is not the recorded one."""
    own = [RecordedDeployment(**one) for one in _fleet(fleet)]
    names = [one.name for one in own]
    for recorded in read.fleet:
        if recorded.name not in names:
            hint = suggest(recorded.name, names)
            raise UsageError(f"the record is of another fleet: here is no deployment {recorded.name!r}; {hint}")
    for place, (one, recorded) in enumerate(zip(own, read.fleet, strict=False)):
        if one.name != recorded.name:
            at = f"where the record has {recorded.name!r}, at place {place + 1}, here is {one.name!r}"
            raise UsageError(f"the record is of another fleet: {at}")
        if one != recorded:
            changed = f"deployment {one.name!r} has changed since (profile {one.profile!r})"
            raise UsageError(f"the record is of another fleet: {changed}")
    if len(own) > len(read.fleet):
        raise UsageError(f"the record is of another fleet: it has no deployment {own[len(read.fleet)].name!r}")
    if len(own) < len(read.fleet):
        raise UsageError(f"the record is of another fleet: it has {read.fleet[len(own)].name!r} twice")


def _check_sizes(ask: Ask, state: State, fleet: CompiledFleet) -> None:
    pools, deployments = len(fleet.pool_blocks), len(fleet.deployments)
    if ask.allowed is not None and len(ask.allowed) != deployments:
        raise UsageError(f"the record's ask.allowed must have {deployments} values, got {len(ask.allowed)}")
    if (state.resident is None) != (state.own is None):
        raise UsageError("the record's state.resident and state.own must both be there, or both be null")
    if ask.quality is not None and len(ask.quality) != deployments:
        raise UsageError(f"the record's ask.quality must have {deployments} values, got {len(ask.quality)}")
    shapes: dict[str, tuple[int, ...]] = {"factors": (2, deployments, 3)}
    queue: dict[str, Any] = {}
    if state.queue is not None:
        queue = {f"queue.{name}": value for name, value in state.queue._asdict().items()}
        shapes |= _bound_shapes(state.queue, pools)
    otherwise: dict[str, Any] = {}
    if state.otherwise is not None:
        otherwise = {f"otherwise.{name}": value for name, value in state.otherwise._asdict().items()}
        otherwise |= {f"otherwise.shared.{at}": held for at, (_, held) in enumerate(state.otherwise.shared)}
        shapes["otherwise.factors"] = (4, 2, deployments, 3)
    for name, value in {**state._asdict(), **queue, **otherwise}.items():
        if isinstance(value, np.ndarray):
            want = shapes.get(name, (pools,))
            if value.shape != want:
                sizes = " x ".join(map(str, want))
                raise UsageError(f"the record's state.{name} must have {sizes} values, got {shown(value.shape)}")


def _bound_shapes(queue: Queue, pools: int) -> dict[str, tuple[int, ...]]:
    """The shapes of what a queue says of each request."""
    bound, each = queue.bound, (queue.bound, queue.budget_ms, queue.lost_ms)
    if len({value is None for value in each}) > 1:
        raise UsageError("the record's state.queue.bound, budget_ms and lost_ms must all be there, or all be null")
    if bound is None:
        return {}
    if len(bound) and bound.max() >= pools:
        raise UsageError(f"the record's state.queue.bound must be pools from 0 to {pools - 1}, got {bound.max()}")
    return dict.fromkeys(("queue.bound", "queue.budget_ms", "queue.lost_ms"), bound.shape)


def _ask(read: RecordedAsk) -> Ask:
    given = {name: getattr(read, name) for name in Ask._fields}
    given["limits"] = tuple(Limit(**{name: getattr(one, name) for name in Limit._fields}) for one in read.limits)
    given["allowed"] = None if read.allowed is None else np.array(read.allowed, dtype=np.bool_)
    given["quality"] = None if read.quality is None else np.array(read.quality, dtype=np.float64)
    return Ask(**given)


def _state(read: RecordedState) -> State:
    given = {name: getattr(read, name) for name in State._fields}
    for name in ("up", "shared"):
        given[name] = None if given[name] is None else np.array(given[name], dtype=np.bool_)
    for name in ("held", "in_flight", "resident", "own", "cached_tokens"):
        given[name] = None if given[name] is None else _floats(given[name])
    if read.queue is not None:
        queue: dict[str, Any] = {name: getattr(read.queue, name) for name in Queue._fields}
        arrays: dict[str, Any] = {name: None if value is None else _floats(value) for name, value in queue.items()}
        if read.queue.bound is not None:
            arrays["bound"] = np.array(read.queue.bound, dtype=np.int64)
        given["queue"] = Queue(**arrays)
    given["factors"] = read.factors and _factors("state.factors", read.factors)
    given["otherwise"] = read.otherwise and _otherwise(read.otherwise)
    return State(**given)


def _otherwise(read: RecordedOtherwise) -> Otherwise:
    tables, factors = read.factors, None
    if tables is not None:
        factors = _floats([_factors("state.otherwise.factors", table, len(tables[0][0])) for table in tables])
    begun, talk, group = (
        None if one is None else _floats(one) for one in (read.begun_tokens, read.talk_tokens, read.group_tokens)
    )
    shared = tuple((length, np.array(held, dtype=np.bool_)) for length, held in read.shared)
    return Otherwise(factors, begun, talk, group, read.siblings, shared)


def _factors(name: str, read: Factors, deployments: int | None = None) -> Any:
    if len(read[0]) != len(read[1]) or deployments not in (None, len(read[0])):
        raise UsageError(f"the record's {name} must have as many deployments for TPOT as for TTFT, everywhere")
    return _floats(read)


def _floats(values: Any) -> Any:
    return np.array(values, dtype=np.float64)


def _field(value: Any) -> Any:
    """A recorded field of a task as the task has it."""
    if isinstance(value, RecordedSlo):
        return Slo(value.value, value.stat, value.hard, value.from_itl)
    return value


def _plain(value: Any) -> Any:
    """What JSON can say of it."""
    if isinstance(value, Slo):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else "inf"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return dict(value) if isinstance(value, Mapping) else value


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate._asdict()


_DIGESTS: WeakKeyDictionary[CompiledFleet, list[dict[str, str]]] = WeakKeyDictionary()


def _fleet(fleet: CompiledFleet) -> list[dict[str, str]]:
    if fleet not in _DIGESTS:
        _DIGESTS[fleet] = [
            {"name": d.name, "profile": d.profile.name, "digest": digest_of(d)} for d in fleet.deployments
        ]
    return _DIGESTS[fleet]


def digest_of(deployment: Deployment) -> str:
    """Sixteen hexadecimal digits that change with whatever a deployment's answers rest on; not with its addresses."""
    parts = [
        deployment.profile.model_dump(mode="json"),
        deployment.model.model_dump(mode="json") if deployment.model else None,
        deployment.accelerator.model_dump(mode="json") if deployment.accelerator else None,
        deployment.usd_per_accelerator_hour,
        deployment.served_model,
        deployment.pool,
        len(deployment.urls),
    ]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LETTERS]
