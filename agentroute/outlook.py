"""What a deployment offers to requests of one size: how many at once, how fast, at what price, and where it clogs."""

from __future__ import annotations

from dataclasses import dataclass

from agentroute.blocks import printed
from agentroute.capacity.holding import Holding, hold
from agentroute.capacity.kv import Unknown
from agentroute.ceilings import Ceilings, Stand, ceilings
from agentroute.compiled import window_tokens
from agentroute.errors import NoFeasibleDeployment
from agentroute.estimate import Estimate
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.rates import Workload
from agentroute.origin import Origin
from agentroute.router import Router
from agentroute.serving import NOT_SAID, roofline, serving
from agentroute.shape.sharding import Sharding
from agentroute.task import Task


@dataclass(frozen=True, slots=True)
class Outlook:
    """One request size at one deployment. ``None`` is unknown, or not to be had at all.

    ``ttft_alone_ms`` is with one request in flight, ``ttft_full_ms`` and ``cost_usd`` (for one request) with ``n_max``.
    """

    workload: Workload
    n_max: Estimate | None
    ttft_alone_ms: Estimate | None
    ttft_full_ms: Estimate | None
    cost_usd: Estimate | None
    ceilings: Ceilings


def outlook(deployment: Deployment, isl: int, osl: int) -> Outlook:
    """What ``deployment`` offers to requests of ``isl`` prompt and ``osl`` answer tokens.

    Times come from the profile's own measurements where it has any, else from the roofline.
    """
    where = stand(deployment)
    found = ceilings(where, Workload(isl, osl, 1))
    held = found.n_max
    if held is None or held.mean < 1:
        alone = _times(deployment, Workload(isl, osl, 1)) if held is None else (None, None)
        return Outlook(Workload(isl, osl, 1), held, alone[0], None, alone[1], found)
    full = Workload(isl, osl, int(held.mean))
    ttft, cost = _times(deployment, full)
    return Outlook(full, held, _times(deployment, Workload(isl, osl, 1))[0], ttft, cost, ceilings(where, full))


def stand(deployment: Deployment) -> Stand:
    """Where a deployment stands, as far as its profile says."""
    profile = deployment.profile
    split = profile.sharding or (profile.disaggregated.decode.sharding if profile.disaggregated else None)
    limits = profile.limits
    return Stand(
        model=deployment.model,
        accelerator=deployment.accelerator,
        sharding=split or Sharding(),
        holding=_holding(deployment, split),
        roofline=roofline(deployment),
        slots=limits.max_num_seqs if limits else None,
        window_tokens=window_tokens(deployment)[0],
    )


def _holding(deployment: Deployment, split: Sharding | None) -> Holding | Unknown:
    """The reported pool where there is one, beside what is derived of the rest."""
    profile = deployment.profile
    derived = _derived(deployment, split)
    pool, limits = profile.pool, profile.limits
    if pool is None or limits is None or limits.kv_pool is None:
        return derived
    source = (limits.kv_pool.provenance or limits.provenance).origin
    if isinstance(derived, Unknown):
        return Holding.of_pool(pool, source, profile.kv_memories)
    pools = printed(deployment, split, limits.kv_pool.tokens, window_tokens(deployment)[0]) or (pool,) * 3
    return Holding(derived.weights_gib, derived.usable_gib, None, pools, source, profile.kv_memories)


def _derived(deployment: Deployment, split: Sharding | None) -> Holding | Unknown:
    served = serving(deployment.profile, deployment.model)
    if isinstance(served, Unknown):
        return served
    if deployment.model is None or deployment.accelerator is None or split is None:
        return Unknown(NOT_SAID)
    found = hold(deployment.model, deployment.accelerator, split, served)
    if isinstance(found, Unknown):
        return found
    source: Origin = "derived" if deployment.profile.precision.kv else "assumed"
    memories = deployment.profile.kv_memories
    return Holding(found.weights_gib, found.usable_gib, found.kv_gib, found.pools, source, memories)


def _times(deployment: Deployment, workload: Workload) -> tuple[Estimate | None, Estimate | None]:
    """TTFT in milliseconds and the cost of one request in US dollars."""
    task = Task(context_tokens=workload.isl, max_output_tokens=workload.osl, concurrency=workload.n)
    try:
        decision = Router(Fleet([deployment])).decide(task)
    except NoFeasibleDeployment:
        return None, None
    return decision.ttft_ms, decision.cost_usd
