"""The experiment as a whole: every policy over every fleet at every load, what is asked of the router, its ablations.

Run by ``make simulate``. ``--json FILE`` keeps the figures; ``--fleet``, ``--loads``, ``--window`` and ``--seeds`` make
it smaller or larger; ``--saturation`` only measures where the fleets saturate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from simulation.baselines import BASELINES
from simulation.grounds import GROUNDS, Ground
from simulation.measure import Make, Score, run
from simulation.routed import Rules, routed

ROUTER = "agentroute"
SEEDS = (11, 12, 13)
"""Of the traces, and of what the router's curves are off by. Rules were chosen with the seeds 1 and 2."""
LOADS = (0.3, 0.5, 0.7, 0.85, 1.0, 1.15, 1.25, 1.3)
"""Shares of the saturation."""
FURTHER = (1.5, 1.75, 2.0)
"""Where the router alone is taken, as long as it attains ``ATTAINED``: to find how far it holds."""
PAST = 1.25
"""Where goodput is held against its own peak."""
ATTAINED = 0.9
"""The attainment up to which a load counts as served."""
ABLATIONS: Mapping[str, Rules] = {
    "all curves alike": Rules(curves=False),
    "largest headroom": Rules(objective="headroom"),
    "shortest answer": Rules(objective="latency"),
    "no feedback": Rules(feedback=False),
    "no prefix": Rules(prefix=False),
    "nobody yields": Rules(yields=False),
    "no own queue": Rules(queue=False),
    "no scrapes": Rules(scrapes=False),
    "no SLOs": Rules(limits=False),
}
ABLATED_AT = (0.85, 1.25)

Curve = dict[float, Score]
"""By load."""


def policies(ground: Ground) -> dict[str, Make]:
    """The baselines and the router."""
    return {**BASELINES, ROUTER: routed(ground)}


def mean(scores: Sequence[Score]) -> Score:
    """The mean of several seeds."""
    both = [asdict(s) for s in scores]
    figures: dict[str, Any] = {k: fmean(s[k] for s in both) for k in both[0] if k != "by_kind"}
    kinds = {kind for s in scores for kind in s.by_kind}
    by_kind = {kind: fmean(s.by_kind[kind] for s in scores if kind in s.by_kind) for kind in sorted(kinds)}
    return Score(**figures, by_kind=by_kind)


def measured(ground: Ground, make: Make, load: float, seeds: Sequence[int], window_s: float) -> Score:
    """One policy at one load, the mean over the seeds of the trace."""
    return mean([run(ground, make, ground.saturation_rps * load, seed=s, window_s=window_s) for s in seeds])


def highest(curve: Curve) -> float:
    """The highest load with ``ATTAINED``, between two loads by the straight line through them; 0: not even the least.

    Where attainment falls below and rises again, only what comes before the fall counts.
    """
    loads = sorted(curve)
    if curve[loads[0]].attainment < ATTAINED:
        return 0.0
    for low, high in pairwise(loads):
        a, b = curve[low].attainment, curve[high].attainment
        if b < ATTAINED:
            return low + (high - low) * (a - ATTAINED) / (a - b)
    return loads[-1]


def verdict(curves: Mapping[str, Curve]) -> dict[str, float]:
    """What is asked of the router: where it is first, how far it holds, and whether its goodput stays level.

    Only how far it holds is looked at beyond the loads that all were taken at.
    """
    own, others = curves[ROUTER], {name: curve for name, curve in curves.items() if name != ROUTER}
    loads = sorted(set(own).intersection(*others.values()))
    lead = min(own[at].attainment - max(c[at].attainment for c in others.values()) for at in loads if at >= 0.5)
    best = max(highest(curve) for curve in others.values())
    level = {}
    if PAST in loads:
        level["goodput at 125 % over own peak"] = own[PAST].goodput_rps / max(own[at].goodput_rps for at in loads)
    return {
        "least lead in attainment from 50 % on": lead,
        "highest load with 90 %": highest(own),
        "that of the best baseline": best,
        "their ratio": highest(own) / best if best else float("inf"),
        **level,
    }


def saturation(ground: Ground, seeds: Sequence[int] = (1, 2), window_s: float = 600.0) -> float:
    """The least offered rate at which the best baseline's finished tokens per second are within 3 % of their peak.

    Tokens, not requests: past saturation it is the long prompts that are given up, so that requests per second may
    still grow while less work is done. Rates 10 % apart around the one that is noted.
    """
    names = ("least in flight", "least by speed", "prefix-sticky", "sticky, bounded")
    done: dict[float, float] = {}
    for step in range(-4, 5):
        rate = ground.saturation_rps * 1.1**step
        scores = [[run(ground, BASELINES[n], rate, seed=s, window_s=window_s) for s in seeds] for n in names]
        done[rate] = max(fmean(s.completed_tokens_per_s for s in of_one) for of_one in scores)
    peak = max(done.values())
    return min(rate for rate, tokens in done.items() if tokens >= 0.97 * peak)


def table(ground: Ground, curves: Mapping[str, Curve]) -> str:
    """Attainment and goodput of every policy, a line each."""
    loads = sorted({load for curve in curves.values() for load in curve})
    lines = [f"{ground.name}: 100 % is {ground.saturation_rps:g} requests a second; attainment (goodput per second)"]
    lines.append(f"{'':18s}" + "".join(f"{load:>13.0%}" for load in loads))
    for name, curve in curves.items():
        cells = (f"{s.attainment:.3f} ({s.goodput_rps:.2f})" if (s := curve.get(load)) else "" for load in loads)
        lines.append(f"{name:18s}" + "".join(f"{cell:>13s}" for cell in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleet", action="append", choices=[g.name for g in GROUNDS], help="default: all")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="shares of the saturation")
    parser.add_argument("--window", type=float, default=180.0, help="seconds that are scored")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS[:1], help="of the traces to average over")
    parser.add_argument("--no-ablations", action="store_true")
    parser.add_argument("--saturation", action="store_true")
    parser.add_argument("--json", type=Path, help="write all figures here")
    asked = parser.parse_args(arguments)
    seeds, began, kept = asked.seeds, time.monotonic(), {}
    for ground in GROUNDS:
        if asked.fleet and ground.name not in asked.fleet:
            continue
        if asked.saturation:
            print(f"{ground.name}: {saturation(ground):.1f} requests a second, noted is {ground.saturation_rps:g}")
            continue
        curves = {
            name: {load: measured(ground, make, load, seeds, asked.window) for load in asked.loads}
            for name, make in policies(ground).items()
        }
        own = curves[ROUTER]
        for load in FURTHER:
            if own[max(own)].attainment >= ATTAINED:
                own[load] = measured(ground, routed(ground), load, seeds, asked.window)
        says = verdict(curves)
        print(table(ground, curves), *(f"  {what}: {figure:.3f}" for what, figure in says.items()), sep="\n")
        ablated: dict[str, Curve] = {}
        if not asked.no_ablations:
            at = [load for load in ABLATED_AT if load in asked.loads]
            for name, rules in ABLATIONS.items():
                ablated[name] = {
                    load: measured(ground, routed(ground, rules), load, seeds, asked.window) for load in at
                }
                cells = (f"{s.attainment - curves[ROUTER][load].attainment:+.3f}" for load, s in ablated[name].items())
                print(f"  {name:18s}" + "".join(f"{cell:>13s}" for cell in cells) + "   attainment, against the whole")
        print(f"  {time.monotonic() - began:.0f} s so far\n", flush=True)
        kept[ground.name] = {
            "saturation_rps": ground.saturation_rps,
            "verdict": says,
            **{
                what: {name: {f"{load:g}": asdict(s) for load, s in c.items()} for name, c in of.items()}
                for what, of in (("policies", curves), ("ablations", ablated))
            },
        }
    if asked.json:
        asked.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
