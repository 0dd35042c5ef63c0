"""What becomes of deployments and KV pools when a fleet is replaced by another one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from agentroute.compiled import CompiledFleet


class Moved(NamedTuple):
    """What has become of the deployments and pools of a fleet in another one: new numbers by old ones."""

    deployments: dict[int, int]
    pools: dict[int, int]
    same_curves: dict[int, int]
    """The deployments whose profile is the same: what was learnt of its curves still holds."""

    @classmethod
    def between(cls, old: CompiledFleet, new: CompiledFleet) -> Moved:
        """A deployment is the same where its name is, and a pool where its address is: the deployment's name, or that
        of the pool which it shares, with one of its URLs. What a profile says of them may differ.
        """
        pools, names = _pools(new), {one.name: d for d, one in enumerate(new.deployments)}
        kept = {pool: pools[key] for key, pool in _pools(old).items() if key in pools}
        stay = {d: names[one.name] for d, one in enumerate(old.deployments) if one.name in names}
        same = {d: to for d, to in stay.items() if old.deployments[d].profile == new.deployments[to].profile}
        return cls(stay, kept, same)


def _pools(fleet: CompiledFleet) -> dict[Hashable, int]:
    """The pools by what tells them from others."""
    found: dict[Hashable, int] = {}
    for one, pools in zip(fleet.deployments, fleet.pools, strict=True):
        for url, pool in zip(one.urls or (None,), pools, strict=True):
            found.setdefault((one.pool is not None, one.pool or one.name, url), pool)
    return found
