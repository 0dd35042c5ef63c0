"""Where a deployment clogs: every limit with what a load demands of it, which of them binds, and which comes next.

For requests of one size each ceiling has ``n_c``, the largest concurrency that keeps it. Capacity ceilings (weights,
the tight domain's memory, KV capacity, slots, the window) keep while the demand is within the limit; rate ceilings
(``latency.rates``) while the SLOs hold, or without one up to the last doubling of the concurrency that is worth it. The
ceiling with the least ``n_c`` binds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import attrgetter
from typing import Literal, NamedTuple

from agentroute.capacity.holding import Holding
from agentroute.capacity.kv import Unknown, kv_heads
from agentroute.estimate import Estimate
from agentroute.latency.limits import least, limit_of, rate_limits
from agentroute.latency.tracks import Rates
from agentroute.latency.rates import RateKind, RateLimit, Workload
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


class Ceiling(NamedTuple):
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


_N_C = attrgetter("n_c.mean")
_CAPACITY = frozenset({"weights", "domain_memory", "window", "kv_capacity", "slots"})


@dataclass(frozen=True)
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

    @cached_property
    def weights(self) -> Unknown | tuple[Ceiling, Ceiling]:
        """Weights of the fullest accelerator, and those of all in its tight domain against all that the domain has."""
        holding, accelerator = self.holding, self.accelerator
        if isinstance(holding, Unknown):
            return holding
        if holding.weights_gib is None or holding.usable_gib is None or accelerator is None:
            return Unknown("the model, its precision, or the accelerator is unknown")
        weights, usable, domain = holding.weights_gib, holding.usable_gib, accelerator.tight_domain_accelerators
        inside = min(self.sharding.accelerators, domain)
        return (
            _always("weights", weights, usable, "GiB per accelerator"),
            _always("domain_memory", weights * inside, usable * domain, "GiB"),
        )

    @cached_property
    def rates(self) -> Rates:
        """What its limits depend on."""
        assert not isinstance(self.roofline, Unknown)
        return Rates(self.roofline)

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """What a person should know about the split under any load."""
        crossing = _crossing(self.model, self.sharding, self.accelerator) if self.accelerator is not None else ()
        return (*crossing, *_copying(self.model, self.sharding))

    @cached_property
    def longest_tokens(self) -> float | None:
        """The longest request that the KV pool holds; ``None``: unknown."""
        return None if isinstance(self.holding, Unknown) else self.holding.longest_tokens().mean

    @cached_property
    def all_slots(self) -> float | None:
        """Slots of every attention replica; ``None``: unknown."""
        replicas = self.sharding.attention_dp if isinstance(self.holding, Unknown) else self.holding.replicas
        return None if self.slots is None else float(self.slots * replicas)


def ceilings(stand: Stand, workload: Workload) -> Ceilings:
    """Every ceiling of a deployment under a load, the binding one first."""
    found, unknown = _capacity(stand, workload.n, workload.isl + workload.osl)
    if isinstance(stand.roofline, Unknown):
        unknown["compute"] = stand.roofline.reason
    else:
        breaks = bool(workload.slos)
        found += [_rate(*one, workload.n, breaks) for one in rate_limits(stand.rates, workload).items()]
    # Of several with the same n_c the first stays first: capacity, then the rate that the time is charged to.
    found.sort(key=_N_C)
    return Ceilings(tuple(found), unknown, tuple(cautions(stand, workload)))


def binding(stand: Stand, workload: Workload) -> Ceiling | None:
    """The binding one alone, in half of the time that all take; ``None`` when none is known.

    Where two rates have the same ``n_c``, it is the one that the time is charged to.
    """
    found, _ = _capacity(stand, workload.n, workload.isl + workload.osl)
    if not isinstance(stand.roofline, Unknown):
        found.append(_rate((one := least(stand.rates, workload))[1], limit_of(one, workload.n), workload.n, bool(workload.slos)))
    return min(found, key=_N_C, default=None)


def _rate(kind: RateKind, limit: RateLimit, n: int, breaks: bool) -> Ceiling:
    n_c, metric, demand_ms, limit_ms = limit
    return Ceiling(kind, demand_ms, limit_ms, f"ms {metric}", _exact(n_c), n_c / n - 1, breaks)


def _capacity(stand: Stand, n: int, tokens: int) -> tuple[list[Ceiling], dict[CeilingKind, str]]:
    """The capacity ceilings of ``n`` requests of ``tokens`` tokens, and why some are unknown."""
    found: list[Ceiling] = []
    unknown: dict[CeilingKind, str] = {}
    weights, holding, slots, window = stand.weights, stand.holding, stand.all_slots, stand.window_tokens
    if isinstance(weights, Unknown):
        unknown["weights"] = unknown["domain_memory"] = weights.reason
    else:
        found += weights
    if isinstance(holding, Unknown):
        unknown["kv_capacity"] = holding.reason
    else:
        scarce, n_c = holding.pools[1].scarcest(tokens), holding.sequences(tokens)
        needed, available = scarce.needed * n, scarce.available * holding.replicas
        found.append(Ceiling("kv_capacity", needed, available, scarce.unit, n_c, n_c.mean / n - 1))
    if slots is None:
        unknown["slots"] = "nobody says how many requests the server runs at once"
    else:
        found.append(Ceiling("slots", float(n), slots, "requests", _exact(slots, "reported"), slots / n - 1))
    if window is None:
        unknown["window"] = "nobody says how long a request may be"
    else:
        found.append(_always("window", float(tokens), float(window), "tokens"))
    return found, unknown


def _always(kind: CapacityKind, demand: float, limit: float, unit: str) -> Ceiling:
    """A ceiling that the concurrency does not touch: it is kept at any, or at none."""
    kept = demand <= limit
    return Ceiling(kind, demand, limit, unit, _exact(inf if kept else 0.0), inf if kept else -1.0)


def _exact(n_c: float, source: Origin = "derived") -> Estimate:
    return Estimate(n_c, n_c, n_c, source)


def cautions(stand: Stand, workload: Workload) -> Iterator[Caution]:
    """What a person should know about the split under this load."""
    sharding, tokens = stand.sharding, workload.isl + workload.osl
    in_flight = -(-workload.n // sharding.attention_dp)
    if sharding.pp > in_flight:
        said = f"{in_flight} in flight: {sharding.pp - in_flight} of {sharding.pp} stages idle"
        yield Caution("pipeline_idles", said)
    yield from stand.cautions
    longest, window = stand.longest_tokens, stand.window_tokens
    if longest and window and longest < tokens <= window:
        said = f"{tokens:,} tokens are within the window, but the KV pool holds {longest:,.0f} of one request"
        yield Caution("over_pool", said)


def _crossing(model: Model | None, sharding: Sharding, accelerator: Accelerator) -> Iterator[Caution]:
    domain = accelerator.tight_domain_accelerators
    near = experts_near(sharding, domain)
    if near < sharding.ep and model and model.has_experts:
        said = f"ep {sharding.ep} leaves tight domains of {domain}: {1 - near / sharding.ep:.0%} of its all-to-all"
        yield Caution("experts_cross", f"{said} crosses them")
    if sharding.tp > domain:
        spans = -(-sharding.tp // domain)
        said = f"tp {sharding.tp} spans {spans} tight domains of {domain}: every all-reduce crosses them"
        yield Caution("tensors_cross", said)


def _copying(model: Model | None, sharding: Sharding) -> Iterator[Caution]:
    heads = min(kv_heads(model), default=None) if model else None
    if heads is not None and sharding.tp > heads * sharding.dcp:
        what = f"each of {heads} KV heads" if heads > 1 else _the_one(model)
        said = f"tp {sharding.tp} keeps {what} {-(-sharding.tp // (heads * sharding.dcp))} times"
        yield Caution("kv_copied", said)


def _the_one(model: Model | None) -> str:
    latent = model is not None and any(isinstance(group.attention, Mla) for group in model.layers)
    return "the latent KV, which tensor splits do not divide," if latent else "its one KV head"


def _number(value: float) -> str:
    if value == inf:
        return "any"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
