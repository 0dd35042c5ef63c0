"""What a generated profile says of itself: where its loads come from, and what a reader must know of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from agentroute.latency.records import LatencyRecord
from agentroute.origin import Provenance
from agentroute.shape.sharding import Disaggregated

TABLE = "pypi:aiconfigurator-core==0.12.0 aiconfigurator_core/systems/silicon_sample.csv"
LICENCE = "Apache-2.0"

_CONFIG = re.compile(r"config_id=(\d+)")
_IMAGE = re.compile(r"image=([^;]+)")
_OF_MODEL = {
    "deepseek-ai/DeepSeek-V3": (
        "The source files these runs under DeepSeek-V3; the ids of the runs say DeepSeek-R1, which has the same shape."
    ),
    "deepseek-ai/DeepSeek-R1": "The weights were DeepSeek-R1's, which has the shape of DeepSeek-V3.",
    "openai/gpt-oss-120b": "The source calls the weights fp4; the published checkpoint is MXFP4.",
}

STEEP = 3.0
"""A knee: TTFT grows more than this many times as fast as the load from one measured load to the next."""
FALL = 0.9
"""TTFT falls: by more than a tenth from one measured load to the next."""


def identified(one: LatencyRecord) -> bool:
    """Whether the source names the very run."""
    return _CONFIG.search(one.notes or "") is not None


def where_from(one: LatencyRecord, *, median_off: float | None) -> Provenance:
    """The provenance of the block that ``one`` is of; ``median_off``: how far the medians that were left out are."""
    notes = one.notes or ""
    run, place = _CONFIG.search(notes), notes.split("; ")[0].replace("db-dump/", "db-dump ")
    return Provenance(
        origin="measured",
        source=f"{TABLE}, {place}, {f'config {run[1]}' if run else one.split}",
        date=one.date,
        tool="InferenceX" if place.startswith("InferenceX") else None,
        engine_version=one.version,
        licence=LICENCE,
        quality="A" if run else "B",
        notes=" ".join(_remarks(one, median_off)),
    )


def _remarks(one: LatencyRecord, median_off: float | None) -> Iterator[str]:
    notes = one.notes or ""
    yield "The statistic is not labelled in the source: mean inferred."
    if median_off is not None:
        yield (
            f"The p50 of TPOT that is joined from another dump differs from the mean by up to {median_off:.0%} and is "
            "left out: it seems to be of another run."
        ).replace("%", " %")
    elif one.tpot_p50_ms is not None:
        yield "The p50 of TPOT is joined from the InferenceX dump of 2026-07-20."
    if "multiply tp by ep" in notes:
        yield (
            "The source's parallel columns multiply tp by ep; the split given here is the one that agrees with its "
            "throughput."
        )
    if image := _IMAGE.search(notes):
        yield f"Server image {image[1].replace('#', '/')}."


def described(rows: Sequence[LatencyRecord]) -> str:
    """The notes of the profile of ``rows``."""
    return " ".join(_facts(rows))


def _facts(rows: Sequence[LatencyRecord]) -> Iterator[str]:
    head = rows[0]
    missing = ["engine version"] if head.version is None else []
    missing += ["weights precision"] if head.precision is None else []
    said = ", ".join([*missing, "KV dtype, KV pool, window and slots are not in the source."])
    yield said[0].upper() + said[1:]
    if head.model in _OF_MODEL:
        yield _OF_MODEL[head.model]
    if isinstance(head.split, Disaggregated) and "ai-dynamo" in (head.notes or "") and head.version:
        yield "Its version is that of the Dynamo image that it came in."
    if "adpNone" in head.deployment and head.split and " ep" in str(head.split):
        yield "The source does not say the attention replicas; the split is the one that its expert ranks leave."
    yield from _runs(rows)
    yield from _reach(rows)
    yield from _oddities(rows)


def _runs(rows: Sequence[LatencyRecord]) -> Iterator[str]:
    labelled = [one for one in rows if one.run]
    if not labelled:
        return
    if all(one.run == 1 for one in labelled):
        yield (
            f"{len(labelled)} of its loads are in the source twice, with contradicting times and nothing that says "
            "which is which: here are those with the lower TPOT, the others are a profile of their own."
        )
    else:
        yield "The second of two contradicting runs of one deployment: for each load, the row with the higher TPOT."


def _reach(rows: Sequence[LatencyRecord]) -> Iterator[str]:
    isls = sorted({one.isl for one in rows})
    by_workload = _curves(rows)
    if all(len(curve) == 1 for curve in by_workload.values()):
        yield (
            "Each workload was measured at one load only, and longer prompts at lower ones: the effects of length and "
            "load are hard to tell apart."
        )
    elif len(by_workload) == 1:
        ((isl, osl), curve) = next(iter(by_workload.items()))
        yield f"Measured at {len(curve)} loads of one workload only ({isl:,} tokens in, {osl:,} out)."
    elif len(loads := sorted({one.n or 0 for one in rows})) == 2:
        yield f"Measured at {loads[0]} and {loads[1]} requests in flight only."
    elif len(isls) == 1:
        yield f"Every prompt measured has {isls[0]:,} tokens."
    elif isls[-1] < 4_000:
        yield f"The longest prompt measured has {isls[-1]:,} tokens."


def _oddities(rows: Sequence[LatencyRecord]) -> Iterator[str]:
    """Where TTFT leaps, and where it falls, as the load rises: each at its greatest."""
    steps = [
        (after.ttft_ms / before.ttft_ms, before, after)
        for curve in _curves(rows).values()
        for before, after in pairwise(curve)
    ]
    leaps = [step for step in steps if step[0] > STEEP * (step[2].n or 1) / (step[1].n or 1)]
    if leaps:
        _, before, after = max(leaps, key=lambda step: step[0])
        yield (
            f"Between {before.n} and {after.n} requests in flight TTFT leaps from {_seconds(before)} to "
            f"{_seconds(after)} ({before.isl:,} tokens in, {before.osl:,} out): there it saturates."
        )
    falls = [step for step in steps if step[0] < FALL]
    if falls:
        _, before, after = min(falls, key=lambda step: step[0])
        yield (
            f"The measured TTFT falls in places as the load rises, most from {before.n} to {after.n} requests in "
            f"flight ({before.isl:,} tokens in, {before.osl:,} out): kept as published."
        )


def _curves(rows: Sequence[LatencyRecord]) -> dict[tuple[int, int], list[LatencyRecord]]:
    found: dict[tuple[int, int], list[LatencyRecord]] = defaultdict(list)
    for one in sorted(rows, key=lambda one: (one.isl, one.osl, one.n or 0)):
        found[one.isl, one.osl].append(one)
    return found


def _seconds(one: LatencyRecord) -> str:
    return f"{one.ttft_ms / 1_000:.1f} s"
