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
    assert imported(tmp_path, yaml.safe_dump(LITELLM), "other.yaml").code == 0
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
