"""Why a deployment cannot take a task, or lost, in one sentence with numbers; and where its numbers come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentroute.assessment import Assessment, Columns, Late
from agentroute.capacity.kv import Unknown
from agentroute.compiled import BIT, UNKNOWN_CAPABILITY, offered, window_tokens
from agentroute.estimate import Estimate, milliseconds
from agentroute.fleet import Deployment
from agentroute.inputs import Limit, Metric
from agentroute.origin import Provenance
from agentroute.policy import SLO_MARGIN, Objective
from agentroute.profile import Profile
from agentroute.ranking import HARM, MISSED, SLO_STEP
from agentroute.serving import closed_loop

NAMES: dict[Metric, str] = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}


Kind = Literal["not_allowed", "window", "request_size", "capability", "budget", "slo", "unknown", "down", "no_room"]
"""Why a deployment cannot take a task: by name or quality floor; prompt and answer, or their KV, beyond what one
request may have; a capability that it lacks; too dear; too slow; nobody can tell; its breaker, that it turned
others away, or one that waited longer keeps it shut; others are there at this moment."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a deployment cannot take a task: ``str()`` is the sentence.

    The task demands ``demand`` of ``limit``, both in ``unit``: tokens, KV blocks, slots, siblings, ms or USD. ``None``
    is unknown, or where there is no number.
    """

    kind: Kind
    text: str
    demand: float | None = None
    limit: float | None = None
    unit: str | None = None

    def __str__(self) -> str:
        return self.text


def refused(a: Assessment, d: int) -> Reason:
    """The one reason why deployment ``d`` cannot take the task."""
    ask, fleet, deployment = a.ask, a.fleet, a.fleet.deployments[d]
    if ask.allowed is not None and not ask.allowed[d]:
        return Reason("not_allowed", "neither the task nor its route allows it")
    window, origin = window_tokens(deployment)
    asked = ask.context_tokens + (ask.output_tokens if ask.output_is_set else 1)
    if window is not None and asked > window:
        output = f"{ask.output_tokens:,.0f} output" if ask.output_is_set else "any output"
        text = f"{ask.context_tokens:,.0f} context and {output} tokens do not fit its window of {window:,} ({origin})"
        return Reason("window", text, asked, float(window), "tokens")
    blocks, most = float(a.blocks_of(ask.tokens)[d]), float(fleet.request_blocks[d])
    if blocks > most:
        rank = f" of one {_memory(deployment.profile)}" if deployment.profile.kv_memories > 1 else ""
        needs = f"one request needs {blocks:,.0f} KV blocks of {fleet.block_tokens[d]:,.0f} tokens"
        return Reason("request_size", f"{needs}, the pool{rank} has {most:,.0f}", blocks, most, "KV blocks")
    for capability, bit in BIT.items():
        if ask.needs & bit & int(fleet.lacks[d]):
            return Reason("capability", f"it does not offer {capability}")
    if ask.max_cost_usd is not None and (dear := _dear(float(a.cost_usd[d]), ask.max_cost_usd)):
        return dear
    for limit in ask.limits:
        if limit.hard and (reason := _broken(a, d, limit)):
            return reason
    if a.state.up is not None and not a.state.up[a.pool[d]]:
        why = "it failed again and again, it turned others away, or one that waited longer is next"
        return Reason("down", f"nothing goes there for now: {why}")
    needed, free = float(a.units[d]), float(fleet.blocks[d] - a.held[d])
    text = f"one request needs {needed:,.0f} KV blocks, {free:,.0f} of {fleet.blocks[d]:,.0f} are free now"
    return Reason("no_room", text, needed, free, "KV blocks")


def _dear(cost: float, most: float) -> Reason | None:
    if math.isnan(cost):
        said = f"what it costs is unknown, so a budget of ${most:.3g} cannot be promised"
        return Reason("unknown", said, None, most, "USD")
    said = f"a request costs ${cost:.3g}, over the budget of ${most:.3g}"
    return Reason("budget", said, cost, most, "USD") if cost > most else None


def _broken(a: Assessment, d: int, limit: Limit) -> Reason | None:
    judged = float(a.judged_ms(limit)[d])
    name, allowed = NAMES[limit.metric], _allowed(limit)
    if math.isnan(judged):
        points = a.fleet.deployments[d].profile.points
        why = "measured only beyond what it runs at once" if points else "nothing measured"
        said = f"its {name} is unknown ({why}), so a hard limit of {allowed} cannot be promised"
        return Reason("unknown", said, None, limit.limit_ms, "ms")
    if judged <= limit.limit_ms:
        return None
    what = f"{name}{_judged_by(a, d, limit)}"
    at = f" at {a.n[d]:.0f} in flight" if a.n[d] > 1 else ""
    said = f"{what} of {milliseconds(judged)}{at} is over the hard limit of {allowed}"
    return Reason("slo", said, judged, limit.limit_ms, "ms")


def standing(a: Assessment, d: int, best: int, by: Objective) -> str:
    """How deployment ``d`` stands against the chosen one: why it was chosen, or the one reason why not."""
    if d == best:
        if not by.weighs_slos and int(a.rank[d]) >= MISSED:
            return f"{_slo_standing(a, d)}, and no other one by less"
        return f"{_slo_standing(a, d)}; best by {by.name}: {measure(a, d, by)}"
    own, winning = int(a.rank[d]), int(a.rank[best])
    if own & MISSED > winning & MISSED:
        return _slo_standing(a, d)
    if own & HARM > winning & HARM and a.harm is not None and not by.weighs_slos:
        return f"{a.harm[d]:.2g} others there are expected to miss their SLOs because of it"
    if own & SLO_STEP > winning & SLO_STEP and own & MISSED == winning & MISSED:
        return _slo_standing(a, d)
    if own & UNKNOWN_CAPABILITY and not winning & UNKNOWN_CAPABILITY:
        missing = [name for name, bit in BIT.items() if a.ask.needs & bit & ~int(a.fleet.offers[d])]
        return f"whether it offers {', '.join(missing)} is unknown"
    if a.fleet.pool_rank[d] > a.fleet.pool_rank[best]:
        return "KV unknown"
    if a.cramped is not None and a.cramped[d] > a.cramped[best]:
        return f"the next steps of its session would not fit: {a.ask.grown_tokens:,.0f} tokens are expected"
    if own >= MISSED and not by.weighs_slos:
        return _slo_standing(a, d)
    return f"{by.name}: {measure(a, d, by)} against {measure(a, best, by)}"


def of_unmeasured(on: Late, d: int, by: Objective) -> str | None:
    """``standing`` of the chosen one, where no times of it are known and no SLO asks for any; ``None``: an assessment
    must tell."""
    if by.name != "fit" or on.ask.limits or on.fleet.curves.curves[d] is not None:
        return None
    return f"{_NO_SLO}; best by fit: {_unknown(on.fleet.deployments[d])}"


def _allowed(limit: Limit) -> str:
    """The limit that was asked for, and what of it has gone by."""
    asked = milliseconds(limit.asked_ms or limit.limit_ms)
    return f"{asked}, {milliseconds(limit.waited_ms)} of it gone in waiting" if limit.waited_ms >= 1 else asked


def _judged_by(a: Assessment, d: int, limit: Limit) -> str:
    """What a limit that is not about the mean was held against."""
    if limit.stat == "mean":
        return ""
    tail = a.tail(d, limit)
    return f" {limit.stat} (judged by {f'{tail:.2g} x the mean, as measured' if tail else 'the high end of its band'})"


def _slo_standing(a: Assessment, d: int) -> str:
    if not a.ask.limits:
        return _NO_SLO
    worst, share = a.ask.limits[0], -1.0
    for limit in a.ask.limits:
        own = float(a.judged_ms(limit)[d]) / limit.limit_ms
        if math.isnan(own):
            return f"{NAMES[limit.metric]} unknown, so no SLO on it can be promised"
        if own > share:
            worst, share = limit, own
    name, allowed = f"{NAMES[worst.metric]}{_judged_by(a, d, worst)}", _allowed(worst)
    if share > 1:
        return f"misses {name} of {allowed} by {share - 1:.0%}"
    close = "" if share <= 1 - SLO_MARGIN else f", less than the {SLO_MARGIN:.0%} wanted"
    return f"keeps {name} of {allowed} with {1 - share:.0%} to spare{close}"


def measure(a: Assessment, d: int, by: Objective) -> str:
    """What the objective sees at deployment ``d``, with its unit."""
    if by.name not in a.said:
        a.said[by.name] = by(a).tolist(), _taken(a) if by.name == "fit" else ()
    scores, taken = a.said[by.name]
    value = scores[d]
    if math.isnan(value):
        return _unknown(a.fleet.deployments[d])
    match by.name:
        case "cost":
            return f"${value:.3g} per request"
        case "latency":
            return f"{milliseconds(value)} to the answer"
        case "fit":
            return _scarcity(*(column[d] for column in taken), has_slos=a.own_miss is not None)
        case _:
            return f"{value:.3g}"


_NO_SLO = "no SLO to keep"


def _unknown(deployment: Deployment) -> str:
    return "unknown" if deployment.profile.points else "unknown, nothing is measured"


def _taken(a: Assessment) -> Columns:
    """What ``fit`` adds up, of every deployment: own misses, others', GPU-seconds, E2E, the share of the KV pool."""
    full = (a.held + a.units * a.ask.concurrency) / a.fleet.blocks
    missed, harmed = (np.zeros(len(full)) if one is None else one for one in (a.own_miss, a.harm))
    columns = (missed, harmed, a.gpu_seconds, a.e2e_ms, np.where(a.fleet.known_pool, full, np.nan))
    return tuple(column.tolist() for column in columns)


def _scarcity(miss: float, harm: float, seconds: float, e2e_ms: float, share: float, *, has_slos: bool) -> str:
    """The SLOs that are expected to be missed, where some are, and what is taken."""
    said = f"{seconds:.3g} GPU-seconds"
    if not has_slos:
        said = f"{said}, {milliseconds(e2e_ms)} to the answer"
    if harm >= 0.0005:
        said = f"{harm:.2g} others there expected to miss theirs because of it, {said}"
    if miss >= 0.0005:
        said = f"{miss:.1%} likely to miss its SLO, {said}"
    if share > 1:
        return f"{said}, {share:.1f} times its KV pool"
    return f"{said}, its KV pool {share:.1%} full" if share == share else said


def sources(deployment: Deployment) -> tuple[str, ...]:
    """Where the numbers of a deployment come from, one line for each kind of number, those on latency first."""
    profile = deployment.profile
    blocks = dict.fromkeys(_said(block.provenance) for block in profile.measurements)
    lines = [f"latency: {said}" for said in blocks] or [_unmeasured(deployment)]
    if profile.provenance:
        what = f"sharding: {profile.split}" if profile.split else f"engine: {profile.engine.name}"
        lines.append(f"{what}, {_said(profile.provenance)}")
    window, origin = window_tokens(deployment)
    window_source = profile.limits.provenance.source if profile.limits and profile.limits.max_model_len else None
    lines.append(
        f"window: {window:,} tokens, {origin}{f': {window_source}' if window_source else ' from the model'}"
        if window
        else "window: unknown"
    )
    pool, limits = profile.pool, profile.limits
    if pool and limits and limits.kv_pool:
        each = f" in each of {profile.kv_memories} {_memory(profile)}s" if profile.kv_memories > 1 else ""
        said = _said(limits.kv_pool.provenance or limits.provenance)
        lines.append(f"KV pool: {pool}{each}, {said}")
    else:
        lines.append("KV pool: unknown")
    if profile.price:
        lines.append(f"price: {_said(profile.price.provenance)}")
    elif deployment.usd_per_accelerator_hour:
        hourly = deployment.usd_per_accelerator_hour
        lines.append(f"price: ${hourly:g} per accelerator-hour, assumed (prices.toml)")
    else:
        lines.append("price: unknown")
    for capability in BIT:
        if offered(deployment, capability) is not None and profile.capabilities:
            lines.append(f"capabilities: {_said(profile.capabilities.provenance)}")
            break
    return tuple(lines)


def at_load(lines: tuple[str, ...], deployment: Deployment, times: Sequence[Estimate]) -> tuple[str, ...]:
    """The sources of a deployment, and how the times of one load stand to its measured points."""
    if not deployment.profile.measurements or not times:
        return lines
    first = sum(line.startswith("latency: ") for line in lines)
    return (*lines[:first], f"this load: {_place(times)}", *lines[first:])


def _place(times: Sequence[Estimate]) -> str:
    if any(time.extrapolated for time in times):
        return "outside the measured points"
    if any(time.interpolated for time in times):
        return "between measured points"
    return "a measured point"


def _unmeasured(deployment: Deployment) -> str:
    if isinstance(closed_loop(deployment), Unknown):
        return "latency: unknown"
    split, accelerator = deployment.profile.split, deployment.profile.accelerator
    return f"latency: derived, from the roofline of {deployment.model_name} on {accelerator}, {split}"


def _said(provenance: Provenance) -> str:
    parts = [provenance.origin, provenance.source]
    parts += [f"on {provenance.date.isoformat()}"] if provenance.date else []
    parts += [f"quality {provenance.quality}"] if provenance.quality else []
    return ", ".join(parts)


def _memory(profile: Profile) -> str:
    """Whose KV memory it is, of several."""
    return "engine" if profile.limits and profile.limits.engines else "attention-DP rank"
