"""How fast it is found what a deployment holds. Run by ``make bench``."""

from __future__ import annotations

import random
from functools import partial
from itertools import product

from timing import per_call

from agentroute.capacity import llamacpp, sglang, trtllm, vllm, weights
from agentroute.capacity.holding import Serving, hold
from agentroute.capacity.kv import Unknown
from agentroute.capacity.pool import KvLayout, KvPool
from agentroute.catalogue import shipped
from agentroute.shape.model import Model
from agentroute.shape.sharding import Sharding

SPLITS = [Sharding(tp=tp, pp=pp) for tp, pp in product((1, 2, 4, 8), (1, 2, 4))]
Cases = list[tuple[Model, Sharding]]


def cases() -> Cases:
    """Every shipped model under every split, in an order that no branch predictor likes."""
    found = [(shipped().model(name), split) for name in shipped().model_names for split in SPLITS]
    random.Random(7).shuffle(found)
    return found


def lay_out(engine: str, model: Model, split: Sharding) -> KvLayout | Unknown:
    """One engine's layout."""
    match engine:
        case "vllm":
            return vllm.layout(model, split, "bf16")
        case "sglang":
            return sglang.layout(model, split, "bf16")
        case "trtllm":
            return trtllm.layout(model, split, "bf16")
    return llamacpp.layout(model, split, "fp16")


def layouts(engine: str, every: Cases) -> list[KvLayout]:
    """Times one engine's layouts; those that are known."""
    known = [case for case in every if not isinstance(lay_out(engine, *case), Unknown)]
    per_call(f"{engine}.layout", [partial(lay_out, engine, *case) for case in known])
    return [found for case in known if not isinstance(found := lay_out(engine, *case), Unknown)]


def questions(engine: str, found: list[KvLayout]) -> None:
    """Times what a layout and its pool answer."""
    sizes = random.Random(7)
    asked: list[tuple[KvPool, int]] = [(one.pool_of(sizes.uniform(5, 100)), sizes.randint(1, 131_072)) for one in found]
    gib = sizes.uniform(5, 100)
    per_call(f"{engine}.pool_of", [partial(one.pool_of, gib) for one in found])
    per_call(f"{engine}.needed_gib", [partial(one.needed_gib, 30_000) for one in found])
    per_call(f"{engine}.units", [partial(pool.units, tokens) for pool, tokens in asked])
    per_call(f"{engine}.concurrency", [partial(pool.concurrency, tokens) for pool, tokens in asked])
    per_call(f"{engine}.longest_tokens", [pool.longest_tokens for pool, _ in asked])


def weighing(every: Cases) -> None:
    """Times the weights per accelerator of models that were taken apart."""
    parts = {model.name: weights.Parts.of(model) for model, _ in every}
    schemes = [weights.QUANTISATIONS[name] for name in ("bf16", "fp8", "nvfp4")]
    known = [
        partial(found.gib, split, schemes[i % 3])
        for i, (model, split) in enumerate(every)
        if not isinstance(found := parts[model.name], Unknown)
    ]
    per_call("weights", known)


def holding(every: Cases) -> None:
    """Times all of it for one deployment: weights, memory that is left, layout, pools at both ends of the band."""
    h200, serving = shipped().accelerator("h200_sxm"), Serving(weights="fp8")
    parts = {model.name: weights.Parts.of(model) for model, _ in every}
    known = [case for case in every if not isinstance(hold(case[0], h200, case[1], serving), Unknown)]
    calls = [partial(hold, model, h200, split, serving, parts=parts[model.name]) for model, split in known]
    per_call("hold", calls)


if __name__ == "__main__":
    everything = cases()
    weighing(everything)
    for name in ("vllm", "sglang", "trtllm", "llamacpp"):
        questions(name, layouts(name, everything))
    holding(everything)
