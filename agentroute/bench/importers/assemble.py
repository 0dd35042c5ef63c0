"""Runs of one or several files as the measured blocks of one deployment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import fmean
from typing import Any, Literal

from pydantic import ValidationError

from agentroute.bench.importers import Results, inferencex, plain_csv
from agentroute.bench.importers.deployment import Given, Taken, agreed, choose, held, with_names
from agentroute.bench.importers.run import Facts
from agentroute.errors import UsageError, counted
from agentroute.latency.points import STATISTICS, Measured, Measurement, Point
from agentroute.origin import Provenance

SAME_SIZE = 0.03
"""Random prompts of one length differ by their tokenizer and their chance; sizes this near to each other are one."""

MAX_RUNS = 10_000
"""The most runs of one import: as many points as a profile file holds."""

TABLES = (plain_csv.NAME, inferencex.NAME)
"""Formats that are tables of results, made of what a tool wrote."""

REPEATED = 1.25
"""Two runs of one load that differ by more than this factor contradict each other; by less, they are repeats."""


@dataclass(frozen=True, slots=True)
class Import:
    """One deployment, its blocks, and what a person should be told."""

    facts: Facts
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


def assemble(results: Sequence[Results], given: Given, named: Callable[[str], str | None]) -> Import:
    """The deployment that all runs agree on, and their points by source.

    ``named`` turns what a file calls its model into the catalogue's name, or ``None``. What the caller gives fills what
    the files do not say, and chooses where they hold several deployments. Raises ``UsageError`` where no run is of the
    given deployment, where several are left, where the given degrees do not fit each other, and where two runs of one
    load contradict each other.
    """
    every = [Taken(judged, (_name(one),), one.tool) for one in results for judged in one.judged]
    every = [with_names(taken, given, named) for taken in every]
    if len(every) > MAX_RUNS:
        raise UsageError(f"at most {MAX_RUNS:,} runs make one profile, got {len(every):,}; give fewer files at once")
    chosen = choose(every, given)
    if not chosen:
        raise UsageError(f"the files hold no run of what was asked for; they hold {held(every)}")
    facts = agreed(chosen, given)
    others = len(every) - len(chosen)
    notes = [f"left out, since they are of other deployments: {counted(others, 'run')}"] if others else []
    chosen, moved = _sized(chosen)
    chosen, repeats = _merged(chosen)
    refused = [f"{f'{_name(one)} {run.where}'.strip()}: {run.why}" for one in results for run in one.refused]
    read = [f"{_name(one)}: {note}" for one in results for note in one.notes]
    return Import(facts, tuple(_blocks(chosen, facts)), (*notes, *read, *moved, *repeats), tuple(refused))


def _name(results: Results) -> str:
    return results.path.name.encode("utf-8", "replace").decode()


def _sized(chosen: Sequence[Taken]) -> tuple[list[Taken], list[str]]:
    """The runs with sizes that are nearly equal made equal: the mean of theirs, so that they are one curve."""
    groups: list[list[Taken]] = []
    for taken in sorted(chosen, key=lambda one: (one.judged.point.isl, one.judged.point.osl)):
        # Groups are in the order of their ISL: once one is too short, so are all before it.
        near = takewhile(lambda group, one=taken: _close(one, group[0], "isl"), reversed(groups))  # type: ignore[misc]
        home = next((group for group in near if _close(taken, group[0], "osl")), None)
        if home is None:
            groups.append(home := [])
        home.append(taken)
    placed, notes = {}, []
    for group in groups:
        isl, osl = (round(sum(getattr(t.judged.run, key) for t in group) / len(group)) for key in ("isl", "osl"))
        isl, osl = max(1, isl), max(1, osl)
        if any((t.judged.point.isl, t.judged.point.osl) != (isl, osl) for t in group):
            notes.append(
                f"the sizes of {len(group)} runs differ by less than {SAME_SIZE:.0%}; they are at {isl} + {osl}"
            )
        for taken in group:
            # A run that would contradict itself at the common size keeps its own.
            point = _changed(taken.judged.point, {"isl": isl, "osl": osl}) or taken.judged.point
            placed[id(taken)] = replace(taken, judged=replace(taken.judged, point=point))
    return [placed[id(taken)] for taken in chosen], notes


def _close(one: Taken, other: Taken, key: Literal["isl", "osl"]) -> bool:
    a, b = (getattr(taken.judged.run, key) or 1.0 for taken in (one, other))
    return bool(max(a, b) <= min(a, b) * (1 + SAME_SIZE))


def _merged(chosen: Sequence[Taken]) -> tuple[list[Taken], list[str]]:
    """One run for each load: a run that is there twice once, repeats as their mean; raises for a contradiction."""
    by_load: dict[tuple[int, int, int], list[Taken]] = defaultdict(list)
    for taken in chosen:
        by_load[taken.judged.point.load].append(taken)
    kept, notes = [], []
    for (isl, osl, n), group in by_load.items():
        unlike = list({taken.judged.point: taken for taken in reversed(group)}.values())[::-1]
        load = f"{isl} + {osl} tokens at concurrency {n}"
        if len(unlike) < len(group):
            notes.append(f"{load}: {group[-1].label} is the same run again and is counted once")
        first = unlike[0]
        for other in unlike[1:]:
            if (metric := _contradiction(first.judged.point, other.judged.point)) is not None:
                raise UsageError(
                    f"two runs of {load} contradict each other: {metric} in {first.label} and in {other.label}; "
                    "give the files of one of them"
                )
        if len(unlike) > 1:
            notes.append(f"{load}: the mean of {len(unlike)} runs")
            flags = tuple(dict.fromkeys(flag for taken in unlike for flag in taken.judged.flags))
            mean = f"the mean of {len(unlike)} runs, of the percentiles, too"
            if (point := _mean([taken.judged.point for taken in unlike])) is None:
                raise UsageError(f"the times of {_among(unlike)} at {load} contradict each other; give one of them")
            judged = replace(first.judged, point=point, flags=(*flags, mean))
            first = replace(first, judged=judged, files=tuple(dict.fromkeys(file for t in unlike for file in t.files)))
        kept.append(first)
    return kept, notes


METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")


def _contradiction(one: Point, other: Point) -> str | None:
    for metric in METRICS:
        a, b = getattr(one, metric), getattr(other, metric)
        a_ms, b_ms = (a.mean or a.p50 if a else None), (b.mean or b.p50 if b else None)
        if a_ms and b_ms and max(a_ms, b_ms) > REPEATED * min(a_ms, b_ms):
            return f"{metric.removesuffix('_ms').upper()} is {a_ms:g} and {b_ms:g} ms"
    return None


def _among(group: Sequence[Taken]) -> str:
    return " and ".join(taken.label for taken in group[:4]) + (" and others" if len(group) > 4 else "")


def _changed(point: Point, update: Mapping[str, Any]) -> Point | None:
    """``point`` with other values; ``None`` where they contradict each other."""
    try:
        return Point(**{name: getattr(point, name) for name in Point.model_fields} | dict(update))
    except ValidationError:
        return None


def _mean(points: Sequence[Point]) -> Point | None:
    """Repeats as one point: each time as the mean over those that have it, by the statistics that these share."""
    means: dict[str, Any] = {}
    for metric in METRICS:
        if not (measured := [times for point in points if (times := getattr(point, metric)) is not None]):
            continue
        names = [name for name in STATISTICS if all(getattr(one, name) is not None for one in measured)]
        values = {name: _average([getattr(one, name) for one in measured]) for name in names}
        means[metric] = Measured(**values) if values else measured[0]
    rates = [point.requests_per_s for point in points if point.requests_per_s is not None]
    means["requests_per_s"] = _average(rates) if rates else None
    return _changed(points[0], means)


def _average(values: Sequence[float]) -> float:
    return float(f"{fmean(values):.6g}")


def _blocks(chosen: Sequence[Taken], facts: Facts) -> Iterator[Measurement]:
    """A block for each tool, day, loop and kind of load; a reader finds the files and what was noted in it."""
    groups: dict[tuple[Any, ...], list[Taken]] = defaultdict(list)
    for taken in chosen:
        run = taken.judged.run
        hit = None if run.prefix_hit is None else round(run.prefix_hit, 2)
        groups[taken.tool, run.date, run.loop, hit, run.workload].append(taken)
    for (tool, date, loop, hit, workload), group in groups.items():
        files = list(dict.fromkeys(file for taken in group for file in taken.files))
        listed = ", ".join(files[:40]) + (f" and {len(files) - 40} more" if len(files) > 40 else "")
        provenance = Provenance(
            origin="measured",
            source=f"result file{'s' if len(files) > 1 else ''} {listed}"[:4_000],
            date=date,
            tool=tool,
            engine_version=facts.engine_version,
            quality="B" if tool in TABLES else "A",
            notes=_notes(group),
        )
        said = [f"{loop} loop" if loop else None, workload]
        yield Measurement(
            provenance=provenance,
            workload=", ".join(part for part in said if part) or None,
            loop=loop,
            prefix_hit=hit,
            points=tuple(sorted((taken.judged.point for taken in group), key=lambda point: point.load)),
        )


def _notes(group: Sequence[Taken]) -> str | None:
    """What was noted of the points of a block, each note once with the loads that it is about."""
    about: dict[str, list[str]] = defaultdict(list)
    for taken in group:
        isl, osl, n = taken.judged.point.load
        for flag in taken.judged.flags:
            about[flag].append(f"{isl}+{osl} x {n}")
    said = [
        flag if len(loads) == len(group) else f"{flag} ({', '.join(loads[:10])}{', ...' if len(loads) > 10 else ''})"
        for flag, loads in about.items()
    ]
    return "; ".join(said)[:4_000] or None
