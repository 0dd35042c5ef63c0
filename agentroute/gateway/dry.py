"""A decision as JSON, made as for a call, but nothing is held and nobody is called."""

from __future__ import annotations

from typing import Any

from agentroute.answers import of_error
from agentroute.decision import Candidate, Decision
from agentroute.errors import NoFeasibleDeployment, RefusedError
from agentroute.estimate import Estimate
from agentroute.gateway.asked import Asked
from agentroute.gateway.keys import Caller
from agentroute.gateway.plain import plain
from agentroute.router import Router


def decided(router: Router, asked: Asked, caller: Caller, visible: frozenset[str]) -> dict[str, Any]:
    """Where a request would go now, and why not elsewhere; raises ``RefusedError`` where it can go nowhere.

    Whoever is no admin is told of ``visible`` deployments alone, and gets no record: it holds the whole fleet's state.
    """
    try:
        decision = router.decide(asked.task)
    except NoFeasibleDeployment as error:
        raise RefusedError(of_error(error, visible=visible)) from None
    told: dict[str, Any] = {
        "object": "agentroute.decision",
        "model": asked.model,
        "route": decision.task.route,
        "objective": decision.objective,
        "deployment": decision.deployment,
        "served_model": decision.chosen.served_model or decision.model,
        "reason": decision.reason,
        "context_tokens": asked.task.context_tokens,
        "max_output_tokens": asked.task.max_output_tokens,
        **_times(decision),
        "candidates": [_candidate(one) for one in decision.candidates if one.deployment in visible],
        "rejected": {
            name: {"kind": reason.kind, "text": reason.text}
            for name, reason in decision.rejected.items()
            if name in visible
        },
    }
    if caller.admin:
        told |= {"explanation": decision.explain(), "record": decision.record()}
    return dict(plain(told))


def _times(one: Decision | Candidate) -> dict[str, Any]:
    return {name: _estimate(getattr(one, name)) for name in ("ttft_ms", "tpot_ms", "e2e_ms", "cost_usd")}


def _candidate(one: Candidate) -> dict[str, Any]:
    head = one.headroom
    return {
        "deployment": one.deployment,
        "model": one.model,
        "sharding": one.sharding,
        "n": one.n,
        "n_run": one.n_run,
        **_times(one),
        "wait_ms": one.wait_ms,
        "kv_blocks": None if head is None else {"free": head.free, "blocks": head.blocks, "needed": head.needed},
        "standing": one.standing,
    }


def _estimate(value: Estimate | None) -> dict[str, Any] | None:
    return None if value is None else {"mean": value.mean, "low": value.low, "high": value.high}
