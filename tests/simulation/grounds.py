"""The fleets, their true servers, and the profiles that the router is given of them.

A profile's curves are measured on the true server in a closed loop of one request size, as a benchmark does, and then
off by up to a quarter: another day, another driver, another version. Limits are what the server says of itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from fleets import SOURCE
from simulation.engine import Call, Engine, Server, Speed
from simulation.prefix_cache import BLOCK, Piece
from simulation.trace import Mix

from agentroute.fleet import Deployment, Fleet
from agentroute.latency.points import Measured, Measurement, Point
from agentroute.origin import Provenance
from agentroute.profile import Engine as EngineFacts
from agentroute.profile import KvPool, Limits, Precision, Profile

OFF = 0.25
"""How far a deployment's curves may be from the truth, either way."""
ISL = (512, 2_048, 8_192, 24_576)
OSL = (128, 512)
N = (1, 4, 16, 48)


def dense(share: float, *, overhead_ms: float) -> Speed:
    """A 70B dense model in FP8 with BF16 KV on ``8 x share`` H100s, at usual efficiencies."""
    return Speed(
        overhead_s=overhead_ms / 1e3,
        weights_s=3.7e-3 / share,
        token_s=20e-6 / share,
        kv_s=20e-9 / share,
        attend_s=0.95e-9 / share,
        request_s=25e-6,
    )


BIG = Server(speed=dense(1, overhead_ms=4.0), gpus=8, blocks=87_500, slots=256, window=131_072, chunk_tokens=4_096)
MIDDLE = Server(speed=dense(0.5, overhead_ms=3.0), gpus=4, blocks=37_500, slots=128, window=131_072, chunk_tokens=2_048)
SMALL = Server(speed=dense(0.25, overhead_ms=2.5), gpus=2, blocks=11_500, slots=64, window=131_072, chunk_tokens=2_048)
STALLING = replace(
    MIDDLE,
    speed=replace(MIDDLE.speed, overhead_s=5e-3, token_s=34e-6, request_s=60e-6),
    blocks=16_000,
    slots=96,
    chunk_tokens=8_192,
    mixed=False,
)
"""The same GPUs with an engine that reads prompts faster but lets decode stand meanwhile, and with less KV."""
LONG = Server(
    speed=Speed(
        overhead_s=9e-3, weights_s=14e-3, touched=0.06, token_s=45e-6, kv_s=12e-9, attend_s=1.2e-9, request_s=40e-6
    ),
    gpus=8,
    blocks=250_000,
    slots=256,
    window=131_072,
    chunk_tokens=4_096,
)
"""A mixture of experts on old GPUs with a large KV memory."""
FAST = Server(
    speed=Speed(overhead_s=1.5e-3, weights_s=6e-3, token_s=24e-6, kv_s=28e-9, attend_s=1.5e-9, request_s=25e-6),
    gpus=1,
    blocks=9_000,
    slots=64,
    window=32_768,
    chunk_tokens=2_048,
)
"""A small model on one new GPU, with a short window."""

ONE = Server(
    speed=Speed(overhead_s=2.5e-3, weights_s=13.7e-3, token_s=71e-6, kv_s=150e-9, attend_s=5e-9, request_s=25e-6),
    gpus=1,
    blocks=9_000,
    slots=64,
    window=32_768,
    chunk_tokens=2_048,
)
"""A 32B dense model in FP8 with BF16 KV on one H100: little KV beside the weights, and a short window."""
TWO = replace(
    ONE,
    speed=Speed(overhead_s=3e-3, weights_s=6.9e-3, token_s=37e-6, kv_s=78e-9, attend_s=2.6e-9, request_s=25e-6),
    gpus=2,
    blocks=26_500,
    slots=128,
    window=131_072,
)
"""The same on two."""
LAYERS = Server(
    speed=Speed(overhead_s=8e-3, weights_s=23e-3, token_s=114e-6, kv_s=65e-9, attend_s=7e-9, request_s=60e-6),
    gpus=4,
    blocks=18_600,
    slots=128,
    window=131_072,
    chunk_tokens=2_048,
)
"""The same in BF16, its layers split over four A100s: a step passes all stages one after another, so it waits for four
hops and for all the weights, but the stages work at once, on a quarter of the batch each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A fleet as it is: its servers by name, the trace's mix, and its saturation."""

    name: str
    servers: tuple[tuple[str, Server], ...]
    mix: Mix
    saturation_rps: float
    """Requests per second at which no baseline's throughput grows any more: what ``report.saturation`` measures."""

    @property
    def true(self) -> tuple[Server, ...]:
        return tuple(server for _, server in self.servers)


GROUNDS = (
    Ground(
        name="one-big-two-small",
        servers=(("big", BIG), ("small-1", SMALL), ("small-2", SMALL)),
        mix=Mix(),
        saturation_rps=5.5,
    ),
    Ground(
        name="four-one-differs",
        servers=(("a", MIDDLE), ("b", MIDDLE), ("c", MIDDLE), ("other", STALLING)),
        mix=Mix(),
        saturation_rps=7.0,
    ),
    Ground(
        name="long-and-fast",
        servers=(("long", LONG), ("fast-1", FAST), ("fast-2", FAST), ("fast-3", FAST)),
        mix=Mix(shares=(("session", 0.6), ("long", 0.04), ("burst", 0.04), ("batch", 0.32))),
        saturation_rps=16.0,
    ),
    Ground(
        name="many-small",
        servers=(
            ("one-1", ONE),
            ("one-2", ONE),
            ("one-3", ONE),
            ("one-4", ONE),
            ("two-1", TWO),
            ("two-2", TWO),
            ("layers", LAYERS),
        ),
        mix=Mix(
            shares=(("session", 0.5), ("long", 0.06), ("burst", 0.06), ("batch", 0.38)),
            ttft_s=1.5,
            tpot_s=0.05,
            longest=80_000,
        ),
        saturation_rps=8.7,
    ),
)
"""The last one was described before the router's rules were worked at again, and no constant was chosen on it. One rule
came of a look at what it lost there, at half load."""


def closed_loop(server: Server, isl: int, osl: int, n: int) -> tuple[float, float]:
    """Mean TTFT and TPOT in seconds of ``n`` clients that each send the next request when the last has ended."""
    engine, now, keys = Engine(server), 0.0, iter(range(1, 10**9))
    done: list[Call] = []

    def send() -> None:
        engine.submit(Call((Piece(next(keys), isl),), osl, next(keys)), now)

    for _ in range(n):
        send()
    while len(done) < 3 * n + 3:
        assert engine.wake_at is not None
        now = engine.wake_at
        for call, is_end in engine.boundary(now):
            if is_end:
                done.append(call)
                send()
    # All clients begin at once: the first round of each is not like the rest.
    rest = done[n:]
    ttft = fmean(call.first_token_at - call.sent_at for call in rest if call.first_token_at is not None)
    e2e = fmean(call.done_at - call.sent_at for call in rest if call.done_at is not None)
    return ttft, (e2e - ttft) / (osl - 1)


@cache
def measured(server: Server) -> tuple[tuple[int, int, int, float, float], ...]:
    """(ISL, OSL, n, TTFT, TPOT) at every load that the server's KV and slots run at once."""
    loads = [(i, o, n) for i in ISL for o in OSL for n in N if n <= server.slots and i + o <= server.window]
    loads = [(i, o, n) for i, o, n in loads if n * -(-(i + o) // BLOCK) <= server.blocks]
    return tuple((i, o, n, *closed_loop(server, i, o, n)) for i, o, n in loads)


def profile(name: str, server: Server, draw: random.Random, *, off: float = OFF) -> Profile:
    """What the router is told of a server."""
    ttft_off, tpot_off = 1.0 + draw.uniform(-off, off), 1.0 + draw.uniform(-off, off)
    points = tuple(
        Point(
            isl=isl,
            osl=osl,
            concurrency=n,
            ttft_ms=Measured(mean=ttft * 1e3 * ttft_off),
            tpot_ms=Measured(mean=tpot * 1e3 * tpot_off),
        )
        for isl, osl, n, ttft, tpot in measured(server)
    )
    return Profile(
        format=1,
        name=name,
        engine=EngineFacts(name="vllm", version="1.0"),
        precision=Precision(kv="bf16"),
        accelerator_count=server.gpus,
        limits=Limits(
            max_model_len=server.window,
            max_num_seqs=server.slots,
            kv_pool=KvPool(tokens=server.blocks * BLOCK, block_tokens=BLOCK),
            prefix_caching=True,
            provenance=SOURCE,
        ),
        measurements=(
            Measurement(provenance=Provenance(origin="measured", source="a test", engine_version="1.0"), points=points),
        ),
    )


def profiles(ground: Ground, seed: int) -> list[Profile]:
    """A profile for each server, off by what the seed says."""
    draw = random.Random(seed)
    return [profile(name, server, draw) for name, server in ground.servers]


def fleet(known: Iterable[Profile]) -> Fleet:
    """A fleet with one endpoint for each profile."""
    return Fleet(Deployment(p.name, p, urls=(f"http://{p.name}.invalid",)) for p in known)


def alike(known: Sequence[Profile]) -> list[Profile]:
    """The same profiles with everybody's curves being the first one's: a router without curves."""
    return [p.model_copy(update={"measurements": known[0].measurements}) for p in known]
