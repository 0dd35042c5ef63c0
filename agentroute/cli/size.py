"""``agentroute size``: every sensible split of a model over so many accelerators, and what gives way first in each."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from agentroute.capacity.holding import BATCHED_TOKENS, Holding, Serving
from agentroute.capacity.kv import KV_TYPES, KvType, Unknown
from agentroute.capacity.memory import ENGINES, Engine
from agentroute.catalogue import shipped
from agentroute.ceilings import NAMES, Ceiling, Ceilings
from agentroute.cli.options import Deadline, Json, Output, Tpot, Ttft, milliseconds
from agentroute.cli.output import EXIT_INFEASIBLE, print_json, print_table, say
from agentroute.errors import UnknownNameError
from agentroute.estimate import Estimate
from agentroute.estimate import milliseconds as shown_ms
from agentroute.latency.rates import Workload
from agentroute.shape.model import Model
from agentroute.sizing import Sized
from agentroute.sizing import size as ranked

OUTPUT = 1_024
"""Answer tokens where nobody says."""

COLUMNS = (
    "#", "split", "weights", "left for KV", "KV blocks", "n_max", "longest", "TTFT", "TPOT", "binding ceiling",
    "next ceiling",
)  # fmt: skip


def size(
    model: Annotated[str, typer.Argument(help="A shipped model's name, a hub id, or a config.json.")],
    accelerator: Annotated[str, typer.Option("--accelerator", help="Kind of accelerator, e.g. h200_sxm.")],
    context: Annotated[int, typer.Option("--context", help="Prompt tokens.", min=1, show_default=False)],
    count: Annotated[int, typer.Option("--count", help="How many accelerators.", min=1, max=4_096)] = 8,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Requests in flight at once.", min=1)] = 1,
    output: Output = None,
    engine: Annotated[str, typer.Option("--engine", help=f"{', '.join(ENGINES)}.")] = "vllm",
    weights: Annotated[str, typer.Option("--weights", help="How weights are kept, e.g. fp8 or awq-int4.")] = "bf16",
    kv: Annotated[str, typer.Option("--kv", help="How the KV cache is kept, e.g. fp8.")] = "bf16",
    kv_gib: Annotated[
        float | None, typer.Option("--kv-gib", help="KV memory per accelerator as a log printed it, in GiB.", min=0.001)
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option("--memory-utilisation", help="The engine's own share, e.g. 0.9; default: the engine's.", max=1.0),
    ] = None,
    batched_tokens: Annotated[
        int, typer.Option("--batched-tokens", help="Tokens of one scheduler step.", min=1)
    ] = BATCHED_TOKENS,
    slots: Annotated[int | None, typer.Option("--slots", help="Requests a server runs at once.", min=1)] = None,
    window: Annotated[int | None, typer.Option("--window", help="The window; default: the model's.", min=1)] = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    deadline: Deadline = None,
    top: Annotated[int, typer.Option("--top", help="Show this many.", min=1)] = 10,
    as_json: Json = False,
) -> None:
    """Rank every sensible split of a model: what fits, how many at once, how fast, and which ceiling gives way first.

    Exit 3 when no split holds the load.
    """
    found = find(model)
    known = shipped().accelerator(accelerator)
    serving = Serving(
        engine=_engine(engine),
        weights=weights,
        kv_type=_kv_type(kv),
        memory_utilisation=utilisation,
        batched_tokens=batched_tokens,
        slots=slots,
        kv_gib=kv_gib,
    )
    workload = Workload(
        context,
        output or OUTPUT,
        concurrency,
        ttft_ms=milliseconds(ttft, "--ttft"),
        tpot_ms=milliseconds(tpot, "--tpot"),
        e2e_ms=milliseconds(deadline, "--deadline"),
    )
    window = window or found.max_context_tokens
    ways = ranked(found, known, count, workload, serving, window_tokens=window)
    keeping = sum(sized.keeps for sized in ways)
    if as_json:
        question = {
            "model": found.name, "accelerator": known.name, "count": count, "engine": engine, "weights": weights,
            "kv": kv, "context_tokens": context, "output_tokens": workload.osl, "concurrency": concurrency,
        }  # fmt: skip
        print_json("size", {**question, "splits": [_json(sized) for sized in ways]})
    else:
        typer.echo(
            f"{found.name} on {count} x {known.name}, {engine}, {weights} weights, {kv} KV cache: {_load(workload)}\n"
        )
        _print(ways[:top])
        say(f"{keeping} of {len(ways)} splits hold that" + (f"; the best {top} are shown" if len(ways) > top else ""))
    if not keeping:
        raise typer.Exit(EXIT_INFEASIBLE)


def find(model: str) -> Model:
    """A model by its shipped name, its hub id, or the path of its ``config.json``; raises ``UsageError``."""
    if Path(model).suffix == ".json" or Path(model).is_dir():
        return Model.from_hf_config(model)
    return shipped().model(model)


def _engine(name: str) -> Engine:
    for engine in ENGINES:
        if engine == name:
            return engine
    raise UnknownNameError("engine", name, ENGINES)


def _kv_type(name: str) -> KvType:
    for kv_type in KV_TYPES:
        if kv_type == name:
            return kv_type
    raise UnknownNameError("KV type", name, KV_TYPES)


def _load(workload: Workload) -> str:
    return f"{workload.n:,} x ({workload.isl:,} context + {workload.osl:,} output tokens)"


def _print(ways: tuple[Sized, ...]) -> None:
    print_table(COLUMNS, (_row(i, sized) for i, sized in enumerate(ways, 1)), right=("#",))
    for i, sized in enumerate(ways, 1):
        for caution in sized.ceilings.cautions:
            typer.echo(f"{i:>2}. {caution}")
        holding, roofline = sized.stand.holding, sized.stand.roofline
        for reason in dict.fromkeys(part.reason for part in (holding, roofline) if isinstance(part, Unknown)):
            typer.echo(f"{i:>2}. unknown: {reason}")
    typer.echo(
        "weights and KV per accelerator, low-high; KV blocks x tokens of the smallest; n_max: requests of this size "
        "that fit at once; times: of an uncalibrated roofline at this load, TTFT of the last of a burst"
    )


def _row(rank: int, sized: Sized) -> tuple[str, ...]:
    holding, found = sized.stand.holding, sized.ceilings
    weights = left = blocks = longest = "unknown"
    if not isinstance(holding, Unknown):
        weights = f"{holding.weights_gib:.1f} GiB"
        left = f"{span(holding.kv_gib, '.1f')} GiB" if holding.kv_gib else "unknown"
        blocks = f"{span(_times(holding.blocks(), sized.replicas), ',.0f')} x {holding.block_tokens:,}"
        longest = span(holding.longest_tokens(sized.stand.window_tokens or 1 << 30), ",.0f")
    n_max = found.n_max
    return (
        str(rank),
        str(sized),
        weights,
        left,
        blocks,
        "unknown" if n_max is None else span(_times(n_max, sized.replicas), ",.0f"),
        longest,
        shown_ms(sized.ttft_ms) if sized.ttft_ms is not None else "unknown",
        shown_ms(sized.tpot_ms) if sized.tpot_ms is not None else "unknown",
        _ceiling(found.binding, sized.replicas),
        _ceiling(found.next, sized.replicas),
    )


def span(estimate: Estimate, form: str) -> str:
    """A band as ``low-high``, one number where both are the same."""
    low, high = (format(max(0.0, end), form) for end in (estimate.low, estimate.high))
    return low if low == high else f"{low}-{high}"


def _times(estimate: Estimate, by: int) -> Estimate:
    return Estimate(estimate.mean * by, estimate.low * by, estimate.high * by, estimate.source)


def _ceiling(ceiling: Ceiling | None, replicas: int) -> str:
    if ceiling is None:
        return "unknown"
    n_c = ceiling.n_c.mean * replicas
    return f"{NAMES[ceiling.kind]} at {n_c:,.0f}" if n_c < inf else "none"


def _json(sized: Sized) -> dict[str, Any]:
    held = sized.ceilings.n_max
    return {
        "replicas": sized.replicas,
        "sharding": sized.sharding.model_dump(),
        "keeps": sized.keeps,
        **_holding_json(sized.stand.holding),
        "n_max": band(_times(held, sized.replicas)) if held else None,
        "ttft_ms": sized.ttft_ms,
        "tpot_ms": sized.tpot_ms,
        "e2e_ms": sized.e2e_ms,
        **ceilings_json(sized.ceilings),
    }


def _holding_json(holding: Holding | Unknown) -> dict[str, Any]:
    if isinstance(holding, Unknown):
        names = ("weights_gib", "usable_gib", "kv_gib", "kv_blocks", "kv_block_tokens", "longest_tokens")
        return dict.fromkeys(names)
    return {
        "weights_gib": holding.weights_gib,
        "usable_gib": holding.usable_gib,
        "kv_gib": band(holding.kv_gib) if holding.kv_gib else None,
        "kv_blocks": band(holding.blocks()),
        "kv_block_tokens": holding.block_tokens,
        "longest_tokens": band(holding.longest_tokens()),
    }


def ceilings_json(found: Ceilings) -> dict[str, Any]:
    """The ceilings of one worker group, as JSON; an infinite number is ``null``."""
    return {
        "binding": found.binding.kind if found.binding else None,
        "next": found.next.kind if found.next else None,
        "ceilings": [
            {
                "kind": ceiling.kind,
                "demand": ceiling.demand,
                "limit": ceiling.limit,
                "unit": ceiling.unit,
                "n_c": band(ceiling.n_c),
                "margin": ceiling.margin,
            }
            for ceiling in found.all
        ],
        "unknown": found.unknown,
        "cautions": [{"kind": caution.kind, "text": caution.text} for caution in found.cautions],
    }


def band(estimate: Estimate) -> dict[str, Any]:
    """An estimate as JSON."""
    return {"low": estimate.low, "mean": estimate.mean, "high": estimate.high, "source": estimate.source}
