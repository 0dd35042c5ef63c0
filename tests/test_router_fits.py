"""Deciding, for each deployment: what is refused and why, and what comes after the others."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from fleets import BLOCK, fleet, grid, held, point, profile, router, task

from agentroute.errors import NoFeasibleDeployment
from agentroute.fleet import Fleet
from agentroute.latency.points import Measured
from agentroute.profile import Profile
from agentroute.route import Route
from agentroute.router import Router
from agentroute.shape.model import Capability
from agentroute.task import Slo, Task


def reason(p: Profile, asked: Task, *, routes: tuple[Route, ...] = ()) -> str | None:
    """Why ``p`` is refused, or ``None`` when it is not."""
    try:
        Router(fleet(p), routes=routes).decide(asked)
    except NoFeasibleDeployment as error:
        assert list(error.reasons) == [p.name]
        return str(error.reasons[p.name])
    return None


def names(r: Router, asked: Task) -> list[str]:
    return [c.deployment for c in r.decide(asked).candidates]


# ---- window


@pytest.mark.parametrize(
    ("context", "output", "said"),
    [
        (900, 100, None),
        (900, 101, "900 context and 101 output tokens do not fit its window of 1,000 (measured)"),
        (1_000, 1, "1,000 context and 1 output tokens do not fit its window of 1,000 (measured)"),
        (999, None, None),
        (1_000, None, "1,000 context and any output tokens do not fit its window of 1,000 (measured)"),
    ],
)
def test_prompt_and_answer_must_fit_the_window(context: int, output: int | None, said: str | None) -> None:
    assert reason(profile(window=1_000), task(context, output)) == said


def test_without_a_limit_the_length_of_the_model_is_assumed() -> None:
    with pytest.raises(NoFeasibleDeployment) as raised:
        Router.shipped().decide(task(context=2_000_000))
    assert str(raised.value.reasons["qwen3-32b/vllm-h100-tp4"]).endswith("do not fit its window of 40,960 (assumed)")


# ---- capabilities


@pytest.mark.parametrize(
    ("offers", "said"),
    [({"vision": True}, None), ({}, None), ({"vision": False}, "it does not offer vision")],
)
def test_what_is_known_to_be_lacking_is_refused(offers: dict[Capability, bool], said: str | None) -> None:
    assert reason(profile(offers=offers), Task(context_tokens=10, needs={"vision"})) == said


def test_an_unknown_capability_comes_after_a_known_one() -> None:
    unknown, known = profile("unknown", speed=9.0), profile("known", offers={"tools": True})
    decision = router(unknown, known).decide(Task(context_tokens=10, needs={"tools"}))
    assert [c.deployment for c in decision.candidates] == ["known", "unknown"]
    assert decision.candidates[1].standing == "whether it offers tools is unknown"


def test_a_profile_overrules_its_model() -> None:
    known = Fleet.shipped().deployments[0]
    assert known.model is not None
    offers = {"tools": not known.model.capabilities.get("tools", False)}
    without = replace(known, profile=profile("p", offers={"tools": False}), name="without")
    with_tools = replace(known, profile=profile("q", offers={"tools": True}), name="with")
    assert offers
    assert names(Router(Fleet([without, with_tools])), Task(context_tokens=10, needs={"tools"})) == ["with"]


# ---- KV


@pytest.mark.parametrize(
    ("context", "output", "said"),
    [
        (60 * BLOCK, 4 * BLOCK, None),
        (60 * BLOCK, 4 * BLOCK + 1, "one request needs 65 KV blocks of 16 tokens, the pool has 64"),
    ],
)
def test_a_request_that_can_never_fit_is_refused_with_the_numbers(context: int, output: int, said: str | None) -> None:
    assert reason(profile(kv_blocks=64), task(context, output)) == said


def test_siblings_beyond_what_fits_are_not_refused_but_wait() -> None:
    decision = router(profile(kv_blocks=69 * 2)).decide(task(concurrency=50))
    c = decision.candidates[0]
    assert (c.n, c.n_run) == (50, 2)
    assert c.wait_ms is not None
    assert c.wait_ms > 0


def test_an_unknown_pool_comes_after_a_known_one() -> None:
    unknown, known = profile("unknown", speed=9.0), profile("known", kv_blocks=100)
    decision = router(unknown, known).decide(task())
    assert [c.deployment for c in decision.candidates] == ["known", "unknown"]
    assert decision.candidates[1].standing == "KV unknown"
    assert decision.candidates[1].headroom is None


def test_an_unset_output_never_holds_the_whole_window() -> None:
    r = router(profile(kv_blocks=10_000, window=100_000))
    assert held(r, task(1_000, None)).blocks == -(-(1_000 + 1_024) // BLOCK)


def test_an_unset_output_holds_no_more_than_the_window_leaves() -> None:
    r = router(profile(kv_blocks=10_000, window=1_200))
    assert held(r, task(1_000, None)).blocks == 1_200 // BLOCK


# ---- SLOs


def test_a_bare_number_is_a_hard_mean_and_refused_with_the_numbers() -> None:
    assert re.fullmatch(r"TTFT of \S+ ms is over the hard limit of 5\.0 ms", reason(profile(), task(ttft_ms=5.0)) or "")
    assert re.fullmatch(
        r"TPOT of \S+ ms at 8 in flight is over the hard limit of 1\.0 ms",
        reason(profile(), task(tpot_ms=1.0, concurrency=8)) or "",
    )
    assert re.fullmatch(
        r"E2E of \S+ ms is over the hard limit of 10\.0 ms", reason(profile(), task(deadline_s=0.01)) or ""
    )


def test_waiting_counts_against_an_slo() -> None:
    p = profile(slots=2)
    assert reason(p, task(ttft_ms=500, concurrency=2)) is None
    assert "TTFT" in (reason(p, task(ttft_ms=500, concurrency=20)) or "")


def test_a_soft_slo_only_ranks_lower() -> None:
    slow, fast = profile("slow", gpus=1), profile("fast", gpus=8, speed=4.0)
    r, asked = router(slow, fast), task()
    assert names(r, asked) == ["slow", "fast"]
    assert names(r, replace(asked, ttft_ms=Slo(50.0, hard=False))) == ["fast", "slow"]
    assert names(r, replace(asked, ttft_ms=50.0)) == ["fast"]


def test_a_tail_is_judged_by_the_high_end_of_the_band_and_says_so() -> None:
    ttft = router(profile()).decide(task()).ttft_ms
    assert ttft is not None
    between = (ttft.mean + ttft.high) / 2
    asked = task()
    assert reason(profile(), replace(asked, ttft_ms=Slo(between))) is None
    said = reason(profile(), replace(asked, ttft_ms=Slo(between, "p95"))) or ""
    assert "TTFT p95 (judged by the high end of its band)" in said
    assert reason(profile(), replace(asked, ttft_ms=Slo(ttft.high * 1.001, "p95"))) is None


@pytest.mark.parametrize(("name", "said"), [("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("deadline_s", "E2E")])
def test_a_hard_slo_is_never_promised_where_nothing_was_measured(name: str, said: str) -> None:
    asked: dict[str, Any] = {"context_tokens": 10, name: 1e9}
    text = reason(profile(points=()), Task(**asked)) or ""
    assert text.startswith(f"its {said} is unknown (nothing measured), so a hard limit of ")


def test_a_soft_slo_on_an_unmeasured_deployment_ranks_it_last() -> None:
    fast, unmeasured = profile("measured", gpus=8), profile("unmeasured", points=(), gpus=1)
    asked = replace(task(), ttft_ms=Slo(1e6, hard=False))
    assert names(router(unmeasured, fast), asked) == ["measured", "unmeasured"]


# ---- measured tails


def test_a_measured_tail_is_believed_before_the_band() -> None:
    slow_tail = tuple(
        p.model_copy(update={"ttft_ms": Measured(mean=p.mean_ttft_ms(), p95=9 * (p.mean_ttft_ms() or 0))})
        for p in grid()
    )
    asked = Task(context_tokens=1_024, max_output_tokens=64, ttft_ms=Slo(200, stat="p95"))
    assert router(profile()).decide(asked)
    with pytest.raises(NoFeasibleDeployment, match=r"TTFT p95 \(judged by 9 x the mean, as measured\)"):
        router(profile(points=slow_tail)).decide(asked)


def test_points_beyond_what_runs_at_once_are_no_service_times() -> None:
    points = (point(1_000, 100, 1, 100, 10), point(1_000, 100, 64, 60_000, 10))
    for limited in (profile(points=points, slots=8), profile(points=points, kv_blocks=8 * 69)):
        ttft = router(limited).decide(task(concurrency=8)).ttft_ms
        assert ttft is not None and ttft.mean < 1_000
    only_queued = profile(points=points[1:], slots=8)
    with pytest.raises(NoFeasibleDeployment, match="measured only beyond what it runs at once"):
        router(only_queued).decide(task(ttft_ms=500))
