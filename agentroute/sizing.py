"""Every sensible split of a model over so many accelerators, and how each stands under a load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentroute.capacity.holding import Serving, hold, refused
from agentroute.capacity.kv import Unknown, kv_heads
from agentroute.capacity.weights import Parts
from agentroute.ceilings import Ceilings, Stand, ceilings
from agentroute.latency.rates import METRICS, Metric, Workload, times
from agentroute.latency.roofline import Roofline
from agentroute.shape.accelerator import Accelerator
from agentroute.shape.model import Model, MoeMlp
from agentroute.shape.sharding import Sharding

MOST_STAGES = 16
"""Longer pipelines are not looked at."""


@dataclass(frozen=True, slots=True)
class Sized:
    """One way of standing on all accelerators: ``replicas`` worker groups with the same split.

    ``stand`` and ``ceilings`` are those of one group under its ``share`` of all ``concurrency`` requests; times are
    those of the roofline, in milliseconds, ``None`` when unknown: TTFT of the last when all come at once.
    """

    replicas: int
    concurrency: int
    share: Workload
    stand: Stand
    ceilings: Ceilings
    lone_ttft_ms: float | None
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
        """Whether no ceiling is broken even at the low end of its band. What is unknown is not kept: neither a KV pool,
        nor, where there is an SLO, a speed."""
        known = self.n_max is not None and (self.tpot_ms is not None or not self.share.slos)
        return known and not any(c.breaks and c.n_c.low < self.share.n for c in self.ceilings.all)

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
    parts, kept = Parts.of(model), serving.quantisation(model)
    found = []
    for replicas, sharding in splits(model, accelerator, count, serving):
        share = replace(workload, n=-(-workload.n // replicas))
        started = replace(serving, slots=serving.slots or share.n) if serving.engine == "llamacpp" else serving
        stand = Stand(
            model,
            accelerator,
            sharding,
            hold(model, accelerator, sharding, started, parts=parts),
            Roofline.of(model, accelerator, sharding, quantisation=kept, kv_type=serving.kv_type),
            serving.slots,
            window_tokens,
        )
        ms = [_ms(stand.roofline, share, metric) for metric in METRICS]
        lone = _ms(stand.roofline, replace(share, n=1), "TTFT")
        found.append(Sized(replicas, workload.n, share, stand, ceilings(stand, share), lone, *ms))
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

    What the engine would refuse is left out. A tensor split that leaves the tight domain is looked at only where it
    takes the whole group. Attention replicas are for models with experts, which then stand whole on all ranks; a model
    without experts is replicated as a whole. Where a tensor split copies KV, vLLM can spread a sequence over the copies
    (dcp). llama.cpp splits by layers.
    """
    experts = [group.mlp.experts for group in model.layers if isinstance(group.mlp, MoeMlp)]
    for replicas in _divisors(count):
        group = count // replicas
        for pp in _divisors(group):
            for tp in _divisors(group // pp):
                dp = group // pp // tp
                whole = bool(experts) and all(number % (tp * dp) == 0 for number in experts)
                for sharding in _of(tp, pp, dp, whole, _copies(model, tp) if serving.engine == "vllm" else 1):
                    if _sensible(model, accelerator, sharding, serving):
                        yield replicas, sharding


def _of(tp: int, pp: int, dp: int, whole: bool, copies: int) -> Iterator[Sharding]:
    """The splits of these degrees: with attention replicas, experts stand whole; without, they may."""
    if dp > 1:
        if whole:
            yield Sharding(tp=tp, pp=pp, ep=tp * dp, attention_dp=dp)
        return
    for ep in (1, tp) if whole and tp > 1 else (1,):
        yield Sharding(tp=tp, pp=pp, ep=ep)
        if copies > 1:
            yield Sharding(tp=tp, pp=pp, ep=ep, dcp=copies)


def _copies(model: Model, tp: int) -> int:
    """How often a tensor split keeps the same KV, in every layer at least."""
    return max(1, tp // max(kv_heads(model), default=tp))


def _sensible(model: Model, accelerator: Accelerator, sharding: Sharding, serving: Serving) -> bool:
    tp, pp, dp = sharding.tp, sharding.pp, sharding.attention_dp
    if serving.engine == "llamacpp" and (tp > 1 or dp > 1):
        return False
    if tp > accelerator.tight_domain_accelerators and (pp > 1 or dp > 1):
        return False
    return pp <= MOST_STAGES and refused(model, sharding, serving) is None


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
