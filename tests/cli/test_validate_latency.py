"""``validate latency``: how far predictions are from what was measured, on public points of 341 deployments."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from console import agentroute

POINTS = Path(__file__).parents[1] / "data" / "latency_points.csv"
FIGURES = {"n", "mean", "median", "p90", "coverage"}


@cache
def validated(leave_out: str) -> dict[str, Any]:
    ran = agentroute("validate", "latency", str(POINTS), "--leave-out", leave_out, "--json")
    assert ran.code == 0, ran.err
    data: dict[str, Any] = json.loads(ran.out)
    return data


@pytest.mark.parametrize(
    ("leave_out", "metric", "figure", "most"),
    [
        ("one", "tpot", "mean", 0.030),
        ("one", "tpot", "median", 0.018),
        ("one", "e2e", "mean", 0.0295),
        ("one", "ttft", "mean", 0.140),
        ("one", "ttft", "median", 0.055),
        ("anchors:3", "tpot", "mean", 0.05),
        ("anchors:3", "ttft", "mean", 0.15),
        ("edge", "tpot", "mean", 0.10),
        ("edge", "ttft", "mean", 0.30),
        ("deployment", "tpot", "median", 0.30),
    ],
)
def test_predictions_are_no_further_off_than(leave_out: str, metric: str, figure: str, most: float) -> None:
    assert validated(leave_out)["summary"][metric][figure] <= most


def test_nvidias_gap_analysis_is_predicted_to_within_two_per_cent() -> None:
    """17 deployments with several prompt lengths; one of them, on GB200, scatters by 30 % from load to load."""
    own = [of["tpot"] for name, of in validated("one")["deployments"].items() if "|NVIDIA gap-analysis" in name]
    assert len(own) == 17
    assert sum(of["n"] * of["mean"] for of in own) / sum(of["n"] for of in own) <= 0.022


@pytest.mark.parametrize("metric", ["tpot", "ttft", "e2e"])
@pytest.mark.parametrize("leave_out", ["one", "edge", "anchors:3", "deployment"])
def test_the_80_per_cent_band_covers_about_that(leave_out: str, metric: str) -> None:
    assert 0.75 <= validated(leave_out)["summary"][metric]["coverage"] <= 0.87


@pytest.mark.parametrize(("leave_out", "of_knees"), [("one", 0.75), ("edge", 0.6), ("anchors:3", 0.75)])
def test_it_covers_as_much_with_the_knees_and_most_of_these(leave_out: str, of_knees: float) -> None:
    """The queue that nobody could see coming, for slots that are not known, is what is left."""
    smooth, knee = (validated(leave_out)["summary"][key] for key in ("ttft", "ttft_knee"))
    held = smooth["n"] * smooth["coverage"] + knee["n"] * knee["coverage"]
    assert 0.78 <= held / (smooth["n"] + knee["n"]) <= 0.87
    assert knee["coverage"] >= of_knees


def test_what_is_faster_than_its_accelerators_can_be_is_named() -> None:
    """448 requests of 15,000 tokens in two GB200 would need more memory than these have."""
    found = validated("one")["counts"]["too_fast"]
    assert {(one["isl"], one["n"]) for one in found} == {(15_000, 416), (15_000, 448)}
    assert all("Qwen3-32B-NVFP4" in one["deployment"] and one["tpot"] < 0.3 for one in found)
    assert all(one["ttft"] == 1.0 for one in found)


@pytest.mark.parametrize(("leave_out", "least"), [("one", 0.99), ("edge", 0.95), ("deployment", 0.80)])
def test_deployments_of_one_model_are_put_into_order(leave_out: str, least: float) -> None:
    assert validated(leave_out)["summary"]["pairs_right"] >= least


@pytest.mark.parametrize(
    ("leave_out", "asked"), [("one", 1_230), ("edge", 435), ("anchors:3", 795), ("deployment", 2_595)]
)
def test_every_row_is_accounted_for(leave_out: str, asked: int) -> None:
    data = validated(leave_out)
    counts = data["counts"]
    assert (data["schema_version"], data["command"], data["leave_out"]) == (1, "validate latency", leave_out)
    assert (counts["rows"], counts["without_concurrency"], counts["of_several_runs"]) == (2_601, 6, 20)
    assert (counts["asked"], counts["knee_curves"]) == (asked, 42)
    assert counts["predicted"] == asked - (2 if leave_out == "deployment" else 0)
    assert sum(counts["without_roofline"].values()) == 2
    summary = data["summary"]
    assert summary["ttft"]["n"] + summary["ttft_knee"]["n"] == summary["tpot"]["n"] == counts["predicted"]
    assert sum(of["tpot"]["n"] for of in data["deployments"].values()) == counts["predicted"]


def test_each_deployment_has_the_figures_of_the_whole() -> None:
    data = validated("one")
    for of in (data["summary"], *data["deployments"].values()):
        assert {*of} == {"tpot", "ttft", "e2e", "ttft_knee", "pairs", "pairs_right", "rank_correlation", "slo_wrong"}
        assert all({*of[metric]} == FIGURES for metric in ("tpot", "ttft", "e2e", "ttft_knee"))
        assert of["pairs_right"] is None or -1.0 <= of["rank_correlation"] <= 1.0
        assert 0.0 <= of["slo_wrong"] <= 1.0


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Two deployments of the table, without what their model and accelerator are."""
    path = tmp_path / "few.csv"
    rows = [f"1024,128,{n},{100 + n},{10 + n / 8}" for n in (1, 4, 16, 64)]
    path.write_text("\n".join(["deployment,k,nobody/knows,h200_sxm,vllm,,,tp2,,some notes", *rows]) + "\n")
    return path


def test_in_the_terminal_it_is_a_table_and_progress_goes_to_stderr(few: Path) -> None:
    ran = agentroute("validate", "latency", str(few))
    assert ran.code == 0, ran.err
    assert "4 rows; without a concurrency, and left out: 0; runs of one load, each fitted apart: 0" in ran.out
    assert "without a roofline: 1 deployment: there is no model 'nobody/knows'" in " ".join(ran.out.split())
    assert "TTFT, curves with a knee" in ran.out
    assert "2 of 2 fits" in ran.err
    assert "fits" not in ran.out


def test_without_a_roofline_nothing_is_said_of_a_deployment_left_out_whole(few: Path) -> None:
    ran = agentroute("validate", "latency", str(few), "--leave-out", "deployment", "--json")
    data = json.loads(ran.out)
    assert ran.code == 1
    assert f"error: {few}: none of 4 loads could be predicted: there is no model 'nobody/knows'" in ran.err
    assert data["counts"]["predicted"] == 0
    assert data["summary"]["tpot"] == {"n": 0, "mean": None, "median": None, "p90": None, "coverage": None}
    assert data["deployments"] == {}


def test_only_some_deployments_may_be_asked_for(few: Path) -> None:
    assert agentroute("validate", "latency", str(few), "--only", "some notes").code == 0
    ran = agentroute("validate", "latency", str(few), "--only", "other")
    assert ran.code == 2
    assert "--only must be part of a deployment's key or notes, got 'other'" in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("option", "words"),
    [("two", "--leave-out must be one of one, edge, lone, anchors:3, deployment, got 'two'")],
)
def test_another_way_of_leaving_out_is_refused(few: Path, option: str, words: str) -> None:
    ran = agentroute("validate", "latency", str(few), "--leave-out", option)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())


def test_a_wrong_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_text('{"deployment": "x"}\n')
    ran = agentroute("validate", "latency", str(path))
    assert ran.code == 2
    assert "points.jsonl:1: model: is missing; it must be given" in ran.err.replace("\n", "")


@pytest.mark.parametrize(("leave_out", "loads"), [("one", 2), ("edge", 2), ("anchors:3", 3)])
def test_with_nothing_to_leave_out_it_says_so_and_fails(tmp_path: Path, leave_out: str, loads: int) -> None:
    path = tmp_path / "short.csv"
    rows = [f"1024,128,{n},{100 + n},{10 + n / 8}" for n in (1, 4, 16)[:loads]]
    path.write_text("\n".join(["deployment,k,nobody/knows,h200_sxm,vllm,,,tp2,,", *rows]) + "\n")
    ran = agentroute("validate", "latency", str(path), "--leave-out", leave_out)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"error: {path}: there is nothing to leave out in {loads} rows of 1 deployment; ")
    assert ran.err.count("\n") == 1
    data = agentroute("validate", "latency", str(path), "--leave-out", leave_out, "--json")
    assert data.code == 1
    assert {*json.loads(data.out)} == {*validated("one")}


DEPLOYMENT = "deployment,k,nobody/knows,h200_sxm,vllm,,,tp2,,notes"
ROW = {
    "deployment": "k", "model": "m", "gpu": "g", "engine": "vllm", "isl": 8, "osl": 8, "concurrency": 1,
    "ttft_ms": {"mean": 9.0}, "tpot_ms": {"mean": 9.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("isl,osl,concurrency,ttft_ms\n8,8,1,9\n", 1, "must be a line that names a deployment (deployment,key,model,"),
        ("8,8,1,9,9\n", 1, "must be a line that names a deployment (deployment,key,model,"),
        ("deployment,k,m\n8,8,1,9,9\n", 1, "must name a deployment as deployment,key,model,gpu,engine,version,"),
        (DEPLOYMENT.replace("tp2", "tp2 ep3") + "\n8,8,1,9,9\n", 1, "must name a deployment as deployment,key,model,"),
        (f"{DEPLOYMENT}\n8,8,1,fast,9\n", 2, "must be a load as isl,osl,n,ttft_ms,tpot_ms[,tpot_p50_ms], with num"),
        (f"{DEPLOYMENT}\n8,8,1\n", 2, "must be a load as isl,osl,n,ttft_ms,tpot_ms[,tpot_p50_ms], with numbers ab"),
        (f"{DEPLOYMENT}\n8,8,1,-9,9\n", 2, "must be a load as isl,osl,n,ttft_ms,tpot_ms[,tpot_p50_ms], with numbe"),
        (json.dumps(ROW) + "\n{oops\n", 2, "must be one JSON object a line, got '{oops'"),
        (json.dumps(ROW | {"isl": "8"}), 1, "isl: must be a valid integer"),
        (
            json.dumps({key: value for key, value in ROW.items() if key != "osl"}),
            1,
            "osl: is missing; it must be given",
        ),
        (json.dumps(ROW | {"ttft_ms": {"p50": 9.0}}), 1, "ttft_ms and tpot_ms must hold a mean"),
    ],
)
def test_a_wrong_line_is_said_in_plain_words(text: str, line: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text(text)
    ran = agentroute("validate", "latency", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {path}:{line}: {said}")
    assert ran.err.count("\n") == 1
    assert not any(word in ran.err for word in ("int()", "literal", "unpack", "Input", "validation"))
