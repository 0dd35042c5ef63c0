"""``agentroute profiles``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import agentroute

from agentroute.catalogue import shipped

NAME = "llama-3.1-8b/trtllm-h100-tp1"


def test_list_shows_every_shipped_profile() -> None:
    ran = agentroute("profiles", "list")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == shipped().profile_names
    listed = agentroute("profiles", "list", "--json").json["profiles"]
    assert [profile["name"] for profile in listed] == shipped().profile_names


def test_show_says_what_is_known_what_is_not_and_where_it_comes_from() -> None:
    out = agentroute("profiles", "show", NAME).out
    for part in ("trtllm 1.0.0rc3", "1 x h100_sxm", "131,072 tokens (assumed)", "KV pool", "unknown", "measured"):
        assert part in out


def test_show_gives_the_whole_profile_as_json() -> None:
    assert agentroute("profiles", "show", NAME, "--json").json["profile"]["name"] == NAME


def test_show_suggests_the_closest_name() -> None:
    ran = agentroute("profiles", "show", "llama-3.1-8b/trtllm-h100-tp2")
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
