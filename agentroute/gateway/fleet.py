"""The fleet at this moment, as the page shows it and as the metrics tell it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentroute.decision import Headroom
from agentroute.errors import AgentrouteError
from agentroute.fleet import Deployment
from agentroute.gateway.catalogue import Served
from agentroute.gateway.keys import Caller
from agentroute.gateway.metrics import Gauges, Labels
from agentroute.gateway.plain import plain
from agentroute.profile import Profile
from agentroute.pulse import Vital
from agentroute.router import Router
from agentroute.task import Task
from agentroute.watch import AsyncWatcher, Endpoint

_LEAST = Task(context_tokens=1, max_output_tokens=1)
"""What is decided to learn how full the pools are."""


class FleetView:
    """What a router, its watcher and its profiles say of every deployment."""

    def __init__(self, router: Router, watch: AsyncWatcher, served: Served) -> None:
        self._router, self._watch, self._served = router, watch, served

    def of(self, caller: Caller) -> dict[str, Any]:
        """The fleet as a caller may see it; addresses are for admins."""
        visible, held, vitals = self._served.visible(caller), self._held(), self._watch.vitals
        shown = [d for d in self._router.fleet.deployments if d.name in visible]
        told = {
            "queued": self._router.queued,
            "routes": [name for name in self._router.routes if caller.may(name)],
            "deployments": [self._deployment(one, vitals, held.get(one.name), caller.admin) for one in shown],
        }
        return dict(plain(told))

    def up(self) -> int:
        """Endpoints that answer and are sent requests."""
        vitals = self._watch.vitals
        ends = ((d.name, url) for d in self._router.fleet.deployments for url in dict.fromkeys(d.urls))
        return sum(_of(vitals, *end).up is True and self._closed_in_s(*end) is None for end in ends)

    def gauges(self) -> Gauges:
        """What is now, for the metrics; what is unknown is left out."""
        by, vitals = ("deployment", "endpoint"), list(self._numbered())
        yield "agentroute_queue_length", "Requests that wait for room.", (), [((), float(self._router.queued))]
        up = ((key, float(vital.up)) for key, _, vital in vitals if vital.up is not None)
        yield "agentroute_endpoint_up", "Whether it answers.", by, up
        yield "agentroute_kv_used_ratio", "KV memory in use, as the server says.", by, _said(vitals, "kv_used")
        yield "agentroute_requests_running", "Requests in the server's batch.", by, _said(vitals, "running")
        yield "agentroute_requests_waiting", "Requests in the server's queue.", by, _said(vitals, "waiting")
        shut = ((key, float(self._closed_in_s(key[0], url) is not None)) for key, url, _ in vitals)
        yield "agentroute_breaker_open", "Whether nothing, or only a trial, is sent there.", by, shut

    def _deployment(
        self, one: Deployment, vitals: Mapping[Endpoint, Vital], held: Headroom | None, addresses: bool
    ) -> dict[str, Any]:
        curve = curve_of(one.profile)
        endpoints = [
            self._endpoint(one.name, url, _of(vitals, one.name, url), addresses) for url in dict.fromkeys(one.urls)
        ]
        counts = [e["running"] + (e["waiting"] or 0) for e in endpoints if e["running"] is not None]
        n = max(counts, default=None)
        return {
            "name": one.name,
            "model": one.model_name,
            "served_model": self._served.id_of(one.name),
            "engine": one.profile.engine.name,
            "accelerator": one.profile.accelerator,
            "sharding": one.profile.split,
            "endpoints": endpoints,
            "kv_blocks": None if held is None else {"free": held.free, "blocks": held.blocks},
            "curve": curve,
            "now": None if n is None else {"concurrency": n, "tpot_ms": at(curve, n) if curve else None},
        }

    def _endpoint(self, name: str, url: str, vital: Vital, addresses: bool) -> dict[str, Any]:
        load, closed_in_s = vital.load, self._closed_in_s(name, url)
        return {
            "url": url if addresses else None,
            "up": vital.up,
            "trouble": vital.trouble,
            "said": (vital.said or None) if addresses else None,
            "running": load.running,
            "waiting": load.waiting,
            "kv_used": load.kv_used,
            "ttft_ms": vital.ttft_ms,
            "breaker": "closed" if closed_in_s is None else "open" if closed_in_s > 0 else "half-open",
        }

    def _held(self) -> dict[str, Headroom]:
        """By deployment the room of its fullest-known pool, as the ledger has it."""
        try:
            candidates = self._router.decide(_LEAST).candidates
        except AgentrouteError:
            return {}
        return {one.deployment: one.headroom for one in candidates if one.headroom is not None}

    def _numbered(self) -> Iterator[tuple[Labels, str, Vital]]:
        """By deployment and the number of its endpoint: addresses are no labels."""
        vitals = self._watch.vitals
        for deployment in self._router.fleet.deployments:
            for i, url in enumerate(dict.fromkeys(deployment.urls)):
                yield (deployment.name, str(i)), url, _of(vitals, deployment.name, url)

    def _closed_in_s(self, name: str, url: str) -> float | None:
        return self._router.signs(name, url=url).closed_in_s


def curve_of(profile: Profile) -> dict[str, Any] | None:
    """TPOT over concurrency, of the one size that most points of a profile were measured at; ``None`` without any."""
    by_size: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for point in profile.points:
        tpot_ms = point.mean_tpot_ms()
        if tpot_ms is not None and not point.saturated:
            by_size[point.isl, point.osl][point.concurrency] = tpot_ms
    if not by_size:
        return None
    isl, osl = max(by_size, key=lambda size: (len(by_size[size]), size))
    points = sorted(by_size[isl, osl].items())
    return {"isl": isl, "osl": osl, "points": [{"concurrency": n, "tpot_ms": tpot} for n, tpot in points]}


def at(curve: dict[str, Any], n: int) -> float | None:
    """TPOT on a curve at ``n`` in flight, in ms, on the line between two points; ``None`` beyond them, and at 0."""
    points = [(point["concurrency"], point["tpot_ms"]) for point in curve["points"]]
    for (low, below), (high, above) in zip(points, points[1:] or points, strict=False):
        if low <= n <= high:
            share = (n - low) / (high - low) if high > low else 0.0
            return float(below + share * (above - below))
    return None


def _of(vitals: Mapping[Endpoint, Vital], name: str, url: str) -> Vital:
    return vitals.get((name, url)) or Vital()


def _said(vitals: Iterable[tuple[Labels, str, Vital]], name: str) -> Iterator[tuple[Labels, float]]:
    for key, _, vital in vitals:
        value = getattr(vital.load, name)
        if value is not None:
            yield key, float(value)
