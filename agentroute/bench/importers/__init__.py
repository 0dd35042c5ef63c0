"""Result files of the field's benchmark tools, read into measured runs.

Each format is one module with ``NAME``, ``EXPECTS`` (what its files look like), ``detects`` and ``runs``. The first one
that knows a file reads it. Nothing here trusts a file: what is not of the type or size that it should be is unknown,
and ``checks`` asks of every run what no honest measurement breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentroute.bench.importers import (
    aiperf,
    aiperf_requests,
    guidellm,
    inference_perf,
    inferencex,
    llama_batched,
    llama_bench,
    plain_csv,
    sglang,
    trtllm,
    vllm,
)
from agentroute.bench.importers.checks import Judged, Refused, judge
from agentroute.bench.importers.material import Material, Record, read
from agentroute.bench.importers.run import Run
from agentroute.errors import FileError


class Importer(Protocol):
    """One format."""

    NAME: str
    EXPECTS: str

    @staticmethod
    def detects(material: Material) -> bool:
        """Whether the file is of this format."""

    @staticmethod
    def runs(material: Material) -> Iterator[Run]:
        """The runs in it."""


IMPORTERS: tuple[Importer, ...] = (
    vllm, sglang, guidellm, aiperf, aiperf_requests, inference_perf, trtllm, llama_bench, llama_batched, inferencex,
    plain_csv,
)  # type: ignore[assignment]  # fmt: skip
"""Every format, in the order in which they are asked."""

STRANGERS: tuple[tuple[Callable[[Record], bool], str], ...] = (
    (lambda r: r.get("data") is not None and bool(r.records("data")) and r.records("data")[0].has("payloads"),
     "holds AIPerf's inputs; give profile_export_aiperf.json"),
    (lambda r: r.has("metadata", "payload") or r.has("metadata", "responses"),
     "holds AIPerf's raw exchange; give profile_export_aiperf.json or profile_export.jsonl"),
    (lambda r: r.has("aiperf_version", "metrics") or r.has("ready", "was_cancelled"),
     "is a side file of AIPerf; give profile_export_aiperf.json"),
    (lambda r: r.get("results", "request_performance") is not None,
     "is a benchmark report of llm-d; give the file of the tool that measured it"),
    (lambda r: r.has("format", "engine", "measurements"), "is a profile already"),
)  # fmt: skip
"""Files that lie beside results and hold none, and what to give instead."""


@dataclass(frozen=True, slots=True)
class Results:
    """What one file held."""

    path: Path
    tool: str
    judged: tuple[Judged, ...]
    refused: tuple[Refused, ...]
    notes: tuple[str, ...]


def load(path: Path) -> Results:
    """The usable runs of a result file, in its own order, why the others are not, and what was taken as unknown.

    Raises ``FileError`` for a file that cannot be read, that is of no known format, or none of whose runs is usable.
    """
    material = read(path)
    importer = importer_of(material)
    found = [judge(run) for run in importer.runs(material)]
    judged = tuple(one for one in found if isinstance(one, Judged))
    refused = tuple(one for one in found if isinstance(one, Refused))
    if not judged:
        if not refused:
            raise FileError(f"is a file of {importer.NAME}, but holds no run", path=path)
        first, more = refused[0], f" ({len(refused)} runs, none of them usable)" if len(refused) > 1 else ""
        place = f"{first.where}: " if first.where else ""
        lost = material.lost.notes()
        because = f"; {lost[0]}" if lost else ""
        raise FileError(f"{place}as a result of {importer.NAME}, {first.why}{more}{because}", path=path)
    return Results(path, importer.NAME, judged, refused, (*material.notes, *material.lost.notes()))


def importer_of(material: Material) -> Importer:
    """The format of a file; raises ``FileError`` that names the formats there are."""
    for importer in IMPORTERS:
        if importer.detects(material):
            return importer
    for is_it, said in STRANGERS:
        if is_it(material.first):
            raise FileError(said, path=material.path)
    known = ", ".join(importer.NAME for importer in IMPORTERS)
    table = f"; a {plain_csv.NAME} has the {plain_csv.EXPECTS}" if material.rows else ""
    raise FileError(f"is no result file of a known format; known: {known}{table}", path=material.path)
