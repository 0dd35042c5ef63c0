"""How many KV blocks a request takes in each deployment's pool, by the rules of its engine, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentroute.capacity import vllm
from agentroute.capacity.holding import layout
from agentroute.capacity.kv import Unknown
from agentroute.capacity.pool import KvPool
from agentroute.fleet import Deployment
from agentroute.serving import serving
from agentroute.shape.sharding import Sharding

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """Blocks of a sequence, where layers of g kinds share a pool: the sum over the kinds of count x ceil(min(tokens,
    held) / block), and ``fixed``. Arrays of shape (g, d), ``fixed`` of shape (d,); exactly ``KvPool.units``.
    """

    count: Floats
    """Groups of layers of a kind; 0 where a deployment has fewer kinds."""
    block_tokens: Floats
    held_tokens: Floats
    """Tokens that layers of this kind hold at most, those of a window; infinite: all."""
    fixed: Floats
    """Blocks of a sequence of any length: pages of states, and one for a window that begins inside a block."""
    plain: bool
    """True when every deployment has one kind, that holds all."""
    kinds: tuple[tuple[tuple[tuple[float, float, float], ...], float], ...]
    """The same by deployment: (count, block, held) of each kind, and the fixed blocks."""

    @classmethod
    def of(cls, pools: Sequence[KvPool | None]) -> BlockTable:
        """The table of d pools; one that is unknown has blocks of one token."""
        kinds = [_kinds(pool) for pool in pools]
        most = max(1, *(len(own) for own, _ in kinds))
        rows = np.array([own + [_NONE] * (most - len(own)) for own, _ in kinds], dtype=np.float64).transpose(2, 1, 0)
        fixed = np.array([blocks for _, blocks in kinds], dtype=np.float64)
        plain = most == 1 and not fixed.any() and bool((rows[0] == 1.0).all() and np.isinf(rows[2]).all())
        by_deployment = tuple((tuple(own), own_fixed) for own, own_fixed in kinds)
        return cls(rows[0].copy(), rows[1].copy(), rows[2].copy(), fixed, plain, by_deployment)

    def units(self, tokens: Floats | float) -> Floats:
        """Blocks of ``tokens`` tokens in every deployment."""
        if self.plain:
            return np.asarray(np.ceil(tokens / self.block_tokens[0]))
        if isinstance(tokens, np.ndarray) and tokens.ndim > 1:
            blocks = self.fixed
            for count, block, held in zip(self.count, self.block_tokens, self.held_tokens, strict=True):
                blocks = blocks + count * np.ceil(np.minimum(tokens, held) / block)
            return np.asarray(blocks)
        filled = np.minimum(self.held_tokens, tokens)
        filled /= self.block_tokens
        np.ceil(filled, filled)
        filled *= self.count
        of_kinds: Floats = self.fixed + filled[0]
        for kind in range(1, len(filled)):
            of_kinds += filled[kind]
        return of_kinds

    def units_at(self, d: int, tokens: float) -> int:
        """The same of deployment ``d`` alone."""
        kinds, units = self.kinds[d]
        for count, block, held in kinds:
            units -= count * (-(tokens if tokens < held else held) // block)
        return int(units)

    def whole(self, tokens: Floats | float) -> Floats:
        """Blocks that ``tokens`` tokens fill in layers that hold everything: those that sequences with an equal
        beginning can have in common for as long as they run."""
        if self.plain:
            return np.asarray(np.floor(tokens / self.block_tokens[0]))
        blocks = np.zeros(self.fixed.shape)
        for count, block, held in zip(self.count, self.block_tokens, self.held_tokens, strict=True):
            blocks = blocks + np.where(np.isinf(held), count * np.floor(tokens / block), 0.0)
        return blocks


_NONE = (0.0, 1.0, np.inf)


def _kinds(pool: KvPool | None) -> tuple[list[tuple[float, float, float]], float]:
    """(count, block, held) of every kind of layers, and the fixed blocks."""
    if pool is None:
        return [(1.0, 1.0, np.inf)], 0.0
    if not isinstance(pool, vllm.VllmPool):
        return [(1.0, float(pool.block_tokens), np.inf)], 0.0
    kinds, fixed = [], 0.0
    for group in pool.layout.groups:
        fixed += group.groups * group.fixed_blocks
        if group.kind == "full":
            kinds.append((float(group.groups), float(group.block_tokens), np.inf))
        elif group.held_tokens is not None:
            kinds.append((float(group.groups), float(group.block_tokens), float(group.held_tokens)))
    return kinds or [_NONE], fixed


def kv_pool(deployment: Deployment, window_tokens: int | None) -> KvPool | None:
    """One KV memory in the engine's own blocks, or ``None`` when unknown; at least what the server printed means."""
    profile = deployment.profile
    pool, limits = profile.pool, profile.limits
    if pool is None or limits is None or limits.kv_pool is None:
        return None
    split = profile.sharding or (profile.disaggregated.decode.sharding if profile.disaggregated else None)
    found = printed(deployment, split, limits.kv_pool.tokens, window_tokens)
    return found[0] if found and found[0].blocks else pool


def printed(
    deployment: Deployment, split: Sharding | None, tokens: int, window_tokens: int | None
) -> tuple[KvPool, KvPool, KvPool] | None:
    """The pool of a mixed model in which vLLM prints ``tokens``: they do not add, and their meaning changed.

    Up to about 0.19 they are blocks of one group; since then, the concurrency at the window times the window. Where the
    version does not tell, the two are the ends of a band. ``None``: tokens are tokens.
    """
    model, served = deployment.model, serving(deployment.profile, deployment.model)
    if model is None or deployment.accelerator is None or split is None or isinstance(served, Unknown):
        return None
    shape = layout(model, split, served, served.step_tokens(deployment.accelerator))
    if not isinstance(shape, vllm.Layout) or len(shape.groups) == 1:
        return None
    window, version = window_tokens, served.engine_version
    by_group = shape.of_printed(tokens, "blocks_per_group")
    by_concurrency = shape.of_printed(tokens, "concurrency", window) if window else by_group
    if version is not None:
        found = by_concurrency if version >= vllm.CONCURRENCY_SINCE else by_group
        return found, found, found
    low, high = sorted((by_group, by_concurrency), key=lambda pool: pool.blocks)
    return low, low, high
