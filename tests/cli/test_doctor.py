"""``agentroute doctor`` against real llama.cpp servers, and against what is no server."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
import readme
from console import agentroute
from fleets import broken, written
from servers import Asked, Server, answers, free_port

from agentroute.cli import doctor
from agentroute.demo.embedded import EmbeddedServer


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(file: Path, good: str, bad: str) -> None:
    file.write_text(broken(file.read_text(), good, bad))


def config(folder: Path, *urls: str, more: str = "") -> Path:
    """Deployments of a shipped profile, named d0, d1, ..."""
    text = "".join(
        f'[[deployments]]\nname = "d{i}"\nprofile = "qwen3-32b/vllm-h100-tp4"\nbase_url = "{url}"\n{more}\n'
        for i, url in enumerate(urls)
    )
    return written(folder, text, "agentroute.toml")


# ---- real servers


@pytest.mark.alone  # a server that is asked for long is told of
def test_what_init_wrote_agrees_with_the_servers(
    here: Path, llama_one: EmbeddedServer, llama_split: EmbeddedServer
) -> None:
    assert agentroute("init", llama_one.url, llama_split.url).code == 0
    ran = agentroute("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("nothing found\n") == 3
    assert f"{llama_one.url}: llamacpp over the llamacpp wire, model smollm2-135m\n" in ran.out
    assert ran.out.endswith("2 deployments: nothing found\n")


@pytest.mark.alone  # as above
def test_the_readme_shows_what_is_found(here: Path, llama_one: EmbeddedServer, llama_split: EmbeddedServer) -> None:
    """But for the ports."""
    gone = f"http://127.0.0.1:{free_port()}"
    assert agentroute("init", llama_one.url, llama_split.url).code == 0
    change(here / "profiles" / "smollm2-135m-2.toml", "max_model_len = 512", "max_model_len = 2048")
    change(here / "agentroute.toml", 'name = "smollm2-135m"', 'name = "long"')
    change(here / "agentroute.toml", 'name = "smollm2-135m-2"', 'name = "short"')
    more = f'[[deployments]]\nname = "batch"\nprofile = "profiles/smollm2-135m-2.toml"\nbase_url = "{gone}"\n'
    with (here / "agentroute.toml").open("a") as file:
        file.write(more)
    said = agentroute("doctor").out
    for at, url in enumerate((llama_one.url, llama_split.url, gone), start=8_081):
        said = said.replace(url, f"http://127.0.0.1:{at}")
    assert said.splitlines() == readme.OUTPUTS["doctor"]


def test_limits_that_disagree_are_told_with_both_numbers(here: Path, llama_one: EmbeddedServer) -> None:
    assert agentroute("init", llama_one.url).code == 0
    profile = here / "profiles" / "smollm2-135m.toml"
    change(profile, "max_model_len = 2048", "max_model_len = 4096")
    change(profile, "max_num_seqs = 1", "max_num_seqs = 4")
    change(profile, "\ntokens = 2048", "\ntokens = 8192")
    change(profile, "tools = false\nparallel_tools = false", "tools = true\nparallel_tools = false")
    ran = agentroute("doctor", "--json")
    assert ran.code == 1
    assert (ran.json["schema_version"], ran.json["command"]) == (1, "doctor")
    assert ran.json["counts"] == {"wrong": 4, "warning": 0, "note": 0}
    (told,) = ran.json["deployments"]
    assert told["endpoints"] == [
        {
            "url": llama_one.url,
            "asked": True,
            "answers": True,
            "engine": "llamacpp",
            "engine_version": None,
            "models": ["smollm2-135m"],
        }
    ]
    assert {one["kind"]: one["numbers"] for one in told["findings"]} == {
        "window": {"profile": 4_096, "server": 2_048},
        "slots": {"profile": 4, "server": 1},
        "kv_pool": {"profile": 8_192, "server": 2_048},
        "capability": {},
    }
    out = agentroute("doctor").out
    assert "  wrong    window: the profile says a window of 4,096 tokens, the server 2,048: longer" in out
    assert out.endswith("1 deployment: 4 wrong\n")


def test_warnings_alone_do_not_fail(here: Path, llama_one: EmbeddedServer) -> None:
    assert agentroute("init", llama_one.url).code == 0
    change(here / "profiles" / "smollm2-135m.toml", "max_model_len = 2048", "max_model_len = 1024")
    ran = agentroute("doctor")
    assert ran.code == 0
    assert "  warning  window: " in ran.out


def test_another_engine_and_another_adapter_are_told(here: Path, llama_one: EmbeddedServer) -> None:
    config(here, llama_one.url)
    (told,) = agentroute("doctor", "--json").json["deployments"]
    assert [one["kind"] for one in told["findings"]] == ["engine"]
    assert "of vllm, the server is llamacpp" in told["findings"][0]["text"]


def test_two_names_for_one_server_without_a_shared_pool_are_told_offline_too(
    here: Path, llama_one: EmbeddedServer
) -> None:
    assert agentroute("init", llama_one.url, llama_one.url).code == 0
    for options in ((), ("--offline",)):
        ran = agentroute("doctor", *options)
        assert ran.code == 1
        assert f"{llama_one.url} is the address of smollm2-135m, too" in ran.out


# ---- what is no server


def test_a_server_that_is_down_is_a_finding(here: Path, llama_one: EmbeddedServer) -> None:
    assert agentroute("init", llama_one.url).code == 0
    down = f"http://127.0.0.1:{free_port()}"
    file = here / "agentroute.toml"
    file.write_text(file.read_text() + config(here / "profiles", down).read_text())
    ran = agentroute("doctor", "--json")
    assert ran.code == 1
    up, gone = ran.json["deployments"]
    assert up["findings"] == []
    assert [one["kind"] for one in gone["findings"]] == ["unreachable"]
    assert down in gone["findings"][0]["text"] and "cannot be reached" in gone["findings"][0]["text"]
    assert not gone["endpoints"][0]["answers"]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [(401, '{"error": {"message": "who are you?"}}', "auth"), (200, "<html>", "not JSON"), (500, "", "HTTP 500")],
)
def test_an_answer_that_is_none_is_a_finding(here: Path, status: int, body: str, says: str) -> None:
    with Server(answers(body, status=status)) as server:
        config(here, server.url)
        ran = agentroute("doctor")
    assert ran.code == 1
    assert "  wrong    unreachable: cannot be asked: " in ran.out and says in ran.out


def test_a_key_that_is_not_set_is_a_finding(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCTORS_KEY", raising=False)
    config(here, "http://127.0.0.1:1", more='api_key_env = "DOCTORS_KEY"')
    ran = agentroute("doctor")
    assert ran.code == 1
    assert "the environment variable DOCTORS_KEY is not set" in ran.out


def test_a_server_that_says_no_more_than_its_window_is_compared_by_that(here: Path) -> None:
    listed = {"data": [{"id": "m", "max_model_len": 8_192}]}
    with Server(answers(json.dumps(listed))) as server:
        config(here, server.url)
        (told,) = agentroute("doctor", "--json").json["deployments"]
    assert [(one["kind"], one["numbers"]["server"]) for one in told["findings"]] == [("window", 8_192)]


VLLM = {
    "/v1/models": '{"data": [{"id": "m"}]}',
    "/version": '{"version": "0.99.0"}',
    "/metrics": "vllm:num_requests_running 64\nvllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.97\n",
}


def test_a_server_that_hides_its_engine_is_asked_by_the_adapter_of_the_configuration_and_what_it_does(
    here: Path,
) -> None:
    def behave(connection: socket.socket, asked: Asked) -> None:
        text = VLLM.get(asked.target)
        answers(text or "", status=200 if text else 404)(connection, asked)

    with Server(behave) as server:
        config(here, server.url, more='adapter = "vllm"')
        (told,) = agentroute("doctor", "--json").json["deployments"]
    assert told["endpoints"][0]["engine_version"] == "0.99.0"
    assert [(one["kind"], one["severity"]) for one in told["findings"]] == [("version", "warning"), ("thrash", "note")]
    assert told["findings"][1]["numbers"] == {"kv_used": 0.97, "waiting": 3}


def test_offline_asks_nobody(here: Path) -> None:
    with Server(answers("{}")) as server:
        config(here, server.url)
        ran = agentroute("doctor", "--offline", "--json")
        assert server.asked == []
    assert ran.code == 0
    assert ran.json["deployments"][0]["endpoints"][0]["asked"] is False


def test_one_address_with_one_key_is_asked_once(here: Path) -> None:
    asked = []
    for times in (1, 3):
        with Server(answers('{"data": [{"id": "m"}]}')) as server:
            config(here, *[server.url] * times)
            agentroute("doctor")
            asked.append(sorted(one.target for one in server.asked))
    assert asked[0] == asked[1]
    assert "/metrics" in asked[0]


def test_whoever_takes_long_is_named_on_stderr(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROGRESS_S", 0.1)
    answer = answers('{"data": [{"id": "m"}]}')

    def slowly(connection: socket.socket, asked: Asked) -> None:
        time.sleep(0.3)
        answer(connection, asked)

    with Server(slowly) as server:
        config(here, server.url)
        ran = agentroute("doctor")
        assert f"waiting for 1 of 1 server ({server.url})" in ran.err


def test_without_a_configuration_it_says_how_to_get_one(here: Path) -> None:
    ran = agentroute("doctor")
    assert ran.code == 2
    assert "there is no agentroute.toml; write one with: agentroute init" in ran.err


def test_help_says_who_knows_of_drift() -> None:
    assert "router.doctor()" in agentroute("doctor", "--help").out
