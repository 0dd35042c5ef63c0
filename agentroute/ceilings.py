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
from operator import itemgetter
from typing import Literal, NamedTuple

from agentroute.capacity.holding import Holding
from agentroute.capacity.kv import Unknown, kv_heads
from agentroute.estimate import Estimate
from agentroute.latency.compiled import Rates
from agentroute.latency.limits import Found as RateFound
from agentroute.latency.limits import told
from agentroute.latency.links import experts_near
from agentroute.latency.rates import RateKind, Workload
from agentroute.latency.roofline import Roofline
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


class Ceilings:
    """All ceilings of a deployment under a load, the one that binds first.

    Each is told when it is asked for: most loads are held against the first one or two.
    """

    def __init__(self, stand: Stand, workload: Workload, found: list[_Found]) -> None:
        self._stand, self._workload, self._found = stand, workload, found
        self._told: dict[int, Ceiling] = {}

    @cached_property
    def all(self) -> tuple[Ceiling, ...]:
        """Every ceiling with a number."""
        return tuple([self._at(place) for place in range(len(self._found))])

    @property
    def binding(self) -> Ceiling | None:
        """The ceiling with the least ``n_c``; ``None`` when none is known."""
        return self._at(0) if self._found else None

    @property
    def next(self) -> Ceiling | None:
        """The one that would bind if the binding one were lifted."""
        return self._at(1) if len(self._found) > 1 else None

    def _at(self, place: int) -> Ceiling:
        if (one := self._told.get(place)) is None:
            self._told[place] = one = _told(self._stand, self._workload, self._found[place])
        return one

    @cached_property
    def unknown(self) -> dict[CeilingKind, str]:
        """Those without a number, with the reason."""
        return dict(self._stand.unknown)

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """What a person should know about the split under this load."""
        return tuple(cautions(self._stand, self._workload))

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


_Found = tuple[float, Ceiling | CapacityKind] | RateFound
"""``n_c`` and its ceiling, or what is told of it if it is asked for."""

_N_C = itemgetter(0)
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
    def always(self) -> list[_Found]:
        """The ceilings that no load changes."""
        return [] if isinstance(self.weights, Unknown) else [(one.n_c.mean, one) for one in self.weights]

    @cached_property
    def unknown(self) -> dict[CeilingKind, str]:
        """The ceilings without a number under any load, with the reason."""
        found: dict[CeilingKind, str] = {}
        if isinstance(self.weights, Unknown):
            found["weights"] = found["domain_memory"] = self.weights.reason
        if isinstance(self.holding, Unknown):
            found["kv_capacity"] = self.holding.reason
        if self.slots is None:
            found["slots"] = "nobody says how many requests the server runs at once"
        if self.window_tokens is None:
            found["window"] = "nobody says how long a request may be"
        if isinstance(self.roofline, Unknown):
            found["compute"] = self.roofline.reason
        return found

    @cached_property
    def rates(self) -> Rates | None:
        """Its roofline, compiled; ``None``: unknown."""
        return None if isinstance(self.roofline, Unknown) else Rates(self.roofline)

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
    found = _capacity(stand, workload.isl + workload.osl)
    if (rates := stand.rates) is not None:
        found += rates.found(workload)
    # Of several with the same n_c the first stays first: capacity, then the rate that the time is charged to.
    found.sort(key=_N_C)
    return Ceilings(stand, workload, found)


def binding(stand: Stand, workload: Workload) -> Ceiling | None:
    """The binding one alone, in less time than all take; ``None`` when none is known.

    Where two rates have the same ``n_c``, it is the one that the time is charged to.
    """
    found = _capacity(stand, workload.isl + workload.osl)
    if (rates := stand.rates) is not None:
        found.append(rates.least(workload))
    return _told(stand, workload, min(found, key=_N_C)) if found else None


def _capacity(stand: Stand, tokens: int) -> list[_Found]:
    """The capacity ceilings of requests of ``tokens`` tokens."""
    found, holding, slots, window = [*stand.always], stand.holding, stand.all_slots, stand.window_tokens
    if not isinstance(holding, Unknown):
        found.append((holding.pools[1].sequences(tokens) * holding.replicas, "kv_capacity"))
    if slots is not None:
        found.append((slots, "slots"))
    if window is not None:
        found.append((inf if tokens <= window else 0.0, "window"))
    return found


def _told(stand: Stand, workload: Workload, found: _Found) -> Ceiling:
    n, n_c = workload.n, found[0]
    if len(found) > 2:
        demand_ms, limit_ms = told(found, n)
        held = Estimate(n_c, n_c, n_c, "derived")
        # What has no SLO is not broken, it stops paying.
        return Ceiling(found[1], demand_ms, limit_ms, f"ms {found[2]}", held, n_c / n - 1, found[3] is not None)
    kind = found[1]
    if isinstance(kind, Ceiling):
        return kind
    tokens = workload.isl + workload.osl
    if kind == "kv_capacity":
        holding = stand.holding
        assert not isinstance(holding, Unknown)
        replicas, (low, mean, high) = holding.replicas, holding.pools
        unit, needed, available = mean.scarcest(tokens)
        held = Estimate(n_c, low.sequences(tokens) * replicas, high.sequences(tokens) * replicas, holding.source)
        return Ceiling(kind, needed * n, available * replicas, unit, held, n_c / n - 1)
    if kind == "slots":
        return Ceiling(kind, float(n), n_c, "requests", _exact(n_c, "reported"), n_c / n - 1)
    assert stand.window_tokens is not None
    return _always("window", float(tokens), float(stand.window_tokens), "tokens")


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
