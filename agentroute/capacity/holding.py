"""What one deployment can hold: its weights, the KV memory that they leave, and the requests that fit into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentroute.capacity import kv, llamacpp, sglang, trtllm, vllm
from agentroute.capacity import weights as weighing
from agentroute.capacity.kv import KvType, Unknown
from agentroute.capacity.memory import Engine, left_for_kv, usable_gib
from agentroute.capacity.pool import KvLayout, KvPool
from agentroute.errors import UnknownNameError
from agentroute.estimate import Estimate
from agentroute.origin import Origin
from agentroute.shape.accelerator import Accelerator
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

BATCHED_TOKENS = 8_192
"""Tokens of one step where nobody says: vLLM's default on GPUs of 70 GiB and more, SGLang's chunk on most."""

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

    ``weights`` names a quantisation of ``capacity.weights``. ``memory_utilisation`` is the engine's own option,
    ``None``: its default. ``slots`` are the requests that the server runs at once (of one attention replica), ``None``:
    unknown, except that llama.cpp, which makes its cache for so many, runs one. ``kv_gib`` is the KV memory per
    accelerator as the engine's log prints it, ``None``: it is derived, as a band. ``draft`` counts the model's built-in
    draft layers.
    """

    engine: Engine = "vllm"
    weights: str = "bf16"
    kv_type: KvType = "bf16"
    memory_utilisation: float | None = None
    batched_tokens: int = BATCHED_TOKENS
    slots: int | None = None
    kv_gib: float | None = None
    draft: bool = False

    @property
    def quantisation(self) -> weighing.Quantisation:
        """The bytes of its weights; raises ``UnknownNameError``."""
        if self.weights not in weighing.QUANTISATIONS:
            raise UnknownNameError("quantisation", self.weights, weighing.QUANTISATIONS)
        return weighing.QUANTISATIONS[self.weights]


@dataclass(frozen=True, slots=True)
class Holding:
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
        return self._over_pools(lambda pool: pool.blocks)

    def sequences(self, tokens: int) -> Estimate:
        """Requests of ``tokens`` tokens that fit at once, over all replicas."""
        return self._over_pools(lambda pool: pool.sequences(tokens))

    def longest_tokens(self, limit: int = 1 << 30) -> Estimate:
        """The longest request that fits alone, in tokens, at most ``limit``; 0 when none does."""
        low, mean, high = (pool.longest_tokens(limit) for pool in self.pools)
        return Estimate(mean, low, high, self.source)

    def _over_pools(self, measure: Callable[[KvPool], float]) -> Estimate:
        low, mean, high = (measure(pool) * self.replicas for pool in self.pools)
        return Estimate(mean, low, high, self.source)


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
    pass its ``parts``.
    """
    if isinstance(parts, Unknown):
        return parts
    size = weighing.gib(
        parts or model,
        sharding,
        serving.quantisation,
        stages=STAGES[serving.engine],
        dense_over_replicas=serving.engine == "sglang",
        draft=serving.draft,
    )
    if isinstance(size, Unknown):
        return size
    shape = layout(model, sharding, serving)
    if isinstance(shape, Unknown):
        return shape
    usable = usable_gib(serving.engine, accelerator.memory_gib, serving.memory_utilisation)
    if serving.kv_gib is not None:
        left = Estimate(serving.kv_gib, serving.kv_gib, serving.kv_gib, "reported")
    else:
        left = left_for_kv(
            serving.engine,
            accelerator.memory_gib,
            size,
            hidden_size=model.hidden_size or 0,
            batched_tokens=serving.batched_tokens,
            utilisation=serving.memory_utilisation,
        )
    low, mean, high = (shape.pool_of(max(0.0, gib)) for gib in (left.low, left.mean, left.high))
    return Holding(size, usable, left, (low, mean, high), left.source, sharding.attention_dp)


def layout(model: Model, sharding: Sharding, serving: Serving) -> KvLayout | Unknown:
    """How the engine lays out the cache of one attention replica."""
    match serving.engine:
        case "vllm":
            options = vllm.Options(batched_tokens=serving.batched_tokens, draft=serving.draft)
            return vllm.layout(model, sharding, serving.kv_type, options)
        case "sglang":
            return sglang.layout(model, sharding, serving.kv_type, sglang.Options(draft=serving.draft))
        case "trtllm":
            return trtllm.layout(model, sharding, serving.kv_type, trtllm.Options(draft=serving.draft))
        case "llamacpp":
            return llamacpp.layout(model, sharding, serving.kv_type, llamacpp.Options(sequences=serving.slots or 1))
