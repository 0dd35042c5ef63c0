"""``agentroute size``: every sensible split of a model over so many accelerators, and what gives way first in each."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from agentroute.capacity.holding import Holding, Serving
from agentroute.capacity.kv import KV_TYPES, KvType, Unknown
from agentroute.capacity.memory import ENGINES, Engine, minor_version
from agentroute.capacity.weights import QUANTISATIONS, scheme
from agentroute.catalogue import shipped
from agentroute.ceilings import NAMES, Ceiling, Ceilings, Stand
from agentroute.cli.options import Deadline, Json, Output, Tpot, milliseconds
from agentroute.cli.output import EXIT_INFEASIBLE, print_json, print_table, say
from agentroute.errors import UnknownNameError, UsageError, shown
from agentroute.estimate import Estimate
from agentroute.estimate import milliseconds as shown_ms
from agentroute.latency.rates import Workload
from agentroute.shape.model import Model
from agentroute.sizing import Sized
from agentroute.sizing import size as ranked

OUTPUT = 1_024
"""Answer tokens where nobody says."""

ENDLESS = 1 << 30
"""A request of so many tokens is as long as one likes: a pool that only keeps states holds any."""

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
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="How weights are kept, e.g. fp8; default: as the checkpoint does, else bf16."),
    ] = None,
    kv: Annotated[str, typer.Option("--kv", help="How the KV cache is kept, e.g. fp8.")] = "bf16",
    kv_gib: Annotated[
        float | None,
        typer.Option("--kv-gib", help="KV memory per accelerator as a log printed it, in GiB.", min=0.001, max=1e5),
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(
            "--memory-utilisation", help="The engine's own share, e.g. 0.9; default: the engine's.", min=0.01, max=1.0
        ),
    ] = None,
    batched_tokens: Annotated[
        int | None, typer.Option("--batched-tokens", help="Tokens of one step; default: the engine's.", min=1)
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", help="E.g. 0.19; default: the newest known.")
    ] = None,
    slots: Annotated[int | None, typer.Option("--slots", help="Requests a server runs at once.", min=1)] = None,
    window: Annotated[int | None, typer.Option("--window", help="The window; default: the model's.", min=1)] = None,
    ttft: Annotated[
        str | None, typer.Option("--ttft", help="Time to the first token, e.g. 2s, of the last when all come at once.")
    ] = None,
    tpot: Tpot = None,
    deadline: Deadline = None,
    top: Annotated[int, typer.Option("--top", help="Show this many.", min=1)] = 10,
    as_json: Json = False,
) -> None:
    """Rank every sensible split of a model: what fits, how many at once, how fast, and which ceiling gives way first.

    Exit 3 when no split holds the load.
    """
    found = find(model)
    if _is_file(model) and found.notes:
        say(found.notes)
    kept, why = _weights(weights, found, model)
    known = shipped().accelerator(accelerator)
    serving = Serving(
        engine=_engine(engine),
        engine_version=_version(engine_version),
        weights=kept,
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
            "model": found.name, "accelerator": known.name, "count": count, "engine": engine, "weights": kept,
            "kv": kv, "context_tokens": context, "output_tokens": workload.osl, "concurrency": concurrency,
        }  # fmt: skip
        print_json("size", {**question, "splits": [_json(sized) for sized in ways]})
    else:
        typer.echo(
            f"{found.name} on {count} x {known.name}, {engine}, {kept} weights{why}, {kv} KV cache: {_load(workload)}\n"
        )
        _print(ways[:top])
        say(f"{keeping} of {len(ways)} splits hold that" + (f"; the best {top} are shown" if len(ways) > top else ""))
    if not keeping:
        raise typer.Exit(EXIT_INFEASIBLE)


def find(model: str) -> Model:
    """A model by its shipped name, its hub id, or the path of its ``config.json``; raises ``UsageError``."""
    return Model.from_hf_config(model) if _is_file(model) else shipped().model(model)


def _is_file(model: str) -> bool:
    return Path(model).suffix == ".json" or Path(model).is_dir()


def _weights(asked: str | None, model: Model, named: str) -> tuple[str, str]:
    """How weights are kept, and why so: as asked, as the hub id says, as the checkpoint keeps them, or in 16 bits."""
    if asked is not None:
        if scheme(asked, model) is None:
            raise UsageError(f"weights of {model.name} cannot be {asked!r}; known: {', '.join(QUANTISATIONS)}")
        return asked, ""
    ending = named.rpartition("-")[2].lower()
    if named in model.hf_ids and scheme(ending, model):
        return ending, " (by the hub id)"
    published = model.checkpoint_weights
    return (published, " (as published)") if published else ("bf16", " (by default)")


def _engine(name: str) -> Engine:
    for engine in ENGINES:
        if engine == name:
            return engine
    raise UnknownNameError("engine", name, ENGINES)


def _version(text: str | None) -> tuple[int, int] | None:
    version = minor_version(text)
    if text is not None and version is None:
        raise UsageError(f"--engine-version must be a version such as 0.19, got {shown(text)}")
    return version


def _kv_type(name: str) -> KvType:
    for kv_type in KV_TYPES:
        if kv_type == name:
            return kv_type
    raise UnknownNameError("KV type", name, KV_TYPES)


def _load(workload: Workload) -> str:
    return f"{workload.n:,} x ({workload.isl:,} context + {workload.osl:,} output tokens)"


def _print(ways: tuple[Sized, ...]) -> None:
    print_table(COLUMNS, (_row(i, sized) for i, sized in enumerate(ways, 1)), right=("#",))
    unknown: dict[str, list[str]] = {}
    for i, sized in enumerate(ways, 1):
        for remark in (*_remarks(sized), *sized.ceilings.cautions):
            typer.echo(f"{i:>2}. {remark}")
        for part in (sized.stand.holding, sized.stand.roofline):
            if isinstance(part, Unknown) and f"{i}" not in unknown.setdefault(part.reason, []):
                unknown[part.reason].append(f"{i}")
    for reason, rows in unknown.items():
        typer.echo(f"{', '.join(rows)}: unknown: {reason}")
    typer.echo(LEGEND)


LEGEND = """
weights, left for KV: of the fullest accelerator; a band, for engines take a share of their own at start
KV blocks: of all replicas, x the tokens of one; n_max: requests of this size that fit at once; longest: one request
TTFT: of a lone request - of the last when all come at once; TPOT: with all in flight, their followers' prompts too;
    both derived, by a roofline that no measurement has corrected
order: those that hold the load first, the shortest time to the whole answer first; then those that hold most"""


def _remarks(sized: Sized) -> Iterator[str]:
    """What is to be said of all replicas together, and of weights that do not fit."""
    idle = sized.replicas - sized.concurrency
    if idle > 0:
        yield f"{idle} of {sized.replicas} replicas idle at {sized.concurrency} in flight"
    holding = sized.stand.holding
    if isinstance(holding, Holding) and holding.kv_gib is not None and holding.kv_gib.high <= 0:
        yield f"weights do not fit: {-holding.kv_gib.high:.1f} GiB are missing on every accelerator at the least"


def _row(rank: int, sized: Sized) -> tuple[str, ...]:
    holding, found = sized.stand.holding, sized.ceilings
    weights = left = blocks = longest = "unknown"
    if not isinstance(holding, Unknown):
        weights = f"{holding.weights_gib:.1f} GiB"
        left = f"{span(holding.kv_gib, '.1f')} GiB" if holding.kv_gib else "unknown"
        blocks = f"{span(_times(holding.blocks(), sized.replicas), ',.0f')} x {holding.block_tokens:,}"
        longest = span(holding.longest_tokens(sized.stand.window_tokens or ENDLESS), ",.0f")
    n_max = found.n_max
    fits = n_max is None or n_max.high > 0
    ttft = f"{_ms(sized.lone_ttft_ms)}-{_ms(sized.ttft_ms)}" if sized.share.n > 1 else _ms(sized.ttft_ms)
    return (
        str(rank),
        str(sized),
        weights,
        left,
        blocks,
        "unknown" if n_max is None else span(_times(n_max, sized.replicas), ",.0f"),
        longest,
        ttft if fits and sized.ttft_ms is not None else "unknown" if fits else "none",
        _ms(sized.tpot_ms) if fits else "none",
        _ceiling(found.binding, sized.replicas),
        _ceiling(found.next, sized.replicas),
    )


def _ms(value: float | None) -> str:
    return "unknown" if value is None else shown_ms(value)


def span(estimate: Estimate, form: str) -> str:
    """A band as ``low-high``, one number where both are the same; ``any`` beyond what can be."""
    low, high = ("any" if end >= ENDLESS else format(max(0.0, end), form) for end in (estimate.low, estimate.high))
    return low if low == high else f"{low}-{high}"


def _times(estimate: Estimate, by: int) -> Estimate:
    return Estimate(estimate.mean * by, estimate.low * by, estimate.high * by, estimate.source)


def _ceiling(ceiling: Ceiling | None, replicas: int) -> str:
    if ceiling is None:
        return "unknown"
    n_c = ceiling.n_c.mean * replicas
    return f"{NAMES[ceiling.kind]} at {n_c:,.0f}" if n_c < inf else "none"


def _json(sized: Sized) -> dict[str, Any]:
    """Of all replicas together, and under ``group`` what holds for each of them under its share of the load."""
    held, holding = sized.ceilings.n_max, sized.stand.holding
    return {
        "replicas": sized.replicas,
        "sharding": sized.sharding.model_dump(),
        "keeps": sized.keeps,
        "n_max": band(_times(held, sized.replicas)) if held else None,
        "lone_ttft_ms": sized.lone_ttft_ms,
        "ttft_ms": sized.ttft_ms,
        "tpot_ms": sized.tpot_ms,
        "e2e_ms": sized.e2e_ms,
        "times_source": "derived",
        "remarks": [*_remarks(sized)],
        "group": {
            "concurrency": sized.share.n,
            **(dict.fromkeys(_HELD) if isinstance(holding, Unknown) else _holding_json(holding, sized.stand)),
            **ceilings_json(sized.ceilings),
        },
    }


_HELD = ("weights_gib", "usable_gib", "kv_gib", "kv_blocks", "kv_block_tokens", "longest_tokens")


def _holding_json(holding: Holding, stand: Stand) -> dict[str, Any]:
    longest = holding.longest_tokens(stand.window_tokens or ENDLESS)
    return {
        "weights_gib": holding.weights_gib,
        "usable_gib": holding.usable_gib,
        "kv_gib": band(holding.kv_gib) if holding.kv_gib else None,
        "kv_blocks": band(holding.blocks()),
        "kv_block_tokens": holding.block_tokens,
        "longest_tokens": band(longest) if longest.high < ENDLESS else None,
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
