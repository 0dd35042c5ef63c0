"""vLLM and ``transformers serve`` on the CPU, with small models of random weights.

``make test-vllm`` installs them into ``.vllm`` once, 3.5 GB. Each server is started by the tests that need it: a minute
or more on two quiet cores.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from large import process, until
from servers import deployment, free_port, router

from agentroute import Client
from agentroute.origin import Provenance
from agentroute.profile import KvPool, Limits

HOME = Path(__file__).parents[1] / ".vllm"
BIN = HOME / "bin"
START_S = 900.0
"""Two workers, a compiler and other work on two cores take minutes."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
EXACT: Mapping[str, Any] = {"ignore_eos": True, "temperature": 0.9}
"""Answers as long as was asked for."""


def model(name: str) -> Path:
    """The folder of a model: ``llama``, ``wide`` or ``mla``; they are made once."""
    folder, script = HOME / "models", Path(__file__).with_name("make_models.py")
    ready = folder / "ready"
    if not ready.exists() or ready.stat().st_mtime < script.stat().st_mtime:
        subprocess.run([BIN / "python", script, folder], check=True, timeout=600, capture_output=True)
    return folder / name


@contextmanager
def vllm(*options: str, shape: str = "llama", blocks: int | None = None, workers: int = 1) -> Iterator[str]:
    """The URL of a warm vLLM server of 4 slots for each engine, with ``blocks`` of KV memory, in development mode.

    Workers are bound to a core each: left alone, vLLM refuses two of them on one memory node.
    """
    url = f"http://127.0.0.1:{(port := free_port())}"
    place = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny", "--dtype", "bfloat16"]
    limits = ["--max-model-len", "1024", *(["--num-gpu-blocks-override", str(blocks)] if blocks else [])]
    slots = [] if "--max-num-seqs" in options else ["--max-num-seqs", "4"]
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-prompt-tokens-details"]
    env = {
        "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(HOME / "cache"),
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        **({"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, range(workers)))} if workers > 1 else {}),
    }  # fmt: skip
    with whole(BIN / "vllm", "serve", model(shape), *place, *limits, *slots, *tools, *options, env=env):
        healthy(url)
        warm(url, "tiny")
        yield url


@contextmanager
def transformers_serve() -> Iterator[str]:
    """The URL of a warm ``transformers serve`` with 64 blocks of 16 tokens; it lists the model by its folder."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    pool = ["--continuous-batching", "--cb-num-blocks", "64", "--cb-block-size", "16"]
    place = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "bfloat16"]
    with tempfile.TemporaryDirectory() as home:  # it lists what was downloaded, and fails where nothing ever was
        (Path(home) / "hub").mkdir()
        with whole(BIN / "transformers", "serve", model("llama"), *pool, *place, env={"HF_HOME": home}):
            healthy(url)
            warm(url, str(model("llama")))
            yield url


@contextmanager
def whole(*command: str | Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process and its workers, none of which outlives it; the programs of ``.vllm`` come first."""
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    with ExitStack() as stack:
        started = stack.enter_context(process(command, {**OFFLINE, **env, "PATH": path}))
        yield started
        stack.close()
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def healthy(url: str) -> None:
    """Wait until a server has started; a client that is made for each look would take a tenth of a core."""
    with httpx.Client(timeout=30.0) as asking:
        until(lambda: asking.get(f"{url}/health").status_code == 200, most_s=START_S, every_s=1.0)


def warm(url: str, name: str) -> None:
    """The first request loads what is loaded late, which took 13 s."""
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300.0).raise_for_status()


def client(url: str, pool: KvPool | None = None) -> Client:
    """A client of one vLLM server, whose KV memory it knows or does not."""
    here = deployment(url, adapter="vllm", served_model="tiny")
    if pool is not None:
        limits = Limits(kv_pool=pool, provenance=Provenance(origin="reported", source=url))
        here = replace(here, profile=here.profile.model_copy(update={"limits": limits}))
    return Client(router(here))


def counter(url: str, name: str) -> float:
    """The sum of a counter over all engines."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def words(i: int = 0, times: int = 100) -> list[dict[str, str]]:
    """A prompt of some four tokens for each of ``times``; another one for each ``i``."""
    return [{"role": "user", "content": f"{i} " + "fox " * times}]
