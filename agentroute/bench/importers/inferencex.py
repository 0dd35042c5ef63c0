"""InferenceX's ``agg_*.json``: one row a load, in an array or alone. All times are in seconds.

The keys were read in InferenceX's ``utils/process_result.py``, newer ones in rows of its database. Its ``tp`` counts
the GPUs of a worker: with ``dp_attention`` attention is replicated over them, and ``ep`` spreads the experts over
the same GPUs, so that it multiplies nothing. Throughput is per GPU; of a disaggregated row the output's is per decode
GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import ValidationError

from agentroute.bench.importers.material import Material, Record
from agentroute.bench.importers.run import (
    Facts,
    Run,
    Times,
    attention_sharding,
    version_of,
)
from agentroute.profile import WeightsType
from agentroute.shape.sharding import Disaggregated, Sharding, Workers

NAME = "inferencex"
EXPECTS = "hw, conc, framework and mean_ttft"

NOMINAL = "sizes as they were asked for; those that were sent are a little smaller"
_WEIGHTS: dict[str, WeightsType] = {"fp8": "fp8", "bf16": "bf16", "fp4": "fp4", "int4": "int4"}


def detects(material: Material) -> bool:
    """Whether the file holds rows of InferenceX."""
    return material.first.has("hw", "conc", "framework")


def runs(material: Material) -> Iterator[Run]:
    """The run of each row."""
    for row in material.records:
        facts, gpus, wrong = _deployment(row)
        isl, osl, clients = row.number("isl"), row.number("osl"), row.number("conc")
        if row.has("isl") and row.get("isl") is None:
            wrong = "it replays an agent's requests of many sizes (isl is null), which is no point of a curve"
        output = row.number("output_tput_per_gpu")
        speculative = row.text("spec_decoding") or row.text("mtp")
        notes = [NOMINAL]
        if speculative and speculative.lower() not in ("none", "off", "false"):
            notes.append("speculative decoding")
        yield Run(
            where=row.where,
            isl=isl,
            osl=osl,
            clients=clients,
            loop="closed",
            requests_per_s=output * gpus / osl if output and gpus and osl else None,
            ttft_ms=_times(row, "ttft"),
            tpot_ms=_times(row, "tpot"),
            e2e_ms=_times(row, "e2el"),
            date=row.date("date"),
            workload="random tokens",
            facts=facts,
            notes=tuple(notes),
            wrong=wrong,
        )


def _times(row: Record, metric: str) -> Times:
    found = {name: row.number(f"{name}_{metric}") for name in ("mean", "p50", "p90", "p95", "p99")}
    found["p50"] = found["p50"] or row.number(f"median_{metric}")
    return {name: value * 1_000 for name, value in found.items() if value}  # type: ignore[misc]


def _deployment(row: Record) -> tuple[Facts, int | None, str | None]:
    """The facts, the GPUs that the output's throughput was divided by, and what is wrong with the row."""
    sharding = disaggregated = None
    gpus = wrong = None
    if row.get("disagg") in (True, "true"):
        disaggregated, wrong = _disaggregated(row)
        gpus = disaggregated.decode.accelerators if disaggregated else None
    elif ranks := row.count("tp"):
        # With a prefill context split (pcp) a worker takes that many times the GPUs; a profile cannot say so.
        if (row.count("pcp_size") or 1) > 1:
            wrong = "its prefill is split over the context (pcp_size), which a profile cannot say"
        sharding = _sharding(row, "", ranks)
        gpus = sharding.accelerators if sharding else None
        wrong = wrong or (None if sharding else "its tp, pp and ep do not fit each other")
    image = re.search(r":v?(\d[\w.]*(?:-rc\d+)?)", row.text("image") or "")
    facts = Facts(
        model_word=row.text("model"),
        engine=row.engine("framework"),
        engine_version=version_of(image[1]) if image else None,
        accelerator_word=(row.text("hw") or "").split("-")[0],
        sharding=sharding,
        disaggregated=disaggregated,
        weights=_WEIGHTS.get((row.text("precision") or "").lower()),
    )
    return facts, gpus, wrong


def _disaggregated(row: Record) -> tuple[Disaggregated | None, str | None]:
    """Both sides, each checked against the GPUs that the row counts for it."""
    sides = []
    for side in ("prefill", "decode"):
        ranks, counted = row.count(f"{side}_tp"), row.count(f"num_{side}_gpu")
        sharding = _sharding(row, f"{side}_", ranks) if ranks else None
        if sharding is None:
            return None, f"its {side}_tp and {side}_ep do not fit each other"
        workers = Workers(workers=row.count(f"{side}_num_workers") or 1, sharding=sharding)
        if counted is not None and counted != workers.accelerators:
            expert = f" (times ep: {workers.accelerators * sharding.ep})" if sharding.ep > 1 else ""
            return None, f"num_{side}_gpu is {counted}, but its split takes {workers.accelerators} GPUs{expert}"
        sides.append(workers)
    try:
        return Disaggregated(prefill=sides[0], decode=sides[1]), None
    except ValidationError:
        return None, "its two sides do not make a deployment"


def _sharding(row: Record, side: str, ranks: int) -> Sharding | None:
    replicated = row.get(f"{side}dp_attention") in (True, "true")
    pp, ep = row.count(f"{side}pp"), row.count(f"{side}ep")
    return attention_sharding(ranks, attention_dp=replicated, pp=pp, ep=ep)
