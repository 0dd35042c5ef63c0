"""What a walk found, as points, and what a reader of them must know."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import agentroute
from agentroute.bench.noise import between_runs, drift, percentile, pooled
from agentroute.bench.plan import Load
from agentroute.bench.send import Round, Sample
from agentroute.bench.walk import Walk, round_tpot_ms
from agentroute.errors import counted
from agentroute.latency.points import Measured, Measurement, Point
from agentroute.origin import Provenance

WORKLOAD = "closed loop, random words that no prefix cache knows, fixed lengths, greedy"

MET = 0.02
"""A length that is off by no more than this counts as the one that was asked for."""

TAILS = ((0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100))
"""Percentiles, and how many requests each takes."""


@dataclass(frozen=True, slots=True)
class Spreads:
    """Relative standard deviations between rounds; ``None``: nothing was repeated."""

    ttft: float | None
    tpot: float | None
    e2e: float | None


def measurement(walk: Walk, url: str, *, engine_version: str | None, notes: Sequence[str] = ()) -> Measurement:
    """A block of everything that was measured. ``url`` must hold no credentials."""
    said = [*notes_of(walk), *notes, f"requests a point: {_counts(walk)}"]
    return Measurement(
        provenance=Provenance(
            origin="measured",
            source=f"agentroute measure of {url}",
            date=dt.date.today(),
            tool=f"agentroute measure {agentroute.__version__}",
            engine_version=engine_version,
            quality="A",
            notes=_cut("; ".join(said)),
        ),
        workload=WORKLOAD,
        loop="closed",
        points=points(walk),
    )


def points(walk: Walk) -> tuple[Point, ...]:
    """A point for each load, at the lengths that the server counted, or as asked for where these are as good as met.

    Random words differ by a token or two; loads that were asked for as equal stay equal, in another run, too.
    """
    isls = _counted(walk, lambda load: load.isl, lambda sample: sample.isl, slack=1)
    osls = _counted(walk, lambda load: load.osl, lambda sample: sample.osl, slack=0)
    ttft, e2e = (_spread(walk, partial(_mean, time=t)) for t in (_ttft_ms, _e2e_ms))
    spreads = Spreads(ttft, _spread(walk, round_tpot_ms), e2e)
    found: dict[tuple[int, int, int], Point] = {}
    for load, rounds in sorted(walk.rounds.items()):
        point = _point(isls[load.isl], osls[load.osl], load.concurrency, rounds, spreads, walk.grid.places(load))
        # Prompts shorter than the chat template all come out alike.
        found.setdefault(point.load, point)
    return tuple(found.values())


def notes_of(walk: Walk) -> list[str]:
    """How sure the points are, and what was wrong with the server or the run."""
    known = walk.known()
    rounds = [seen.rounds for seen in known.values()]
    worst = max(known, key=lambda load: known[load].noise)
    noise = known[worst].noise
    reached = f"at most {noise:.1%} at {worst}" if min(rounds) > 1 else "unknown where a load has one round"
    said = [f"standard error of the means: {reached} (asked: {walk.noise:.1%}), {_span(rounds)} a point"]
    if walk.stopped:
        said.append(f"ended early: {walk.stopped}")
    if walk.strangers:
        most = max(walk.strangers.values())
        said.append(
            f"the server was not alone: up to {counted(most, 'request')} of others while {_several(walk.strangers)} ran"
        )
    if drifts := [d for load in known for d in _drifts(walk.rounds[load])]:
        said.append(
            f"times drifted by up to {max(drifts, key=abs):+.0%} between the halves of the run, more than their noise "
            "explains: the server was not alone, or its machine changed its speed"
        )
    if walk.failed:
        first = next(iter(walk.failed.values()))[0].failures[0]
        said.append(f"rounds failed at {_several(walk.failed)}: {first.kind.replace('_', ' ')}: {first.detail}")
    if walk.most_n is not None:
        said.append(f"saturated: the server refused or failed requests at more than {walk.most_n} at once")
    short = [
        load
        for load, runs in walk.rounds.items()
        if fmean(sample.osl for seen in runs for sample in seen.samples) < 0.98 * load.osl
    ]
    if short:
        said.append(f"answers ended before the length asked for at {_several(short)}")
    return said


def _point(isl: int, osl: int, n: int, rounds: Sequence[Round], spreads: Spreads, places: int | None) -> Point:
    samples = [sample for seen in rounds for sample in seen.samples]
    rates = [seen.requests_per_s for seen in rounds if seen.requests_per_s]
    tpots = [tpot for sample in samples if (tpot := sample.tpot_ms) is not None]
    tpot_means = [tpot for seen in rounds if (tpot := round_tpot_ms(seen)) is not None]
    ttft_means, e2e_means = ([_mean(seen, t) for seen in rounds] for t in (_ttft_ms, _e2e_ms))
    return Point(
        isl=isl,
        osl=osl,
        concurrency=n,
        ttft_ms=_stated(ttft_means, list(map(_ttft_ms, samples)), spreads.ttft),
        tpot_ms=_stated(tpot_means, tpots, spreads.tpot) if tpot_means and osl > 1 else None,
        e2e_ms=_stated(e2e_means, list(map(_e2e_ms, samples)), spreads.e2e),
        requests_per_s=round(fmean(rates), 4) if rates else None,
        saturated=True if places is not None and n > places else None,
    )


def _stated(means: Sequence[float], times: Sequence[float], spread: float | None) -> Measured:
    """The mean over the rounds, each of which counts alike, and the percentiles that there are requests enough for."""
    tails = {f"p{share * 100:.0f}": round(percentile(times, share), 3) for share, n in TAILS if len(times) >= n}
    noise = None if spread is None else round(min(1.0, between_runs(spread, len(means))), 4)
    return Measured(mean=round(fmean(means), 3), noise=noise, **tails)


def _spread(walk: Walk, mean: Callable[[Round], float | None]) -> float | None:
    """How much the means of rounds of one load differ, over all loads."""
    return pooled([[m for seen in rounds if (m := mean(seen)) is not None] for rounds in walk.rounds.values()])


def _mean(seen: Round, time: Callable[[Sample], float]) -> float:
    return fmean(map(time, seen.samples))


def _ttft_ms(sample: Sample) -> float:
    return sample.ttft_ms


def _e2e_ms(sample: Sample) -> float:
    return sample.e2e_ms


def _counted(
    walk: Walk, asked: Callable[[Load], int], counted: Callable[[Sample], int], *, slack: int
) -> dict[int, int]:
    """By the length that was asked for: that length where it was met within ``MET`` or ``slack`` tokens, else the mean
    of what the server counted."""
    seen: dict[int, list[int]] = {}
    for load, rounds in walk.rounds.items():
        seen.setdefault(asked(load), []).extend(counted(sample) for r in rounds for sample in r.samples)
    means = {length: fmean(counts) for length, counts in seen.items()}
    return {
        length: length if abs(mean - length) <= max(slack, MET * length) else round(mean)
        for length, mean in means.items()
    }


def _drifts(rounds: Sequence[Round]) -> list[float]:
    ttft = drift([_mean(seen, _ttft_ms) for seen in rounds])
    tpot = drift([tpot for seen in rounds if (tpot := round_tpot_ms(seen)) is not None])
    return [change for change in (ttft, tpot) if change is not None]


def _counts(walk: Walk) -> str:
    return ", ".join(
        f"{load}: {sum(len(seen.samples) for seen in rounds)}" for load, rounds in sorted(walk.rounds.items())
    )


def _span(values: Sequence[int]) -> str:
    """How often the loads were measured."""
    return f"{min(values)}-{max(values)} rounds" if min(values) < max(values) else counted(values[0], "round")


def _several(loads: Iterable[Load]) -> str:
    names = [str(load) for load in sorted(loads)]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _cut(text: str) -> str:
    return text if len(text) <= 4_000 else text[:3_996] + " ..."
