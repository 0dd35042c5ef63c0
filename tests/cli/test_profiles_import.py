"""``agentroute profiles import``."""

from __future__ import annotations

from pathlib import Path

import pytest
from console import agentroute

from agentroute.profile import Profile
from agentroute.shape.sharding import Sharding

DATA = Path(__file__).parents[1] / "data" / "bench"
VLLM, OLDER, PLAIN = (
    DATA / "run" / "vllm.json",
    DATA / "written" / "vllm-older-appended.jsonl",
    DATA / "written" / "plain.csv",
)
FILES = sorted(path for path in DATA.glob("*/*") if path.name != "inference-perf-summary.json")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.name))
def test_every_result_file_becomes_a_profile_that_validates(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    choose = ("--accelerator", "h200_sxm", "--tp", "4") if "agg_bmk" in path.name else ()
    known = any(word in path.name for word in ("trtllm", "llama", "inferencex", "older.", "server-info", "plain"))
    engine = () if known else ("--engine", "vllm")
    ran = agentroute("profiles", "import", str(path), "--output", str(file), *choose, *engine)
    assert (ran.code, ran.out) == (0, ""), ran.err
    assert agentroute("profiles", "validate", str(file)).code == 0
    profile = Profile.load(file)
    assert profile.points and path.name in profile.measurements[0].provenance.source


def test_options_say_what_the_files_do_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    ran = agentroute(
        "profiles", "import", str(OLDER), "--output", str(file), "--name", "mine", "--engine", "vllm",
        "--engine-version", "v0.11.0", "--accelerator", "h100_sxm", "--tp", "4", "--ep", "4",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    profile = Profile.load(file)
    assert (profile.name, profile.model, profile.accelerator) == ("mine", "gpt-oss-120b", "h100_sxm")
    assert (profile.engine.name, profile.engine.version, profile.sharding) == ("vllm", "0.11.0", Sharding(tp=4, ep=4))
    assert [point.load for point in profile.points] == [(922, 929, 8), (922, 929, 16), (922, 929, 32)]
    assert "vllm bench serve, 3 usable runs" in ran.err and "unknown" not in ran.err
    assert file.read_text().startswith("# From 1 result file of vllm bench serve.\n")


def test_what_stays_unknown_is_said_with_the_option_that_says_it() -> None:
    ran = agentroute("profiles", "import", str(VLLM), "--engine", "vllm")
    assert ran.code == 0 and 'accelerator = "h200_sxm"' in ran.out
    assert (
        "unknown: model (not clear from 'stub-model'), give --model; engine version, give --engine-version" in ran.err
    )


def test_an_engine_is_understood_as_in_a_file() -> None:
    ran = agentroute("profiles", "import", str(OLDER), "--engine", "vLLM", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["profile"]["engine"]["name"] == "vllm"


def test_an_engine_that_nobody_names_is_asked_for() -> None:
    ran = agentroute("profiles", "import", str(VLLM))
    assert (ran.code, ran.out) == (2, "")
    assert "the files do not say which engine served; give --engine" in ran.err


def test_a_value_that_was_dropped_is_said_with_its_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    file.write_text(VLLM.read_text().replace('"mean_tpot_ms": ', '"mean_tpot_ms": Infinity, "was": '))
    ran = agentroute("profiles", "import", str(file), "--engine", "vllm", "--json")
    note = "odd.json: mean_tpot_ms is Infinity, not a finite number; it is taken as unknown"
    assert ran.code == 0
    assert f"  note: {note}\n" in ran.err
    assert note in ran.json["notes"]


def test_json_says_what_was_read_noted_and_left_out() -> None:
    inferencex = DATA / "written" / "inferencex-agg_bmk.json"
    answer = agentroute("profiles", "import", str(inferencex), "--accelerator", "h200_sxm", "--tp", "4", "--json").json
    assert answer["command"] == "profiles import"
    assert answer["read"] == [{"file": str(inferencex), "format": "inferencex", "runs": 6, "refused": 2}]
    assert len(answer["profile"]["measurements"][0]["points"]) == 3
    assert any("divided by tp x ep" in line for line in answer["left_out"])
    assert "left out, since they are of other deployments: 3 runs" in answer["notes"]
    assert answer["unknown"] == []


def test_points_are_added_to_a_profile_in_place_and_only_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    assert agentroute("profiles", "import", str(OLDER), "--engine", "vllm", "--output", str(file)).code == 0
    file.write_text("# Mine.\n# Keep this.\n" + file.read_text())
    ran = agentroute("profiles", "import", str(PLAIN), "--into", str(file))
    assert ran.code == 0, ran.err
    assert "the profile did not say its sharding; it is that of the added runs now, tp4 ep4" in ran.err
    profile = Profile.load(file)
    assert len(profile.points) == 6 and profile.sharding == Sharding(tp=4, ep=4)
    assert file.read_text().startswith("# Mine.\n# Keep this.\n")
    again = agentroute("profiles", "import", str(PLAIN), "--into", str(file))
    assert "left out, since the profile has them already: 3 points" in again.err
    assert Profile.load(file) == profile


def test_another_point_of_a_load_that_the_profile_has_is_refused(tmp_path: Path) -> None:
    file, other = tmp_path / "mine.toml", tmp_path / "other.csv"
    assert agentroute("profiles", "import", str(PLAIN), "--output", str(file)).code == 0
    before = file.read_text()
    other.write_text("isl,osl,concurrency,tpot_ms\n1024,256,8,11\n")
    ran = agentroute("profiles", "import", str(other), "--into", str(file))
    assert ran.code == 2 and "the profile has another point of 1024 + 256 tokens at concurrency 8" in ran.err
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("columns", "cells", "says"),
    [
        ("tp", "8", "hold no run of what was asked for; they hold sharding tp8"),
        ("engine", "sglang", "hold no run of what was asked for; they hold engine 'sglang'"),
        ("accelerator", "b200_sxm", "hold no run of what was asked for; they hold accelerator 'b200_sxm'"),
        ("model", "llama-3.1-8b", "hold no run of what was asked for; they hold model 'llama-3.1-8b'"),
    ],
)
def test_runs_of_another_deployment_are_not_added(columns: str, cells: str, says: str, tmp_path: Path) -> None:
    file, other = tmp_path / "mine.toml", tmp_path / "other.csv"
    assert agentroute("profiles", "import", str(PLAIN), "--output", str(file)).code == 0
    other.write_text(f"isl,osl,concurrency,tpot_ms,{columns}\n1024,256,64,19,{cells}\n")
    ran = agentroute("profiles", "import", str(other), "--into", str(file))
    assert ran.code == 2 and says in ran.err


def test_another_engine_version_is_said(tmp_path: Path) -> None:
    file, other = tmp_path / "mine.toml", tmp_path / "other.csv"
    assert agentroute("profiles", "import", str(PLAIN), "--output", str(file)).code == 0
    other.write_text("isl,osl,concurrency,tpot_ms,engine_version\n1024,256,64,19,0.20.1\n")
    ran = agentroute("profiles", "import", str(other), "--into", str(file))
    assert "measured on 0.20.1, but the profile's engine is 0.19.0" in ran.err
    profile = Profile.load(file)
    assert profile.engine.version == "0.19.0" and profile.measured_elsewhere


def test_a_profile_in_json_is_not_overwritten_with_toml(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"format": 1, "name": "mine", "engine": {"name": "vllm"}}')
    before = file.read_text()
    ran = agentroute("profiles", "import", str(PLAIN), "--into", str(file))
    assert ran.code == 2 and "a profile is written as TOML" in ran.err and file.read_text() == before
    assert agentroute("profiles", "import", str(PLAIN), "--into", str(file), "-o", str(tmp_path / "x.toml")).code == 0


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("# mine\n")
    ran = agentroute("profiles", "import", str(PLAIN), "--output", str(file))
    assert ran.code == 2 and "--force" in ran.err and file.read_text() == "# mine\n"
    assert agentroute("profiles", "import", str(PLAIN), "--output", str(file), "--force").code == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--engine", "vlm"), "--engine must be one of vllm"),
        (("--engine-version", "nan"), "--engine-version must be a version"),
        (("--accelerator", "h200"), "there is no accelerator 'h200'; did you mean"),
        (("--model", "no-such-model"), "there is no model 'no-such-model'"),
        (("--tp", "4", "--ep", "3"), "--ep must divide"),
        (("--name", " "), "--name must begin with a letter or digit"),
        (("--into", "none.toml"), "cannot be read"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: tuple[str, ...], says: str) -> None:
    ran = agentroute("profiles", "import", str(OLDER), "--engine", "vllm", *options)
    assert (ran.code, ran.out) == (2, "") and says in ran.err


def test_a_file_that_is_no_result_is_refused_by_its_name(tmp_path: Path) -> None:
    ran = agentroute("profiles", "import", str(DATA / "README.md"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {DATA / 'README.md'}: ") and "known: vllm bench serve" in ran.err
