"""Reading public latency points, in both forms."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentroute.errors import FileError, UsageError
from agentroute.latency.records import LatencyRecord, dump, parse
from agentroute.shape.sharding import Disaggregated, Sharding, Workers

TABLE = Path(__file__).parents[1] / "data" / "latency_points.csv"
HERE = Path("points")

ROW: dict[str, Any] = {
    "source_url": "a file", "engine": "vllm", "engine_version": "0.19.0", "model": "openai/gpt-oss-120b",
    "weights_precision": "fp4", "gpu": "b200_sxm", "n_gpus": 2, "tp": 2, "pp": 1, "ep": 1, "dp": 1,
    "disaggregated": False, "isl": 1024, "osl": 128, "concurrency": 8, "ttft_ms": {"mean": 120.5},
    "tpot_ms": {"mean": 9.25, "p50": 9.5}, "deployment": "a|b|c", "source_date": "2026-04-22", "notes": "InferenceX",
}  # fmt: skip


def read(*rows: dict[str, Any]) -> list[LatencyRecord]:
    return parse("\n".join(json.dumps(ROW | row) for row in rows), HERE)


def test_a_line_of_json_is_a_record() -> None:
    (one,) = read({})
    assert (one.model, one.gpu, one.engine, one.version) == ("openai/gpt-oss-120b", "b200_sxm", "vllm", "0.19.0")
    assert (one.isl, one.osl, one.n, one.ttft_ms, one.tpot_ms, one.tpot_p50_ms) == (1024, 128, 8, 120.5, 9.25, 9.5)
    assert one.split == Sharding(tp=2)
    assert one.accelerators == 2
    assert one.point().load == (1024, 128, 8)


@pytest.mark.parametrize("word", ["nan", None, ""])
def test_nan_is_no_version(word: str | None) -> None:
    if word == "":
        with pytest.raises(FileError):
            read({"engine_version": word})
        return
    assert read({"engine_version": word})[0].version is None


@pytest.mark.parametrize(
    ("key", "split"),
    [
        ("tp8 adp1 moe_tp8 moe_ep1 pp1", Sharding(tp=8)),
        ("tp1 adp8 moe_tp1 moe_ep8 pp1", Sharding(attention_dp=8, ep=8)),
        ("tp4 adpNone moe_tp2 moe_ep2 pp1", Sharding(tp=4, ep=2)),
        pytest.param("tp2 adpNone moe_tp4 moe_ep1 pp1", Sharding(tp=2, attention_dp=2), id="experts over four ranks"),
        pytest.param("tp2 adp0 moe_tp0 moe_ep0 pp1", Sharding(tp=2), id="0 is 1"),
    ],
)
def test_tensor_and_expert_ranks_share_accelerators_and_are_not_multiplied(key: str, split: Sharding) -> None:
    assert read({"deployment": f"x|{key}|y"})[0].split == split


def test_pools_of_a_disaggregated_deployment_keep_their_own_splits() -> None:
    key = "x|P[4x tp1 adp4 moe_tp1 ep4] D[1x tp8 adp1 moe_tp8 ep1]|y"
    (one,) = read({"deployment": key, "disaggregated": True})
    assert one.split == Disaggregated(
        prefill=Workers(workers=4, sharding=Sharding(attention_dp=4, ep=4)), decode=Workers(sharding=Sharding(tp=8))
    )
    assert one.accelerators == 24


def test_rows_that_contradict_one_another_become_runs_by_their_tpot() -> None:
    slow, fast, other = read({"tpot_ms": {"mean": 12.0}}, {"tpot_ms": {"mean": 9.0}}, {"concurrency": 16})
    assert (fast.run, slow.run, other.run) == (1, 2, None)


def test_a_row_without_a_concurrency_is_kept_and_is_no_point() -> None:
    (one,) = read({"concurrency": None})
    assert one.n is None
    with pytest.raises(UsageError, match="has no concurrency"):
        one.point()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "points: holds no latency points"),
        ("{", "points:1: "),
        (json.dumps(ROW) + "\n{}", "points:2: deployment: field required"),
        (json.dumps(ROW | {"isl": 0}), "points:1: isl: "),
        (json.dumps(ROW | {"ttft_ms": {"p50": 3.0}}), "points:1: ttft_ms and tpot_ms must hold a mean"),
        ("1,2,3,4,5", "points:1: stands before the first deployment"),
        ("deployment,a,b", "points:1: must be a deployment or isl, osl, n, ttft_ms, tpot_ms"),
        ("deployment,k,m,g,e,,,tp2,,\n1,2,3", "points:2: must be a deployment or"),
        ("deployment,k,m,g,e,,,tp2,,\n1,2,3,nan,5", "points:2: must hold numbers above 0"),
        ("deployment,k,m,g,e,,,tp2,,\n1,2,3,-1,5", "points:2: must hold numbers above 0"),
        ("deployment,k,m,g,e,,,tp0,,\n1,2,3,1,5", "points:1: must be a deployment or"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(FileError) as caught:
        parse(text, HERE)
    assert str(caught.value).startswith(words)


def test_a_table_gives_back_what_was_written() -> None:
    rows = read({}, {"concurrency": None}, {"isl": 2048, "notes": "a, b"}, {"deployment": "x|tp2 adpNone moe_tp4 ep1"})
    again = parse(dump(rows, comment="from a test"), HERE)
    assert Counter(again) == Counter(rows)


def test_the_shipped_table_is_whole() -> None:
    text = TABLE.read_text()
    rows = parse(text, TABLE)
    assert text.startswith("# ")
    assert "Apache-2.0" in text[:600]
    assert len(text) < 400_000
    assert len(rows) == 2_601
    assert sum(one.n is None for one in rows) == 6
    assert sum(one.run is not None for one in rows) == 20
    assert sum(one.tpot_p50_ms is not None for one in rows) == 501
    curves = Counter(one.curve[:3] for one in {(one.curve[:3], one.n): one for one in rows if one.n}.values())
    assert len({curve[0] for curve, count in curves.items() if count >= 3}) == 149
    assert Counter(parse(dump(rows, comment="again"), TABLE)) == Counter(rows)
