"""Every format: what is read of it, and that it survives being saved as a profile."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from agentroute.bench.importers import IMPORTERS, Results, load
from agentroute.bench.importers.assemble import assemble
from agentroute.bench.importers.deployment import Given
from agentroute.bench.importers.run import Facts
from agentroute.errors import FileError
from agentroute.latency.points import Point
from agentroute.profile import Engine, Profile
from agentroute.shape.sharding import Disaggregated, Sharding, Workers

DATA = Path(__file__).parents[2] / "data" / "bench"
SUMMARY = "inference-perf-summary.json"
FILES = sorted(path for path in DATA.glob("*/*") if path.name != SUMMARY)


def of(name: str) -> Results:
    return load(next(DATA.glob(f"*/{name}")))


def points(name: str) -> list[Point]:
    return [judged.point for judged in of(name).judged]


def facts(name: str) -> Facts:
    return of(name).judged[0].run.facts


def test_there_is_a_file_of_every_format() -> None:
    assert {load(path).tool for path in FILES} == {importer.NAME for importer in IMPORTERS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.name))
def test_what_a_file_holds_saves_and_loads_equal(path: Path, tmp_path: Path) -> None:
    results = load(path)
    given = Given(Facts(accelerator="h200_sxm"), {"tp": 4}) if "agg_bmk" in path.name else Given()
    found = assemble([results], given, lambda said: None)
    profile = Profile(format=1, name="mine", engine=Engine(name="other"), measurements=found.measurements)
    profile.save(tmp_path / "mine.toml")
    assert Profile.load(tmp_path / "mine.toml") == profile
    assert profile.points


@pytest.mark.parametrize(
    ("name", "loads"),
    [
        ("vllm.json", [(100, 16, 4)]),
        ("vllm-detailed.json", [(100, 16, 4)]),
        ("vllm-older-appended.jsonl", [(922, 929, 8), (921, 930, 16), (924, 928, 32)]),
        ("sglang.jsonl", [(64, 16, 4)]),
        ("sglang-older.jsonl", [(512, 128, 10)]),
        ("sglang-server-info.jsonl", [(1024, 256, 64)]),
        ("guidellm.json", [(20, 16, 1), (20, 16, 2), (20, 16, 4)]),
        ("guidellm.csv", [(20, 16, 1), (20, 16, 2), (20, 16, 4)]),
        ("guidellm-constant.json", [(20, 16, 1)]),
        ("aiperf.json", [(102, 16, 4)]),
        ("aiperf.csv", [(102, 16, 4)]),
        ("aiperf-requests.jsonl", [(102, 16, 4)]),
        ("genai-perf.json", [(550, 100, 10)]),
        ("inference-perf-stage_0.json", [(200, 64, 10)]),
        ("inference-perf-stage_0.yaml", [(200, 64, 10)]),
        ("trtllm-bench.json", [(1024, 256, 32)]),
        ("llama-bench.json", [(512, 128, 1), (512, 128, 1), (1, 128, 1)]),
        ("llama-bench.jsonl", [(512, 128, 1), (1, 128, 1)]),
        ("llama-bench.csv", [(512, 128, 1), (1, 128, 1)]),
        ("llama-batched-bench.jsonl", [(512, 128, 1), (512, 128, 2), (512, 128, 4), (512, 128, 8)]),
        ("inferencex-agg-disaggregated.json", [(1024, 1024, 256)]),
        ("plain.csv", [(1024, 256, 1), (1024, 256, 8), (1024, 256, 32)]),
    ],
)
def test_the_loads_of_a_file(name: str, loads: list[tuple[int, int, int]]) -> None:
    assert [point.load for point in points(name)] == loads


@pytest.mark.parametrize(
    ("name", "ttft", "tpot", "e2e"),
    [
        ("vllm.json", 68.3792, 3.65894, 123.263),
        ("vllm-older-appended.jsonl", 245.0, 7.6, 7298.56),
        ("sglang.jsonl", 37.7338, 6.28759, 132.048),
        ("sglang-older.jsonl", None, None, 2500.0),
        ("guidellm.json", 30.857, 5.04139, 107.56),
        ("guidellm.csv", 30.857, 5.04139, 107.56),
        ("aiperf.json", 65.6489, 4.6843, 135.913),
        ("aiperf.csv", 65.65, 4.68, 135.91),
        ("aiperf-requests.jsonl", 65.6489, 4.6843, 135.913),
        ("genai-perf.json", 90.0, 10.0, 1080.0),
        ("inference-perf-stage_0.json", 50.0, 16.0, 1058.0),
        ("inference-perf-stage_0.yaml", 50.0, 16.0, 1058.0),
        ("trtllm-bench.json", 180.0, 9.0, 2475.0),
        ("trtllm-bench-not-streamed.json", None, None, 2475.0),
        ("llama-bench.json", 512 / 9.0, 1000 / 145, None),
        ("llama-batched-bench.jsonl", 60.0, 950 / 128, 1010.0),
        ("inferencex-agg_bmk.json", 120.0, 5.5, 5183.3),
        ("plain.csv", 60.0, 8.0, 2100.0),
    ],
)
def test_the_mean_times_of_the_first_run(name: str, ttft: float | None, tpot: float | None, e2e: float | None) -> None:
    first = points(name)[0]
    means = [times.mean if times else None for times in (first.ttft_ms, first.tpot_ms, first.e2e_ms)]
    assert means == [value if value is None else pytest.approx(value, rel=1e-5) for value in (ttft, tpot, e2e)]


@pytest.mark.parametrize(
    ("name", "statistics"),
    [
        ("vllm.json", {"mean", "p50", "p90", "p99"}),
        ("sglang.jsonl", {"mean", "p50", "p90", "p95", "p99"}),
        ("sglang-older.jsonl", {"p50"}),
        ("guidellm.csv", {"mean", "p50", "p90", "p95", "p99"}),
        ("aiperf-requests.jsonl", {"mean", "p50", "p90", "p95", "p99"}),
        ("inference-perf-stage_0.json", {"mean", "p50", "p90", "p95", "p99"}),
        ("inferencex-agg_bmk.json", {"mean", "p50", "p90", "p99"}),
        ("llama-bench.json", {"mean"}),
        ("plain.csv", {"mean", "p99"}),
    ],
)
def test_the_statistics_of_the_ttft(name: str, statistics: set[str]) -> None:
    ttft = points(name)[0].ttft_ms
    assert ttft and set(ttft.model_dump(exclude_none=True)) == statistics


def test_the_csv_of_guidellm_says_what_its_json_says() -> None:
    assert points("guidellm.csv") == points("guidellm.json")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm.json", {"model_word": "stub-model", "engine": None, "accelerator_word": "H200",
                       "sharding": Sharding(tp=4)}),
        ("sglang-server-info.jsonl", {"engine": "sglang", "engine_version": "0.5.23", "weights": "fp8",
                                      "kv": "fp8_e4m3", "sharding": Sharding(tp=2, attention_dp=4, ep=8)}),
        ("guidellm.json", {"model_word": "stub-model", "engine": None}),
        ("genai-perf.json", {"model_word": "meta-llama/Llama-3.1-8B-Instruct"}),
        ("trtllm-bench.json", {"engine": "trtllm", "engine_version": "1.1.0", "accelerator_word": "NVIDIA H200",
                               "sharding": Sharding(tp=4), "weights": "fp8", "kv": "fp8"}),
        ("llama-bench.json", {"engine": "llamacpp", "engine_version": "b7000", "kv": "fp16",
                              "accelerator_word": "NVIDIA GeForce RTX 4090", "sharding": Sharding()}),
        ("inferencex-agg_bmk.json", {"engine": "vllm", "engine_version": "0.19.0", "weights": "fp4",
                                     "model_word": "openai/gpt-oss-120b", "sharding": Sharding(tp=4)}),
        ("plain.csv", {"engine": "vllm", "accelerator_word": "h200_sxm", "sharding": Sharding(tp=4, ep=4)}),
    ],
)  # fmt: skip
def test_what_a_file_says_of_its_deployment(name: str, said: dict[str, Any]) -> None:
    assert {key: getattr(facts(name), key) for key in said} == said


def test_both_sides_of_a_disaggregated_row() -> None:
    found = facts("inferencex-agg-disaggregated.json")
    prefill, decode = Sharding(attention_dp=4, ep=4), Sharding(attention_dp=8, ep=8)
    assert found.disaggregated == Disaggregated(
        prefill=Workers(workers=2, sharding=prefill), decode=Workers(sharding=decode)
    )
    assert (found.sharding, found.engine) == (None, "dynamo")


@pytest.mark.parametrize(
    ("name", "loop", "saturated"),
    [
        ("vllm.json", "closed", None),
        ("sglang-older.jsonl", "open", False),
        ("guidellm.json", "closed", None),
        ("guidellm-constant.json", "open", False),
        ("aiperf.json", "closed", None),
        ("aiperf.csv", None, None),
        ("inference-perf-stage_0.json", "open", False),
        ("trtllm-bench.json", None, None),
    ],
)
def test_how_requests_were_timed(name: str, loop: str | None, saturated: bool | None) -> None:
    first = of(name).judged[0]
    assert (first.run.loop, first.point.saturated) == (loop, saturated)


@pytest.mark.parametrize(
    ("name", "hit"),
    [("sglang-server-info.jsonl", 0.5), ("aiperf.json", 0.0), ("guidellm.json", 0.0), ("vllm.json", None)],
)
def test_the_share_of_cached_prompt_tokens(name: str, hit: float | None) -> None:
    assert of(name).judged[0].run.prefix_hit == hit


def test_the_day_of_the_measurement() -> None:
    days = {
        name: of(name).judged[0].run.date for name in ("vllm.json", "guidellm.json", "aiperf.json", "llama-bench.json")
    }
    day = dt.date(2026, 11, 29)
    assert days == {"vllm.json": day, "guidellm.json": day, "aiperf.json": day, "llama-bench.json": dt.date(2026, 9, 6)}


def test_a_time_per_token_that_includes_the_ttft_is_not_read_as_the_tpot() -> None:
    # GuideLLM's time_per_output_token_ms is 6.65 here, inference-perf's normalized one 16.5.
    for name, tpot_ms in (("guidellm.json", 5.04139), ("inference-perf-stage_0.json", 16.0)):
        tpot = points(name)[0].tpot_ms
        assert tpot and tpot.mean == tpot_ms


def test_the_halved_tpot_of_an_old_inference_perf_is_left_out_and_follows_from_the_rest() -> None:
    (judged,) = of("inference-perf-halved.json").judged
    assert judged.point.tpot_ms is None
    assert judged.point.mean_tpot_ms() == pytest.approx(16.0)
    assert any("half of what E2E and TTFT leave" in flag for flag in judged.flags)


def test_a_summary_over_all_stages_is_refused() -> None:
    with pytest.raises(FileError, match="stages are different loads; give the stage_N"):
        of(SUMMARY)


def test_expert_ranks_that_were_multiplied_in_are_found_by_littles_law() -> None:
    (expert, replay) = of("inferencex-agg_bmk.json").refused
    assert expert.where == "[6]" and "was divided by tp x ep" in expert.why
    assert replay.where == "[7]" and "isl is null" in replay.why


def test_the_server_is_believed_where_it_counts_other_tokens_than_the_tool() -> None:
    assert any("the server counted 101.6 prompt tokens" in flag for flag in of("aiperf.json").judged[0].flags)
