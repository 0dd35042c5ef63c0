"""Runs of several files as one deployment: which are chosen, which are one load, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentroute.bench.importers import Results, load
from agentroute.bench.importers.assemble import Import, assemble
from agentroute.bench.importers.checks import Judged, judge
from agentroute.bench.importers.deployment import Given
from agentroute.bench.importers.run import Facts, Run, accelerator_of, date_of, sharding_of, version_of
from agentroute.errors import UsageError
from agentroute.shape.sharding import Sharding

DATA = Path(__file__).parents[2] / "data" / "bench"


def run(n: int, tpot: float = 10.0, **changes: Any) -> Run:
    e2e = 200.0 + 100 * tpot
    plain = Run(
        where="",
        isl=1_000,
        osl=101,
        clients=n,
        loop="closed",
        requests_per_s=n / e2e * 1_000,
        ttft_ms={"mean": 200.0, "p99": 400.0},
        tpot_ms={"mean": tpot},
        e2e_ms={"mean": e2e},
    )
    return replace(plain, **changes)


def taken(one: Run) -> Judged:
    judged = judge(one)
    assert isinstance(judged, Judged), judged.why
    return judged


def file(name: str, *runs: Run) -> Results:
    return Results(Path(name), "a tool", tuple(taken(one) for one in runs), (), ())


def imported(*results: Results, named: Callable[[str], str | None] = lambda said: None, **given: Any) -> Import:
    degrees: dict[str, int] = {key: given.pop(key) for key in ("tp", "pp", "ep", "attention_dp") if key in given}
    return assemble(results, Given(Facts(**given), degrees), named)


def loads(found: Import) -> list[tuple[int, int, int]]:
    return [point.load for block in found.measurements for point in block.points]


def test_files_of_one_deployment_are_one_curve_with_every_source_named() -> None:
    found = imported(file("c4.json", run(4)), file("c1.json", run(1)))
    (block,) = found.measurements
    assert loads(found) == [(1_000, 101, 1), (1_000, 101, 4)]
    assert block.provenance.source == "result files c4.json, c1.json"
    assert (block.provenance.tool, block.provenance.origin, block.loop) == ("a tool", "measured", "closed")


def test_open_and_closed_loops_and_other_days_and_caches_stand_apart() -> None:
    one = file("a.json", run(1), run(2, prefix_hit=0.5), run(4, date=date_of("20261129")), run(8, loop="open"))
    assert {(b.loop, b.prefix_hit, b.provenance.date) for b in imported(one).measurements} == {
        ("closed", None, None),
        ("closed", 0.5, None),
        ("closed", None, date_of("2026-11-29")),
        ("open", None, None),
    }


def test_sizes_that_are_nearly_equal_are_made_equal() -> None:
    found = imported(file("a.json", run(1, isl=995.2), run(2, isl=1_004.1), run(4, isl=1_200)))
    assert loads(found) == [(1_000, 101, 1), (1_000, 101, 2), (1_200, 101, 4)]
    assert found.notes == ("the sizes of 2 runs differ by less than 3%; they are at 1000 + 101",)


def test_the_same_run_again_is_counted_once() -> None:
    found = imported(file("a.json", run(4)), file("copy.json", run(4)))
    assert loads(found) == [(1_000, 101, 4)]
    assert found.notes == ("1000 + 101 tokens at concurrency 4: copy.json is the same run again and is counted once",)


def test_repeats_are_their_mean() -> None:
    found = imported(file("a.json", run(4, 10.0), run(4, 10.4)))
    (block,) = found.measurements
    (point,) = block.points
    assert point.tpot_ms and point.tpot_ms.mean == 10.2
    assert "the mean of 2 runs" in (block.provenance.notes or "")


def test_runs_of_one_load_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match=r"contradict each other: TPOT is 10 and 14 ms in a\.json and in b\.json"):
        imported(file("a.json", run(4, 10.0)), file("b.json", run(4, 14.0)))


@pytest.mark.parametrize(("name", "quality"), [("run/vllm.json", "A"), ("written/plain.csv", "B")])
def test_a_table_is_worth_less_than_what_the_tool_wrote(name: str, quality: str) -> None:
    assert imported(load(DATA / name)).measurements[0].provenance.quality == quality


def test_more_runs_than_a_profile_holds_are_refused() -> None:
    (judged,) = file("a.json", run(1)).judged
    with pytest.raises(UsageError, match="at most 10,000 runs make one profile, got 10,001"):
        imported(Results(Path("a.csv"), "a tool", (judged,) * 10_001, (), ()))


def test_repeats_that_measured_other_times_complete_each_other_or_contradict() -> None:
    parts, whole = run(4, e2e_ms={}), run(4, ttft_ms={}, tpot_ms={})
    ((point,),) = [block.points for block in imported(file("a.json", parts, whole)).measurements]
    assert (point.ttft_ms, point.tpot_ms, point.e2e_ms) == tuple(
        getattr(taken(one).point, name) for one, name in ((parts, "ttft_ms"), (parts, "tpot_ms"), (whole, "e2e_ms"))
    )
    short = run(4, ttft_ms={}, tpot_ms={}, e2e_ms={"mean": 300.0}, requests_per_s=None)
    with pytest.raises(UsageError, match=r"the times of a\.json and b\.json at .* contradict each other"):
        imported(file("a.json", parts), file("b.json", short))


def test_a_run_that_would_contradict_itself_at_the_common_size_keeps_its_own() -> None:
    e2e = (20.0 + 99 * 10.0) / 1.3295
    one = run(1, osl=100, requests_per_s=None, ttft_ms={"mean": 20.0}, tpot_ms={"mean": 10.0}, e2e_ms={"mean": e2e})
    found = imported(file("a.json", one, run(2, osl=102.8), run(4, osl=102.8)))
    assert (1_000, 100, 1) in loads(found)


def test_what_was_noted_stands_beside_the_points_with_their_loads() -> None:
    found = imported(file("a.json", run(1), run(4, failed=1, completed=99)))
    assert found.measurements[0].provenance.notes == "1 of 100 requests failed (1000+101 x 4)"


SPLITS = file(
    "many.json",
    run(1, facts=Facts(accelerator_word="h200", sharding=Sharding(tp=4), engine_version="1.0")),
    run(2, facts=Facts(accelerator_word="h200", sharding=Sharding(tp=8, ep=8), engine_version="1.0")),
    run(4, facts=Facts(accelerator_word="b200", sharding=Sharding(tp=8), engine_version="1.1")),
    run(8, facts=Facts(accelerator_word="h100", sharding=Sharding(tp=8), engine_version="1.1")),
)


def test_several_deployments_are_refused_with_the_option_that_chooses() -> None:
    said = "by accelerator: 'h200_sxm' \\(2\\), 'b200_sxm' \\(1\\), 'h100' \\(1\\); choose with --accelerator"
    with pytest.raises(UsageError, match=said):
        imported(SPLITS)
    with pytest.raises(UsageError, match=r"by sharding: tp4 \(1\), tp8 ep8 \(1\); choose with --tp"):
        imported(SPLITS, accelerator="h200_sxm", engine_version="1.0")


@pytest.mark.parametrize(
    ("given", "n"),
    [
        ({"accelerator": "h200_sxm", "tp": 4}, 1),
        ({"accelerator": "h200_sxm", "tp": 8}, 2),
        ({"accelerator": "h200_sxm", "ep": 8}, 2),
        ({"accelerator": "b200_sxm"}, 4),
        ({"accelerator": "h100_sxm"}, 8),
        ({"accelerator": "h100_nvl"}, 8),
    ],
)
def test_the_options_choose_a_deployment(given: dict[str, Any], n: int) -> None:
    found = imported(SPLITS, **given)
    assert [load[2] for load in loads(found)] == [n]
    assert found.facts.accelerator == given["accelerator"]


@pytest.mark.parametrize("given", [{"accelerator": "l4"}, {"tp": 2}, {"engine_version": "2.0"}])
def test_a_deployment_that_the_files_do_not_hold_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="hold no run of what was asked for; they hold accelerator 'h200_sxm'"):
        imported(SPLITS, **given)


def test_a_word_that_the_catalogue_does_not_know_at_all_may_mean_what_was_given() -> None:
    found = imported(file("a.json", run(1, facts=Facts(accelerator_word="node-7"))), accelerator="l4")
    assert found.facts.accelerator == "l4"


def test_two_words_for_a_model_are_two_deployments() -> None:
    one, other = (file(f"{word}.json", run(n, facts=Facts(model_word=word))) for n, word in ((1, "a"), (2, "b")))
    with pytest.raises(UsageError, match="by model: 'a' \\(1\\), 'b' \\(1\\); choose with --model"):
        imported(one, other)
    with pytest.raises(UsageError, match="by model"):
        imported(one, other, named=lambda said: {"a": "llama-3.1-8b"}.get(said))
    assert imported(one, other, named=lambda said: "llama-3.1-8b").facts.model == "llama-3.1-8b"


def test_a_fact_that_no_file_says_is_the_callers() -> None:
    found = imported(file("a.json", run(1)), accelerator="l4", engine="vllm", engine_version="0.19.0", tp=2)
    assert found.facts == Facts(accelerator="l4", engine="vllm", engine_version="0.19.0", sharding=Sharding(tp=2))
    assert found.measurements[0].provenance.engine_version == "0.19.0"


def test_the_caller_says_whether_the_ranks_of_trtllm_bench_are_replicas_of_attention() -> None:
    results = load(DATA / "written" / "trtllm-bench.json")
    assert imported(results).facts.sharding == Sharding(tp=4)
    assert imported(results, tp=1, attention_dp=4).facts.sharding == Sharding(attention_dp=4)
    with pytest.raises(UsageError, match="hold no run of what was asked for"):
        imported(results, tp=1, attention_dp=8)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("H200", "h200_sxm"),
        ("NVIDIA H200", "h200_sxm"),
        ("h200_sxm", "h200_sxm"),
        ("RTX 4090", "rtx_4090"),
        ("MI300X", "mi300x"),
        ("gb200", "gb200"),
        ("H100", None),
        ("", None),
        (None, None),
    ],
)
def test_the_words_for_accelerators(word: str | None, name: str | None) -> None:
    assert accelerator_of(word) == name


@pytest.mark.parametrize(
    ("word", "version"),
    [("0.19.0", "0.19.0"), ("v0.19.0", "0.19.0"), ("nan", None), ("", None), ("a\nb", None), (None, None)],
)
def test_the_words_for_versions(word: str | None, version: str | None) -> None:
    assert version_of(word) == version


@pytest.mark.parametrize(
    ("word", "day"),
    [
        ("20261129-141936", "2026-11-29"),
        ("2026-11-29T14:00:24.476018", "2026-11-29"),
        (1_795_960_679.1, "2026-11-29"),
        ("20261399", None),
        ("yesterday", None),
        (1e30, None),
        (None, None),
    ],
)
def test_the_words_for_days(word: str | float | None, day: str | None) -> None:
    found = date_of(word)
    assert (found and found.isoformat()) == day


def test_degrees_that_do_not_fit_are_no_sharding() -> None:
    assert (sharding_of(tp=4, ep=3), sharding_of(), sharding_of(tp=4, ep=4)) == (None, None, Sharding(tp=4, ep=4))
