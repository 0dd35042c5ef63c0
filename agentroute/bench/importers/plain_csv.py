"""A plain CSV, for measurements that no tool wrote: one row a load, one column a quantity, the unit in its name.

=========================================  ============================================================
``isl``, ``osl``                           tokens of prompt and answer; both are needed
``concurrency``                            requests in flight; needed, unless ``requests_per_s`` is there
``loop``                                   ``closed`` or ``open``
``offered_per_s``, ``requests_per_s``      requests a second: meant to be sent, completed
``ttft_ms``, ``tpot_ms``, ``e2e_ms``       means, in milliseconds; TPOT without the first token
``ttft_p50_ms`` ... ``e2e_p99_ms``         p50, p90, p95, p99 of each
``completed``, ``failed``                  requests
``prefix_hit``                             share of the prompt tokens that a prefix cache held, 0 to 1
``date``, ``workload``, ``notes``          ``2026-11-29``; what was sent; anything a reader must know
``model``, ``accelerator``                 the catalogue's names, or the model's hub id
``engine``, ``engine_version``             vllm, sglang, trtllm, llamacpp, dynamo or other; its version
``tp``, ``pp``, ``ep``, ``attention_dp``   the split
``accelerators``                           how many the split takes: tp x pp x attention_dp; ep multiplies nothing
=========================================  ============================================================

An empty cell is unknown. A column of any other name is refused, for it may be one of these in another unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

from agentroute.bench.importers.material import Material, Record, number
from agentroute.bench.importers.run import (
    Facts,
    Run,
    Times,
    sharding_of,
)
from agentroute.errors import FileError, counted, shown, suggest
from agentroute.latency.points import STATISTICS, Loop
from agentroute.profile import EngineName

NAME = "plain CSV"
EXPECTS = "columns isl, osl, concurrency and ttft_ms, tpot_ms or e2e_ms"

METRICS = ("ttft", "tpot", "e2e")
TIMES = {
    f"{metric}_ms" if statistic == "mean" else f"{metric}_{statistic}_ms": (metric, statistic)
    for metric in METRICS
    for statistic in STATISTICS
}
TEXTS = ("loop", "date", "workload", "notes", "model", "accelerator", "engine", "engine_version")
DEGREES = ("tp", "pp", "ep", "attention_dp")
NUMBERS = (
    "isl", "osl", "concurrency", "offered_per_s", "requests_per_s", "completed", "failed", "prefix_hit",
    *DEGREES, "accelerators",
)  # fmt: skip
WHOLE = (*DEGREES, "accelerators")
LOOPS = get_args(Loop)
COLUMNS = (*NUMBERS, *TIMES, *TEXTS)


def detects(material: Material) -> bool:
    """Whether the file is a CSV with a column for each size."""
    return {"isl", "osl"} <= set(material.head)


def runs(material: Material) -> Iterator[Run]:
    """The run of each row; raises ``FileError`` for a column or a cell that is wrong."""
    head = material.head
    for i, name in enumerate(head):
        if name not in COLUMNS:
            raise FileError(
                f"has an unknown column {shown(name)}; {suggest(name, COLUMNS)}", path=material.path, line=1
            )
        if name in head[:i]:
            raise FileError(f"has the column {name} twice", path=material.path, line=1)
    for i, row in enumerate(material.rows[1:], start=2):
        if len(row) != len(head):
            raise FileError(
                f"has {counted(len(row), 'cell')} where its head has {len(head)}", path=material.path, line=i
            )
        cells = {name: cell.strip() for name, cell in zip(head, row, strict=True) if cell.strip()}
        for name, known in (("loop", LOOPS), ("engine", get_args(EngineName))):
            if name in cells and cells[name] not in known:
                said = f"{name} must be one of {', '.join(known)}, got {shown(cells[name])}"
                raise FileError(said, path=material.path, line=i)
        record = Record({**cells, **_numbers(cells, material, i)}, f"row {i}", material.lost)
        if "date" in cells and record.date("date") is None:
            said = f"date must be a day such as 2026-11-29, got {shown(cells['date'])}"
            raise FileError(said, path=material.path, line=i)
        yield _run(record)


def _numbers(cells: Mapping[str, str], material: Material, line: int) -> dict[str, float]:
    found = {}
    for name, cell in cells.items():
        if name in TEXTS:
            continue
        try:
            value = number(float(cell))
        except ValueError:
            value = None
        if value is None or value < 0:
            raise FileError(f"{name} must be a number of at least 0, got {shown(cell)}", path=material.path, line=line)
        if name in WHOLE and not (value >= 1 and value == int(value)):
            said = f"{name} must be a whole number of at least 1, got {shown(cell)}"
            raise FileError(said, path=material.path, line=line)
        found[name] = value
    return found


def _run(record: Record) -> Run:
    degrees = {name: record.count(name) for name in DEGREES}
    sharding = sharding_of(**degrees)
    counted = record.count("accelerators")
    wrong = None
    if sharding is None and any(degrees.values()):
        wrong = "its tp, pp, ep and attention_dp do not fit each other"
    elif sharding and counted and counted != sharding.accelerators:
        multiplied = counted == sharding.accelerators * sharding.ep
        because = "; ep was multiplied in, but it reuses the same ones" if multiplied else ""
        wrong = f"accelerators is {counted}, but the split ({sharding}) takes {sharding.accelerators}{because}"
    loop: Loop | None = {"closed": "closed", "open": "open"}.get(record.text("loop") or "")  # type: ignore[assignment]
    concurrency = record.number("concurrency")
    notes = record.text("notes")
    return Run(
        where=record.where,
        isl=record.number("isl"),
        osl=record.number("osl"),
        clients=concurrency if loop != "open" else None,
        in_flight=concurrency if loop == "open" else None,
        loop=loop,
        offered_per_s=record.number("offered_per_s"),
        requests_per_s=record.number("requests_per_s"),
        ttft_ms=_times(record, "ttft"),
        tpot_ms=_times(record, "tpot"),
        e2e_ms=_times(record, "e2e"),
        completed=record.number("completed"),
        failed=record.number("failed"),
        prefix_hit=record.number("prefix_hit"),
        date=record.date("date"),
        workload=record.text("workload"),
        facts=Facts(
            model_word=record.text("model"),
            engine=record.engine("engine"),
            engine_version=record.version("engine_version"),
            accelerator_word=record.text("accelerator"),
            sharding=sharding,
        ),
        notes=(notes,) if notes else (),
        wrong=wrong,
    )


def _times(record: Record, metric: str) -> Times:
    return {
        statistic: value
        for column, (of, statistic) in TIMES.items()
        if of == metric and (value := record.number(column))
    }
