"""Real servers that are too large for every test run: Dynamo with simulated engines, and two routers over llama.cpp.

``make test-servers`` installs them into ``.servers`` once. Each is started by the tests that need it, on free ports.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from servers import free_port
from tenacity import Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from agentroute.demo.embedded import EmbeddedServer

HOME = Path(__file__).parents[1] / ".servers"
BIN = HOME / "bin"
START_S = 120.0


@dataclass(frozen=True)
class Running:
    """A server, what stands behind it, and how its workers are ended."""

    url: str
    workers: Sequence[str] = ()
    stop_workers: Callable[[], None] = lambda: None


@contextmanager
def process(command: Sequence[str | Path], env: Mapping[str, str] = {}) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own session, ended with all that it started."""
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(
            [str(part) for part in command],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **env},
            start_new_session=True,
        )
        try:
            yield started
        except BaseException:
            print(os.pread(log.fileno(), 1 << 20, 0).decode("utf-8", "replace")[-4_000:])
            raise
        finally:
            end(started)


def end(started: subprocess.Popen[bytes]) -> None:
    """End a process that was started here; does nothing when it has ended."""
    started.terminate()
    try:
        started.wait(10.0)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()


def until(true: Callable[[], bool], most_s: float = START_S, every_s: float = 0.1) -> None:
    """Wait until something is true; an HTTP server that is not there yet is not."""
    retry = retry_if_exception_type(httpx.HTTPError) | retry_if_result(lambda value: not value)
    Retrying(retry=retry, wait=wait_fixed(every_s), stop=stop_after_delay(most_s), reraise=True)(true)


def asked_at_once(url: str, bodies: Sequence[Mapping[str, Any]]) -> dict[int, list[bytes]]:
    """The answers to these chats, asked at the same time and only once, by status."""
    with ThreadPoolExecutor(len(bodies)) as pool, httpx.Client(timeout=120.0) as client:
        answers = list(pool.map(lambda body: client.post(f"{url}/v1/chat/completions", json=body), bodies))
    found: dict[int, list[bytes]] = {}
    for answer in answers:
        found.setdefault(answer.status_code, []).append(answer.content)
    return found


def tokenizer() -> Path:
    """A folder with a tokenizer and a shape: all that a simulated engine reads of a model."""
    folder = HOME / "tokenizer"
    if not (folder / "generation_config.json").exists():
        script = Path(__file__).with_name("make_tokenizer.py")
        subprocess.run([BIN / "python", script, folder], check=True, timeout=300)
    return folder


@contextmanager
def dynamo(*options: str) -> Iterator[Running]:
    """A frontend with its KV router, over two simulated engines of 128 blocks of 16 tokens and 4 slots each."""
    port, python = free_port(), str(BIN / "python")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        env = {"HF_HUB_OFFLINE": "1", "DYN_FILE_KV": folder}
        plane = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
        engines = [python, "-m", "dynamo.mocker", "--model-path", str(tokenizer()), "--model-name", "tiny"]
        limits = ["--num-gpu-blocks-override", "128", "--block-size", "16", "--max-model-len", "1024"]
        slots = ["--max-num-seqs", "4", "--num-workers", "2"]
        workers = stack.enter_context(process([*engines, *limits, *slots, *plane], env))
        front = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
        route = ["--router-mode", "kv", "--kv-cache-block-size", "16"]
        stack.enter_context(process([*front, *route, *plane, *options], env))
        url = f"http://127.0.0.1:{port}"
        until(lambda: "tiny" in httpx.get(f"{url}/v1/models").text)
        until(lambda: httpx.get(f"{url}/health").text.count('"generate"') == 2)
        yield Running(url, stop_workers=lambda: end(workers))


@contextmanager
def in_front(*command: str | Path, policy: str = "cache_aware") -> Iterator[Running]:
    """A router over two llama.cpp servers of two slots each, whose URLs are its last arguments."""
    port = free_port()
    with ExitStack() as stack:
        behind = [stack.enter_context(EmbeddedServer(ctx=1024, slots=2)) for _ in range(2)]
        urls = [server.url for server in behind]
        metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        place = ["--host", "127.0.0.1", "--port", str(port), *metrics, "--policy", policy]
        stack.enter_context(process([*command, "--worker-urls", *urls, *place]))
        url = f"http://127.0.0.1:{port}"
        until(lambda: httpx.get(f"{url}/readiness").json().get("healthy_workers") == 2)

        def stop() -> None:
            for server in behind:
                server.stop()

        yield Running(url, urls, stop)
