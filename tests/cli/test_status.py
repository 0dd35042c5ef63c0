"""``agentroute status`` against real llama.cpp servers, and against what a vLLM server would show."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import readme
from console import agentroute
from fleets import written
from servers import Asked, Behaviour, Server, answers, free_port

from agentroute.catalogue import shipped
from agentroute.cli.status_table import COLUMNS
from agentroute.demo.embedded import EmbeddedServer
from agentroute.profile import Engine

ROOT = Path(__file__).parents[2]

VLLM = {
    "/v1/models": '{"data": [{"id": "Qwen/Qwen3-32B", "owned_by": "vllm", "max_model_len": 32768}]}',
    "/version": '{"version": "0.32.0"}',
    "/health": "",
    "/metrics": (
        "process_start_time_seconds 1.79596062515e+09\n"
        "vllm:num_requests_running 12\nvllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.4\n"
        "vllm:time_to_first_token_seconds_sum 9.0\nvllm:time_to_first_token_seconds_count 20\n"
        "vllm:request_prompt_tokens_sum 40000\nvllm:request_prompt_tokens_count 20\n"
        "vllm:request_generation_tokens_sum 6000\nvllm:request_generation_tokens_count 20\n"
    ),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def routes(table: dict[str, str], status: int = 200) -> Behaviour:
    """Answers by path; 404 to all else."""

    def behave(connection: object, asked: Asked) -> None:
        known = asked.target in table
        answers(table.get(asked.target, ""), status=status if known else 404)(connection, asked)  # type: ignore[arg-type]

    return behave


def config(folder: Path, *urls: str) -> Path:
    """One deployment of a shipped profile, with these endpoints."""
    text = f'[[deployments]]\nname = "d"\nprofile = "qwen3-32b/vllm-h100-tp4"\nurls = {json.dumps(urls)}\n'
    return written(folder, text + 'adapter = "vllm"\n', "agentroute.toml")


# ---- real servers


def test_real_servers_are_up_and_idle(here: Path, llama_split: EmbeddedServer, llama_unified: EmbeddedServer) -> None:
    assert agentroute("init", llama_split.url, llama_unified.url).code == 0
    ran = agentroute("status")
    assert ran.code == 0
    assert ran.err.startswith("asking 2 endpoints of agentroute.toml\n")
    heading, split, unified, last = ran.out.splitlines()
    assert " ".join(heading.split()) == " ".join(COLUMNS)
    row = [llama_split.url, "up", "llamacpp", "smollm2-135m", "0/0", "unknown", "closed", "unknown", "unknown"]
    assert split.split() == ["smollm2-135m", *row]
    assert unified.split()[:3] == ["smollm2-135m-2", llama_unified.url, "up"]
    assert last == "2 of 2 up"


def test_a_server_that_is_down_fails_and_its_twin_is_shown(here: Path, llama_one: EmbeddedServer) -> None:
    assert agentroute("init", llama_one.url).code == 0
    gone, file = f"http://127.0.0.1:{free_port()}", here / "agentroute.toml"
    change = file.read_text().replace(f'base_url = "{llama_one.url}"', f'urls = ["{gone}", "{llama_one.url}"]')
    file.write_text(change)
    ran = agentroute("status", "--json")
    assert ran.code == 1
    assert (ran.json["schema_version"], ran.json["command"], ran.json["up"]) == (1, "status", 1)
    down, up = ran.json["endpoints"]
    assert (down["url"], down["state"], down["trouble"], down["breaker"]) == (gone, "down", "unreachable", "open")
    assert [one["kind"] for one in down["findings"]] == ["unreachable"]
    assert (up["state"], up["running"], up["waiting"], up["kv_used"], up["findings"]) == ("up", 0, 0, None, [])
    assert "1 of 2 up\n" in agentroute("status").out


# ---- a server that shows more


def test_what_is_predicted_stands_beside_what_was_seen(here: Path) -> None:
    with Server(routes(VLLM)) as server:
        config(here, server.url)
        ran = agentroute("status", "--json")
        table = agentroute("status").out
    (one,) = ran.json["endpoints"]
    assert (ran.code, one["state"], one["engine"], one["engine_version"]) == (0, "up", "vllm", "0.32.0")
    assert (one["running"], one["waiting"], one["kv_used"]) == (12, 3, 0.4)
    assert (one["ttft_seen_ms"], one["ttft_seen_over_s"]) == (450.0, None)
    assert one["ttft_predicted_of"] == {"context_tokens": 2_000, "output_tokens": 300}
    assert one["ttft_predicted_ms"]["mean"] > 0
    row = table.splitlines()[1]
    assert "  ".join(row.split()[6:10]) == "12/3  ████░░░░░░  40%  closed"
    assert row.endswith("  450 ms")


def test_the_readme_shows_what_is_shown(here: Path) -> None:
    """Of a server that agrees with its profile; but for its address, which makes a column wider."""
    profile = shipped().profile("qwen3-32b/vllm-h100-tp4")
    profile.model_copy(update={"engine": Engine(name="vllm", version="0.32.0")}).save(here / "long.toml")
    models = VLLM["/v1/models"].replace("32768", "40960")
    with Server(routes({**VLLM, "/v1/models": models})) as server:
        text = f'[[deployments]]\nname = "long"\nprofile = "long.toml"\nbase_url = "{server.url}"\nadapter = "vllm"\n'
        written(here, text, "agentroute.toml")
        shown = agentroute("status").out.replace(server.url, "http://gpu1:8000")
    assert [line.split() for line in shown.splitlines()] == [line.split() for line in readme.OUTPUTS["status"]]


def test_where_the_server_disagrees_with_its_profile_is_told(here: Path) -> None:
    with Server(routes(VLLM | {"/v1/models": VLLM["/v1/models"].replace("32768", "1024")})) as server:
        config(here, server.url)
        ran = agentroute("status")
    assert ran.code == 0
    assert "  d: wrong: window: the profile says no window and the model 40,960 tokens, the server 1,024" in ran.out


def test_the_size_that_is_predicted_for_can_be_given_where_the_server_counts_none(here: Path) -> None:
    with Server(routes(VLLM | {"/metrics": "vllm:num_requests_running 0\n"})) as server:
        config(here, server.url)
        small, large = (
            agentroute("status", "--json", "--context", context, "--output", "9").json["endpoints"][0]
            for context in ("500", "8000")
        )
    assert small["ttft_predicted_of"] == {"context_tokens": 500, "output_tokens": 9}
    assert large["ttft_predicted_ms"]["mean"] > small["ttft_predicted_ms"]["mean"]


@pytest.mark.parametrize(
    ("table", "status", "state", "kind"),
    [
        ({"/metrics": "", "/health": ""}, 503, "silent", None),
        (VLLM | {"/metrics": "vllm:num_requests_running 6\n"}, 200, "up", None),
        ({name: body for name, body in VLLM.items() if name != "/metrics"}, 200, "up", "load_hidden"),
    ],
)
def test_a_server_that_answers_badly_or_hides_is_told(
    here: Path, table: dict[str, str], status: int, state: str, kind: str | None
) -> None:
    with Server(routes(table, status)) as server:
        config(here, server.url)
        ran = agentroute("status", "--json")
    (one,) = ran.json["endpoints"]
    assert one["state"] == state
    assert ran.code == (0 if state == "up" else 1)
    assert (kind in [finding["kind"] for finding in one["findings"]]) is (kind is not None)


def test_an_engine_that_died_is_told_though_its_front_answers(here: Path) -> None:
    def behave(connection: object, asked: Asked) -> None:
        dead = asked.target == "/health"
        answers(VLLM.get(asked.target, ""), status=503 if dead else 200)(connection, asked)  # type: ignore[arg-type]

    with Server(behave) as server:
        config(here, server.url)
        ran = agentroute("status")
    assert ran.code == 1
    assert " dead   vllm 0.32.0 " in ran.out
    assert "  d: wrong: engine dead: its HTTP front answers, but it cannot serve: /health answers 503" in ran.out


# ---- what is no question


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--interval", "soon"), "--interval must be a duration"),
        (("--interval", "1ms"), "--interval must be at least 100ms"),
        (("--context", "0"), "--context"),
        (("--config", "none.toml"), "there is no none.toml"),
    ],
)
def test_a_wrong_option_is_a_usage_error(here: Path, options: tuple[str, ...], says: str) -> None:
    config(here, "http://127.0.0.1:1")
    ran = agentroute("status", *options)
    assert ran.code == 2
    assert says in ran.err


# ---- live


def watching(folder: Path, *options: str, tty: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "agentroute.cli", "status", "--watch", "--interval", "200ms", *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"}
    out = subprocess.PIPE if tty is None else tty
    return subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.PIPE, text=True)


def test_watching_prints_one_block_after_the_other_until_it_is_interrupted(here: Path) -> None:
    with Server(routes(VLLM)) as server:
        config(here, server.url)
        with watching(here) as process:
            assert process.stdout is not None
            seen: list[str] = []
            while sum(line.endswith("1 of 1 up\n") for line in seen) < 2:
                seen.append(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert (err.count("Traceback"), err) == (0, "asking 1 endpoint of agentroute.toml\n")
    assert "\x1b" not in "".join(seen) + out


def test_watching_as_json_is_one_line_each_time(here: Path) -> None:
    with Server(routes(VLLM)) as server:
        config(here, server.url)
        with watching(here, "--json") as process:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in range(2)]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    assert [(line["command"], line["endpoints"][0]["running"]) for line in lines] == [("status", 12)] * 2


def test_watching_on_a_terminal_redraws_in_place(here: Path) -> None:
    main, tty = pty.openpty()
    with Server(routes(VLLM)) as server:
        config(here, server.url)
        with watching(here, tty=tty) as process:
            os.close(tty)
            seen = b""
            while seen.count(b"\x1b[H\x1b[J") < 2:
                seen += os.read(main, 65_536)
            process.send_signal(signal.SIGINT)
            drain = threading.Thread(target=_drain, args=(main,), daemon=True)
            drain.start()
            process.wait(30)
    assert process.returncode == 0
    assert b"\x1b[1m" not in seen  # NO_COLOR


def _drain(file: int) -> None:
    try:
        while os.read(file, 65_536):
            pass
    except OSError:
        os.close(file)
