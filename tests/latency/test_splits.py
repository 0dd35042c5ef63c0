"""A split by tensors and one by layers, as vLLM ran them: what more requests cost, and when stages idle."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from agentroute.catalogue import shipped
from agentroute.latency.roofline import Roofline
from agentroute.shape.sharding import Sharding

FILE = Path(__file__).parents[1] / "data" / "split_rounds.csv"
"""Written by ``tests_vllm/measure_splits.py``; its head says of what and how."""


@dataclass(frozen=True)
class Seen:
    """A round: so many requests that decoded at once, and how many of them a step of the engine answered."""

    split: str
    n: int
    tpot_ms: float
    per_step: float

    @property
    def batches(self) -> int:
        """In flight at once."""
        return round(self.n / self.per_step)


@cache
def rounds() -> list[Seen]:
    """All that were measured."""
    with FILE.open(encoding="utf-8") as file:
        return [
            Seen(row["split"], int(row["concurrency"]), float(row["tpot_ms"]), float(row["per_step"]))
            for row in csv.DictReader(line for line in file if not line.startswith("#"))
        ]


def tpot_ms(split: str, n: int, batches: int = 1) -> float:
    """The median of the rounds of ``n`` requests that went in so many batches."""
    return median(seen.tpot_ms for seen in rounds() if (seen.split, seen.n, seen.batches) == (split, n, batches))


def growth(split: str, batches: int = 1) -> float:
    """TPOT(2) / TPOT(1)."""
    return tpot_ms(split, 2, batches) / tpot_ms(split, 1)


def test_a_second_request_costs_a_layer_split_less_where_it_is_a_batch_of_its_own() -> None:
    assert growth("pp2", batches=2) < growth("tp2")


def test_it_costs_more_where_both_are_one_batch_for_then_a_stage_idles_as_before() -> None:
    assert growth("pp2", batches=1) > growth("tp2") > growth("pp2", batches=2)


@pytest.mark.parametrize(("batches", "holds"), [(2, True), (1, False)])
def test_the_roofline_counts_on_a_batch_for_each_stage(batches: int, holds: bool) -> None:
    """Two requests are said to bring twice the tokens of one, for no stage idles any more. Seen are 1.7 times as many,
    as the two workers have all cores of that machine, and the server its share of them; in one batch, 1.4 times."""
    made = Roofline.of(shipped().model("llama-3.1-8b"), shipped().accelerator("h100_sxm"), Sharding(pp=2))
    assert isinstance(made, Roofline)
    said = made.pipeline_utilisation(2) / made.pipeline_utilisation(1)
    assert said == 2.0
    assert (2 / growth("pp2", batches) == pytest.approx(said, rel=0.15)) is holds


def test_eight_in_two_batches_take_a_layer_split_less_than_all_of_them_a_tensor_split() -> None:
    assert tpot_ms("pp2", 8, batches=2) < tpot_ms("tp2", 8)
