"""A fleet compiled into arrays, one element per deployment, ready to decide on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from agentroute.blocks import BlockTable, kv_pool
from agentroute.capacity.kv import Unknown
from agentroute.capacity.pool import KvPool
from agentroute.errors import UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.bands import Bands
from agentroute.latency.curve import Curve
from agentroute.latency.points import Statistic
from agentroute.latency.table import CurveTable
from agentroute.serving import closed_loop
from agentroute.task import CAPABILITIES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNKNOWN_CAPABILITY = 2
"""What an unknown capability counts in a deployment's rank; an unknown KV pool counts 1."""
BIT = {capability: 1 << i for i, capability in enumerate(CAPABILITIES)}
SCHEDULED = frozenset({"vllm", "sglang", "trtllm", "dynamo"})
"""Engines of which ``LEAST_SLOTS`` holds."""
USABLE_OVER_MEMORIES = 0.9
"""Share of several attention-DP memories that is usable, since ranks fill unevenly; assumed."""
LEAST_SLOTS = 256
"""Requests that vLLM, SGLang and TensorRT-LLM run at once where nobody told them otherwise, at the least."""
BEYOND_MEASURED = 4.0
"""How many times the most measured concurrency is believed to run at once; more would wait. Assumed."""
VERSION_BAND = 0.16
"""How far another engine version moves TPOT at the median, over public curves of the same deployment. It widens the
band where version or KV type are unknown, or differ from those of the measurement."""
_SECONDS_PER_HOUR = 3_600.0
_MILLION = 1e6


@dataclass(frozen=True, eq=False)
class CompiledFleet:
    """Arrays of shape (d,) over the deployments; a limit that is unknown is infinite, any other unknown is NaN."""

    deployments: tuple[Deployment, ...]
    curves: CurveTable
    window_tokens: Floats
    least_window_tokens: float
    slots: Floats
    """Requests that one endpoint runs at once; where nobody says, ``BEYOND_MEASURED`` times the most measured,
    and ``LEAST_SLOTS`` at the least."""
    least_slots: float
    block_tokens: Floats
    """Of the smallest block."""
    block_table: BlockTable
    """How many blocks a request takes."""
    request_blocks: Floats
    """Blocks that one request can have at most: those of one KV memory."""
    least_request_tokens: float
    """So many tokens every one of them takes."""
    blocks: Floats
    """Usable blocks of one endpoint, all its KV memories together."""
    endpoints: Floats
    known_pool: Bools
    keeps_prefixes: Bools
    """Where prefix caching is reported: blocks of a shared prefix are held once there."""
    cache_tokens: tuple[float | None, ...]
    """By pool what its prefix cache holds: 0 where it has none, ``None`` where nobody says."""
    pool_rank: Ints
    """0 where the pool is known, 1 where not: an unknown pool is eligible, after the known ones, if there are any."""
    any_known_pool: bool
    capability_masks: dict[int, tuple[Bools, Ints]]
    """By needed bits, which deployments do not lack them, and the rank of those that may; filled as tasks come."""
    offers: Ints
    """Bits of the capabilities that a deployment is known to have."""
    lacks: Ints
    """Bits of the capabilities that it is known not to have."""
    gpus: Floats
    gpu_ms: Floats
    """``gpus`` in seconds per millisecond, 1 GPU where their number is unknown."""
    usd_per_second: Floats
    """For all its accelerators together."""
    usd_per_input_token: Floats
    usd_per_output_token: Floats
    any_price: bool
    pools: tuple[tuple[int, ...], ...]
    """By deployment, the pool of each of its endpoints."""
    first_pool: Ints
    aligned: bool
    """True when deployment d has pool d, and no other has: then arrays over pools are arrays over deployments."""
    replicated: bool
    """True when some deployment has several endpoints."""
    pool_blocks: tuple[float, ...]
    """By pool, its capacity in blocks."""

    @classmethod
    def of(cls, fleet: Fleet) -> CompiledFleet:
        """Compile ``fleet``: fits the curves and gives every endpoint its pool."""
        deployments = fleet.deployments
        known = [_pool(d) for d in deployments]
        indices, pool_blocks = pools(deployments)
        prices = np.array([_prices(d) for d in deployments])
        curves = [_curve(d) for d in deployments]
        slots = np.array([_slots(d) or _believed(d, c) for d, c in zip(deployments, curves, strict=True)])
        windows = np.array([window_tokens(d)[0] or np.inf for d in deployments], dtype=np.float64)
        block_tokens = np.array([pool.block_tokens if pool else 1 for pool in known], dtype=np.float64)
        request_blocks = np.array([pool.blocks if pool else np.inf for pool in known], dtype=np.float64)
        any_known = any(pool is not None for pool in known)
        return cls(
            deployments=deployments,
            curves=CurveTable(curves),
            window_tokens=windows,
            least_window_tokens=float(windows.min()),
            slots=slots,
            least_slots=float(slots.min()),
            block_tokens=block_tokens,
            block_table=BlockTable.of(known),
            request_blocks=request_blocks,
            least_request_tokens=float(min(pool.longest_tokens() if pool else np.inf for pool in known)),
            blocks=np.array([_blocks(d) for d in deployments], dtype=np.float64),
            endpoints=np.array([max(1, len(d.urls)) for d in deployments], dtype=np.float64),
            known_pool=np.array([pool is not None for pool in known]),
            keeps_prefixes=np.array([_keeps_prefixes(d) is True for d in deployments]),
            cache_tokens=_cache_tokens(deployments, indices, pool_blocks),
            pool_rank=np.array([any_known and pool is None for pool in known], dtype=np.int64),
            any_known_pool=any_known,
            capability_masks={},
            offers=np.array([_bits(d, True) for d in deployments], dtype=np.int64),
            lacks=np.array([_bits(d, False) for d in deployments], dtype=np.int64),
            gpus=np.array([d.profile.accelerators or np.nan for d in deployments], dtype=np.float64),
            gpu_ms=np.array([(d.profile.accelerators or 1) / 1_000.0 for d in deployments]),
            usd_per_second=prices[:, 0],
            usd_per_input_token=prices[:, 1],
            usd_per_output_token=prices[:, 2],
            any_price=not np.isnan(prices[:, :2]).all(),
            pools=indices,
            first_pool=np.array([own[0] for own in indices], dtype=np.int64),
            aligned=indices == tuple((d,) for d in range(len(deployments))),
            replicated=any(len(own) > 1 for own in indices),
            pool_blocks=pool_blocks,
        )

    @cached_property
    def bands(self) -> Bands:
        """How sure the curves are; made when it is first asked for, by an explanation or a limit on a percentile."""
        return Bands(self.curves.curves)

    @cached_property
    def version_bands(self) -> Floats:
        """What the engine version or the KV type adds to a band, where it is unknown or was another in measuring."""
        pairs = zip(self.curves.curves, self.deployments, strict=True)
        wider = [curve is not None and curve.is_measured and one.profile.measured_elsewhere for curve, one in pairs]
        return np.array(wider) * VERSION_BAND

    def tails(self, metric: str, statistic: Statistic) -> Floats:
        """The most that a statistic was measured over the mean; NaN where it was not."""
        if (metric, statistic) not in self._tails:
            found = [(curve and curve.tails.get((metric, statistic))) or np.nan for curve in self.curves.curves]
            self._tails[metric, statistic] = np.array(found)
        return self._tails[metric, statistic]

    @cached_property
    def _tails(self) -> dict[tuple[str, Statistic], Floats]:
        return {}

    def capability_mask(self, needs: int) -> tuple[Bools, Ints]:
        """Which deployments are not known to lack a capability, and the rank of those of which one is not known."""
        if needs not in self.capability_masks:
            unknown = ((self.offers & needs) != needs) * UNKNOWN_CAPABILITY
            self.capability_masks[needs] = (self.lacks & needs) == 0, unknown
        return self.capability_masks[needs]

    def pool_named(self, deployment: str, url: str | None = None) -> tuple[int, float]:
        """The pool of an endpoint, the first one where ``url`` is not given, and its blocks.

        Raises ``UnknownNameError``.
        """
        names = [own.name for own in self.deployments]
        if deployment not in names:
            raise UnknownNameError("deployment", deployment, names)
        urls = self.deployments[d := names.index(deployment)].urls
        if url is not None and url not in urls:
            raise UnknownNameError(f"endpoint of {deployment}", url, urls)
        pool = self.pools[d][urls.index(url) if url is not None else 0]
        return pool, self.pool_blocks[pool]


def window_tokens(deployment: Deployment) -> tuple[int | None, str]:
    """The longest prompt and answer together, and its origin; without a limit, the model's own length is assumed."""
    limits, model = deployment.profile.limits, deployment.model
    if limits and limits.max_model_len:
        return limits.max_model_len, limits.provenance.origin
    if model and model.max_context_tokens:
        return model.max_context_tokens, "assumed"
    return None, "unknown"


def offered(deployment: Deployment, capability: str) -> bool | None:
    """Whether a capability is offered: as the deployment says, else as its model says, else unknown."""
    own = deployment.profile.capabilities
    for offers in (own.offers if own else {}, deployment.model.capabilities if deployment.model else {}):
        for name, value in offers.items():
            if name == capability:
                return value
    return None


def _bits(deployment: Deployment, value: bool) -> int:
    return sum(bit for capability, bit in BIT.items() if offered(deployment, capability) is value)


def _slots(deployment: Deployment) -> int | None:
    """Requests that one endpoint runs at once."""
    limits = deployment.profile.limits
    return limits.max_num_seqs * deployment.profile.kv_memories if limits and limits.max_num_seqs else None


def _believed(deployment: Deployment, curve: Curve | None) -> float:
    """Requests that are believed to run at once where neither slots nor KV pool tell, and so many were not measured."""
    if curve is None or deployment.profile.pool:
        return np.inf
    least = LEAST_SLOTS if deployment.profile.engine.name in SCHEDULED else 1
    return max(round(curve.most_n, 6) * BEYOND_MEASURED, least)


def _pool(deployment: Deployment) -> KvPool | None:
    """One KV memory in the engine's blocks."""
    return kv_pool(deployment, window_tokens(deployment)[0])


def _blocks(deployment: Deployment) -> float:
    """Usable blocks of one endpoint. Over several KV memories nobody can place requests perfectly."""
    pool, memories = _pool(deployment), deployment.profile.kv_memories
    if pool is None:
        return np.inf
    return pool.blocks if memories == 1 else np.floor(pool.blocks * memories * USABLE_OVER_MEMORIES)


def _curve(deployment: Deployment) -> Curve | None:
    """The curve through the points that ran without queueing for a slot or for KV; without any, the roofline's."""
    slots, blocks, pool = _slots(deployment) or np.inf, _blocks(deployment), _pool(deployment)
    points = deployment.profile.points
    if pool is not None:
        points = tuple(p for p in points if p.concurrency * pool.units(p.isl + p.osl) <= blocks)
    points = tuple(point for point in points if point.concurrency <= slots)
    loop = closed_loop(deployment)
    if isinstance(loop, Unknown):
        return Curve.fit(points)
    return Curve.fit(points, loop.shape()) or loop.curve()


def _keeps_prefixes(deployment: Deployment) -> bool | None:
    limits = deployment.profile.limits
    return limits.prefix_caching if limits else None


def _cache_tokens(
    deployments: tuple[Deployment, ...], pools: tuple[tuple[int, ...], ...], blocks: tuple[float, ...]
) -> tuple[float | None, ...]:
    """A prefix cache is what the KV pool has free. Engines keep one unless told otherwise, so unknown is yes."""
    tokens: list[float | None] = [None] * len(blocks)
    for deployment, own in zip(deployments, pools, strict=True):
        pool = _pool(deployment)
        for index in own:
            if _keeps_prefixes(deployment) is False:
                tokens[index] = 0.0
            elif pool is not None:
                tokens[index] = blocks[index] / pool.blocks * pool.longest_tokens()
    return tuple(tokens)


def _prices(deployment: Deployment) -> tuple[float, float, float]:
    """US dollars per second of the deployment, per input token, per output token; NaN where it is not paid that way."""
    price, gpus = deployment.profile.price, deployment.profile.accelerators
    if price and price.usd_per_million_input_tokens is not None and price.usd_per_million_output_tokens is not None:
        return np.nan, price.usd_per_million_input_tokens / _MILLION, price.usd_per_million_output_tokens / _MILLION
    hourly = price.usd_per_accelerator_hour if price else deployment.usd_per_accelerator_hour
    return (hourly * gpus / _SECONDS_PER_HOUR if hourly and gpus else np.nan), np.nan, np.nan


def pools(deployments: tuple[Deployment, ...]) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
    """By deployment the pool of each endpoint, and by pool its blocks; deployments that name the same pool share one.

    Raises ``UsageError`` when a shared pool has several endpoints, or is described in two ways.
    """
    indices: list[tuple[int, ...]] = []
    capacity: list[float] = []
    named: dict[str, tuple[int, Deployment]] = {}
    for deployment in deployments:
        pool, blocks = _pool(deployment), _blocks(deployment)
        if deployment.pool is not None:
            if len(deployment.urls) > 1:
                raise UsageError(
                    f"deployment {deployment.name!r} has {len(deployment.urls)} endpoints with a KV memory each; they "
                    f"cannot share the pool {deployment.pool!r}, so make each endpoint a deployment"
                )
            if deployment.pool in named:
                index, other = named[deployment.pool]
                if (pool, blocks) != (_pool(other), _blocks(other)):
                    raise UsageError(
                        f"deployments {other.name!r} and {deployment.name!r} share the pool {deployment.pool!r}, "
                        f"but their profiles describe it differently; give both the same kv_pool and attention_dp"
                    )
                indices.append((index,))
                continue
            named[deployment.pool] = len(capacity), deployment
        endpoints = max(1, len(deployment.urls))
        indices.append(tuple(range(len(capacity), len(capacity) + endpoints)))
        capacity += [blocks] * endpoints
    return tuple(indices), tuple(capacity)
