"""What every run is asked before it becomes a point, whatever tool wrote it.

Two identities hold for every honest measurement: E2E = TTFT + (OSL - 1) x TPOT, and Little's law, requests in flight =
requests a second x E2E. Nearly every way of getting a number wrong breaks one of them: seconds for milliseconds, a TPOT
that includes the TTFT or counts chunks for tokens, a throughput per GPU that was divided by too many GPUs. A run that
breaks one is refused, or, where the other numbers still make a point, loses the number that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pydantic import ValidationError

from agentroute.bench.importers.run import Run, Times
from agentroute.errors import counted
from agentroute.latency.points import Measured, Point, Statistic

LEAST_TPOT_MS, LEAST_TTFT_MS, MOST_TPOT_MS = 0.1, 0.5, 10_000.0
"""Assumed: no server writes 10,000 tokens a second to one client, none answers within half a millisecond, and none
takes ten seconds for a token. What lies beyond is in another unit."""

MOST_FAILED = 0.10
"""Assumed: with more failed requests than this, those that were answered saw another load than was sent."""

ADDS_UP = (0.75, 1.33)
"""What a profile takes for TTFT + (OSL - 1) x TPOT over E2E; means of requests of many sizes add up that well."""

IN_FLIGHT = (0.7, 1.15)
"""Assumed: Little's law over the clients of a closed loop. Below, a client was idle at times; above is impossible."""

ENOUGH = 8
"""Requests for each client from which on the start and the end of a run weigh too little to explain a gap."""

CACHED = 0.02
"""The share of cached prompt tokens from which on a reader must know of it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A usable run, the point that it makes, and what was found on the way."""

    run: Run
    point: Point
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A run that makes no point, and why: the end of a sentence about it."""

    where: str
    why: str


def judge(run: Run) -> Judged | Refused:
    """``run`` as a point, or why it makes none."""
    for check in CHECKS:
        run = check(run)
        if run.wrong:
            return Refused(run.where, run.wrong)
    run, saturated = _saturation(run)
    try:
        point = Point(
            isl=max(1, round(run.isl or 0.0)),
            osl=max(1, round(run.osl or 0.0)),
            concurrency=max(1, round(_concurrency(run) or 0.0)),
            ttft_ms=_measured(run.ttft_ms),
            tpot_ms=_measured(run.tpot_ms),
            e2e_ms=_measured(run.e2e_ms),
            requests_per_s=_figure(run.requests_per_s) if run.requests_per_s and run.requests_per_s > 0 else None,
            saturated=saturated,
        )
    except (ValidationError, OverflowError) as problem:
        return Refused(run.where, said(problem) if isinstance(problem, ValidationError) else "a number is too large")
    return Judged(run, point, run.notes)


def said(problem: ValidationError) -> str:
    """What is wrong first, as the end of a sentence: ``its isl must be less than or equal to 1000000000``."""
    first = problem.errors()[0]
    key = ".".join(map(str, first["loc"]))
    words = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"its {key} {words}" if key else words


def _format(run: Run) -> Run:
    """Something was completed, and something could be in flight; what the importer found itself stands in ``wrong``."""
    if run.wrong:
        return run
    if run.completed == 0:
        return _refused(run, "no request was completed")
    if run.clients is not None and run.clients < 1:
        return _refused(run, f"it says that {run.clients:g} requests could be in flight")
    return run


def _sizes(run: Run) -> Run:
    """Prompts and answers have tokens; an answer of one token has no TPOT."""
    if run.isl is None or run.osl is None:
        return _refused(run, "it does not say how many tokens were sent and answered")
    if not run.isl >= 0.5:
        return _refused(run, f"its prompts hold {run.isl:g} tokens; the server's count may have been missing")
    if not run.osl >= 0.5:
        return _refused(run, f"its answers hold {run.osl:g} tokens; the server's count may have been missing")
    if run.osl < 1.5 and run.tpot_ms:
        return _without_tpot(run, "answers of one token have no time per further token")
    return run


def _times(run: Run) -> Run:
    """There are times, all above zero, and no percentile below a lower one."""
    for name, times in (("TTFT", run.ttft_ms), ("TPOT", run.tpot_ms), ("E2E", run.e2e_ms)):
        if any(not value > 0 for value in times.values()):
            return _refused(run, f"its {name} is not above zero")
        tail = [times[statistic] for statistic in ("p50", "p90", "p95", "p99") if statistic in times]
        if tail != sorted(tail):
            return _refused(run, f"the percentiles of its {name} contradict each other")
    if not (run.ttft_ms or run.tpot_ms or run.e2e_ms):
        return _refused(run, "it holds no times")
    return run


def _failures(run: Run) -> Run:
    """Few requests failed; counts and rates are not below zero."""
    if run.requests_per_s is not None and run.requests_per_s < 0:
        run = _noted(replace(run, requests_per_s=None), f"its rate, {run.requests_per_s:g} requests a second, is none")
    if run.failed is not None and run.failed < 0:
        return _noted(replace(run, failed=None), f"its count of failed requests, {run.failed:g}, is none")
    if not run.failed:
        return run
    sent = run.failed + (run.completed or 0.0)
    share = run.failed / sent
    said = f"{run.failed:.0f} of {counted(round(sent), 'request')} failed"
    if share > MOST_FAILED:
        return _refused(run, f"{said}, so that the others saw another load than was sent")
    return _noted(run, said)


def _units(run: Run) -> Run:
    """TTFT and TPOT lie where servers are."""
    for name, times, least in (("TTFT", run.ttft_ms, LEAST_TTFT_MS), ("TPOT", run.tpot_ms, LEAST_TPOT_MS)):
        if (value := _middle(times)) is not None and value < least:
            return _refused(run, f"its {name} would be {value:.3g} ms; is it in seconds?")
    if (tpot := _middle(run.tpot_ms)) is not None and tpot > MOST_TPOT_MS:
        return _refused(run, f"its TPOT would be {tpot:.3g} ms; is it in microseconds?")
    return run


def _streaming(run: Run) -> Run:
    """A TTFT that is the whole E2E was measured on answers that came in one piece."""
    ttft, e2e, osl = run.ttft_ms.get("mean"), run.e2e_ms.get("mean"), run.osl or 0.0
    if not run.ttft_ms and not run.tpot_ms:
        return _noted(run, "only the E2E was measured; were the answers streamed?")
    if ttft is None or e2e is None:
        return run
    if osl >= 1.5 and 0.98 * e2e <= ttft <= e2e and (e2e - ttft) / (osl - 1) < LEAST_TPOT_MS:
        run = replace(run, ttft_ms={}, tpot_ms={})
        return _noted(run, "the answers were not streamed, so that TTFT and TPOT are unknown")
    return run


def _adds_up(run: Run) -> Run:
    """E2E = TTFT + (OSL - 1) x TPOT; where only the TPOT is wrong in a known way, it is left out."""
    statistic = _common(run)
    if statistic is None or (osl := run.osl or 0.0) < 1.5:
        return _ttft_within(run)
    ttft, tpot, e2e = run.ttft_ms[statistic], run.tpot_ms[statistic], run.e2e_ms[statistic]
    share = (ttft + (osl - 1) * tpot) / e2e
    if abs(tpot * osl / e2e - 1) < 0.01 and abs(share - 1) > 0.05:
        return _without_tpot(run, f"its TPOT is E2E / OSL, which includes the TTFT; without it: {_implied(run):.3g} ms")
    low, high = ADDS_UP if statistic == "mean" else (0.5, 2.0)
    if low <= share <= high:
        return run if abs(share - 1) <= 0.15 else _noted(run, f"TTFT + (OSL - 1) x TPOT is {share:.2f} of the E2E")
    if 0.9 <= (ttft + (osl - 1) * 2 * tpot) / e2e <= 1.1:
        return _without_tpot(run, f"its TPOT is half of what E2E and TTFT leave ({_implied(run):.3g} ms)")
    said = f"its times contradict each other: TTFT {ttft:.4g}, TPOT {tpot:.4g} and E2E {e2e:.4g} ms at OSL {osl:.4g}"
    other_unit = {
        name
        for factor in (1_000, 0.001)
        for name, parts in (
            ("the TTFT", (ttft * factor + (osl - 1) * tpot) / e2e),
            ("the TPOT", (ttft + (osl - 1) * tpot * factor) / e2e),
            ("the E2E", share * factor),
        )
        if low <= parts <= high
    }
    if other_unit:
        return _refused(run, f"{said}; {' or '.join(sorted(other_unit))} seems to be in another unit")
    return _refused(run, said)


def _ttft_within(run: Run) -> Run:
    ttft, e2e = run.ttft_ms.get("mean"), run.e2e_ms.get("mean")
    if ttft is not None and e2e is not None and ttft > e2e * ADDS_UP[1]:
        return _refused(run, f"its TTFT ({ttft:.4g} ms) is longer than its E2E ({e2e:.4g} ms); are they in one unit?")
    return run


def _littles_law(run: Run) -> Run:
    """Requests in flight = requests a second x E2E, against the clients, and against what the tool itself counted."""
    flight = _flight(run)
    if flight is None:
        return run
    parts = "E2E" if "mean" in run.e2e_ms else "TTFT + (OSL - 1) x TPOT"
    law = f"requests a second x {parts} is {flight:.3g}"
    if run.in_flight and not 0.5 <= flight / run.in_flight <= 2.0:
        return _refused(run, f"{law}, but the tool counted {run.in_flight:.3g} in flight; is a time in another unit?")
    if not run.clients:
        return run
    share = flight / run.clients
    low, high = IN_FLIGHT
    if flight > run.clients * high + 0.5:
        why = (
            "is a time in another unit?"
            if share > 100
            else "are its tokens chunks, as with a stream interval, or does its TPOT hold the TTFT?"
        )
        return _refused(run, f"{law}, but only {run.clients:.0f} could be in flight; {why}")
    if run.loop == "open" or share >= low:
        return run
    sharding = run.facts.disaggregated.decode.sharding if run.facts.disaggregated else run.facts.sharding
    if sharding and sharding.ep > 1 and low <= share * sharding.ep <= high:
        return _refused(
            run,
            f"{law} where {run.clients:.0f} were in flight: its throughput per GPU was divided by tp x ep, but ep "
            "reuses the same GPUs",
        )
    if run.completed is None or run.completed >= ENOUGH * run.clients or share < 0.01:
        return _refused(run, f"{law}, but {run.clients:.0f} were in flight all the time; is a time or a rate wrong?")
    return _noted(
        replace(run, in_flight=flight, clients=None),
        f"only {flight:.3g} of {run.clients:.0f} clients had a request in flight, on the mean of {run.completed:.0f}",
    )


def _cache(run: Run) -> Run:
    """Prompts that a cache held are no prompts of that length."""
    if run.prefix_hit is None:
        return run
    if not 0 <= run.prefix_hit <= 1:
        return _noted(
            replace(run, prefix_hit=None), f"its share of cached prompt tokens, {run.prefix_hit:.3g}, is none"
        )
    if run.prefix_hit >= CACHED:
        return _noted(run, f"{run.prefix_hit:.0%} of the prompt tokens came from a prefix cache, so its TTFT is short")
    return run


def _load(run: Run) -> Run:
    """It says how many requests were in flight, or lets that be counted."""
    if _concurrency(run):
        return run
    return _refused(run, "it says neither how many requests were in flight nor how many were completed a second")


CHECKS: tuple[Callable[[Run], Run], ...] = (
    _format, _sizes, _times, _failures, _units, _streaming, _adds_up, _littles_law, _cache, _load,
)  # fmt: skip
"""In this order; each gives the run back: as it was, with a note, without a number, or with ``wrong`` set."""


def _concurrency(run: Run) -> float | None:
    """The clients of a closed loop; else the mean in flight, by Little's law or as the tool counted it."""
    if run.clients and run.loop != "open":
        return run.clients
    return _flight(run) or run.in_flight or run.clients


def _flight(run: Run) -> float | None:
    e2e, ttft, tpot = (times.get("mean") for times in (run.e2e_ms, run.ttft_ms, run.tpot_ms))
    if e2e is None and ttft is not None and tpot is not None:
        e2e = ttft + ((run.osl or 1.0) - 1) * tpot
    rate = run.requests_per_s
    return rate * e2e / 1_000 if rate and rate > 0 and e2e is not None else None


def _saturation(run: Run) -> tuple[Run, bool | None]:
    """Whether an open loop offered more than was taken, beyond the drain at its end."""
    offered, taken = run.offered_per_s, run.requests_per_s
    if run.loop != "open" or not offered:
        return run, None
    if offered == math.inf:
        return _noted(run, "all requests were sent at once, so that TTFT grows with their number"), True
    if not taken:
        return run, None
    if (flight := _flight(run)) is not None and flight < 1:
        return run, False  # less than one request in flight on the mean is no queue, however few were sent
    drain_s = run.e2e_ms.get("mean", 0.0) / 1_000
    if run.completed:
        saturated = run.completed / taken - drain_s > 1.15 * run.completed / offered
    else:
        saturated = taken < 0.9 * offered
    if saturated:
        run = _noted(run, f"requests a second: {offered:.3g} were sent, {taken:.3g} completed")
    return run, saturated


def _implied(run: Run) -> float:
    ttft, e2e = run.ttft_ms.get("mean", 0.0), run.e2e_ms.get("mean", 0.0)
    return max(0.0, (e2e - ttft) / ((run.osl or 2.0) - 1))


def _common(run: Run) -> Statistic | None:
    """The statistic in which all three times were taken: the mean, failing that the median."""
    statistics: tuple[Statistic, ...] = ("mean", "p50")
    for statistic in statistics:
        if all(statistic in times for times in (run.ttft_ms, run.tpot_ms, run.e2e_ms)):
            return statistic
    return None


def _middle(times: Times) -> float | None:
    return times.get("mean", times.get("p50"))


def _without_tpot(run: Run, note: str) -> Run:
    return _noted(replace(run, tpot_ms={}), f"{note}; the TPOT is left out")


def _refused(run: Run, why: str) -> Run:
    return replace(run, wrong=why)


def _noted(run: Run, note: str) -> Run:
    return replace(run, notes=(*run.notes, note))


def _measured(times: Times) -> Measured | None:
    return Measured(**{statistic: _figure(value) for statistic, value in times.items()}) if times else None


def _figure(value: float) -> float:
    """Six significant digits: more than any of these measurements holds."""
    return float(f"{value:.6g}")
