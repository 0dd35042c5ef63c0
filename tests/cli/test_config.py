"""``agentroute config``: every mistake with its place, and a schema that describes every key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import agentroute
from fleets import CONFIG, broken, line_of, written

KEYS = '\n[[keys]]\nname = "ops"\nenv = "AGENTROUTE_TEST_KEY"\n'


def test_a_good_file_is_said_to_be_good(tmp_path: Path) -> None:
    ran = agentroute("config", "check", str(written(tmp_path, CONFIG)))
    assert (ran.code, ran.err) == (0, "")
    assert "2 deployments, 2 routes, 0 keys: no mistake" in ran.out


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    text = broken(CONFIG, '"openai"', '"opena"').replace('"fit"', '"fitt"') + "deadline = 3\n"
    path = written(tmp_path, text)
    ran = agentroute("config", "check", str(path))
    assert (ran.code, ran.out) == (1, "")
    adapter, key = line_of(text, '"opena"'), line_of(text, "deadline = 3")
    assert (
        f"error: {path}:{adapter}: deployments[1].adapter: there is no adapter 'opena'; did you mean 'openai'?"
        in ran.err
    )
    assert f"error: {path}:{key}: routes.batch.deadline: unknown key; did you mean 'deadline_s'?" in ran.err


def test_what_only_a_router_finds_is_told_too(tmp_path: Path) -> None:
    text = f'{CONFIG}\n[objectives]\nmine = "no_such_module:score"\n'
    ran = agentroute("config", "check", str(written(tmp_path, text)))
    assert ran.code == 1
    assert "objectives.mine: 'no_such_module:score' cannot be imported" in ran.err


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    ran = agentroute("config", "check", str(tmp_path / "gone.toml"))
    assert ran.code == 2
    assert "cannot be read: no such file or directory" in ran.err


def test_what_the_environment_lacks_is_a_note_and_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTROUTE_TEST_KEY", raising=False)
    ran = agentroute("config", "check", str(written(tmp_path, CONFIG + KEYS)))
    assert ran.code == 0
    assert "note: keys[0].env: the environment variable AGENTROUTE_TEST_KEY is not set here" in ran.err
    monkeypatch.setenv("AGENTROUTE_TEST_KEY", "sk-1")
    assert agentroute("config", "check", str(written(tmp_path, CONFIG + KEYS))).err == ""


def test_mistakes_come_as_json(tmp_path: Path) -> None:
    text = broken(CONFIG, '"openai"', '"opena"')
    ran = agentroute("config", "check", str(written(tmp_path, text)), "--json")
    (mistake,) = ran.json["mistakes"]
    assert (mistake["line"], mistake["key"]) == (line_of(text, '"opena"'), "deployments[1].adapter")


def test_the_schema_describes_every_key() -> None:
    schema = json.loads(agentroute("config", "schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert {"deployments", "routes", "keys", "gateway"} <= schema["properties"].keys()
    for definition in (schema, *schema["$defs"].values()):
        for name, value in definition.get("properties", {}).items():
            assert value.get("description"), f"{definition['title']}.{name}"
            assert not name.startswith("_")


def test_the_schema_takes_what_the_loader_takes_and_refuses_unknown_keys() -> None:
    schema = json.loads(agentroute("config", "schema").out)
    for name in ("RouteConfig", "KeyConfig", "GatewayConfig", "DeploymentConfig"):
        assert schema["$defs"][name]["additionalProperties"] is False
    assert schema["required"] == ["deployments"]
