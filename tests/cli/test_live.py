"""``init``, ``run`` and ``demo`` against real llama.cpp servers."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from console import agentroute

from agentroute.config import Config
from agentroute.demo.embedded import EmbeddedServer
from agentroute.profile import Profile


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_what_the_server_says_and_run_uses_it_at_once(here: Path, llama_one: EmbeddedServer) -> None:
    ran = agentroute("init", llama_one.url)
    assert ran.code == 0, ran.err
    profile = Profile.load(here / "profiles" / "smollm2-135m.toml")
    assert profile.limits and profile.limits.max_model_len == 2048 and profile.limits.max_num_seqs == 1
    assert profile.limits.provenance.origin == "reported"
    assert profile.pool and profile.pool.tokens == 2048
    assert (profile.accelerator, profile.sharding, profile.points) == (None, None, ())

    ran = agentroute("run", "Say hello.", "--output", "8")
    assert ran.code == 0, ran.err
    assert ran.out.strip()
    assert "smollm2-135m" in ran.err and "no prediction" in ran.err

    answer = agentroute("run", "-", "--output", "8", "--json", stdin="Say hello.").json
    assert answer["text"] and answer["usage"]["completion_tokens"] <= 8
    assert answer["predicted"] == {"ttft_ms": None, "e2e_ms": None}


def test_init_leaves_unknown_what_the_server_does_not_say(here: Path, llama_split: EmbeddedServer) -> None:
    ran = agentroute("init", llama_split.url)
    assert ran.code == 0, ran.err
    assert "the KV pool is unknown" in ran.err
    assert Profile.load(here / "profiles" / "smollm2-135m.toml").pool is None


def test_init_takes_by_option_what_only_the_user_knows(here: Path, llama_split: EmbeddedServer) -> None:
    options = ("--accelerator", "h100_sxm", "--tp", "2", "--accelerator-count", "2", "--kv-tokens", "2048")
    ran = agentroute("init", llama_split.url, llama_split.url, *options)
    assert ran.code == 0, ran.err
    config = Config.load(here / "agentroute.toml")
    assert [deployment.name for deployment in config.deployments] == ["smollm2-135m", "smollm2-135m-2"]
    profile = Profile.load(here / "profiles" / "smollm2-135m-2.toml")
    assert (profile.accelerator, profile.accelerators, profile.split) == ("h100_sxm", 2, "tp2")
    assert profile.pool and (profile.pool.blocks, profile.pool.block_tokens) == (4, 512)


def test_init_does_not_write_over_a_configuration(here: Path, llama_one: EmbeddedServer) -> None:
    (here / "agentroute.toml").write_text("# mine\n")
    ran = agentroute("init", llama_one.url)
    assert ran.code == 2
    assert "--force" in ran.err
    assert (here / "agentroute.toml").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("localhost:8080", 2, "must be an address such as http://127.0.0.1:8080"),
        ("http://user:secret@127.0.0.1:1", 2, "must not hold a password"),
        ("http://127.0.0.1:1", 1, "unavailable"),
    ],
)
def test_init_says_what_is_wrong_with_an_address(here: Path, url: str, code: int, says: str) -> None:
    ran = agentroute("init", url)
    assert ran.code == code
    assert says in ran.err and "secret" not in ran.err
    assert not (here / "agentroute.toml").exists()


def test_init_refuses_a_split_that_does_not_divide(here: Path, llama_one: EmbeddedServer) -> None:
    ran = agentroute("init", llama_one.url, "--tp", "2", "--ep", "3")
    assert ran.code == 2
    assert "ep must divide" in ran.err


def test_run_without_a_configuration_says_how_to_get_one(here: Path) -> None:
    ran = agentroute("run", "hello")
    assert ran.code == 2
    assert "agentroute init" in ran.err


def test_run_refuses_an_empty_prompt(here: Path) -> None:
    assert agentroute("run", "  ").code == 2


def _answers(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.alone
def test_the_demo_routes_three_tasks_to_two_servers_and_stops_them(here: Path) -> None:
    ran = agentroute("demo", "--folder", "shown", "--json")
    assert ran.code == 0, ran.err
    document, fan_out, interactive = ran.json["tasks"]
    assert document["decision"]["winner"] == "one-long"
    assert "window of 512" in document["decision"]["rejected"]["four-short"]
    assert fan_out["decision"]["winner"] == "four-short"
    assert len(fan_out["replies"]) == 8 and all(reply["text"] for reply in fan_out["replies"])
    assert interactive["decision"]["winner"] == "four-short"
    for task in (document, interactive):
        assert task["replies"][0]["seen"]["ttft_s"] > 0
        assert task["decision"]["candidates"][0]["ttft_ms"]["source"] == "measured"
    for name in ("one-long", "four-short"):
        assert Profile.load(here / "shown" / "profiles" / f"{name}.toml").points
    urls = re.findall(r"at (http://\S+)", ran.err)
    assert len(urls) == 2 and not any(_answers(url) for url in urls)


def test_ctrl_c_stops_the_demo_and_its_servers(here: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "agentroute.cli", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert demo.stderr is not None
    urls: list[str] = []
    for line in demo.stderr:
        urls += re.findall(r"at (http://\S+)", line)
        if "  measuring" in line:
            break
    assert len(urls) == 1 and _answers(urls[0])
    time.sleep(0.3)
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=20)
    assert demo.returncode not in (0, None)
    assert not _answers(urls[0])
