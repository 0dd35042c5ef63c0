"""What a profile says of how a model is served, in the words of the engines' rules and of the roofline."""

from __future__ import annotations

import math
from dataclasses import replace

from agentroute.capacity.holding import Serving
from agentroute.capacity.kv import KvType as CacheType
from agentroute.capacity.kv import Unknown
from agentroute.capacity.memory import ENGINES, minor_version
from agentroute.capacity.weights import QUANTISATIONS, scheme
from agentroute.fleet import Deployment
from agentroute.latency.bounds import Bounds
from agentroute.latency.closed_loop import ClosedLoop
from agentroute.latency.roofline import Roofline
from agentroute.profile import KvType, Profile
from agentroute.shape.accelerator import Accelerator
from agentroute.shape.model import Model
from agentroute.shape.sharding import Disaggregated, Sharding

CACHE: dict[KvType | None, CacheType] = {
    "bf16": "bf16", "fp16": "fp16", "f32": "f32", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    "q8_0": "q8_0", "q5_0": "q5_0", "q4_0": "q4_0", None: "bf16",
}  # fmt: skip
"""A profile's KV type as the engines' rules call it. Where a profile says nothing it is the model's own type, 16 bits,
which is every engine's default; assumed."""

NOT_SAID = "the profile does not say its model, its accelerator or its sharding"


def serving(profile: Profile, model: Model | None) -> Serving | Unknown:
    """How the engine keeps weights and KV, or what is missing to say so."""
    engine = next((known for known in ENGINES if known == profile.engine.name), None)
    if engine is None:
        return Unknown(f"the KV rules of the engine {profile.engine.name!r} are not known")
    kept = _kept(profile, model)
    if isinstance(kept, Unknown):
        return kept
    limits = profile.limits
    return Serving(
        engine,
        minor_version(profile.engine.version),
        *kept,
        batched_tokens=limits.max_num_batched_tokens if limits else None,
        slots=limits.max_num_seqs if limits else None,
    )


def _kept(profile: Profile, model: Model | None) -> tuple[str, CacheType] | Unknown:
    """The quantisation of weights, and the type of the KV cache."""
    if model is None:
        return Unknown(NOT_SAID)
    word = profile.precision.weights
    weights = scheme(word, model) if word else None
    if weights is None:
        return Unknown("the profile does not say how its weights are kept")
    if profile.precision.kv not in CACHE:
        return Unknown(f"the KV type {profile.precision.kv!r} is not known")
    return weights, CACHE[profile.precision.kv]


def roofline(deployment: Deployment) -> Roofline | Unknown:
    """That of an aggregated deployment, or what is missing."""
    model, accelerator, profile = deployment.model, deployment.accelerator, deployment.profile
    served = serving(profile, model)
    if isinstance(served, Unknown):
        return served
    if profile.disaggregated:
        return Unknown("prefill and decode stand on separate workers, whose speed together is not derived")
    if model is None or accelerator is None or profile.sharding is None:
        return Unknown(NOT_SAID)
    kept = served.quantisation(model)
    return Roofline.of(model, accelerator, profile.sharding, quantisation=kept, kv_type=served.kv_type)


def closed_loop(deployment: Deployment) -> ClosedLoop | Unknown:
    """The roofline of a deployment in a closed loop, of a disaggregated one, too, or what is missing."""
    profile, model = deployment.profile, deployment.model
    split = profile.sharding or profile.disaggregated
    kept = _kept(profile, model)
    if isinstance(kept, Unknown):
        return kept
    if model is None or deployment.accelerator is None or split is None:
        return Unknown(NOT_SAID)
    weights, kv_type = kept
    loop = loop_of(model, deployment.accelerator, split, weights, kv_type if profile.precision.kv else None)
    if isinstance(loop, ClosedLoop) and profile.pool is not None:
        # How many it holds is known, and the wait of the others counted where that is: nothing is left to be estimated.
        return replace(loop, bounds=replace(loop.bounds, memory_bytes=math.inf))
    return loop


def loop_of(
    model: Model,
    accelerator: Accelerator,
    split: Sharding | Disaggregated,
    weights: str,
    kv_type: CacheType | None = None,
) -> ClosedLoop | Unknown:
    """The roofline of ``model`` in a closed loop, its weights kept as ``weights`` of ``capacity.weights``.

    Where the type of the KV cache is not said, it is taken for 16 bits, and not relied upon in bounds.
    """
    sides = (split, split) if isinstance(split, Sharding) else (split.prefill.sharding, split.decode.sharding)
    prefill, decode = (
        Roofline.of(model, accelerator, side, quantisation=QUANTISATIONS[weights], kv_type=kv_type or "bf16")
        for side in sides
    )
    if isinstance(prefill, Unknown):
        return prefill
    if isinstance(decode, Unknown):
        return decode
    apart = isinstance(split, Disaggregated)
    readers, writers = (split.prefill.workers, split.decode.workers) if isinstance(split, Disaggregated) else (1, 1)
    bounds = Bounds.of(
        accelerator,
        QUANTISATIONS[weights],
        (prefill.work, sides[0]),
        (decode.work, sides[1], writers),
        kv_certain=kv_type is not None,
    )
    return ClosedLoop(prefill, decode, bounds, readers, writers, apart)
