"""What a running router has seen of its deployments: curves that drift, pools that thrash, servers that are away.

A pool thrashes when more is let in than its KV memory holds to the end: the engine takes KV from requests that run and
computes it again (vLLM calls that preemption, SGLang retraction). No report of load tells it yet, so it is taken from
two signs, either of which is enough:

- every report over at least ``FULL_S`` seconds said that 95 % of the KV or more are in use and requests wait;
- at least ``OVERRUNS`` times in ten minutes an answer of our own grew beyond what the pool has.

The first is also what a pool looks like that is only kept full; so a finding of it is a warning, no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from agentroute.adapters.base import Load
from agentroute.doctor.finding import Finding, Kind, Severity, worst_first
from agentroute.doctor.setup import cautions
from agentroute.fleet import Deployment
from agentroute.state.corrections import WHOLE, Drift, Latency
from agentroute.state.health import FULL, Signs
from agentroute.state.load import DOWN, Trouble

FULL_S = 10.0
"""Assumed: about the time in which an engine turns over its batch."""
OVERRUNS = 3
"""Assumed: one or two answers that are longer than expected are no state of a pool."""
STALE_S = 12.0
"""From this age on, less than 1/e of a report is believed (``state.load``)."""

TOLD_S = 120.0
"""For so long a report counts that says what is wrong: twice the longest time between two (``pulse``)."""

_TROUBLES: dict[Trouble, tuple[Kind, str, Severity]] = {
    "unreachable": ("unreachable", "cannot be asked: {}; nothing is sent there until it answers", "wrong"),
    "dead": (
        "engine_dead",
        "its HTTP front answers, but it cannot serve: {}; nothing is sent there",
        "wrong",
    ),
    "hidden": ("load_hidden", "what others do there is not seen: {}", "warning"),
    "mixed": (
        "load_mixed",
        "several servers answer at this address in turn ({}): its load is that of any one of them, and not believed; "
        "give the address of each in urls",
        "warning",
    ),
}
"""The kind of finding that each trouble of a server is, its words, and how bad it is."""

_METRIC: dict[Latency, str] = {"ttft_ms": "TTFT", "tpot_ms": "TPOT"}
_MOST_RATIO = 2.99
"""No ratio beyond 3 is kept (``state.corrections``), so this is 3 or more."""


def examine(
    deployments: Sequence[Deployment], pools: Sequence[Sequence[int]], signs: Sequence[Signs], drifts: Iterable[Drift]
) -> list[Finding]:
    """How deployments are set up and how they run, the worst first."""
    return worst_first([*cautions(deployments), *troubles(deployments, pools, signs, drifts)])


def troubles(
    deployments: Sequence[Deployment], pools: Sequence[Sequence[int]], signs: Sequence[Signs], drifts: Iterable[Drift]
) -> list[Finding]:
    """What ``signs`` of the pools and ``drifts`` of the curves say; ``pools`` are each deployment's, by endpoint."""
    found: list[Finding] = []
    for deployment, own in zip(deployments, pools, strict=True):
        for i, pool in enumerate(own):
            where = f"at {deployment.urls[i]}, " if len(own) > 1 else ""
            found += _of_pool(deployment, signs[pool], where)
    return [*found, *_drifting(deployments, drifts)]


def at_this_moment(deployment: Deployment, load: Load, where: str = "") -> list[Finding]:
    """What one look at a server shows that would be bad if it stayed so; ``where`` begins the sentence."""
    found = []
    if load.waiting and load.kv_used is not None and load.kv_used >= FULL:
        text = (
            f"{where}at this moment {load.kv_used:.0%} of the KV pool are in use and {load.waiting} wait; where that "
        )
        text += "stays so, the engine takes KV from requests that run"
        numbers = {"kv_used": load.kv_used, "waiting": load.waiting}
        found.append(Finding("thrash", deployment.name, text, "note", numbers))
    if load.running:
        idling = _idling(deployment, Signs(in_flight=load.running + (load.waiting or 0)), f"{where}at this moment ")
        found += [replace(one, severity="note") for one in idling]
    return found


def _of_pool(deployment: Deployment, signs: Signs, where: str) -> Iterator[Finding]:
    name, stale = deployment.name, signs.age_s is not None and signs.age_s > STALE_S
    trouble = signs.trouble if signs.age_s is not None and signs.age_s <= TOLD_S else None
    if trouble is not None:
        kind, words, severity = _TROUBLES[trouble]
        yield Finding(kind, name, f"{where}{words.format(signs.said)}", severity)
    if signs.closed_in_s is not None and trouble not in DOWN:
        text = f"{where}calls fail one after the other: the next one tries it in {signs.closed_in_s:.0f} s"
        yield Finding("breaker", name, f"{text}; see whether the server runs", "wrong", {"s": signs.closed_in_s})
    if stale and signs.age_s is not None and trouble is None:
        text = f"{where}the last report of its load is {signs.age_s:,.0f} s old: what others do there is not seen"
        yield Finding("stale", name, f"{text}; report it with router.observe", "warning", {"age_s": signs.age_s})
    yield from _thrashing(name, signs, where, stale)
    yield from _idling(deployment, signs, f"{where}on average, while it works, ")


def _thrashing(name: str, signs: Signs, where: str, stale: bool) -> Iterator[Finding]:
    """By the rule above; reports that are stale say nothing of now."""
    if signs.full_s >= FULL_S and not stale and signs.kv_used is not None and signs.waiting is not None:
        text = (
            f"{where}{signs.kv_used:.0%} of the KV pool are in use and {signs.waiting} wait, for {signs.full_s:.0f} s"
        )
        text += ": the engine takes KV from requests that run, or is about to; send less there, or lower its slots"
        numbers = {"kv_used": signs.kv_used, "waiting": signs.waiting, "full_s": signs.full_s}
        yield Finding("thrash", name, text, "warning", numbers)
    if signs.overruns >= OVERRUNS:
        text = f"{where}answers grew beyond the KV pool {signs.overruns} times in ten minutes"
        text += "; give tasks a max_output_tokens that their answers keep"
        yield Finding("thrash", name, text, "warning", {"overruns": signs.overruns})


def _idling(deployment: Deployment, signs: Signs, where: str) -> Iterator[Finding]:
    """A layer split with fewer requests in flight than stages: decode is at work to in flight / pp, at most."""
    apart = deployment.profile.disaggregated
    split = apart.decode.sharding if apart else deployment.profile.sharding
    if split is None or signs.in_flight is None or split.pp == 1:
        return
    groups = split.attention_dp * (apart.decode.workers if apart else 1)
    each = signs.in_flight / groups
    if each < split.pp:
        of = f" on each of {groups} replicas" if groups > 1 else ""
        text = f"{where}{each:.2g} in flight{of}, for {split.pp} stages (pp): "
        text += f"{1 - each / split.pp:.0%} of decode idles; send more there at once, or split by tp instead"
        yield Finding("pipeline_idles", deployment.name, text, "warning", {"in_flight": each, "pp": split.pp})


def _drifting(deployments: Sequence[Deployment], drifts: Iterable[Drift]) -> Iterator[Finding]:
    """Drifts, but of a curve that is off as a whole not also those regions that are off to the same side."""
    drifts = list(drifts)
    whole = {(d.deployment, d.metric): d.ratio > 1.0 for d in drifts if d.region == WHOLE}
    for drift in drifts:
        if drift.region != WHOLE and whole.get((drift.deployment, drift.metric)) == (drift.ratio > 1.0):
            continue
        text = f"{_METRIC[drift.metric]} is {_times(drift.ratio)} what its curve says ({drift.region}, "
        text += f"{drift.observations:,} seen); predictions are corrected, but measure it again (agentroute measure)"
        numbers = {"ratio": drift.ratio, "observations": drift.observations}
        yield Finding("drift", deployments[drift.deployment].name, text, "warning", numbers)


def _times(ratio: float) -> str:
    if ratio >= _MOST_RATIO:
        return "3 times or more"
    return "a third or less of" if ratio <= 1.0 / _MOST_RATIO else f"{ratio:.2f} times"
