"""``agentroute validate``: hold predictions against what real engines logged and what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from agentroute.capacity.predict import QUANTITIES, Prediction, predict, summary
from agentroute.capacity.records import Record
from agentroute.catalogue import Catalogue, shipped
from agentroute.cli.options import Json
from agentroute.cli.output import percent, print_json, print_table
from agentroute.cli.validate_latency import latency
from agentroute.cli.validate_tokens import tokens
from agentroute.errors import FileError, counted
from agentroute.shape.model import Model

ALIASES = {
    "trinity": "trinity-nano",
    "qwen4exp": "qwen3.8-flash-next",
    "rwkv6qwen2-72b": "qwerky-72b",
    "13-39-hybrid": "muse-glimmer-30b",
}
"""Shapes that records name otherwise than the catalogue does."""

app = typer.Typer(no_args_is_help=True, help="Hold predictions against logs and measurements.")


@app.callback()
def _main() -> None:
    """Hold predictions against logs and measurements."""


app.command("latency")(latency)
app.command("tokens")(tokens)


@app.command("kv")
def kv(
    file: Annotated[Path, typer.Argument(help="Records, one JSON object a line.", metavar="RECORDS.jsonl")],
    as_json: Json = False,
) -> None:
    """Predict what each log printed of its KV pool and weights, and how far off that is."""
    records = read(file)
    models = by_shape(shipped())
    predictions = [one for record in records for one in predict(record, model_of(record, models))]
    figures = summary(predictions)
    if as_json:
        print_json("validate kv", {"records": [_plain(one) for one in predictions], "summary": figures})
        return
    columns = ("id", "quantity", "predicted", "logged", "error", "why")
    print_table(columns, (_row(one) for one in predictions), right=columns[2:5])
    done = {one.id for one in predictions if one.predicted is not None}
    chosen = {one.id for one in predictions if one.chosen}
    own = {one.id for one in predictions if one.from_own_figures}
    typer.echo(
        f"\n{len(done)} of {counted(len(records), 'record')} predicted; in {len(chosen)} the log does not say which of "
        f"the engine's rules it follows, and its own figures chose; in {len(own)} a figure follows from another one "
        "of the same log"
    )
    print_table(
        ("quantity", "n", "median", "p90", "max", "within 0.5 %", "within 5 %"),
        (
            (quantity, f"{line['n']}", *(percent(line[key], 3) for key in ("median", "p90", "max")),
             f"{line['within_0_5pct']}", f"{line['within_5pct']}")
            for quantity in QUANTITIES
            if (line := figures[quantity])["n"]
        ),
        right=("n", "median", "p90", "max", "within 0.5 %", "within 5 %"),
    )  # fmt: skip


def read(path: Path) -> list[Record]:
    """The records of a file; raises ``FileError`` with the line of a wrong one."""
    records: list[Record] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise FileError("must be UTF-8 text with one JSON object a line", path=path) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = Record.model_validate_json(line)
        except ValidationError as problem:
            first = problem.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or None
            message = first["msg"][:1].lower() + first["msg"][1:]
            raise FileError(message, path=path, key=key, line=number) from None
        if record.id in {other.id for other in records}:
            raise FileError(f"the id {record.id!r} is there twice", path=path, key="id", line=number)
        records.append(record)
    return records


def shape_name(arch: str) -> str:
    """A shape's or model's name reduced to what tells models apart: ``llama3.1-70b`` is ``Llama-3.1-70B``."""
    return "".join(letter for letter in arch.lower().removesuffix("-mha") if letter.isalnum())


def model_of(record: Record, models: Mapping[str, Model]) -> Model | None:
    """The model that a record names by its Hub id, else by its shape.

    Active parameters may be left out of a shape's name where that leaves one model (``qwen3-next-80b``).
    """
    name = shape_name(ALIASES.get(record.arch, record.arch))
    longer = [model for other, model in models.items() if re.fullmatch(rf"{re.escape(name)}a\d+b", other)]
    return models.get(record.model) or models.get(name) or (longer[0] if len(longer) == 1 else None)


def by_shape(catalogue: Catalogue) -> Mapping[str, Model]:
    """The catalogue's models by the reduced form of their names, and by the Hub ids that share their shape."""
    models = [catalogue.model(name) for name in catalogue.model_names]
    return {shape_name(model.name): model for model in models} | {
        id_: model for model in models for id_ in model.hf_ids
    }


def _plain(one: Prediction) -> dict[str, object]:
    return {
        "id": one.id,
        "quantity": one.quantity,
        "predicted": one.predicted,
        "logged": one.logged,
        "error": one.error,
        "reason": one.reason,
        "rule": one.rule,
        "chosen": one.chosen,
        "from_own_figures": one.from_own_figures,
    }


def _row(one: Prediction) -> tuple[str, ...]:
    predicted = "" if one.predicted is None else _number(one.predicted)
    error = "" if one.error is None else f"{100 * one.error:+.2f} %"
    own = one.rule or "" if one.from_own_figures else ""
    why = one.reason or (f"its figures chose: {one.rule}" if one.chosen else own)
    logged = "" if one.logged is None else _number(one.logged)
    return one.id, one.quantity, predicted, logged, error, why


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
