"""``agentroute profiles``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from console import agentroute
from fleets import grid
from fleets import profile as fleet_profile

from agentroute.catalogue import shipped
from agentroute.profile import Profile

NAME = "llama-3.1-8b/trtllm-h100-tp1"


def test_list_shows_every_shipped_profile() -> None:
    ran = agentroute("profiles", "list")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == shipped().profile_names
    listed = agentroute("profiles", "list", "--json").json["profiles"]
    assert [profile["name"] for profile in listed] == shipped().profile_names


@pytest.mark.parametrize(
    ("options", "holds"),
    [
        (["--model", "qwen3-32b"], lambda p: p.model == "qwen3-32b"),
        (["--model", "deepseek-ai/DeepSeek-R1"], lambda p: p.model == "deepseek-v3"),
        (["--gpu", "h100_sxm"], lambda p: p.accelerator == "h100_sxm"),
        (["--gpu", "B200", "--engine", "vLLM"], lambda p: (p.accelerator, p.engine.name) == ("b200_sxm", "vllm")),
        (["--gpu", "b200"], lambda p: p.accelerator == "b200_sxm"),
        (["--engine", "sglang"], lambda p: p.engine.name == "sglang"),
        (["--sharding", "disagg"], lambda p: p.disaggregated is not None),
        (["--sharding", "tp1"], lambda p: re.search(r"\btp1\b", p.split or "")),
        *(
            (["--sharding", said], lambda p: re.search(r"\btp8 ep8\b", p.split or ""))
            for said in ("tp8 ep8", "tp8,ep8", "ep8, tp8", "EP=8 TP8", "tp = 8,ep=8", "tp8 tp8 ep8")
        ),
        (["--sharding", "pp1,tp4"], lambda p: re.search(r"\btp4\b(?! pp)", p.split or "")),
        (["--sharding", "dp8"], lambda p: re.search(r"\badp8\b", p.split or "")),
        (["--sharding", "disagg tp8"], lambda p: p.disaggregated and re.search(r"\btp8\b", p.split or "")),
        (["--sharding", "d 1x(tp8)"], lambda p: (p.split or "").endswith("D 1x(tp8)")),
        (["--sharding", "P 1x(tp8)  D 1x(tp8)"], lambda p: p.split == "P 1x(tp8) D 1x(tp8)"),
        (
            ["--model", "gpt-oss-120b", "--gpu", "h200", "--engine", "vllm", "--sharding", "tp4"],
            lambda p: p.name == "gpt-oss-120b/vllm-h200-tp4",
        ),
    ],
)
def test_list_can_be_narrowed(options: list[str], holds: Callable[[Profile], object]) -> None:
    wanted = [name for name in shipped().profile_names if holds(shipped().profile(name))]
    assert 0 < len(wanted) < len(shipped().profile_names)
    listed = agentroute("profiles", "list", *options, "--json").json["profiles"]
    assert [profile["name"] for profile in listed] == wanted
    out = agentroute("profiles", "list", *options).out
    assert [line.split()[0] for line in out.splitlines()[1:]] == wanted


def test_list_says_that_nothing_matches() -> None:
    ran = agentroute("profiles", "list", "--gpu", "gb200", "--engine", "vllm", "--sharding", "tp3")
    assert (ran.code, ran.out) == (0, "")
    total = len(shipped().profile_names)
    assert ran.err == f"no shipped profile is on gb200, under vllm, split as 'tp3'; there are {total} in all\n"


def test_json_of_nothing_has_the_shape_of_json_of_something_and_the_code_of_the_text() -> None:
    nothing, something = (agentroute("profiles", "list", "--sharding", tp, "--json") for tp in ("tp3", "tp8"))
    assert nothing.json == {**something.json, "profiles": []}
    assert {type(value) for value in nothing.json.values()} == {type(value) for value in something.json.values()}
    assert nothing.code == agentroute("profiles", "list", "--sharding", "tp3").code == something.code == 0
    assert "no shipped profile is split as 'tp3'" in nothing.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "qwen3-32"], "there is no model 'qwen3-32'; did you mean 'qwen3-32b'?"),
        (["--gpu", "h100_sxn"], "there is no accelerator 'h100_sxn'; did you mean 'h100_sxm'?"),
        (["--gpu", ""], "there is no accelerator ''"),
        (["--model", ""], "there is no model ''"),
        (["--engine", ""], "there is no engine ''"),
        (["--engine", "vlm"], "there is no engine 'vlm'; did you mean 'vllm'?"),
        (["--sharding", "tp8,zz8"], "there is no style of sharding 'zz'; known: adp,"),
        (["--sharding", "tp8 or ep8"], "--sharding must be degrees of one worker group such as tp8 or 'tp8 ep8'"),
        (["--sharding", "tp8 tp4"], "--sharding must be degrees of one worker group"),
        (["--sharding", "tp"], "--sharding must be degrees of one worker group"),
        (["--sharding", "tp0"], "--sharding must be degrees of one worker group"),
        (["--sharding", ""], "--sharding must be degrees of one worker group"),
        (["--sharding", "D 1x(tp8 ep3)"], "--sharding holds degrees that do not fit each other"),
    ],
)
def test_list_suggests_the_closest_name(options: list[str], said: str) -> None:
    ran = agentroute("profiles", "list", *options)
    assert ran.code == 2
    assert said in ran.err


def test_show_says_what_is_known_what_is_not_and_where_it_comes_from() -> None:
    out = agentroute("profiles", "show", NAME).out
    for part in ("trtllm 1.0.0rc3", "1 x h100_sxm", "131,072 tokens (assumed)", "KV pool", "unknown", "measured"):
        assert part in out


def test_show_gives_the_whole_profile_as_json() -> None:
    assert agentroute("profiles", "show", NAME, "--json").json["profile"]["name"] == NAME


def test_show_suggests_the_closest_name() -> None:
    ran = agentroute("profiles", "show", "llama-3.1-8b/trtllm-h100-tp3")
    assert ran.code == 2
    assert "did you mean" in ran.err


def test_validate_accepts_what_ships_and_names_what_is_wrong(tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text('format = 1\nname = "mine"\n\n[engine]\nname = "vllm"\n')
    bad = tmp_path / "bad.toml"
    bad.write_text('format = 1\nname = "mine"\n\n[engine]\nname = "vllm"\nversoin = "0.1"\n')
    lost = tmp_path / "lost.toml"
    lost.write_text('format = 1\nname = "mine"\nmodel = "llama-9"\n\n[engine]\nname = "vllm"\n')
    ran = agentroute("profiles", "validate", str(good), str(bad), str(lost))
    assert ran.code == 2
    assert ran.out == f"{good}: ok (mine)\n"
    assert f"error: {bad}:6: engine.versoin: unknown key; did you mean 'version'?" in ran.err
    assert f"error: {lost}:3: model: there is no model 'llama-9'" in ran.err
    verdicts = agentroute("profiles", "validate", str(good), str(bad), "--json").json["files"]
    assert [verdict["ok"] for verdict in verdicts] == [True, False]


def test_show_tells_a_measured_load_from_one_between_points_and_one_beyond_them(tmp_path: Path) -> None:
    at = tmp_path / "at.toml"
    kept = fleet_profile("at", points=grid(isl=(128, 8_000, 16_000), osl=(1_024,)), window=200_000)
    kept.save(at)
    out = agentroute("profiles", "show", str(at)).out
    assert "(measured)" in out and "(extrapolated)" in out and "between points" not in out
    between = tmp_path / "between.toml"
    fleet_profile("between", points=grid(isl=(128, 16_000), osl=(1_024,)), window=200_000).save(between)
    assert "(measured, between points)" in agentroute("profiles", "show", str(between)).out
    offer = agentroute("profiles", "show", str(between), "--json").json["outlook"][0]["ttft_alone_ms"]
    assert (offer["source"], offer["interpolated"], offer["extrapolated"]) == ("measured", True, False)


@pytest.mark.parametrize("key", ["engine", "sharding", "measurements", "limits", "price"])
def test_the_schema_describes_every_key(key: str) -> None:
    schema = json.loads(agentroute("profiles", "schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["properties"][key]["description"]
    for definition in schema["$defs"].values():
        for name, value in definition.get("properties", {}).items():
            assert value.get("description"), f"{definition['title']}.{name}"
