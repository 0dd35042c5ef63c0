"""``agentroute validate tokens``: predict how many tokens text is that no fit has seen, and say how far off that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from agentroute.bench.corpus import Corpus, held_out
from agentroute.cli.options import Json
from agentroute.cli.output import print_json, print_table

Matrix = NDArray[np.float64]

DEFAULT = Path("tests/data/tokens/counts.csv")
APART = "languages"
"""Samples of other languages than the table's titles name: too few of each to count in a tokenizer's mean."""

WAYS = {"fingerprint": "own fingerprint", "generic": "generic fingerprint", "chars_4": "a token every 4 characters"}


def tokens(
    file: Annotated[
        Path, typer.Argument(help="Counts by real tokenizers, with their samples beside it.", metavar="[COUNTS.csv]")
    ] = DEFAULT,
    as_json: Json = False,
) -> None:
    """Leave samples out, estimate their tokens from the others, and print how far off that is."""
    corpus = Corpus.read(file)
    made = held_out(corpus)
    values = {"fingerprint": made.own, "generic": made.generic, "chars_4": made.by_size}
    uppers = {"fingerprint": made.own_upper, "generic": made.generic_upper}
    kinds = np.array(corpus.classes)
    names = list(dict.fromkeys(corpus.classes))
    summary = {
        way: {
            tokenizer: {
                **_errors(value[kinds != APART, column] / corpus.counts[kinds != APART, column] - 1.0),
                **(_bound(uppers[way][:, column], corpus.counts[:, column]) if way in uppers else {}),
                "classes": {
                    name: _errors(value[kinds == name, column] / corpus.counts[kinds == name, column] - 1.0)
                    for name in names
                },
            }
            for column, tokenizer in enumerate(corpus.tokenizers)
        }
        for way, value in values.items()
    }
    whole = {way: _bound(upper, corpus.counts) for way, upper in uppers.items()}
    if as_json:
        counted = {"samples": len(corpus.samples), "tokenizers": len(corpus.tokenizers)}
        print_json("validate tokens", {"counts": counted, "summary": summary, "upper": whole})
        return
    typer.echo(
        f"{len(corpus.samples)} samples, {len(corpus.tokenizers)} tokenizers; each sample is estimated by fits to the "
        "others, the generic one by fits to other tokenizers, too\n"
        "per class: mean error / the worst, in per cent"
    )
    for way, title in WAYS.items():
        typer.echo(f"\n{title}")
        last = ("mean", "absolute", "worst", *(("held", "upper / true") if way in uppers else ()))
        columns = ("tokenizer", *names, *last)
        print_table(columns, (_row(name, of) for name, of in summary[way].items()), right=columns[1:])
    typer.echo()
    for way, bound in whole.items():
        typer.echo(f"upper bound of the {WAYS[way]}: holds for {100 * bound['below_upper']:.1f} % of all counts")
    typer.echo(
        f"mean, absolute (mean of) and worst: without {APART}, of which there are a few samples each; "
        "held: counts below the upper bound"
    )


def _errors(errors: Matrix) -> dict[str, Any]:
    """The mean, the mean of the absolute, and the worst of relative errors; ``None`` of none."""
    if not len(errors):
        return {"n": 0, "mean": None, "mean_absolute": None, "worst": None}
    return {
        "n": len(errors),
        "mean": float(errors.mean()),
        "mean_absolute": float(np.abs(errors).mean()),
        "worst": float(errors[np.abs(errors).argmax()]),
    }


def _bound(upper: Matrix, counts: Matrix) -> dict[str, float]:
    """The share of counts that an upper bound holds for, and how far above them it stands."""
    return {"below_upper": float((counts <= upper).mean()), "upper_over_count": float((upper / counts).mean())}


def _row(name: str, of: dict[str, Any]) -> tuple[str, ...]:
    classes = (f"{_signed(one['mean'], 0)} / {_signed(one['worst'], 0)}" for one in of["classes"].values())
    last = [_signed(of["mean"]), _signed(of["mean_absolute"]).lstrip("+"), _signed(of["worst"])]
    if "below_upper" in of:
        last += [f"{100 * of['below_upper']:.0f} %", f"{of['upper_over_count']:.2f}"]
    return name, *classes, *last


def _signed(error: float | None, digits: int = 1) -> str:
    return "" if error is None else f"{100 * error:+.{digits}f}"
