"""What one deployment can hold: its weights, the KV memory that they leave, and the requests that fit into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from agentroute.capacity import kv, llamacpp, sglang, trtllm, vllm
from agentroute.capacity import weights as weighing
from agentroute.capacity.kv import KvType, Unknown
from agentroute.capacity.memory import Engine, left_for_kv, usable_gib
from agentroute.capacity.pool import KvLayout, KvPool
from agentroute.errors import UnknownNameError, UsageError
from agentroute.estimate import Estimate
from agentroute.origin import Origin
from agentroute.shape.accelerator import Accelerator
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

LARGE_GIB = 70.0
"""From so much memory on, engines take larger steps (vLLM ``EngineArgs``)."""

IN_FLIGHT_SINCE = (0, 33)
"""The vLLM version that is known to count every batch in flight against a window (``max_in_flight_tokens``)."""

STAGES: dict[Engine, Callable[[int, int], tuple[int, ...]]] = {
    "vllm": kv.vllm_stages,
    "sglang": kv.sglang_stages,
    "trtllm": kv.trtllm_stages,
    "llamacpp": lambda layers, devices: kv.llamacpp_stages(layers, (1.0,) * devices),
}
"""How each engine splits layers over stages."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served: what a server is started with besides its split.

    ``engine_version`` is (major, minor), ``None``: the newest that is known. ``weights`` is a quantisation of
    ``capacity.weights``, or what people call one. ``batched_tokens`` are those of one step, ``None``: the engine's
    default. ``memory_utilisation`` is the engine's own option, ``None``: its default. ``slots`` are the requests that
    the server runs at once (of one attention replica), ``None``: unknown; llama.cpp makes its cache for so many, then
    for one. ``kv_gib`` is the KV memory per accelerator as the engine's log prints it, ``None``: it is derived, as a
    band. ``draft`` counts the model's built-in draft layers.
    """

    engine: Engine = "vllm"
    engine_version: tuple[int, int] | None = None
    weights: str = "bf16"
    kv_type: KvType = "bf16"
    memory_utilisation: float | None = None
    batched_tokens: int | None = None
    slots: int | None = None
    kv_gib: float | None = None
    draft: bool = False

    def quantisation(self, model: Model) -> weighing.Quantisation:
        """The bytes of ``model``'s weights; raises ``UnknownNameError``."""
        name = weighing.scheme(self.weights, model)
        if name is None:
            raise UnknownNameError("quantisation", self.weights, weighing.QUANTISATIONS)
        return weighing.QUANTISATIONS[name]

    def step_tokens(self, accelerator: Accelerator) -> int:
        """Tokens of one step: as given, or the default of vLLM and near those of the others."""
        return self.batched_tokens or (8_192 if accelerator.memory_gib >= LARGE_GIB else 2_048)


class Holding(NamedTuple):
    """What one worker group holds. Memory is per accelerator, the fullest one; a pool is one attention replica's.

    ``pools`` are those of the low, the middle and the high end of ``kv_gib``, with the origin ``source``: equal when
    the engine reported them. ``None``: unknown.
    """

    weights_gib: float | None
    usable_gib: float | None
    kv_gib: Estimate | None
    pools: tuple[KvPool, KvPool, KvPool]
    source: Origin
    replicas: int = 1

    @classmethod
    def of_pool(cls, pool: KvPool, source: Origin, replicas: int = 1) -> Holding:
        """A pool whose size is known, of a deployment of which nothing else is."""
        return cls(None, None, None, (pool, pool, pool), source, replicas)

    @property
    def block_tokens(self) -> int:
        """Tokens of the smallest block."""
        return self.pools[1].block_tokens

    def units(self, tokens: int) -> int:
        """Blocks that one request of ``tokens`` tokens takes."""
        return self.pools[1].units(tokens)

    def blocks(self) -> Estimate:
        """Blocks of all replicas together."""
        return self._over_replicas(*[pool.blocks for pool in self.pools])

    def sequences(self, tokens: int) -> Estimate:
        """Requests of ``tokens`` tokens that fit at once, over all replicas."""
        return self._over_replicas(*[pool.sequences(tokens) for pool in self.pools])

    def longest_tokens(self, limit: int = 1 << 30) -> Estimate:
        """The longest request that fits alone, in tokens, at most ``limit``; 0 when none does."""
        low, mean, high = (pool.longest_tokens(limit) for pool in self.pools)
        return Estimate(mean, low, high, self.source)

    def _over_replicas(self, low: int, mean: int, high: int) -> Estimate:
        replicas = self.replicas
        return Estimate(mean * replicas, low * replicas, high * replicas, self.source)


def hold(
    model: Model,
    accelerator: Accelerator,
    sharding: Sharding,
    serving: Serving = Serving(),
    *,
    parts: weighing.Parts | Unknown | None = None,
) -> Holding | Unknown:
    """What ``model``, so split and served, holds on accelerators of one kind; or why that is unknown.

    Weights that do not fit are no reason: they leave no KV memory. For many splits of one model, take it apart once and
    pass its ``parts``. Raises ``UsageError`` for KV memory that is more than the accelerator has.
    """
    if reason := refused(model, sharding, serving):
        return Unknown(reason)
    parts = weighing.Parts.of(model) if parts is None else parts
    if isinstance(parts, Unknown):
        return parts
    kept = serving.quantisation(model)
    size = parts.gib(
        sharding,
        kept,
        stages=STAGES[serving.engine],
        dense_over_replicas=serving.engine == "sglang",
        draft=serving.draft,
    )
    if serving.engine == "vllm" and accelerator.name in weighing.CONVERTED:
        size += parts.left_by_conversion_gib(sharding, kept)
    step_tokens = serving.step_tokens(accelerator)
    shape = layout(model, sharding, serving, step_tokens)
    if isinstance(shape, Unknown):
        return shape
    usable = usable_gib(serving.engine, accelerator.memory_gib, serving.memory_utilisation)
    if serving.kv_gib is not None:
        if not 0 < serving.kv_gib <= accelerator.memory_gib:
            raise UsageError(
                f"KV memory must be above 0 and at most the {accelerator.memory_gib:g} GiB of {accelerator.name}, "
                f"got {serving.kv_gib:g} GiB"
            )
        given, pool = serving.kv_gib, shape.pool(serving.kv_gib)
        exact = Estimate(given, given, given, "reported")
        return Holding(size, usable, exact, (pool,) * 3, "reported", sharding.attention_dp)
    left = left_for_kv(
        serving.engine,
        accelerator.memory_gib,
        size,
        hidden_size=model.hidden_size or 0,
        batched_tokens=step_tokens,
        utilisation=serving.memory_utilisation,
    )
    pools = shape.pool_of(max(0.0, left.low)), shape.pool_of(max(0.0, left.mean)), shape.pool_of(max(0.0, left.high))
    return Holding(size, usable, left, pools, left.source, sharding.attention_dp)


def refused(model: Model, sharding: Sharding, serving: Serving) -> str | None:
    """Why the engine would not start like that; ``None`` when nothing speaks against it."""
    tp, pp = sharding.tp, sharding.pp
    if pp > 1 and pp > model.layer_count:
        return f"pp {pp} has more stages than the model's {model.layer_count} layers"
    if serving.engine == "llamacpp":
        return None
    if serving.kv_type.startswith("q"):
        return f"{serving.engine} has no KV cache of type {serving.kv_type}"
    if tp == 1:
        return None
    for group in model.layers:
        attention = group.attention
        if attention.kind == "gqa" or attention.kind == "mla":
            if attention.heads is not None and attention.heads % tp:
                return f"tp {tp} does not divide {attention.heads} attention heads"
            if attention.kind == "gqa" and attention.kv_heads % tp and tp % attention.kv_heads:
                return f"tp {tp} neither divides {attention.kv_heads} KV heads nor is a multiple of them"
    return None


def layout(model: Model, sharding: Sharding, serving: Serving, step_tokens: int) -> KvLayout | Unknown:
    """How the engine lays out the cache of one attention replica."""
    match serving.engine:
        case "vllm":
            options = _vllm_options(step_tokens, _batches_in_flight(serving, sharding), serving.draft)
            return vllm.layout(model, sharding, serving.kv_type, options)
        case "sglang":
            return sglang.layout(model, sharding, serving.kv_type, sglang.Options(draft=serving.draft))
        case "trtllm":
            return trtllm.layout(model, sharding, serving.kv_type, trtllm.Options(draft=serving.draft))
        case "llamacpp":
            options_ = llamacpp.Options(sequences=serving.slots or 1)
            return llamacpp.layout(model, sharding, serving.kv_type, options_)


@lru_cache(maxsize=64)
def _vllm_options(step_tokens: int, batches_in_flight: int, draft: bool) -> vllm.Options:
    """Few differ, and to make one takes a twentieth of ``hold``."""
    return vllm.Options(batched_tokens=step_tokens, batches_in_flight=batches_in_flight, draft=draft)


def _batches_in_flight(serving: Serving, sharding: Sharding) -> int:
    """Steps whose tokens a windowed layer keeps: with asynchronous scheduling one more than there are stages."""
    if serving.engine_version is not None and serving.engine_version < IN_FLIGHT_SINCE:
        return 1
    return sharding.pp + 1
