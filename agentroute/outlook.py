"""What a deployment offers to requests of one size: how many at once, how fast, at what price, and where it clogs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentroute.capacity import vllm
from agentroute.capacity.holding import Holding, Serving, hold, layout
from agentroute.capacity.kv import KvType as CacheType
from agentroute.capacity.kv import Unknown
from agentroute.capacity.memory import ENGINES
from agentroute.capacity.pool import KvPool
from agentroute.capacity.weights import scheme
from agentroute.ceilings import Ceilings, Stand, ceilings
from agentroute.compiled import window_tokens
from agentroute.errors import NoFeasibleDeployment
from agentroute.estimate import Estimate
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.rates import Metric, Workload, times
from agentroute.latency.roofline import Roofline
from agentroute.origin import Origin
from agentroute.profile import KvType, Profile
from agentroute.router import Router
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding
from agentroute.task import Task

CACHE: dict[KvType | None, CacheType] = {
    "bf16": "bf16", "fp16": "fp16", "f32": "f32", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    "q8_0": "q8_0", "q5_0": "q5_0", "q4_0": "q4_0", None: "bf16",
}  # fmt: skip
"""A profile's KV type as the engines' rules call it. Where a profile says nothing it is the model's own type, 16 bits,
which is every engine's default; assumed."""

_TTFT_TPOT: tuple[Metric, Metric] = ("TTFT", "TPOT")

TTFT_BAND, COST_BAND = (0.8, 4.0), (0.7, 1.4)
"""What the roofline's TTFT, and the cost that follows from its TPOT, may be off by. 80 % of 2,400 public points of 149
deployments lie within 0.75 and 1.29 of its TPOT in a closed loop; the TTFT of a lone prompt takes up to four times as
long as it says, least with vLLM."""


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

    Times are the profile's own measurements where it has any, else the roofline's.
    """
    where = stand(deployment)
    found = ceilings(where, Workload(isl, osl, 1))
    held = found.n_max
    if held is None or held.mean < 1:
        alone = _times(deployment, where, Workload(isl, osl, 1)) if held is None else (None, None)
        return Outlook(Workload(isl, osl, 1), held, alone[0], None, alone[1], found)
    full = Workload(isl, osl, int(held.mean))
    ttft, cost = _times(deployment, where, full)
    return Outlook(full, held, _times(deployment, where, Workload(isl, osl, 1))[0], ttft, cost, ceilings(where, full))


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
        roofline=_roofline(deployment, split),
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
    pools = _printed(deployment, split, limits.kv_pool.tokens) or (pool,) * 3
    return Holding(derived.weights_gib, derived.usable_gib, None, pools, source, profile.kv_memories)


def _printed(deployment: Deployment, split: Sharding | None, tokens: int) -> tuple[KvPool, KvPool, KvPool] | None:
    """The pool of a mixed model in which vLLM prints ``tokens``: they do not add, and their meaning changed.

    Up to about 0.19 they are blocks of one group; since then, the concurrency at the window times the window. Where the
    version does not tell, the two are the ends of a band. ``None``: tokens are tokens.
    """
    model, serving = deployment.model, _serving(deployment.profile, deployment.model)
    if model is None or deployment.accelerator is None or split is None or isinstance(serving, Unknown):
        return None
    shape = layout(model, split, serving, serving.step_tokens(deployment.accelerator))
    if not isinstance(shape, vllm.Layout) or len(shape.groups) == 1:
        return None
    window, version = window_tokens(deployment)[0], serving.engine_version
    by_group = shape.of_printed(tokens, "blocks_per_group")
    by_concurrency = shape.of_printed(tokens, "concurrency", window) if window else by_group
    if version is not None:
        found = by_concurrency if version >= vllm.CONCURRENCY_SINCE else by_group
        return found, found, found
    low, high = sorted((by_group, by_concurrency), key=lambda pool: pool.blocks)
    return low, low, high


def _derived(deployment: Deployment, split: Sharding | None) -> Holding | Unknown:
    serving = _serving(deployment.profile, deployment.model)
    if isinstance(serving, Unknown):
        return serving
    if deployment.model is None or deployment.accelerator is None or split is None:
        return Unknown("the profile does not say its model, its accelerator or its sharding")
    found = hold(deployment.model, deployment.accelerator, split, serving)
    if isinstance(found, Unknown):
        return found
    source: Origin = "derived" if deployment.profile.precision.kv else "assumed"
    memories = deployment.profile.kv_memories
    return Holding(found.weights_gib, found.usable_gib, found.kv_gib, found.pools, source, memories)


def _roofline(deployment: Deployment, split: Sharding | None) -> Roofline | Unknown:
    model, accelerator, profile = deployment.model, deployment.accelerator, deployment.profile
    serving = _serving(profile, model)
    if isinstance(serving, Unknown):
        return serving
    if profile.disaggregated:
        return Unknown("prefill and decode stand on separate workers, whose speed together is not derived")
    if model is None or accelerator is None or split is None:
        return Unknown("the profile does not say its model, its accelerator or its sharding")
    return Roofline.of(model, accelerator, split, quantisation=serving.quantisation(model), kv_type=serving.kv_type)


def _serving(profile: Profile, model: Model | None) -> Serving | Unknown:
    engine = next((known for known in ENGINES if known == profile.engine.name), None)
    if engine is None:
        return Unknown(f"the KV rules of the engine {profile.engine.name!r} are not known")
    word = profile.precision.weights
    if word is None or model is None or scheme(word, model) is None:
        return Unknown("the profile does not say its model, or how its weights are kept")
    if profile.precision.kv not in CACHE:
        return Unknown(f"the KV type {profile.precision.kv!r} is not known")
    limits = profile.limits
    return Serving(
        engine,
        _version(profile.engine.version),
        word,
        CACHE[profile.precision.kv],
        batched_tokens=limits.max_num_batched_tokens if limits else None,
        slots=limits.max_num_seqs if limits else None,
    )


def _version(said: str | None) -> tuple[int, int] | None:
    """``0.19.1`` as (0, 19); ``None`` when not known to the minor."""
    found = re.match(r"v?(\d+)\.(\d+)", said or "")
    return (int(found[1]), int(found[2])) if found else None


def _times(deployment: Deployment, where: Stand, workload: Workload) -> tuple[Estimate | None, Estimate | None]:
    """TTFT in milliseconds and the cost of one request in US dollars."""
    if deployment.profile.points:
        task = Task(context_tokens=workload.isl, max_output_tokens=workload.osl, concurrency=workload.n)
        try:
            decision = Router(Fleet([deployment])).decide(task)
        except NoFeasibleDeployment:
            return None, None
        return decision.ttft_ms, decision.cost_usd
    if isinstance(where.roofline, Unknown):
        return None, None
    ttft_s, tpot_s = (
        sum(part.total_s for part in times(where.roofline, workload, metric)(workload.n)) for metric in _TTFT_TPOT
    )
    hourly, gpus = deployment.usd_per_accelerator_hour, deployment.profile.accelerators
    price = deployment.profile.price
    hourly = price.usd_per_accelerator_hour if price and price.usd_per_accelerator_hour else hourly
    cost = None
    if hourly and gpus:
        cost = _uncalibrated(hourly * gpus * tpot_s * workload.osl / 3_600 / workload.n, COST_BAND)
    return _uncalibrated(ttft_s * 1_000, TTFT_BAND), cost


def _uncalibrated(value: float, band: tuple[float, float]) -> Estimate:
    return Estimate(value, value * band[0], value * band[1], "derived", extrapolated=True)
