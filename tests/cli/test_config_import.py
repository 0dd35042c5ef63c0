"""``agentroute config import``: what other tools' files say of one's own servers, and nothing that they do not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from console import Ran, agentroute
from fleets import written

from agentroute.config import Config
from agentroute.router import Router
from agentroute.task import Task

LITELLM: dict[str, Any] = {
    "model_list": [
        {
            "model_name": "big",
            "litellm_params": {
                "model": "hosted_vllm/Qwen/Qwen3-32B",
                "api_base": "http://10.0.0.1:8000/v1",
                "api_key": "os.environ/VLLM_KEY",
                "rpm": 60,
            },
        },
        {
            "model_name": "big",
            "litellm_params": {"model": "hosted_vllm/Qwen/Qwen3-32B", "api_base": "http://10.0.0.2:8000/v1"},
            "model_info": {"mode": "chat"},
        },
        {"model_name": "small", "litellm_params": {"model": "openai/tiny", "api_base": "os.environ/TINY_URL"}},
        {"model_name": "gpt", "litellm_params": {"model": "gpt-4o", "api_key": "os.environ/OPENAI_API_KEY"}},
    ],
    "router_settings": {"routing_strategy": "least-busy", "fallbacks": [{"small": ["big"]}, {"gpt": ["big"]}]},
}
AIOS: dict[str, Any] = {
    "api_keys": {"openai": "sk-secret"},
    "llms": {
        "models": [
            {"name": "qwen2.5:7b", "backend": "ollama", "hostname": "http://localhost:11434"},
            {"name": "meta-llama/Llama-3.1-8B-Instruct", "backend": "vllm", "hostname": "http://localhost:8091/v1",
             "max_gen_limit": 5},
            {"name": "gpt-4o-mini", "backend": "openai"},
        ],
        "log_mode": "console",
    },
}  # fmt: skip
COMMANDS = """\
#!/bin/sh
# two servers
CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 \\
    --max-model-len 32768 --port 8001 --host 10.0.0.1
echo started
python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp 2 --port=30001
"""


def imported(folder: Path, data: Any, name: str = "other.json") -> Ran:
    text = data if isinstance(data, str) else json.dumps(data)
    return agentroute("config", "import", str(written(folder, text, name)), "--output", str(folder / "agentroute.toml"))


def test_a_litellm_model_list_becomes_deployments_and_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_URL", "http://10.0.0.3:1")
    ran = imported(tmp_path, LITELLM)
    assert ran.code == 0, ran.err
    config = Config.load(tmp_path / "agentroute.toml")
    said = [(one.name, one.base_url, one.adapter, one.served_model, one.api_key_env) for one in config.deployments]
    assert said == [
        ("big", "http://10.0.0.1:8000/v1", "vllm", "Qwen/Qwen3-32B", "VLLM_KEY"),
        ("big-2", "http://10.0.0.2:8000/v1", "vllm", "Qwen/Qwen3-32B", None),
        ("small", "http://10.0.0.3:1", "openai", "tiny", None),
    ]
    assert {name: (route.allow, route.fallbacks) for name, route in config.routes.items()} == {
        "big": (("big", "big-2"), ()),
        "small": (("small",), ("big",)),
    }
    assert config.fleet().deployments[0].model_name == "qwen3-32b"
    router = config.router(Router)
    assert router.decide(Task(context_tokens=10, max_output_tokens=10, route="small")).deployment == "small"


def test_what_is_not_carried_over_is_said(tmp_path: Path) -> None:
    ran = imported(tmp_path, LITELLM)
    for what in (
        "model_list[0].litellm_params.rpm", "model_list[1].model_info", "model_list[3]: gives no api_base",
        "router_settings.routing_strategy", "the fallback gpt -> big",
    ):  # fmt: skip
        assert f"not carried over: {what}\n" in ran.err
    assert ran.err.count("not carried over") == 5
    assert "a group is a route now: clients ask for the model auto:big, not big\n" in ran.err


def test_without_an_output_it_is_printed_and_nothing_is_written(tmp_path: Path) -> None:
    ran = agentroute("config", "import", str(written(tmp_path, json.dumps(LITELLM), "other.json")))
    assert ran.code == 0
    assert ran.out.startswith("#:schema ./agentroute.schema.json\n")
    assert 'base_url = "${TINY_URL}"' in ran.out
    assert [one.name for one in tmp_path.iterdir()] == ["other.json"]


def test_an_aios_llms_section_becomes_deployments(tmp_path: Path) -> None:
    ran = imported(tmp_path, AIOS)
    assert ran.code == 0, ran.err
    config = Config.load(tmp_path / "agentroute.toml")
    assert [(one.name, one.base_url, one.adapter, one.served_model) for one in config.deployments] == [
        ("qwen2.5-7b", "http://localhost:11434", "openai", "qwen2.5:7b"),
        ("meta-llama-Llama-3.1-8B-Instruct", "http://localhost:8091/v1", "vllm", "meta-llama/Llama-3.1-8B-Instruct"),
    ]
    assert "llms.models[1].max_gen_limit" in ran.err
    assert "not carried over: llms.log_mode\n" in ran.err
    assert "llms.models[2]: 'gpt-4o-mini': the backend 'openai' is no server of your own" in ran.err
    assert "sk-secret" not in ran.err + ran.out + (tmp_path / "agentroute.toml").read_text()


def test_launch_commands_become_deployments_with_what_their_options_say(tmp_path: Path) -> None:
    ran = imported(tmp_path, COMMANDS, "start.sh")
    assert ran.code == 0, ran.err
    config = Config.load(tmp_path / "agentroute.toml")
    assert [(one.name, one.base_url, one.adapter, one.served_model) for one in config.deployments] == [
        ("Qwen3-32B", "http://10.0.0.1:8001", "vllm", "Qwen/Qwen3-32B"),
        ("Llama-3.1-8B-Instruct", "http://127.0.0.1:30001", "sglang", "meta-llama/Llama-3.1-8B-Instruct"),
    ]
    first, second = (one.profile for one in config.fleet().deployments)
    assert first.limits is not None
    assert (first.model, first.limits.max_model_len) == ("qwen3-32b", 32_768)
    assert first.sharding is not None
    assert second.sharding is not None
    assert (first.sharding.tp, second.sharding.tp) == (4, 2)
    assert "line 3" not in ran.err
    assert "line 6: on which machine it runs" in ran.err


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("VLLM_X='a b' vllm serve Qwen/Qwen3-32B --host gpu1", "http://gpu1:8000"),
        ("cd /srv && exec uv run vllm serve Qwen/Qwen3-32B --host gpu1 --port 81 > log.txt 2>&1 &", "http://gpu1:81"),
        ("vllm serve Qwen/Qwen3-32B --host gpu1; echo started", "http://gpu1:8000"),
        ("env A=1 python3 -u -m sglang.launch_server --model-path Qwen/Qwen3-32B --host gpu1", "http://gpu1:30000"),
        ("sglang serve --model-path Qwen/Qwen3-32B --host=gpu1 --port=82", "http://gpu1:82"),
        ("vllm serve Qwen/Qwen3-32B --speculative-config '{\n\"method\": \"x\"\n}' --host gpu1", "http://gpu1:8000"),
        ("vllm serve Qwen/Qwen3-32B --host gpu1 --ssl-certfile c.pem --ssl-keyfile=k.pem", "https://gpu1:8000"),
        ("vllm serve Qwen/Qwen3-32B --host ::1", "http://[::1]:8000"),
        ("docker run -p 81:8000 vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B", "http://127.0.0.1:81"),
        ("docker run -p 127.0.0.1:82:90/tcp lmsysorg/sglang python3 -m sglang.launch_server --model Qwen/Qwen3-32B "
         "--port 90", "http://127.0.0.1:82"),
        ("docker run --network host -p 1:8000 vllm/vllm-openai --model Qwen/Qwen3-32B", "http://127.0.0.1:8000"),
    ],
)  # fmt: skip
def test_a_launch_command_is_found_whatever_it_is_run_by(tmp_path: Path, line: str, url: str) -> None:
    ran = imported(tmp_path, line + "\n", "start.sh")
    assert ran.code == 0, ran.err
    (one,) = Config.load(tmp_path / "agentroute.toml").deployments
    assert (one.name, one.base_url, one.served_model) == ("Qwen3-32B", url, "Qwen/Qwen3-32B")


def test_commands_that_start_nothing_are_no_servers_and_those_that_are_not_read_are_said(tmp_path: Path) -> None:
    lines = [
        "vllm serve Qwen/Qwen3-32B --host gpu1",
        "# vllm serve Qwen/Qwen3-8B",
        "echo vllm serve is up",
        "pkill -f 'vllm serve'",
        'ssh gpu2 "vllm serve Qwen/Qwen3-8B"',
        "vllm serve --config gpu3.yaml",
        "vllm serve $MODEL",
        "docker run vllm/vllm-openai --model Qwen/Qwen3-8B",
    ]
    ran = imported(tmp_path, "\n".join(lines), "start.sh")
    assert ran.code == 0, ran.err
    names = [one.name for one in Config.load(tmp_path / "agentroute.toml").deployments]
    assert names == ["Qwen3-32B", "Qwen3-8B"]
    assert [line.removeprefix("not carried over: ") for line in ran.err.splitlines()] == [
        "line 5: what it starts; the command stands inside of another one's text",
        "line 6: what it serves; the command names no model",
        "line 7: what it starts; $MODEL is set elsewhere, write it out",
        "line 8: on which machine it runs; base_url says this one, 127.0.0.1",
        "line 8: at which port it is reached; the container publishes no port 8000",
    ]


@pytest.mark.parametrize(
    ("line", "variable"),
    [
        ("vllm serve a --api-key $GPU_KEY", "GPU_KEY"),
        ('vllm serve a --api-key="${GPU_KEY}"', "GPU_KEY"),
        ("VLLM_API_KEY=sk-secret vllm serve a", "VLLM_API_KEY"),
        ("docker run --env=VLLM_API_KEY=sk-secret vllm/vllm-openai --model a", "VLLM_API_KEY"),
    ],
)
def test_the_variable_of_a_commands_key_is_carried_over(tmp_path: Path, line: str, variable: str) -> None:
    ran = imported(tmp_path, line, "start.sh")
    assert ran.code == 0, ran.err
    assert Config.load(tmp_path / "agentroute.toml").deployments[0].api_key_env == variable
    assert "sk-secret" not in ran.err + ran.out + (tmp_path / "agentroute.toml").read_text()


def litellm(*entries: tuple[str, str], settings: dict[str, Any] | None = None, **more: str) -> dict[str, Any]:
    models = [
        {"model_name": group, "litellm_params": {"model": model, "api_base": f"http://gpu{i}", **more}}
        for i, (group, model) in enumerate(entries)
    ]
    return {"model_list": models, "router_settings": settings or {}}


def test_fallbacks_that_lead_in_a_circle_are_carried_over_without_the_last(tmp_path: Path) -> None:
    fallbacks = [{"a": ["b"]}, {"b": ["c"]}, {"c": ["a", "b"]}]
    data = litellm(*((name, f"openai/{name}") for name in "abc"), settings={"fallbacks": fallbacks})
    ran = imported(tmp_path, data)
    assert ran.code == 0, ran.err
    routes = Config.load(tmp_path / "agentroute.toml").routes
    assert [routes[name].fallbacks for name in "abc"] == [("b",), ("c",), ()]
    for pair in ("c -> a", "c -> b"):
        assert f"not carried over: the fallback {pair}, which would lead in a circle\n" in ran.err


def test_groups_whose_names_come_to_the_same_stay_two_routes(tmp_path: Path) -> None:
    data = litellm(("a!", "openai/a"), ("a?", "openai/b"), settings={"fallbacks": [{"a!": ["a?"]}]})
    ran = imported(tmp_path, data)
    assert ran.code == 0, ran.err
    routes = Config.load(tmp_path / "agentroute.toml").routes
    assert {name: (one.allow, one.fallbacks) for name, one in routes.items()} == {
        "a-": (("a",), ("a--2",)),
        "a--2": (("a-2",), ()),
    }


@pytest.mark.parametrize("model", ["Qwen/Qwen3-32B", "openai/Qwen/Qwen3-32B"])
def test_a_provider_that_litellm_is_told_apart_is_no_part_of_the_models_name(tmp_path: Path, model: str) -> None:
    assert imported(tmp_path, litellm(("a", model), custom_llm_provider="openai")).code == 0
    assert Config.load(tmp_path / "agentroute.toml").deployments[0].served_model == "Qwen/Qwen3-32B"


def test_a_wildcard_and_a_provider_that_is_none_are_said(tmp_path: Path) -> None:
    data = litellm(("a", "openai/a"), ("*", "openai/*"), ("b", "x/b"))
    data["model_list"][2]["litellm_params"]["custom_llm_provider"] = ["openai"]
    ran = imported(tmp_path, data)
    assert ran.code == 0, ran.err
    assert "model_list[1]: 'openai/*' stands for many models; name each\n" in ran.err
    assert "model_list[2]: 'x/b' is no server of your own" in ran.err


def test_what_a_table_says_of_commands_is_no_command(tmp_path: Path) -> None:
    data = litellm(("a", "openai/a"), description="started with vllm serve Qwen/Qwen3-32B")
    assert imported(tmp_path, data).code == 0
    assert [one.name for one in Config.load(tmp_path / "agentroute.toml").deployments] == ["a"]


def test_files_that_are_there_are_kept(tmp_path: Path) -> None:
    assert imported(tmp_path, LITELLM).code == 0
    again = imported(tmp_path, LITELLM)
    assert again.code == 2
    assert "is there already; give --force" in again.err


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"model_list": [{"litellm_params": {"model": "openai/a", "api_base": "http://a", "api_key": "sk-secret"}}]},
         "model_list[0].api_key: a key stands in the file"),
        ({"llms": [{"name": "a", "base_url": "http://a", "api_key": "sk-secret"}]}, "llms[0].api_key: a key stands"),
        ("vllm serve a --api-key sk-secret\n", "a key stands in the command"),
        ({"llms": [{"name": "a", "hostname": "http://u:sk-secret@a"}]}, "must not hold a password"),
        ("vllm serve 'a --port 1\n", "a quote is not closed"),
        ({"model_list": [{"model_name": "a", "litellm_params": {"model": "gpt-4o"}}]}, "names no server of your own"),
        ("vllm bench serve --model a\n", "holds neither a `model_list` (LiteLLM)"),
        ({"models": []}, "holds neither a `model_list` (LiteLLM)"),
        ({"llms": 3}, "llms: must be a list of models"),
        ("{", "is not valid JSON"),
        ("[1]", "must hold a table at its top"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence_that_shows_no_key(tmp_path: Path, data: Any, message: str) -> None:
    if data == "[1]":
        pytest.importorskip("yaml")
    name = "start.sh" if isinstance(data, str) and data.startswith("vllm") else "other.json"
    ran = imported(tmp_path, data, name if data != "[1]" else "other.yaml")
    assert ran.code == 2
    assert message in ran.err
    assert "sk-secret" not in ran.err
    assert not (tmp_path / "agentroute.toml").exists()


def test_yaml_is_read_safely(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    said = "# see *this*, &that\n" + yaml.safe_dump(LITELLM | {"note": "a *text* & more"})
    assert imported(tmp_path, said, "other.yaml").code == 0
    for bad, message in (
        ("llms: &a [x]\nb: *a\n", "anchors or aliases"),
        ("llms: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
        ("llms: [\n", "is not valid YAML"),
    ):
        ran = imported(tmp_path, bad, "bad.yaml")
        assert ran.code == 2
        assert message in ran.err


def test_yaml_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    ran = imported(tmp_path, "llms: []\n", "other.yaml")
    assert ran.code == 2
    assert "pip install 'agentroute[yaml]'" in ran.err
