"""What goes wrong with routers elsewhere: each failure beside the rule that prevents it here.

Where it can be shown, the test first does as is done elsewhere, by a score, a configuration or a switched-off rule, and
sees it fail.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from fleets import BLOCK, Clock, fleet, held, mixed, point, profile, router, task
from numpy.typing import NDArray

from agentroute.assessment import Assessment
from agentroute.errors import FailureKind, NoFeasibleDeployment, PoolFull
from agentroute.fleet import Deployment, Fleet
from agentroute.lease import Lease
from agentroute.outcome import Outcome
from agentroute.policy import OBJECTIVES, Objective, Score
from agentroute.profile import Profile
from agentroute.router import Router
from agentroute.state import load
from agentroute.state.load import Load
from agentroute.task import Slo, Task
from agentroute.waiting import Ticket

EVERY = sorted(set(OBJECTIVES) - {"cost", "quality"})
UNITS = 69
"""Blocks of ``task()``."""


def naive(of: Fleet, score: Score, clock: Clock | None = None) -> Router:
    """A router that goes by one score alone, as others do."""
    made = Router(of, clock=clock or Clock())
    made.rules.own["naive"] = Objective("naive", score, weighs_slos=True)
    made.rules.objective = "naive"
    return made


def chosen(leases: Iterable[Lease]) -> Counter[str]:
    return Counter(lease.decision.deployment for lease in leases)


def pair(p: Profile, **more: str) -> Fleet:
    """Two alike."""
    return Fleet([Deployment("a", p, **more), Deployment("b", p, **more)])  # type: ignore[arg-type]


# ---- latency averages are blind to prompt length and load


def quick_at_short_prompts() -> Fleet:
    """One server is three times as fast up to 1,024 prompt tokens, and reads long ones at a tenth of the speed."""
    short = [point(i, 128, n, i / 60 * n, 4 + n / 8) for i in (128, 1_024) for n in (1, 16)]
    short += [point(i, 128, n, i / 2 * n, 8 + n / 8) for i in (16_384, 65_536) for n in (1, 16)]
    long = [point(i, 128, n, i / 20 * n, 6 + n / 8) for i in (128, 1_024, 16_384, 65_536) for n in (1, 16)]
    return fleet(
        profile("short", points=tuple(short), kv_blocks=9_000), profile("long", points=tuple(long), kv_blocks=9_000)
    )


@pytest.mark.parametrize("objective", EVERY)
def test_long_prompts_do_not_follow_the_average_of_short_ones(objective: str) -> None:
    of, prompt, question = quick_at_short_prompts(), task(60_000, 128), task(500, 128)
    seen: dict[str, list[float]] = {"short": [], "long": []}
    for deployment in of.deployments:
        alone = Router(Fleet([deployment]))
        seen[deployment.name] += [alone.decide(question).e2e_ms.mean for _ in range(10)]  # type: ignore[union-attr]
    average = np.array([np.mean(times) for times in seen.values()])
    elsewhere, here = naive(of, lambda a: average), Router(of, objective=objective, clock=Clock())
    assert elsewhere.decide(prompt).deployment == elsewhere.decide(question).deployment == "short"
    assert (here.decide(question).deployment, here.decide(prompt).deployment) == ("short", "long")


@pytest.mark.parametrize("objective", EVERY)
def test_the_fastest_when_idle_is_not_the_fastest_under_load(objective: str) -> None:
    of = fleet(profile("fast", speed=1.2, kv_blocks=9_000), profile("slow", kv_blocks=9_000))
    idle = np.array([Router(of).decide(task()).candidates[i].e2e_ms.mean for i in range(2)])  # type: ignore[union-attr]

    def served(r: Router, clock: Clock) -> Counter[str]:
        """Of sixty that come so far apart that the prompts before are read, and whose answers are not done."""
        leases = []
        for _ in range(60):
            clock.now += 200.0
            leases.append(r.acquire(task()))
        return chosen(leases)

    clock = Clock()
    assert served(naive(of, lambda a: idle, clock), clock) == {"fast": 60}
    got = served(Router(of, objective=objective, clock=(clock := Clock())), clock)
    assert min(got["fast"], got["slow"]) >= 20


# ---- what was never measured counts as nothing


@pytest.mark.parametrize("objective", EVERY)
@pytest.mark.parametrize("kv_blocks", [None, 9_000])
def test_an_unmeasured_deployment_does_not_get_everything(objective: str, kv_blocks: int | None) -> None:
    of = fleet(profile("measured", kv_blocks=kv_blocks), profile("unmeasured", points=(), kv_blocks=kv_blocks))
    elsewhere = naive(of, lambda a: np.nan_to_num(a.e2e_ms, nan=0.0))
    assert chosen(held(elsewhere, task()) for _ in range(10)) == {"unmeasured": 10}
    here = Router(of, objective=objective, clock=Clock())
    assert chosen(held(here, task()) for _ in range(10)) == {"measured": 10}


# ---- nothing is in flight yet at the time of a decision


@pytest.mark.parametrize("objective", EVERY)
@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("apart_s", [0.0, 200.0])
def test_a_burst_does_not_converge_on_one_server(objective: str, concurrency: int, apart_s: float) -> None:
    """Whether they come at once, or each long after the prompts before it were read, with no answer done."""
    clock, asked = Clock(), task(concurrency=concurrency)
    here = Router(pair(profile(kv_blocks=9_000)), objective=objective, clock=clock)
    assert len(Counter(here.decide(asked).deployment for _ in range(16))) == 1, "whoever does not hold, converges"
    leases = []
    for _ in range(16):
        leases.append(here.acquire(asked))
        clock.now += apart_s
    served = chosen(leases)
    assert min(served["a"], served["b"]) >= 6


# ---- two names on one GPU


def test_two_names_on_one_gpu_do_not_double_its_load() -> None:
    p = profile(kv_blocks=2 * UNITS)

    def admitted(of: Fleet) -> int:
        r, leases = Router(of, clock=Clock()), []
        with pytest.raises(PoolFull):
            while True:
                leases.append(r.acquire(task()))
        return sum(lease.blocks for lease in leases)

    assert admitted(pair(p)) == 4 * UNITS, "two names that nobody says anything of are two pools"
    assert admitted(pair(p, pool="gpu")) == 2 * UNITS


def test_and_the_load_under_one_name_is_seen_under_the_other() -> None:
    r = Router(
        Fleet([*pair(profile(kv_blocks=9_000), pool="gpu").deployments, Deployment("c", profile(kv_blocks=9_000))])
    )
    leases = [held(r, replace(task(), pin="a")) for _ in range(10)]
    assert {c.deployment: c.n for c in r.decide(task()).candidates} == {"a": 11, "b": 11, "c": 1}
    assert r.decide(task()).deployment == "c"
    assert len(leases) == 10


# ---- lanes without memory


def test_no_more_lanes_are_admitted_than_the_kv_pool_holds() -> None:
    blind, here = profile(slots=256), profile(slots=256, kv_blocks=70 * UNITS)
    assert router(blind).decide(task(concurrency=256)).candidates[0].n_run == 256
    expected = router(here).decide(task(concurrency=256)).candidates[0]
    assert (expected.n, expected.n_run) == (256, 70)
    assert expected.wait_ms > expected.ttft_ms.mean / 2  # type: ignore[operator, union-attr]
    r = router(here)
    leases = [held(r, task()) for _ in range(70)]
    with pytest.raises(PoolFull):
        r.acquire(task())
    assert r.queue(task()).done is False
    assert len(leases) == 70


def test_a_request_below_the_window_but_over_the_pool_is_refused() -> None:
    asked = task(40_000, 100)
    assert router(profile(window=131_072)).decide(asked).deployment == "p", "whoever knows the window alone, sends it"
    with pytest.raises(NoFeasibleDeployment, match=r"needs 2,507 KV blocks of 16 tokens, the pool has 2,000") as raised:
        router(profile(window=131_072, kv_blocks=2_000)).acquire(asked)
    assert not isinstance(raised.value, PoolFull), "no waiting makes room for it"


# ---- traffic by name instead of by size


def test_a_large_box_and_a_small_one_do_not_get_equal_traffic() -> None:
    """Eight GPUs are four times as fast as two, and hold four times as much; a request comes every 5 s."""
    of = fleet(profile("eight", gpus=8, speed=4.0, kv_blocks=40_000), profile("two", gpus=2, kv_blocks=10_000))
    asked = replace(task(), ttft_ms=Slo(500.0, hard=False), tpot_ms=Slo(10.0, hard=False))

    def served(r: Router, clock: Clock) -> Counter[str]:
        leases = []
        for _ in range(100):
            clock.now += 5.0
            leases.append(r.acquire(asked))
        return chosen(leases)

    clock = Clock()
    assert served(naive(of, lambda a: a.in_flight, clock), clock) == {"eight": 50, "two": 50}
    for objective in EVERY:
        got = served(Router(of, objective=objective, clock=(clock := Clock())), clock)
        assert got["eight"] >= 2.5 * got["two"] >= 10, objective


# ---- affinity


def sticky(a: Assessment) -> NDArray[np.float64]:
    """Where the most of the prefix is warm."""
    cached = a.state.cached_tokens
    return np.zeros(len(a.n)) if cached is None else -cached


@pytest.mark.parametrize("objective", EVERY)
def test_affinity_does_not_overload_one_engine(objective: str) -> None:
    """Sixty steps of one warm conversation's sub-agents. Up to 24 at once, an engine keeps 8 ms a token."""
    of = pair(profile(kv_blocks=60_000, prefixes=True))
    first = Task(context_tokens=8_000, max_output_tokens=100, session_id="parent")
    asked = replace(first, session_id=None, parent_session_id="parent", tpot_ms=Slo(8.0, hard=False))

    def served(r: Router, clock: Clock) -> list[str]:
        r.acquire(replace(first, pin="b")).release()
        where = []
        for _ in range(60):
            clock.now += 0.5
            where.append(held(r, asked).decision.deployment)
        return where

    clock = Clock()
    assert set(served(naive(of, sticky, clock), clock)) == {"b"}
    got = served(Router(of, objective=objective, clock=(clock := Clock())), clock)
    assert got[0] == "b", "the warm one is worth some waiting"
    assert 20 <= got.count("a") <= 40, "and no more"


# ---- metrics


def reported(r: Router, clock: Clock, until_s: float) -> list[str]:
    """Whether there is room, second by second after the last report."""
    seen = []
    while clock.now < until_s:
        clock.now += 1.0
        try:
            r.acquire(task()).release()
            seen.append("free")
        except PoolFull:
            seen.append("full")
    return seen


@pytest.mark.parametrize(
    ("tau_s", "fails"), [(load.TAU_S, None), (1e12, "a pool stays full for ever"), (1e-9, "a full pool reads as idle")]
)
def test_metrics_that_stopped_neither_freeze_a_pool_nor_make_it_idle(
    monkeypatch: pytest.MonkeyPatch, tau_s: float, fails: str | None
) -> None:
    monkeypatch.setattr(load, "TAU_S", tau_s)
    clock = Clock()
    r = Router(fleet(profile(kv_blocks=2 * UNITS)), clock=clock)
    r.observe("p", Load(running=50, kv_used=1.0))
    seen = reported(r, clock, 120.0)
    frozen, idle = seen[-1] == "full", seen[3] == "free"
    assert (frozen, idle) == (tau_s > 1e9, tau_s < 1.0), fails


def test_what_the_ledger_knows_does_not_fade_with_the_metrics() -> None:
    clock = Clock()
    r = Router(fleet(profile(kv_blocks=2 * UNITS)), clock=clock)
    leases = [held(r, task()) for _ in range(2)]
    r.observe("p", Load(running=0, kv_used=0.0))
    assert set(reported(r, clock, 120.0)) == {"full"}
    assert len(leases) == 2


def test_a_gauge_that_is_missing_is_not_zero() -> None:
    clock = Clock()
    r = Router(fleet(profile(kv_blocks=2 * UNITS)), clock=clock)
    r.observe("p", Load(running=10, kv_used=0.9))
    clock.now += 1.0
    r.observe("p", Load(running=10))
    with pytest.raises(PoolFull):
        r.acquire(task())
    r.observe("p", Load(running=10, kv_used=0.0))
    held(r, task())


# ---- windows


@pytest.mark.parametrize("objective", EVERY)
@pytest.mark.parametrize(
    ("large", "small"), [({"window": 131_072}, {"window": 32_768}), ({"kv_blocks": 8_192}, {"kv_blocks": 2_048})]
)
def test_a_conversation_that_grows_does_not_fall_into_a_window_that_it_will_leave(
    objective: str, large: dict[str, int], small: dict[str, int]
) -> None:
    of = fleet(profile("large", speed=0.5, **large), profile("small", speed=2.0, **small))  # type: ignore[arg-type]
    r = Router(of, objective=objective, clock=Clock())
    alone = task(30_000, 500)
    assert naive(of, lambda a: a.e2e_ms).decide(alone).deployment == "small"
    step = replace(alone, session_id="agent", step=12)
    decision = r.decide(step)
    assert decision.deployment == "large"
    assert decision.candidates[1].standing == (
        "the next steps of its session would not fit: 40,500 tokens are expected"
    )
    assert r.decide(replace(step, context_tokens=15_000)).deployment == r.decide(alone).deployment, "it has time"
    r.queue(replace(step, pin="small")).result().release()


def test_but_it_is_not_late_now_so_as_not_to_be_late_later() -> None:
    of = fleet(profile("large", speed=0.5, window=131_072), profile("small", speed=2.0, window=32_768))
    step = replace(task(30_000, 500), session_id="agent", step=12)
    decision = Router(of, clock=Clock()).decide(replace(step, ttft_ms=Slo(1_500.0, hard=False)))
    assert decision.deployment == "small"


# ---- deadlines


def by_deadline(ticket: Ticket, now: float) -> tuple[float, bool, float, float, int]:
    """Earliest deadline first, and nothing else."""
    return 0.0, False, ticket.due, ticket.at, ticket.number


@pytest.mark.parametrize("naive_order", [True, False])
def test_an_expired_deadline_is_not_the_most_urgent(monkeypatch: pytest.MonkeyPatch, naive_order: bool) -> None:
    if naive_order:
        monkeypatch.setattr("agentroute.waiting._order", by_deadline)
    clock, served = Clock(), []
    r = Router(fleet(profile(kv_blocks=70)), clock=clock)
    running = r.acquire(task())
    for name, deadline_s, is_hard in (("expired", 5.0, False), ("in time", 60.0, False), ("dead", 5.0, True)):
        asked = replace(task(), deadline_s=Slo(deadline_s, hard=is_hard))
        r.queue(asked, on_done=lambda ticket, name=name: served.append((name, ticket.refused is not None)))  # type: ignore[misc]
    clock.now += 10.0
    r.pump()
    assert served == [("dead", True)], "what nobody is waiting for any more is not computed"
    running.release()
    assert served[1] == (("expired", False) if naive_order else ("in time", False))


# ---- outputs


def test_an_unset_max_tokens_does_not_hold_the_whole_window() -> None:
    p = profile(window=32_768, kv_blocks=32_768 // BLOCK)
    unset = task(1_000, None)

    def admitted(asked: Task) -> int:
        r, leases = router(p), []
        with pytest.raises(PoolFull):
            while True:
                leases.append(r.acquire(asked))
        return len(leases)

    assert admitted(replace(unset, max_output_tokens=32_768 - 1_000)) == 1, "so it is with the whole window"
    assert admitted(unset) == 32_768 // (1_000 + 1_024 + BLOCK)


# ---- hybrid models


@pytest.mark.parametrize(("context", "fit", "by_tokens"), [(1_000, 114, 217), (6_000, 33, 63), (100_000, 4, 4)])
def test_the_tokens_that_a_hybrid_model_prints_are_not_additive(context: int, fit: int, by_tokens: int) -> None:
    """3.44 windows fit, the log says. Of short requests fewer tokens do: the layers with a window hold those, too."""
    r, leases = Router(Fleet([mixed("0.30.0")]), clock=Clock()), []
    with pytest.raises(PoolFull):
        while True:
            leases.append(r.acquire(task(context, 1_072)))
    assert (len(leases), 451_040 // (context + 1_072)) == (fit, by_tokens)


def test_an_older_log_of_a_hybrid_model_understates_what_it_holds() -> None:
    """Until 0.19 the log counted blocks of one group: twice as many windows fit than the tokens divided by one."""
    leases, r = [], Router(Fleet([mixed("0.11.0")]), clock=Clock())
    with pytest.raises(PoolFull):
        while True:
            leases.append(r.acquire(task(130_000, 1_072)))
    assert len(leases) == 6 > 451_040 // 131_072


# ---- what is not learnt from


def test_a_failed_call_is_not_a_fast_one() -> None:
    """Elsewhere an error after ten milliseconds is the best latency of all, and a broken server attracts everything."""
    clock = Clock()
    r = Router(pair(profile(kv_blocks=9_000)), objective="latency", clock=clock)
    for _ in range(3):
        failed = Outcome(failure=FailureKind.TIMEOUT, e2e_ms=10.0, ttft_ms=10.0, tpot_ms=0.1)
        r.acquire(replace(task(), pin="a")).settle(failed)
    assert chosen(held(r, task()) for _ in range(10)) == {"b": 10}
    assert not math.isnan(r.decide(task()).e2e_ms.mean)  # type: ignore[union-attr]
