"""Profiles, fleets and files in a line or two, for tests of the core."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from tenacity import retry, stop_after_delay, wait_fixed

from agentroute.capacity.pool import NULL_BLOCKS
from agentroute.catalogue import shipped
from agentroute.errors import NoFeasibleDeployment
from agentroute.fleet import Deployment, Fleet
from agentroute.latency.points import Measured, Measurement, Point
from agentroute.lease import Lease
from agentroute.origin import Origin, Provenance
from agentroute.outcome import Outcome
from agentroute.profile import Capabilities, Engine, KvPool, KvType, Limits, Precision, Price, Profile
from agentroute.router import Router
from agentroute.shape.model import Capability
from agentroute.shape.sharding import Sharding
from agentroute.task import Task

SOURCE = Provenance(origin="measured", source="a test")
BLOCK = 16


def point(isl: int, osl: int, n: int, ttft_ms: float, tpot_ms: float) -> Point:
    return Point(
        isl=isl, osl=osl, concurrency=n, ttft_ms=Measured(mean=float(ttft_ms)), tpot_ms=Measured(mean=float(tpot_ms))
    )


def grid(
    speed: float = 1.0,
    isl: Iterable[int] = (128, 1_024, 8_192),
    osl: Iterable[int] = (64, 512),
    n: Iterable[int] = (1, 4, 16, 64),
) -> tuple[Point, ...]:
    """A plausible server: prefill grows with the prompt, decode with the load. ``speed`` 2 is twice as fast."""
    loads = [(i, o, c) for i in isl for o in osl for c in n]
    return tuple(point(i, o, c, (10 + i / 20) * (1 + c / 16) / speed, (5 + c / 8) / speed) for i, o, c in loads)


def profile(
    name: str = "p",
    *,
    points: tuple[Point, ...] | None = None,
    speed: float = 1.0,
    origin: Origin = "measured",
    version: str | None = "1.0",
    kv: KvType | None = None,
    kv_blocks: int | None = None,
    window: int | None = None,
    slots: int | None = None,
    gpus: int | None = 1,
    offers: Mapping[Capability, bool] | None = None,
    usd_per_hour: float | None = None,
    usd_per_million: tuple[float, float] | None = None,
    prefixes: bool | None = None,
) -> Profile:
    """A profile; what is not given is unknown. ``points=()`` leaves it unmeasured."""
    points = grid(speed) if points is None else points
    pool = KvPool(tokens=(kv_blocks + NULL_BLOCKS) * BLOCK, block_tokens=BLOCK) if kv_blocks else None
    per_token = usd_per_million or (None, None)
    price = (
        Price(
            usd_per_accelerator_hour=usd_per_hour,
            usd_per_million_input_tokens=per_token[0],
            usd_per_million_output_tokens=per_token[1],
            provenance=SOURCE,
        )
        if usd_per_hour or usd_per_million
        else None
    )
    return Profile(
        format=1,
        name=name,
        engine=Engine(name="vllm", version=version),
        precision=Precision(kv=kv),
        accelerator_count=gpus,
        limits=Limits(
            max_model_len=window, max_num_seqs=slots, kv_pool=pool, prefix_caching=prefixes, provenance=SOURCE
        ),
        capabilities=Capabilities(offers=dict(offers), provenance=SOURCE) if offers is not None else None,
        price=price,
        measurements=(
            Measurement(provenance=Provenance(origin=origin, source="a test", engine_version="1.0"), points=points),
        )
        if points
        else (),
    )


def mixed(version: str | None) -> Deployment:
    """gpt-oss-120b with 451,040 tokens printed: half of its layers keep a window of 128 and the batch alone."""
    pool = KvPool(tokens=451_040, block_tokens=16)
    return shipped().deployment(
        Profile(
            format=1,
            name="mixed",
            model="gpt-oss-120b",
            accelerator="h200_sxm",
            engine=Engine(name="vllm", version=version),
            precision=Precision(weights="mxfp4", kv="bf16"),
            sharding=Sharding(tp=1),
            limits=Limits(max_model_len=131_072, kv_pool=pool, provenance=SOURCE),
        )
    )


def fleet(*profiles: Profile) -> Fleet:
    """A deployment for each profile, named after it."""
    return Fleet(Deployment(p.name, p) for p in profiles)


def router(*profiles: Profile, objective: str = "fit") -> Router:
    return Router(fleet(*profiles), objective=objective)


def task(context: int = 1_000, output: int | None = 100, concurrency: int = 1, **slos: float) -> Task:
    return Task(
        context_tokens=context,
        max_output_tokens=output,
        concurrency=concurrency,
        ttft_ms=slos.get("ttft_ms"),
        tpot_ms=slos.get("tpot_ms"),
        deadline_s=slos.get("deadline_s"),
    )


def held(by: Router, asked: Task) -> Lease:
    """A lease that nobody lets go of: one that is not kept is given back."""
    _HELD.append(lease := by.acquire(asked))
    return lease


_HELD: list[Lease] = []


def occupied(by: Router, busy: Iterable[Task], *, learnt: bool = False) -> list[Lease]:
    """The leases of those that are placed; keep them. ``learnt``: the last one was slow, and is over."""
    leases: list[Lease] = []
    for asked in busy:
        with suppress(NoFeasibleDeployment):
            leases.append(by.acquire(asked))
    if learnt and leases:
        leases.pop().settle(Outcome(ttft_ms=900.0, tpot_ms=30.0))
    return leases


def assert_nothing_is_held(by: Router) -> None:
    """Nobody holds anything any more, and nobody waits: every account of the ledger is back where it began."""
    gc.collect()
    with by._lock:
        now = by._now()
    ledger = by._situation.ledger
    ledger.settle(now)
    assert not len(by._waiting)
    assert ledger.total == 0
    assert not ledger._leaving
    assert not ledger._siblings
    assert not ledger._shared
    assert not any(ledger._holds)
    assert not ledger.held.any()
    assert not ledger.in_flight.any()
    assert not ledger.resident.any()
    assert not by._situation.prefills._bound


nothing_is_held = retry(stop=stop_after_delay(3.0), wait=wait_fixed(0.02), reraise=True)(assert_nothing_is_held)
"""The same after a moment, in which a server may still have to notice that nobody listens."""


class Watched(Router):
    """Remembers what it was asked for."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.tasks: list[Task] = []

    def admit(self, task: Task, **more: Any) -> Any:
        self.tasks.append(task)
        return super().admit(task, **more)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


PROFILE = """\
format = 1
name = "mine"
accelerator_count = 2

[engine]
name = "vllm"
version = "0.11.0"

[sharding]
tp = 2

[limits]
max_model_len = 32768
kv_pool = { tokens = 65536, block_tokens = 16 }
provenance = { origin = "reported", source = "its log" }

[[measurements]]
provenance = { origin = "measured", source = "first run" }
points = [
  { isl = 128, osl = 64, concurrency = 1, ttft_ms = { mean = 10.0 }, tpot_ms = { mean = 5.0 } },
  { isl = 128, osl = 64, concurrency = 8, ttft_ms = { mean = 20.0 }, tpot_ms = { mean = 6.0 } },
]

[[measurements]]
points = [
  { isl = 1024, osl = 64, concurrency = 1, ttft_ms = { mean = 50.0 }, tpot_ms = { mean = 5.5 } },
  { isl = 1024, osl = 64, concurrency = 4, ttft_ms = { mean = 60.0 }, tpot_ms = { mean = 6.5 } },
  { isl = 1024, osl = 64, concurrency = 8, ttft_ms = { mean = 70.0 }, tpot_ms = { mean = 7.5 } },
]

[measurements.provenance]
origin = "measured"
source = "second run"
"""
"""A good profile file, to break in one place."""

CONFIG = """\
objective = "latency"

[[deployments]]
name = "one"
profile = "qwen3-32b/vllm-h100-tp4"
base_url = "http://127.0.0.1:8001"

[[deployments]]
name = "two"
profile = "llama-3.1-8b/trtllm-h100-tp1"
urls = ["http://127.0.0.1:8002", "http://127.0.0.1:8003"]
adapter = "openai"

[routes.default]
allow = ["one", "two"]

[routes.batch]
objective = "fit"
deadline_s = { value = 60.0, hard = true }
"""
"""A good configuration file, to break in one place."""


def broken(text: str, good: str, bad: str) -> str:
    """``text`` with its only ``good`` replaced."""
    assert text.count(good) == 1, f"{good!r} is there {text.count(good)} times"
    return text.replace(good, bad)


def line_of(text: str, part: str) -> int:
    """The 1-based line that holds the only ``part``."""
    assert text.count(part) == 1, f"{part!r} is there {text.count(part)} times"
    return text[: text.index(part)].count("\n") + 1


def written(folder: Path, text: str | bytes, name: str = "file.toml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


T = TypeVar("T")

# ---- what hypothesis may draw. A strategy that is made while an example is drawn is checked anew for each, which takes
# longer than all the rest: so each is made once.


@cache
def maybe(of: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    """What ``of`` draws, or that it is unknown."""
    return st.none() | of


LOADS = st.tuples(
    st.sampled_from([64, 256, 1_024, 4_096, 16_384]),
    st.sampled_from([32, 128, 1_024]),
    st.sampled_from([1, 2, 8, 32, 128]),
)


@cache
def loads(most: int) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    return st.lists(LOADS, min_size=1, max_size=most, unique=True)


@cache
@st.composite
def points(draw: st.DrawFn, most: int = 12) -> tuple[Point, ...]:
    """Measured points of one deployment, on few values per axis, in any order."""
    times = st.floats(0.5, 5_000.0)
    return tuple(point(*load, draw(times), draw(times)) for load in draw(loads(most)))


SKILLS: st.SearchStrategy[Capability] = st.sampled_from(["tools", "vision"])
OFFERS = st.dictionaries(SKILLS, st.booleans())
NEEDS = st.frozensets(SKILLS)
VERSIONS = maybe(st.just("1.0"))


@cache
@st.composite
def profiles(draw: st.DrawFn, name: str = "p", *, measured: bool | None = None) -> Profile:
    """A profile with any of its limits unknown."""
    is_measured = draw(st.booleans()) if measured is None else measured
    return profile(
        name,
        points=grid(draw(st.floats(0.2, 5.0))) if is_measured else (),
        kv_blocks=draw(maybe(st.integers(1, 4_000))),
        window=draw(maybe(st.integers(500, 100_000))),
        slots=draw(maybe(st.integers(1, 64))),
        gpus=draw(maybe(st.integers(1, 8))),
        version=draw(VERSIONS),
        offers=draw(OFFERS),
        usd_per_hour=draw(maybe(st.floats(0.1, 10.0))),
    )


@cache
@st.composite
def fleets(draw: st.DrawFn, most: int = 5) -> Fleet:
    """Up to ``most`` deployments; some may have a profile in common."""
    kinds = [draw(profiles(f"p{i}")) for i in range(draw(st.integers(1, most)))]
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=most))
    return Fleet(Deployment(f"d{i}", p) for i, p in enumerate(chosen))


@cache
@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """A task, with or without SLOs (bare numbers: hard means) and needs."""
    slo = maybe(st.floats(1.0, 20_000.0))
    return Task(
        context_tokens=draw(st.integers(1, 50_000)),
        max_output_tokens=draw(maybe(st.integers(1, 5_000))),
        concurrency=draw(st.integers(1, 64)),
        ttft_ms=draw(slo),
        tpot_ms=draw(slo),
        deadline_s=draw(slo),
        needs=draw(NEEDS),
    )
