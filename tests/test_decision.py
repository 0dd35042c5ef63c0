"""The answer and its explanation: every deployment once, every number with its origin."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from fleets import Clock, fleet, fleets, grid, held, profile, router, task, tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.catalogue import shipped
from agentroute.decision import Decision, Headroom
from agentroute.errors import NoFeasibleDeployment
from agentroute.estimate import milliseconds
from agentroute.fleet import Fleet
from agentroute.latency.points import Measured, Point
from agentroute.policy import MISS_PER_GPU_SECOND, MISS_PER_POOL, MISS_PER_SECOND
from agentroute.reasons import measure
from agentroute.router import Router
from agentroute.task import Slo, Task


def listed(text: str) -> list[str]:
    """Names of the numbered reasons, then of the refused, in their order."""
    reasons = re.split("\n(?:what would|no change of)", text)[0]
    return re.findall(r"^(?: *\d+\. |    )(\S+): ", reasons, flags=re.MULTILINE)


@given(fleets(), tasks())
@settings(max_examples=80, deadline=None)
def test_an_explanation_names_every_deployment_once_the_winner_first(of: Fleet, asked: Task) -> None:
    try:
        decision = Router(of).decide(asked)
    except NoFeasibleDeployment as error:
        assert sorted(error.reasons) == sorted(d.name for d in of.deployments)
        assert all(str(reason) and "\n" not in str(reason) for reason in error.reasons.values())
        assert not re.search(r"\b(nan|inf)\b", str(error), re.IGNORECASE)
        return
    text = decision.explain()
    names = listed(text)
    assert sorted(names) == sorted(d.name for d in of.deployments)
    assert names[0] == decision.deployment == decision.candidates[0].deployment
    assert set(names[: len(decision.candidates)]).isdisjoint(decision.rejected)
    assert not re.search(r"\b(nan|inf)\b", text, re.IGNORECASE)


@given(tasks())
@settings(max_examples=40, deadline=None)
def test_an_explanation_of_the_shipped_fleet_holds_no_nonsense(asked: Task) -> None:
    try:
        text = SHIPPED.decide(asked).explain()
    except NoFeasibleDeployment as error:
        text = str(error)
    assert not re.search(r"\b(nan|inf|None)\b", text)


SHIPPED = Router.shipped()


def test_an_explanation_reads_like_this() -> None:
    big = profile("big", kv_blocks=900, window=4_096, usd_per_hour=2.0, offers={"tools": True})
    small = profile("small", kv_blocks=200, offers={"tools": True})
    tiny = profile("tiny", window=500)
    unknown = profile("unknown", points=(), gpus=None, version=None)
    asked = Task(context_tokens=1_000, max_output_tokens=100, needs={"tools"}, ttft_ms=Slo(200, hard=False))
    lines = router(big, small, tiny, unknown).decide(asked).explain().splitlines()
    assert lines[0] == "big for 1,000 context and 100 output tokens, 1 in flight, by fit"
    assert lines[2].split() == ["deployment", "model", "sharding", "n", "TTFT", "TPOT", "E2E", "KV", "free", "USD"]
    assert [line.split()[:2] for line in lines[3:6]] == [["1", "big"], ["2", "small"], ["3", "unknown"]]
    assert lines[7].startswith(" 1. big: keeps TTFT of 200 ms with ")
    assert lines[7].endswith(
        "% to spare; best by fit: 1.1% likely to miss its SLO, 0.127 GPU-seconds, its KV pool 7.7% full"
    )
    assert lines[8].startswith(" 2. small: fit: ")
    assert lines[8].endswith(
        "its KV pool 34.5% full against 1.1% likely to miss its SLO, 0.127 GPU-seconds, its KV pool 7.7% full"
    )
    assert lines[9] == " 3. unknown: TTFT unknown, so no SLO on it can be promised"
    assert lines[11:13] == [
        "refused:",
        "    tiny: 1,000 context and 100 output tokens do not fit its window of 500 (measured)",
    ]
    assert lines[14:17] == [
        "what would change the answer, the smallest change first:",
        "    small would win with 1,399 context tokens",
        "    unknown would win with 4,000 context tokens",
    ]
    assert lines[18:22] == [
        "where each clogs first (demand of limit; margin of the concurrency):",
        " 1. KV capacity: 69 of 900 KV blocks of 16 tokens (+1200%); next window: 1,100 of 4,096 tokens "
        "(at any concurrency)",
        " 2. KV capacity: 69 of 200 KV blocks of 16 tokens (+100%)",
        " 3. unknown",
    ]
    assert lines[23] == "where the numbers come from (bands: 80 % of the mean):"
    assert lines[24] == (
        " 1. latency: measured, a test; this load: between measured points; window: 4,096 tokens, measured: a test; "
        "KV pool: 900 blocks of 16 tokens, measured, a test; price: measured, a test; capabilities: measured, a test"
    )
    assert lines[26] == " 3. latency: unknown; window: unknown; KV pool: unknown; price: unknown"


@pytest.mark.parametrize("name", shipped().profile_names)
def test_every_number_of_every_candidate_has_an_origin(name: str) -> None:
    decision = SHIPPED.decide(task(context=2_000))
    candidate = {c.deployment: c for c in decision.candidates}[name]
    kinds = [source.partition(":")[0] for source in candidate.sources]
    assert kinds[0] == "latency"
    assert {"latency", "window", "KV pool", "price"} <= set(kinds)
    for source in candidate.sources:
        assert re.search(r"\b(measured|reported|derived|assumed|unknown)\b", source)
    for estimate in (candidate.ttft_ms, candidate.tpot_ms, candidate.e2e_ms, candidate.cost_usd):
        assert estimate is not None
        assert estimate.source in {"measured", "reported", "derived", "assumed"}


def test_the_sources_of_every_candidate_are_shown() -> None:
    decision = SHIPPED.decide(task(context=2_000))
    text = decision.explain(top=None)
    for candidate in decision.candidates:
        for source in candidate.sources:
            assert source in text


@pytest.mark.parametrize(
    ("context", "n", "said", "kind", "interpolated"),
    [
        (1_024, 1, "this load: a measured point", "measured", False),
        (1_024, 2, "this load: between measured points", "measured, between points", True),
        (2_000, 1, "this load: between measured points", "measured, between points", True),
        (100_000, 1, "this load: outside the measured points", "extrapolated", False),
    ],
)
def test_an_estimate_says_whether_its_load_was_measured(
    context: int, n: int, said: str, kind: str, interpolated: bool
) -> None:
    asked = Task(context_tokens=context, max_output_tokens=64, concurrency=n)
    (candidate,) = router(profile(window=200_000)).decide(asked).candidates
    assert said in candidate.sources
    for estimate in (candidate.ttft_ms, candidate.tpot_ms, candidate.e2e_ms):
        assert estimate is not None
        assert (estimate.kind, estimate.interpolated) == (kind, interpolated)


def test_what_no_point_of_a_load_tells_is_read_off_the_others() -> None:
    """TTFT alone was measured at this load."""
    lone = Point(isl=1_024, osl=64, concurrency=6, ttft_ms=Measured(mean=150.0))
    whole = profile()
    block = whole.measurements[0]
    more = block.model_copy(update={"points": (*block.points, lone)})
    asked = Task(context_tokens=1_024, max_output_tokens=64, concurrency=6)
    (candidate,) = router(whole.model_copy(update={"measurements": (more,)})).decide(asked).candidates
    found = [e.interpolated for e in (candidate.ttft_ms, candidate.tpot_ms, candidate.e2e_ms) if e]
    assert found == [False, True, True]


@pytest.mark.parametrize("context", [1_024, 100_000])
def test_what_is_extrapolated_bears_a_star(context: int) -> None:
    text = router(profile()).decide(task(context=context)).explain()
    assert ("*" in text) == (context > 8_192)
    assert ("* outside the measured loads: extrapolated" in text) == (context > 8_192)


def test_what_waits_is_counted_beside_what_runs() -> None:
    text = router(profile(slots=4)).decide(task(concurrency=10)).explain()
    assert re.search(r"^1 .* 4\+6 ", text, flags=re.MULTILINE)


def test_what_is_unknown_is_said_to_be() -> None:
    decision = router(profile(points=(), gpus=None)).decide(task())
    assert (decision.ttft_ms, decision.tpot_ms, decision.e2e_ms, decision.cost_usd) == (None, None, None, None)
    assert (decision.url, decision.model) == (None, None)
    c = decision.candidates[0]
    assert (c.headroom, c.model, c.sharding, c.wait_ms) == (None, None, None, 0.0)
    assert c.standing == "no SLO to keep; best by fit: unknown, nothing is measured"


@pytest.mark.parametrize(("concurrency", "wait_ms"), [(1, 0.0), (2, 0.0), (3, None)])
def test_a_wait_of_unknown_length_is_unknown_and_no_wait_is_none_at_all(
    concurrency: int, wait_ms: float | None
) -> None:
    """Nothing is measured; two requests fit the KV pool."""
    decision = router(profile(points=(), gpus=None, kv_blocks=2 * 69)).decide(task(concurrency=concurrency))
    assert decision.candidates[0].wait_ms == wait_ms


def test_the_headroom_is_what_is_not_held() -> None:
    r = router(profile(kv_blocks=1_000))
    held(r, task())
    headroom = r.decide(task()).candidates[0].headroom
    assert headroom == Headroom(free=931, blocks=1_000, needed=69)


def test_a_decision_stays_as_it_was_when_the_state_moves_on() -> None:
    r = router(profile(kv_blocks=1_000))
    decision = r.decide(task())
    before = decision.explain()
    for _ in range(5):
        held(r, task())
    assert decision.explain() == before


def test_equal_decisions_are_equal() -> None:
    r = router(profile())
    first, second = (replace(r.decide(task()), decided_at=0.0) for _ in range(2))
    assert first == second


def test_a_decision_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        router(profile()).decide(task()).objective = "cost"  # type: ignore[misc]


def one(slo: Slo) -> Decision:
    return router(profile(points=grid(n=(1, 2, 4, 8, 16)))).decide(
        Task(context_tokens=1_024, max_output_tokens=100, ttft_ms=slo)
    )


@pytest.mark.parametrize(
    ("factor", "said"),
    [(2.0, "keeps TTFT of"), (1.2, "less than the 30% wanted"), (0.5, "misses TTFT of")],
)
def test_a_standing_says_how_well_the_slo_is_kept(factor: float, said: str) -> None:
    ttft = one(Slo(1.0, hard=False)).ttft_ms
    assert ttft is not None
    assert said in one(Slo(ttft.mean * factor, hard=False)).candidates[0].standing


@pytest.mark.parametrize("hard", [True, False])
def test_a_standing_says_that_a_tail_is_judged_by_the_high_end(hard: bool) -> None:
    assert "high end" in one(Slo(10_000, "p95", hard=hard)).explain()


def test_where_no_slo_is_kept_the_one_that_misses_least_is_not_called_the_cheapest() -> None:
    cheap, quick = profile("cheap", usd_per_million=(1.0, 1.0)), profile("quick", speed=3.0, usd_per_million=(9.0, 9.0))
    asked = Task(context_tokens=1_000, max_output_tokens=100, deadline_s=Slo(0.001, hard=False))
    first, second = router(cheap, quick, objective="cost").decide(asked).candidates
    assert first.deployment == "quick"
    assert first.standing.endswith(", and no other one by less")
    assert second.standing.startswith("misses E2E of 1.0 ms by ")


def test_one_that_would_harm_others_is_not_said_to_keep_its_slo() -> None:
    """Where its prompt would make an answer late that is being written there."""
    quick = profile("quick", speed=2.0, usd_per_million=(1.0, 1.0))
    by = Router(fleet(quick, profile("slow", usd_per_million=(9.0, 9.0))), objective="cost", clock=Clock())
    held_there = replace(task(1_000, 500, tpot_ms=4.0), pin="quick", tpot_ms=Slo(4.0, hard=False))
    for _ in range(4):
        held(by, held_there)
    decision = by.decide(Task(context_tokens=100_000, max_output_tokens=100))
    assert [one.deployment for one in decision.candidates] == ["slow", "quick"]
    assert "others there are expected to miss their SLOs because of it" in decision.candidates[1].standing


def test_fit_says_how_long_an_answer_takes_where_that_counts() -> None:
    """Without an SLO the seconds until the answer count, too, and here outweigh the GPU-seconds."""
    two, one = profile("two", speed=5 / 3, gpus=2), profile("one")
    first, second = router(two, one).decide(Task(context_tokens=100, max_output_tokens=2_000)).candidates
    assert first.standing == "no SLO to keep; best by fit: 1.56 GPU-seconds, 6.16 s to the answer"
    assert second.standing == (
        "fit: 1.3 GPU-seconds, 10.3 s to the answer against 1.56 GPU-seconds, 6.16 s to the answer"
    )


@given(fleets(), tasks(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_fit_says_of_each_adds_up_to_their_order(of: Fleet, asked: Task, limited: bool) -> None:
    slos: dict[str, Any] = {"ttft_ms": Slo(300.0, hard=False) if limited else None, "tpot_ms": None, "deadline_s": None}
    try:
        decision = Router(of).decide(replace(asked, needs=frozenset(), **slos))
    except NoFeasibleDeployment:
        return
    known = [one for one in decision.candidates if one.e2e_ms is not None]
    for is_unknown in (False, True):
        scores = [added_up(told(decision, c.deployment)) for c in known if (c.headroom is None) is is_unknown]
        assert all(before <= after + 0.002 + 0.02 * after for before, after in pairwise(scores))


def told(decision: Decision, deployment: str) -> str:
    """What the objective says of a deployment."""
    names = [one.name for one in decision._assessment.fleet.deployments]
    return measure(decision._assessment, names.index(deployment), decision._by)


def added_up(said: str) -> float:
    """The score that a sentence's numbers come to, by the weights of ``policy``."""
    score = 0.0
    for number, unit, what in re.findall(r"(\d[\d.,e+]*)( ms| us| s|%|) ?(likely|GPU-seconds|to the|full|times)", said):
        value = float(number.replace(",", ""))
        scale = {" us": 1e-6, " ms": 1e-3, "%": 0.01}.get(unit, 1.0)
        weight = {"likely": 1.0, "GPU-seconds": MISS_PER_GPU_SECOND, "to the": MISS_PER_SECOND}.get(what, MISS_PER_POOL)
        score += weight * scale * value
    return score


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "unknown"),
        (0.0004, "0 us"),
        (0.85, "850 us"),
        (1.0, "1.0 ms"),
        (99.94, "99.9 ms"),
        (99.96, "100 ms"),
        (250.4, "250 ms"),
        (999.6, "1.00 s"),
        (1_234.0, "1.23 s"),
        (9_999.0, "10.0 s"),
        (12_345.0, "12.3 s"),
        (123_456.0, "123 s"),
        (1e9, "1,000,000 s"),
    ],
)
def test_a_time_is_written_as_a_person_reads_it(value: float, text: str) -> None:
    assert milliseconds(value) == text
