"""``agentroute serve`` as a process: it starts, answers, drains on SIGTERM, and speaks TLS."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import readme
import trustme
from gateways import HELLO
from servers import Server, Slow, answers

WHOLE = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
)


def config(folder: Path, url: str, more: str = "") -> Path:
    """An ``agentroute.toml`` over one server."""
    path = folder / "agentroute.toml"
    (folder / "own.toml").write_text('format = 1\nname = "own"\n[engine]\nname = "vllm"\n')
    deployment = f'[[deployments]]\nname = "here"\nprofile = "own.toml"\nbase_url = "{url}"\nserved_model = "m"\n'
    path.write_text(f"{deployment}\n{more}\n")
    return path


@contextmanager
def served(path: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and its address, once it has said that in full."""
    command = [sys.executable, "-m", "agentroute.cli", "serve", "--config", str(path), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    assert process.stderr is not None
    try:
        seen = []
        for line in process.stderr:
            seen.append(line)
            if found := re.fullmatch(r"serving on (https?://127\.0\.0\.1:\d+)/v1; the fleet is shown at \1/\n", line):
                break
        else:
            raise AssertionError("".join(seen))
        yield process, found[1]
    finally:
        process.kill()
        process.wait(10.0)
        process.stderr.close()


def test_the_readme_shows_what_it_says_and_answers(tmp_path: Path) -> None:
    """But for the port and the numbers of a prediction."""
    with Server(answers(WHOLE)) as upstream:
        text = "".join(
            f'[[deployments]]\nname = "{name}"\nprofile = "qwen3-32b/vllm-h100-tp{tp}"\nserved_model = "m"\n'
            f'base_url = "{upstream.url}/{name}"\n'
            for name, tp in (("long", 4), ("short", 2))
        )
        path = tmp_path / "agentroute.toml"
        path.write_text(text + '[routes.interactive]\nobjective = "latency"\nttft_ms = 800\n')
        with served(path) as (_, url):
            said = f"serving on {url}/v1; the fleet is shown at {url}/"
            body = {"model": "auto:interactive", "messages": [{"role": "user", "content": "Hi"}]}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30.0)
    assert f"\n{said.replace(url, 'http://127.0.0.1:4200')}\n" in readme.TEXT
    shown = readme.TEXT.partition("\nHTTP/1.1 200 OK\n")[2].partition("\n```")[0].splitlines()
    assert answer.status_code == 200 and len(shown) == 3
    for line in shown:
        name, _, value = line.partition(": ")
        assert without_numbers(answer.headers[name]) == without_numbers(value)


def without_numbers(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "N", text)


def test_what_is_in_flight_ends_before_it_stops(tmp_path: Path) -> None:
    slow, got = Slow(WHOLE), []
    with Server(slow) as upstream, served(config(tmp_path, upstream.url)) as (process, url):
        chat = threading.Thread(
            target=lambda: got.append(httpx.post(f"{url}/v1/chat/completions", json=HELLO, timeout=30.0))
        )
        chat.start()
        assert slow.asked.wait(10.0)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.7)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
        assert process.poll() is None
        slow.answer.set()
        chat.join(10.0)
        assert process.wait(10.0) == 0
    assert got[0].status_code == 200


def test_what_does_not_end_in_time_is_cancelled(tmp_path: Path) -> None:
    slow = Slow(WHOLE)
    path_more = "[gateway]\ndrain_s = 1.0\n"
    with Server(slow) as upstream, served(config(tmp_path, upstream.url, path_more)) as (process, url):
        chat = threading.Thread(target=_ignore, args=(url,))
        chat.start()
        assert slow.asked.wait(10.0)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10.0) == 0
        assert slow.left.wait(5.0)
        assert 0.9 < time.monotonic() - began < 8.0
        chat.join(10.0)


def _ignore(url: str) -> None:
    with suppress(httpx.HTTPError):
        httpx.post(f"{url}/v1/chat/completions", json=HELLO, timeout=30.0)


def test_keys_and_tls_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    for i, blob in enumerate(leaf.cert_chain_pems):
        blob.write_to_path(tmp_path / "cert.pem", append=i > 0)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    more = '[gateway]\ntls_cert = "cert.pem"\ntls_key = "key.pem"\n[[keys]]\nname = "team"\nenv = "TEAM_KEY"\n'
    with Server(answers(WHOLE)) as upstream:
        path = config(tmp_path, upstream.url, more)
        with served(path, TEAM_KEY="sk-team") as (_, url), httpx.Client(verify=context, base_url=url) as client:
            assert url.startswith("https://")
            assert client.post("/v1/chat/completions", json=HELLO).status_code == 401
            own = {"authorization": "Bearer sk-team"}
            assert client.post("/v1/chat/completions", json=HELLO, headers=own).status_code == 200


def test_routes_and_keys_follow_the_file_and_a_mistake_changes_nothing(tmp_path: Path) -> None:
    night = '[routes.night]\n[[keys]]\nname = "{}"\nenv = "{}"\n'
    own, other = ({"authorization": f"Bearer sk-{name}"} for name in "ab")

    def until(status: int, headers: dict[str, str]) -> httpx.Response:
        deadline = time.monotonic() + 15.0
        while (answer := httpx.post(f"{url}/v1/chat/completions", json=ask, headers=headers)).status_code != status:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)
        return answer

    ask = HELLO | {"model": "auto:night"}
    with Server(answers(WHOLE)) as one, Server(answers(WHOLE)) as two:
        path = config(tmp_path, one.url)
        with served(path, KEY_A="sk-a", KEY_B="sk-b") as (process, url):
            until(404, {})
            config(tmp_path, one.url, night.format("a", "KEY_A"))
            until(200, own)
            until(401, other)
            path.write_text(path.read_text() + "[routes.broken]\nobjective = 'none'\n")
            time.sleep(2.5)
            until(200, own)
            assert not [asked for asked in two.asked if asked.method == "POST"]
            config(tmp_path, two.url, night.format("b", "KEY_THAT_IS_NOT_SET"))
            time.sleep(2.5)
            until(200, own)
            assert not [asked for asked in two.asked if asked.method == "POST"]  # nothing of it applies
            more = "[gateway]\ndrain_s = 7\n[telemetry]\nrecords = 'calls.jsonl'\n"
            config(tmp_path, two.url, night.format("b", "KEY_B") + more)
            until(200, other)
            until(401, own)
            assert [asked for asked in two.asked if asked.method == "POST"]
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            said = process.stderr.read()
    assert said.count("the configuration is refused, the one before still applies") == 2
    assert "the environment variable KEY_THAT_IS_NOT_SET is not set" in said
    assert "until agentroute serve is started again, it goes by the old gateway.drain_s, telemetry.records" in said
    assert not (tmp_path / "calls.jsonl").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            '[[keys]]\nname = "team"\nenv = "NOT_SET_ANYWHERE"\n',
            "the environment variable NOT_SET_ANYWHERE is not set",
        ),
        ('[gateway]\ntls_cert = "cert.pem"\n', "must give both tls_cert and tls_key, or neither"),
        (
            '[gateway]\ntls_cert = "no.pem"\ntls_key = "no.pem"\n',
            "no.pem must be PEM files of a certificate and its key: no such",
        ),
        ('[gateway]\ntls_cert = "agentroute.toml"\ntls_key = "agentroute.toml"\n', "gateway.tls_cert"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, more: str, said: str) -> None:
    path = config(tmp_path, "http://127.0.0.1:9", more)
    command = [sys.executable, "-m", "agentroute.cli", "serve", "--config", str(path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        path = config(tmp_path, "http://127.0.0.1:9")
        command = [sys.executable, "-m", "agentroute.cli", "serve", "--config", str(path), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "address already in use" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "httptools"])
def test_it_is_said_which_extra_is_missing(tmp_path: Path, package: str) -> None:
    path = config(tmp_path, "http://127.0.0.1:9")
    hide = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['agentroute', 'serve', '--config', sys.argv[1]]"
    command = [sys.executable, "-c", f"{hide}; from agentroute.cli import main; main()", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"the package {package}; install it with: pip install 'agentroute[gateway]'" in " ".join(done.stderr.split())
