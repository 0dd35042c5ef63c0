"""Every sensible split of a model over so many accelerators, and how each stands under a load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentroute.capacity.holding import Serving, hold
from agentroute.capacity.kv import Unknown
from agentroute.capacity.weights import Parts
from agentroute.ceilings import Ceilings, Stand, ceilings
from agentroute.latency.rates import METRICS, Metric, Workload, times
from agentroute.latency.roofline import Roofline
from agentroute.shape.accelerator import Accelerator
from agentroute.shape.model import Gqa, Mla, Model, MoeMlp
from agentroute.shape.sharding import Sharding

MOST_STAGES = 16
"""Longer pipelines are not looked at."""


@dataclass(frozen=True, slots=True)
class Sized:
    """One way of standing on all accelerators: ``replicas`` worker groups with the same split.

    ``stand`` and ``ceilings`` are those of one group under its ``share`` of the load; times are those of the roofline,
    in milliseconds, ``None`` when unknown.
    """

    replicas: int
    share: Workload
    stand: Stand
    ceilings: Ceilings
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None

    @property
    def sharding(self) -> Sharding:
        """The split of one group."""
        return self.stand.sharding

    @property
    def n_max(self) -> float | None:
        """Requests that all groups together hold at once; ``None`` when unknown."""
        one = self.ceilings.n_max
        return None if one is None else one.mean * self.replicas

    @property
    def keeps(self) -> bool:
        """Whether no known ceiling is broken even at the low end of its band, and the KV pool is known."""
        n = self.share.n
        return self.n_max is not None and not any(c.breaks and c.n_c.low < n for c in self.ceilings.all)

    def __str__(self) -> str:
        return f"{self.replicas} x ({self.sharding})" if self.replicas > 1 else str(self.sharding)


def size(
    model: Model,
    accelerator: Accelerator,
    count: int,
    workload: Workload,
    serving: Serving,
    *,
    window_tokens: int | None = None,
) -> tuple[Sized, ...]:
    """Every sensible way, the best first. llama.cpp is taken to be started for the load, unless slots are given.

    First those that keep every ceiling, the shortest time to the whole answer first; then the others, those that hold
    most requests first.
    """
    parts = Parts.of(model)
    found = []
    for replicas, sharding in splits(model, accelerator, count, serving):
        share = replace(workload, n=-(-workload.n // replicas))
        started = replace(serving, slots=serving.slots or share.n) if serving.engine == "llamacpp" else serving
        stand = Stand(
            model,
            accelerator,
            sharding,
            hold(model, accelerator, sharding, started, parts=parts),
            Roofline.of(model, accelerator, sharding, quantisation=serving.quantisation, kv_type=serving.kv_type),
            serving.slots,
            window_tokens,
        )
        ms = [_ms(stand.roofline, share, metric) for metric in METRICS]
        found.append(Sized(replicas, share, stand, ceilings(stand, share), *ms))
    return tuple(sorted(found, key=_rank))


def _rank(sized: Sized) -> tuple[object, ...]:
    slow = sized.e2e_ms if sized.e2e_ms is not None else float("inf")
    held = sized.n_max or 0.0
    if sized.keeps:
        return 0, slow, len(sized.ceilings.cautions), str(sized)
    return 1, -held, slow, str(sized)


def _ms(roofline: Roofline | Unknown, workload: Workload, metric: Metric) -> float | None:
    if isinstance(roofline, Unknown):
        return None
    return sum(part.total_s for part in times(roofline, workload, metric)(workload.n)) * 1_000


def splits(model: Model, accelerator: Accelerator, count: int, serving: Serving) -> Iterator[tuple[int, Sharding]]:
    """Replicas and the split of each, over ``count`` accelerators in all.

    A tensor split divides the heads, and one that leaves the tight domain is looked at only where it takes the whole
    group. Attention replicas are for models with experts, which then stand whole on all ranks; a model without experts
    is replicated as a whole. llama.cpp splits by layers.
    """
    experts = [group.mlp.experts for group in model.layers if isinstance(group.mlp, MoeMlp)]
    for replicas in _divisors(count):
        group = count // replicas
        for pp in _divisors(group):
            if pp > min(MOST_STAGES, model.layer_count):
                continue
            for tp in _divisors(group // pp):
                dp = group // pp // tp
                if not _sensible(model, accelerator, tp, pp, dp, serving) or (dp > 1 and not experts):
                    continue
                ranks = tp * dp
                whole = all(number % ranks == 0 for number in experts)
                if dp > 1:
                    if whole:
                        yield replicas, Sharding(tp=tp, pp=pp, ep=ranks, attention_dp=dp)
                    continue
                yield replicas, Sharding(tp=tp, pp=pp)
                if experts and tp > 1 and whole:
                    yield replicas, Sharding(tp=tp, pp=pp, ep=tp)


def _sensible(model: Model, accelerator: Accelerator, tp: int, pp: int, dp: int, serving: Serving) -> bool:
    if serving.engine == "llamacpp":
        return tp == dp == 1
    if tp > accelerator.tight_domain_accelerators and (pp > 1 or dp > 1):
        return False
    for group in model.layers:
        attention = group.attention
        if isinstance(attention, Gqa) and attention.kv_heads % tp and tp % attention.kv_heads:
            return False
        if isinstance(attention, Gqa | Mla) and attention.heads is not None and attention.heads % tp:
            return False
    return True


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
