"""``agentroute profiles``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from console import agentroute

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
        (["--gpu", "b200"], lambda p: p.accelerator == "b200_sxm"),
        (["--engine", "sglang"], lambda p: p.engine.name == "sglang"),
        (["--sharding", "disagg"], lambda p: p.disaggregated is not None),
        (["--sharding", "tp1"], lambda p: re.search(r"\btp1\b", p.split or "")),
        (["--sharding", "tp8 ep8"], lambda p: "tp8 ep8" in (p.split or "")),
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
    assert agentroute("profiles", "list", "--sharding", "tp3", "--json").json["profiles"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "qwen3-32"], "there is no model 'qwen3-32'; did you mean 'qwen3-32b'?"),
        (["--gpu", "h100_sxn"], "there is no accelerator 'h100_sxn'; did you mean 'h100_sxm'?"),
        (["--engine", "vlm"], "there is no engine 'vlm'; did you mean 'vllm'?"),
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


@pytest.mark.parametrize("key", ["engine", "sharding", "measurements", "limits", "price"])
def test_the_schema_describes_every_key(key: str) -> None:
    schema = json.loads(agentroute("profiles", "schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["properties"][key]["description"]
    for definition in schema["$defs"].values():
        for name, value in definition.get("properties", {}).items():
            assert value.get("description"), f"{definition['title']}.{name}"
