"""The shipped profiles are what the tool makes of the table of measured loads."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from agentroute.bench.catalogue import EARLIER, Unit, make, names, profile, texts, write
from agentroute.catalogue import FOLDER, shipped
from agentroute.latency.records import LatencyRecord, parse
from agentroute.profile import Profile
from agentroute.shape.sharding import Disaggregated, Sharding, Workers

TABLE = Path(__file__).parents[1] / "data" / "latency_points.csv"
RECORDS = parse(TABLE.read_text(encoding="utf-8"), TABLE)
MADE = make(RECORDS, shipped())

ONE = LatencyRecord(
    deployment="x|cfg1|", model="openai/gpt-oss-120b", gpu="h100_sxm", engine="vllm", version="0.18.0",
    precision="fp4", split=Sharding(tp=2), isl=1_024, osl=128, n=4, ttft_ms=50.123456, tpot_ms=5.0,
    date=dt.date(2026, 3, 1), notes="InferenceX db-dump/2026-04-27; config_id=1; image=vllm/vllm-openai:v0.18.0",
)  # fmt: skip
EXPORT = replace(ONE, deployment="x|export|", notes="InferenceX export 2026-04-06")


def curve(one: LatencyRecord, loads: tuple[int, ...] = (1, 2, 4)) -> list[LatencyRecord]:
    return [replace(one, n=n, ttft_ms=50.0 + n, tpot_ms=5.0 + n / 10) for n in loads]


def unit(one: LatencyRecord, rows: int = 3) -> Unit:
    return Unit("gpt-oss-120b", tuple(curve(one, tuple(range(1, rows + 1)))))


# ---- what ships


def test_the_committed_profiles_are_those_of_the_table() -> None:
    folder = FOLDER / "deployments"
    committed = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.toml")}
    assert committed.keys() == texts(MADE.profiles).keys()
    assert committed == texts(MADE.profiles)


def test_every_deployment_with_three_loads_in_a_curve_ships() -> None:
    curves = defaultdict(set)
    for one in RECORDS:
        if one.n is not None:
            curves[one.deployment, one.isl, one.osl].add(one.n)
    wanted = {deployment for (deployment, _, _), loads in curves.items() if len(loads) >= 3}
    assert len(wanted) == 149
    assert not wanted & EARLIER
    assert MADE.deployments == len(wanted | EARLIER) == 152
    assert MADE.other_deployments == 341 - 152
    assert MADE.unmapped == frozenset()


def test_the_second_run_of_a_deployment_that_contradicts_itself_is_a_profile_of_its_own() -> None:
    assert MADE.contradicting == 10
    assert len(MADE.profiles) == 153
    noted = [one for one in MADE.profiles.values() if "contradicting" in (one.notes or "")]
    first, second = sorted(noted, key=lambda one: -len(one.points))
    assert (len(first.points), len(second.points)) == (24, 10)
    tpot = {point.load: point.mean_tpot_ms() or 0.0 for point in first.points}
    assert all(tpot[point.load] < (point.mean_tpot_ms() or 0.0) for point in second.points)


def test_loads_without_concurrency_are_counted_and_left_out() -> None:
    assert MADE.without_concurrency == sum(one.n is None for one in RECORDS) == 6


def test_twenty_one_deployments_are_disaggregated_with_both_pools() -> None:
    apart = [one.disaggregated for one in MADE.profiles.values() if one.disaggregated]
    assert len(apart) == 21
    assert (
        Disaggregated(
            prefill=Workers(workers=5, sharding=Sharding(attention_dp=8, ep=8)),
            decode=Workers(workers=1, sharding=Sharding(attention_dp=32, ep=32)),
        )
        in apart
    )


def test_every_load_of_a_profile_is_a_row_of_the_table() -> None:
    """To the five digits that a profile keeps."""
    rows = {(one.gpu, one.isl, one.osl, one.n, f"{one.ttft_ms:.5g}", f"{one.tpot_ms:.5g}") for one in RECORDS}
    for made in MADE.profiles.values():
        for point in made.points:
            times = (point.mean_ttft_ms() or 0.0, point.mean_tpot_ms() or 0.0)
            assert (made.accelerator, *point.load, *(f"{time:.5g}" for time in times)) in rows


def test_making_them_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "one.toml").write_text("stale")
    files = texts({"new/two": profile("new/two", unit(ONE))})
    for _ in range(2):
        write(files, tmp_path)
        assert {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.toml")} == files


# ---- names


def test_the_best_documented_keeps_the_plain_name_and_the_others_say_what_they_are() -> None:
    known = unit(EXPORT, rows=9)
    others = [
        unit(replace(EXPORT, deployment="a", version="0.19.0")),
        unit(replace(EXPORT, deployment="b", version=None)),
        unit(replace(EXPORT, deployment="c", precision="bf16")),
        unit(replace(EXPORT, deployment="d", precision=None, version="0.19.0")),
    ]
    base = "gpt-oss-120b/vllm-h100-tp2"
    found = names([*others, known, unit(ONE)])
    assert found[base] == unit(ONE)
    assert found[f"{base}-run2"] == known
    assert {*found} == {
        base, f"{base}-run2", f"{base}-0.19.0", f"{base}-unversioned", f"{base}-bf16", f"{base}-unknown-0.19.0"
    }  # fmt: skip


def test_names_do_not_depend_on_the_order_of_the_table() -> None:
    assert make(RECORDS[::-1], shipped()).profiles.keys() == MADE.profiles.keys()


def test_a_single_disaggregated_deployment_does_not_spell_out_its_pools() -> None:
    small, large = (
        replace(
            ONE,
            deployment=str(workers),
            split=Disaggregated(
                prefill=Workers(workers=workers, sharding=Sharding(tp=4)), decode=Workers(sharding=Sharding(tp=8, ep=8))
            ),
        )
        for workers in (1, 10)
    )
    assert [*names([unit(small)])] == ["gpt-oss-120b/vllm-h100-disagg"]
    assert {*names([unit(small), unit(large)])} == {
        "gpt-oss-120b/vllm-h100-disagg-p1-tp4-d1-tp8-ep8",
        "gpt-oss-120b/vllm-h100-disagg-p10-tp4-d1-tp8-ep8",
    }


# ---- one profile


def test_a_block_says_where_its_loads_are_from() -> None:
    made = profile("mine", Unit("gpt-oss-120b", (ONE,)))
    (block,) = made.measurements
    assert block.provenance.source.endswith("silicon_sample.csv, InferenceX db-dump 2026-04-27, config 1")
    assert (block.provenance.quality, block.provenance.tool) == ("A", "InferenceX")
    assert "Server image vllm/vllm-openai:v0.18.0." in (block.provenance.notes or "")
    assert block.points[0].mean_ttft_ms() == 50.123


@pytest.mark.parametrize(("p50", "kept"), [(5.2, True), (5.8, False)])
def test_a_median_of_another_run_is_left_out(p50: float, kept: bool) -> None:
    made = profile("mine", Unit("gpt-oss-120b", (replace(ONE, tpot_p50_ms=p50),)))
    tpot = made.points[0].tpot_ms
    assert tpot is not None
    assert (tpot.p50 == p50) == kept
    said = made.measurements[0].provenance.notes or ""
    assert ("differs from the mean by up to 16 %" in said) != kept


@pytest.mark.parametrize(
    ("other", "takes"),
    [
        ({}, True),
        ({"n": 2}, False),
        ({"version": "0.19.0"}, False),
        ({"date": dt.date(2026, 3, 2)}, False),
        ({"split": Sharding(tp=4)}, False),
    ],
)
def test_loads_of_the_same_server_and_day_that_are_too_few_for_a_profile_come_along(
    other: dict[str, object], takes: bool
) -> None:
    lone = replace(EXPORT, **({"n": 64} | other))  # type: ignore[arg-type]
    made = profile("mine", unit(ONE), [lone])
    assert len(made.measurements) == 1 + takes
    assert len(made.points) == 3 + takes


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (curve(replace(ONE, version=None)), "Engine version, KV dtype"),
        (curve(replace(ONE, precision=None)), "Weights precision, KV dtype"),
        (curve(ONE), "Measured at 3 loads of one workload only (1,024 tokens in, 128 out)."),
        ([*curve(ONE), *curve(replace(ONE, osl=512))], "Every prompt measured has 1,024 tokens."),
        ([ONE, replace(ONE, isl=8_192)], "Each workload was measured at one load only"),
        (
            [*curve(ONE), replace(ONE, n=8, ttft_ms=900.0)],
            "Between 4 and 8 requests in flight TTFT leaps from 0.1 s to 0.9 s",
        ),
        ([*curve(ONE), replace(ONE, n=8, ttft_ms=20.0)], "The measured TTFT falls in places"),
    ],
)
def test_the_notes_say_what_a_reader_must_know(rows: list[LatencyRecord], said: str) -> None:
    assert said in (profile("mine", Unit("gpt-oss-120b", tuple(rows))).notes or "")


def test_a_model_without_a_file_is_named_and_left_out() -> None:
    made = make([*curve(replace(ONE, model="nobody/knows")), *curve(EXPORT)], shipped())
    assert made.unmapped == {"nobody/knows"}
    assert [*made.profiles] == ["gpt-oss-120b/vllm-h100-tp2"]


def test_a_made_profile_reads_back_equal(tmp_path: Path) -> None:
    for made in (MADE.profiles["deepseek-v3/sglang-h200-disagg"], profile("mine", unit(ONE))):
        path = tmp_path / "one.toml"
        path.write_text(made.to_toml(comment="a comment"))
        assert Profile.load(path) == made
