"""The shipped profiles out of a table of measured loads: one for every deployment with three loads in a curve.

Run by ``make catalogue``. The same table gives the same files, byte for byte; the folder holds nothing else.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from agentroute.bench.words import described, identified, where_from
from agentroute.catalogue import FOLDER, Catalogue, shipped
from agentroute.errors import UnknownNameError
from agentroute.latency.points import Measured, Measurement, Point
from agentroute.latency.records import LatencyRecord, parse
from agentroute.profile import Engine, Precision, Profile
from agentroute.shape.sharding import Disaggregated, Sharding, Workers

LEAST_LOADS = 3
"""Loads that a curve must have, at equal ISL and OSL, for its deployment to become a profile."""

EARLIER = frozenset(
    {
        "aic|deepseek-ai/DeepSeek-V3|b200_sxm|trtllm|1.2.0rc6.post2|fp4|agg|tp1 adp8 moe_tp1 moe_ep8 pp1|cfg191|",
        "aic|meta-llama/Llama-3.1-8B-Instruct|h200_sxm|sglang|0.5.6.post2|fp8|agg|tp1 adpNone moe_tp1 moe_ep1 pp1|"
        "NVIDIA gap-analysis h200_sxm/sglang/0.5.6.post2/meta-llama_Llama-3.1-8B-Instruct.csv|",
        "aic|Qwen/Qwen3-235B-A22B-FP8|h200_sxm|vllm|0.12.0|fp8|agg|tp4 adpNone moe_tp4 moe_ep1 pp1|"
        "NVIDIA gap-analysis h200_sxm/vllm/0.12.0/Qwen_Qwen3-235B-A22B-FP8.csv|",
    }
)
"""Deployments with fewer loads that shipped before three were asked for: configurations may name them."""

COMMENT = "Written by `make catalogue`; what is changed here is lost when it runs again."
SAME_RUN = 0.05
"""Joined medians of the same run differ from its mean by less than this, those of another by 10 to 45 %."""
DIGITS = 5
"""Significant digits of a time: 0.01 % of it, a hundredth of what two runs differ by."""


@dataclass(frozen=True, slots=True)
class Made:
    """The profiles by name, and what the table holds beside them."""

    profiles: Mapping[str, Profile]
    deployments: int
    """Deployments that have profiles; where a deployment's loads contradict each other it has one for each run."""
    other_deployments: int
    """Deployments with too few loads."""
    without_concurrency: int
    """Loads left out since nobody says how many requests were in flight."""
    contradicting: int
    """Loads that are there twice with different times."""
    unmapped: frozenset[str]
    """Models without a model file, whose deployments are left out."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What becomes one profile."""

    model: str
    """The model file's name."""
    rows: tuple[LatencyRecord, ...]
    """All of one deployment, and of one run where loads contradict each other."""

    @property
    def head(self) -> LatencyRecord:
        return self.rows[0]

    @property
    def place(self) -> tuple[str, str, str]:
        """Model, engine and accelerator as a name writes them."""
        return self.model, self.head.engine, self.head.gpu.split("_")[0]


def make(records: Sequence[LatencyRecord], catalogue: Catalogue) -> Made:
    """The profiles of ``records``."""
    loads = [one for one in records if one.n is not None]
    by_deployment: dict[str, list[LatencyRecord]] = defaultdict(list)
    for one in loads:
        by_deployment[one.deployment].append(one)
    wanted = {key: rows for key, rows in by_deployment.items() if key in EARLIER or _most_loads(rows) >= LEAST_LOADS}
    rest = [one for key, rows in by_deployment.items() if key not in wanted for one in rows]
    units, unmapped, taken = [], set(), set()
    for key in sorted(wanted):
        rows = wanted[key]
        try:
            model = catalogue.model(rows[0].model).name
        except UnknownNameError:
            unmapped.add(rows[0].model)
            continue
        if rows[0].split is None:
            continue
        taken.add(key)
        units.append(Unit(model, tuple(one for one in rows if one.run in {None, 1})))
        runs = sorted({one.run for one in rows if one.run and one.run > 1})
        units += [Unit(model, tuple(one for one in rows if one.run == run)) for run in runs]
    named = {name: profile(name, unit, rest) for name, unit in names(units).items()}
    return Made(
        profiles=dict(sorted(named.items())),
        deployments=len(taken),
        other_deployments=len({one.deployment for one in records} - taken),
        without_concurrency=len(records) - len(loads),
        contradicting=len({(*one.curve[:3], one.n) for one in loads if one.run}),
        unmapped=frozenset(unmapped),
    )


def _most_loads(rows: Iterable[LatencyRecord]) -> int:
    """The loads of the curve that has the most."""
    curves: dict[tuple[int, int], set[int | None]] = defaultdict(set)
    for one in rows:
        curves[one.isl, one.osl].add(one.n)
    return max(len(loads) for loads in curves.values())


# ---- names


def names(units: Iterable[Unit]) -> dict[str, Unit]:
    """Each unit under ``model/engine-accelerator-split``.

    Of several with one such name the best documented keeps it: an identified run before an export, a known version
    before an unknown one, then the most loads. The others carry what sets them apart: the weights' type, the version,
    and where neither does, ``run2`` and so on.
    """
    found: dict[str, Unit] = {}
    alike: dict[str, list[Unit]] = defaultdict(list)
    units = list(units)
    sides: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for unit in units:
        if isinstance(unit.head.split, Disaggregated):
            sides[unit.place].add(str(unit.head.split))
    for unit in units:
        model, engine, accelerator = unit.place
        alone = len(sides[unit.place]) == 1
        alike[f"{model}/{engine}-{accelerator}-{_split(unit.head.split, alone)}"].append(unit)
    for base, several in alike.items():
        first, *others = sorted(several, key=_rank)
        found[base] = first
        for unit in others:
            name = base + _difference(unit.head, first.head)
            numbered = (f"{name}-run{run}" for run in count(2))
            one = next(one for one in chain([name], numbered) if one not in found)
            found[one] = unit
    return found


def _rank(unit: Unit) -> tuple[object, ...]:
    head = unit.head
    return not identified(head), head.version is None, -len(unit.rows), head.deployment, head.run or 0


def _difference(one: LatencyRecord, first: LatencyRecord) -> str:
    weights = f"-{one.precision or 'unknown'}" if one.precision != first.precision else ""
    version = f"-{one.version or 'unversioned'}" if one.version != first.version else ""
    return weights + version


def _split(split: Sharding | Disaggregated | None, alone: bool) -> str:
    if isinstance(split, Disaggregated):
        return "disagg" if alone else f"disagg-{_side('p', split.prefill)}-{_side('d', split.decode)}"
    return _degrees(split or Sharding())


def _side(letter: str, side: Workers) -> str:
    return f"{letter}{side.workers}-{_degrees(side.sharding)}"


def _degrees(sharding: Sharding) -> str:
    """``tp8-ep8``, ``adp8-ep8``: a degree of 1 is left out where there are others."""
    degrees = {"tp": sharding.tp, "pp": sharding.pp, "adp": sharding.attention_dp, "ep": sharding.ep}
    return "-".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1) or "tp1"


# ---- profiles


def profile(name: str, unit: Unit, rest: Iterable[LatencyRecord] = ()) -> Profile:
    """The profile of ``unit``; of ``rest`` it takes the loads that it lacks and that the same server gave that day."""
    head, loads = unit.head, {(one.isl, one.osl, one.n) for one in unit.rows}
    like = [
        one
        for one in rest
        if head.version and head.date and not head.run and _served(one) == _served(head)
        and (one.isl, one.osl, one.n) not in loads and one.run is None
    ]  # fmt: skip
    split = head.split
    return Profile.model_validate(
        {
            "format": 1,
            "name": name,
            "model": unit.model,
            "accelerator": head.gpu,
            "accelerator_count": head.accelerators,
            "engine": Engine.model_validate({"name": head.engine, "version": head.version}),
            "precision": Precision.model_validate({"weights": head.precision}),
            "sharding": split if isinstance(split, Sharding) else None,
            "disaggregated": split if isinstance(split, Disaggregated) else None,
            "measurements": tuple(_blocks([*unit.rows, *like])),
            "notes": described(unit.rows),
        }
    )


def _served(one: LatencyRecord) -> tuple[object, ...]:
    return one.model, one.gpu, one.engine, one.version, one.precision, str(one.split), one.date


def _blocks(rows: Iterable[LatencyRecord]) -> Iterator[Measurement]:
    """One for each source and day."""
    by_source: dict[tuple[str, str], list[LatencyRecord]] = defaultdict(list)
    seen: set[tuple[int, int, int | None]] = set()
    for one in rows:
        if (load := (one.isl, one.osl, one.n)) not in seen:
            seen.add(load)
            by_source[one.date.isoformat() if one.date else "", one.notes or ""].append(one)
    for _, block in sorted(by_source.items()):
        block.sort(key=lambda one: (one.isl, one.osl, one.n or 0))
        off = max((abs(one.tpot_p50_ms / one.tpot_ms - 1.0) for one in block if one.tpot_p50_ms), default=0.0)
        yield Measurement(
            provenance=where_from(block[0], median_off=off if off > SAME_RUN else None),
            workload="closed loop, random tokens, fixed isl and osl",
            points=tuple(_point(one, median=off <= SAME_RUN) for one in block),
        )


def _point(one: LatencyRecord, *, median: bool) -> Point:
    point = (one if median else replace(one, tpot_p50_ms=None)).point()
    return point.model_copy(update={"ttft_ms": _short(point.ttft_ms), "tpot_ms": _short(point.tpot_ms)})


def _short(measured: Measured | None) -> Measured | None:
    if measured is None:
        return None
    return Measured(**{name: float(f"{value:.{DIGITS}g}") for name, value in measured if value is not None})


# ---- files


def texts(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """The files by their path below the folder of profiles."""
    return {f"{name}.toml": one.to_toml(comment=COMMENT) for name, one in profiles.items()}


def write(files: Mapping[str, str], folder: Path) -> None:
    """``files`` below ``folder``, and no other profile there."""
    for path in folder.rglob("*.toml"):
        if path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Write the profiles of a table, and say what is in it."""
    asked = argparse.ArgumentParser(prog="agentroute.bench.catalogue", description=__doc__)
    asked.add_argument("table", type=Path, help="measured loads, as agentroute.latency.records reads them")
    table = asked.parse_args().table
    made = make(parse(table.read_text(encoding="utf-8"), table), shipped())
    write(texts(made.profiles), FOLDER / "deployments")
    print(f"{len(made.profiles)} profiles of {made.deployments} deployments, {_points(made.profiles)} loads")
    print(f"{made.other_deployments} deployments have fewer than {LEAST_LOADS} loads in every curve")
    print(f"{made.contradicting} loads contradict another and went to the profile of a second run")
    print(f"{made.without_concurrency} loads have no concurrency and were left out")
    if made.unmapped:
        print(f"without a model file, left out: {', '.join(sorted(made.unmapped))}")


def _points(profiles: Mapping[str, Profile]) -> int:
    return sum(len(one.points) for one in profiles.values())


if __name__ == "__main__":
    main()
