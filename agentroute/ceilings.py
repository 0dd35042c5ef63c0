"""Where a deployment clogs: every limit with what a load demands of it, which of them binds, and which comes next.

For requests of one size each ceiling has ``n_c``, the largest concurrency that keeps it. Capacity ceilings (weights,
the tight domain's memory, KV capacity, slots, the window) keep while the demand is within the limit; rate ceilings
(``latency.rates``) while the SLOs hold, or without one up to the last doubling of the concurrency that is worth it. The
ceiling with the least ``n_c`` binds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from agentroute.capacity.holding import Holding
from agentroute.capacity.kv import Unknown, kv_heads
from agentroute.estimate import Estimate
from agentroute.latency.rates import RateKind, Workload, rate_limits
from agentroute.latency.roofline import Roofline, experts_near
from agentroute.origin import Origin
from agentroute.shape.accelerator import Accelerator
from agentroute.shape.model import Mla, Model
from agentroute.shape.sharding import Sharding

CapacityKind = Literal["weights", "domain_memory", "window", "kv_capacity", "slots"]
CeilingKind = CapacityKind | RateKind

NAMES: dict[CeilingKind, str] = {
    "weights": "weights",
    "domain_memory": "memory of the tight domain",
    "window": "window",
    "kv_capacity": "KV capacity",
    "slots": "slots",
    "weights_bandwidth": "reading weights",
    "kv_bandwidth": "KV bandwidth",
    "compute": "compute",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "pipeline": "pipeline",
}
"""Every ceiling as a person reads it."""

CautionKind = Literal["pipeline_idles", "experts_cross", "tensors_cross", "kv_copied", "over_pool"]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One limit: the load demands ``demand`` of ``limit``, both in ``unit``.

    ``n_c`` is the largest concurrency that keeps it, with the band of its mean; infinite: no concurrency breaks it.
    ``margin`` is ``n_c / n - 1``: below 0 the load is over the ceiling. ``breaks`` is False where being over it only
    stops paying: a rate without an SLO.
    """

    kind: CeilingKind
    demand: float
    limit: float
    unit: str
    n_c: Estimate
    margin: float
    breaks: bool = True

    def __str__(self) -> str:
        sign = "over" if self.margin < 0 else "of"
        return f"{NAMES[self.kind]}: {_number(self.demand)} {sign} {_number(self.limit)} {self.unit}"


@dataclass(frozen=True, slots=True)
class Caution:
    """Something about the split that a person should know, with its numbers."""

    kind: CautionKind
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Ceilings:
    """All ceilings, the one that binds first. ``unknown`` names those without a number, with the reason."""

    all: tuple[Ceiling, ...]
    unknown: dict[CeilingKind, str]
    cautions: tuple[Caution, ...]

    @property
    def binding(self) -> Ceiling | None:
        """The ceiling with the least ``n_c``; ``None`` when none is known."""
        return self.all[0] if self.all else None

    @property
    def next(self) -> Ceiling | None:
        """The one that would bind if the binding one were lifted."""
        return self.all[1] if len(self.all) > 1 else None

    def of(self, kind: CeilingKind) -> Ceiling | None:
        """One ceiling; ``None`` when it is unknown, or does not depend on the concurrency at all."""
        return next((ceiling for ceiling in self.all if ceiling.kind == kind), None)

    @property
    def n_max(self) -> Estimate | None:
        """The largest concurrency that every capacity ceiling keeps; ``None`` when the KV pool is unknown."""
        held = [c.n_c for c in self.all if c.kind in _CAPACITY]
        if self.of("kv_capacity") is None:
            return None
        low, mean, high = (min(getattr(n_c, end) for n_c in held) for end in ("low", "mean", "high"))
        return Estimate(mean, low, high, held[0].source)


_CAPACITY = frozenset({"weights", "domain_memory", "window", "kv_capacity", "slots"})


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a model stands: its split over accelerators of one kind, what that holds, and how fast it is.

    ``slots`` (of one attention replica) and ``window_tokens`` are the server's limits. ``None`` is unknown.
    """

    model: Model | None
    accelerator: Accelerator | None
    sharding: Sharding
    holding: Holding | Unknown
    roofline: Roofline | Unknown
    slots: int | None = None
    window_tokens: int | None = None


def ceilings(stand: Stand, workload: Workload) -> Ceilings:
    """Every ceiling of a deployment under a load, the binding one first."""
    found: list[Ceiling] = []
    unknown: dict[CeilingKind, str] = {}
    for kind, ceiling in _capacity(stand, workload):
        if isinstance(ceiling, Unknown):
            unknown[kind] = ceiling.reason
        else:
            found.append(ceiling)
    if isinstance(stand.roofline, Unknown):
        unknown["compute"] = stand.roofline.reason
    else:
        for rate, limit in rate_limits(stand.roofline, workload).items():
            unit = f"ms {limit.metric}"
            ceiling = _ceiling(rate, limit.demand_ms, limit.limit_ms, unit, _exact(limit.n_c), workload.n)
            found.append(replace(ceiling, breaks=bool(workload.slos)))
    # Of several with the same n_c the first stays first: capacity, then the rate that the time is charged to.
    found.sort(key=lambda ceiling: ceiling.n_c.mean)
    return Ceilings(tuple(found), unknown, tuple(cautions(stand, workload)))


def _capacity(stand: Stand, workload: Workload) -> Iterator[tuple[CapacityKind, Ceiling | Unknown]]:
    holding, n, tokens = stand.holding, workload.n, workload.isl + workload.osl
    yield from _weights(stand, n)
    if isinstance(holding, Unknown):
        yield "kv_capacity", holding
    else:
        scarce = holding.pools[1].scarcest(tokens)
        needed, available = scarce.needed * n, scarce.available * holding.replicas
        yield "kv_capacity", _ceiling("kv_capacity", needed, available, scarce.unit, holding.sequences(tokens), n)
    if stand.slots is None:
        yield "slots", Unknown("nobody says how many requests the server runs at once")
    else:
        replicas = stand.sharding.attention_dp if isinstance(holding, Unknown) else holding.replicas
        slots = float(stand.slots * replicas)
        yield "slots", _ceiling("slots", float(n), slots, "requests", _exact(slots, "reported"), n)
    if stand.window_tokens is None:
        yield "window", Unknown("nobody says how long a request may be")
    else:
        yield "window", _always("window", float(tokens), float(stand.window_tokens), "tokens", n)


def _weights(stand: Stand, n: int) -> Iterator[tuple[CapacityKind, Ceiling | Unknown]]:
    """Weights of the fullest accelerator, and those of all in its tight domain against all that the domain has."""
    holding, accelerator = stand.holding, stand.accelerator
    if isinstance(holding, Unknown):
        yield from (("weights", holding), ("domain_memory", holding))
    elif holding.weights_gib is None or holding.usable_gib is None or accelerator is None:
        why = Unknown("the model, its precision, or the accelerator is unknown")
        yield from (("weights", why), ("domain_memory", why))
    else:
        weights, usable, domain = holding.weights_gib, holding.usable_gib, accelerator.tight_domain_accelerators
        yield "weights", _always("weights", weights, usable, "GiB per accelerator", n)
        inside = min(stand.sharding.accelerators, domain)
        yield "domain_memory", _always("domain_memory", weights * inside, usable * domain, "GiB", n)


def _always(kind: CapacityKind, demand: float, limit: float, unit: str, n: int) -> Ceiling:
    """A ceiling that the concurrency does not touch: it is kept at any, or at none."""
    return _ceiling(kind, demand, limit, unit, _exact(inf if demand <= limit else 0.0), n)


def _ceiling(kind: CeilingKind, demand: float, limit: float, unit: str, n_c: Estimate, n: int) -> Ceiling:
    return Ceiling(kind, demand, limit, unit, n_c, n_c.mean / n - 1)


def _exact(n_c: float, source: Origin = "derived") -> Estimate:
    return Estimate(n_c, n_c, n_c, source)


def cautions(stand: Stand, workload: Workload) -> Iterator[Caution]:
    """What a person should know about the split under this load."""
    sharding, tokens = stand.sharding, workload.isl + workload.osl
    in_flight = -(-workload.n // sharding.attention_dp)
    if sharding.pp > in_flight:
        said = f"{in_flight} in flight: {sharding.pp - in_flight} of {sharding.pp} stages idle"
        yield Caution("pipeline_idles", said)
    if stand.accelerator is not None:
        yield from _crossing(stand.model, sharding, stand.accelerator.tight_domain_accelerators)
    heads = min(kv_heads(stand.model), default=None) if stand.model else None
    if heads is not None and sharding.tp > heads * sharding.dcp:
        what = f"each of {heads} KV heads" if heads > 1 else _the_one(stand.model)
        said = f"tp {sharding.tp} keeps {what} {-(-sharding.tp // (heads * sharding.dcp))} times"
        yield Caution("kv_copied", said)
    if not isinstance(stand.holding, Unknown):
        longest = stand.holding.longest_tokens().mean
        if 0 < longest < tokens <= (stand.window_tokens or 0):
            said = f"{tokens:,} tokens are within the window, but the KV pool holds {longest:,.0f} of one request"
            yield Caution("over_pool", said)


def _crossing(model: Model | None, sharding: Sharding, domain: int) -> Iterator[Caution]:
    near = experts_near(sharding, domain)
    if near < sharding.ep and model and model.has_experts:
        said = f"ep {sharding.ep} leaves tight domains of {domain}: {1 - near / sharding.ep:.0%} of its all-to-all"
        yield Caution("experts_cross", f"{said} crosses them")
    if sharding.tp > domain:
        spans = -(-sharding.tp // domain)
        said = f"tp {sharding.tp} spans {spans} tight domains of {domain}: every all-reduce crosses them"
        yield Caution("tensors_cross", said)


def _the_one(model: Model | None) -> str:
    latent = model is not None and any(isinstance(group.attention, Mla) for group in model.layers)
    return "the latent KV, which tensor splits do not divide," if latent else "its one KV head"


def _number(value: float) -> str:
    if value == inf:
        return "any"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
