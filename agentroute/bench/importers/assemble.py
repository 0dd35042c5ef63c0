"""Runs of one or several files as the measured blocks of one deployment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from statistics import fmean
from typing import Any, Literal

from pydantic import ValidationError

from agentroute.bench.importers import Results
from agentroute.bench.importers.checks import Judged
from agentroute.bench.importers.run import NOTHING, Facts, accelerator_of, sharding_of
from agentroute.errors import UsageError, shown
from agentroute.latency.points import STATISTICS, Measured, Measurement, Point
from agentroute.origin import Provenance
from agentroute.startup.devices import ACCELERATORS

SAME_SIZE = 0.03
"""Random prompts of one length differ by their tokenizer and their chance; sizes this near to each other are one."""

MAX_RUNS = 10_000
"""The most runs of one import: as many points as a profile file holds."""

REPEATED = 1.25
"""Two runs of one load that differ by more than this factor contradict each other; by less, they are repeats."""

DEGREES = ("tp", "pp", "ep", "attention_dp")


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller says of the deployment; ``None`` and absent is what they leave to the files."""

    facts: Facts = NOTHING
    """Model and accelerator are the catalogue's names here; sharding is in ``degrees``."""
    degrees: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Import:
    """One deployment, its blocks, and what a person should be told."""

    facts: Facts
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Taken:
    """A usable run with the file that it came from."""

    judged: Judged
    files: tuple[str, ...]
    tool: str

    @property
    def label(self) -> str:
        return f"{self.files[0]} {self.judged.run.where}".strip()


def assemble(results: Sequence[Results], given: Given, named: Callable[[str], str | None]) -> Import:
    """The deployment that all runs agree on, and their points by source.

    ``named`` turns what a file calls its model into the catalogue's name, or ``None``. What the caller gives fills what
    the files do not say, and chooses where they hold several deployments. Raises ``UsageError`` where no run is of the
    given deployment, where several are left, where the given degrees do not fit each other, and where two runs of one
    load contradict each other.
    """
    every = [_Taken(judged, (_name(one),), one.tool) for one in results for judged in one.judged]
    every = [_with_names(taken, given, named) for taken in every]
    if len(every) > MAX_RUNS:
        raise UsageError(f"at most {MAX_RUNS:,} runs make one profile, got {len(every):,}; give fewer files at once")
    chosen = _chosen(every, given)
    if not chosen:
        raise UsageError(f"the files hold no run of what was asked for; they hold {_held(every)}")
    facts = _agreed(chosen, given)
    notes = [f"{len(every) - len(chosen)} runs of other deployments are left out"] if len(chosen) < len(every) else []
    chosen, moved = _sized(chosen)
    chosen, repeats = _merged(chosen)
    refused = [f"{f'{_name(one)} {run.where}'.strip()}: {run.why}" for one in results for run in one.refused]
    read = [f"{_name(one)}: {note}" for one in results for note in one.notes]
    return Import(facts, tuple(_blocks(chosen, facts)), (*notes, *read, *moved, *repeats), tuple(refused))


def _name(results: Results) -> str:
    return results.path.name.encode("utf-8", "replace").decode()


def _with_names(taken: _Taken, given: Given, named: Callable[[str], str | None]) -> _Taken:
    """The run with model and accelerator as the catalogue calls them; as ``None`` where it has none of that name.

    Where the file does not say whether attention is replicated, the caller's word for it is taken, on as many GPUs.
    """
    facts = taken.judged.run.facts
    model = named(facts.model_word) if facts.model_word else None
    split = facts.sharding
    if split and facts.attention_unsaid and "attention_dp" in given.degrees:
        told = sharding_of(**{"pp": split.pp, "ep": split.ep, **given.degrees})
        split = told if told and told.accelerators == split.accelerators else split
    facts = replace(facts, model=model, accelerator=accelerator_of(facts.accelerator_word), sharding=split)
    return replace(taken, judged=replace(taken.judged, run=replace(taken.judged.run, facts=facts)))


OPTIONS = {
    "model": "--model",
    "accelerator": "--accelerator",
    "engine": "--engine",
    "engine_version": "--engine-version",
    "sharding": "--tp, --pp, --ep and --attention-dp",
}
"""Facts that the caller may give, and so choose by."""


def _chosen(every: Sequence[_Taken], given: Given) -> list[_Taken]:
    """The runs that are of what the caller gives, as far as the files say it."""
    chosen = list(every)
    for name in ("model", "accelerator", "engine", "engine_version"):
        if (wanted := getattr(given.facts, name)) is not None:
            said = [(taken, _said(taken.judged.run.facts, name)) for taken in chosen]
            meant = [taken for taken, word in said if word == wanted or (word and _alike(str(word), wanted))]
            # A word that the catalogue does not know may mean what was given, as long as no other run says it clearly.
            chosen = [
                taken
                for taken, word in said
                if word is None or taken in meant or (not meant and _may_mean(taken.judged.run.facts, name))
            ]
    return [taken for taken in chosen if _split_fits(taken.judged.run.facts, given.degrees)]


def _said(facts: Facts, name: str) -> Any:
    """A fact, or the file's own word for it where the catalogue does not know that."""
    return getattr(facts, name) or getattr(facts, f"{name}_word", None)


def _may_mean(facts: Facts, name: str) -> bool:
    """Whether a file's own word for a fact means nothing in the catalogue, not even several of its names."""
    word = _said(facts, name)
    known = name == "accelerator" and any(_alike(str(word), other) for other in ACCELERATORS.values())
    return getattr(facts, name) is None and not known


def _alike(word: str, name: str) -> bool:
    """Whether ``word`` is a short form of the catalogue's ``name``: ``H100`` of ``h100_sxm``."""
    return name.lower().startswith(f"{word.strip().lower()}_")


def _split_fits(facts: Facts, degrees: Mapping[str, int]) -> bool:
    if degrees and facts.disaggregated:
        return False
    return not facts.sharding or all(getattr(facts.sharding, name) == n for name, n in degrees.items())


def _agreed(chosen: Sequence[_Taken], given: Given) -> Facts:
    """What the runs say of their deployment, with what the caller gives in its gaps; several are refused."""
    found: dict[str, Any] = {}
    for name in (*OPTIONS, "disaggregated", "weights", "kv"):
        values = _values(chosen, name)
        if len(values) > 1:
            how = f"choose with {OPTIONS[name]}" if name in OPTIONS else "give the files of one of them"
            listed = ", ".join(f"{_shown(value)} ({count})" for value, count in list(values.items())[:8])
            raise UsageError(f"the runs are of several deployments, by {name.replace('_', ' ')}: {listed}; {how}")
        known = [getattr(taken.judged.run.facts, name) for taken in chosen]
        found[name] = getattr(given.facts, name) or next((value for value in known if value is not None), None)
    if found["sharding"] and found["disaggregated"]:
        raise UsageError("some runs are of a disaggregated deployment, some are not; give the files of one of them")
    if found["sharding"] is None and found["disaggregated"] is None and given.degrees:
        if (split := sharding_of(**given.degrees)) is None:
            raise UsageError("the sharding is wrong: --ep must divide --tp x --attention-dp")
        found["sharding"] = split
    for name in ("model", "accelerator"):
        found[f"{name}_word"] = next(iter(_values(chosen, name)), None) if found[name] is None else None
    return Facts(**found)


def _values(chosen: Iterable[_Taken], name: str) -> dict[Any, int]:
    """Every value of a fact that some run states, and how many do."""
    counted: dict[Any, int] = defaultdict(int)
    for taken in chosen:
        if (value := _said(taken.judged.run.facts, name)) is not None:
            counted[value] += 1
    return dict(counted)


def _shown(value: object) -> str:
    return shown(value) if isinstance(value, str) else str(value)


def _held(every: Sequence[_Taken]) -> str:
    """What the files say of their deployments, for a sentence."""
    said = []
    for name in (*OPTIONS, "disaggregated"):
        if values := [_shown(value) for value in _values(every, name)]:
            said.append(f"{name.replace('_', ' ')} {', '.join(values[:8])}{', ...' if len(values) > 8 else ''}")
    return "; ".join(said)


def _sized(chosen: Sequence[_Taken]) -> tuple[list[_Taken], list[str]]:
    """The runs with sizes that are nearly equal made equal: the mean of theirs, so that they are one curve."""
    groups: list[list[_Taken]] = []
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


def _close(one: _Taken, other: _Taken, key: Literal["isl", "osl"]) -> bool:
    a, b = (getattr(taken.judged.run, key) or 1.0 for taken in (one, other))
    return bool(max(a, b) <= min(a, b) * (1 + SAME_SIZE))


def _merged(chosen: Sequence[_Taken]) -> tuple[list[_Taken], list[str]]:
    """One run for each load: a run that is there twice once, repeats as their mean; raises for a contradiction."""
    by_load: dict[tuple[int, int, int], list[_Taken]] = defaultdict(list)
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


def _among(group: Sequence[_Taken]) -> str:
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


def _blocks(chosen: Sequence[_Taken], facts: Facts) -> Iterator[Measurement]:
    """A block for each tool, day, loop and kind of load; a reader finds the files and what was noted in it."""
    groups: dict[tuple[Any, ...], list[_Taken]] = defaultdict(list)
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
            quality="B" if tool == "plain CSV" else "A",
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


def _notes(group: Sequence[_Taken]) -> str | None:
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
