"""What the gateway adds, on a loopback server: one JSON line each. Run by ``make bench-gateway``.

The client is bare sockets; gateway (``agentroute serve``) and server are processes of their own. What is told is
direct, through the gateway, and the difference. On a machine with two cores the three share them. LiteLLM's proxy is
measured beside it, in turns, where ``litellm[proxy]`` is installed, and SGLang's and vLLM's routers, which are written
in Rust, where ``make test-servers`` has put them into ``.servers``, or they are on PATH.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import numpy as np
from client_speed import floor_us, server
from timing import line

Once = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[tuple[float, int]]]
Ways = dict[str, tuple[str, str, int | None]]
"""By name a URL, the model to ask for there, and the process whose time is counted."""
Served = tuple[str, int]
"""A URL, and the process that answers there."""
SLOW = ("litellm",)
"""Of these a fifth is asked."""
ROUTERS = {"sglang_router": ("sglang-router", "launch"), "vllm_router": ("vllm-router",)}
SERVERS = Path(__file__).parents[2] / ".servers" / "bin"
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


@contextmanager
def gateway(url: str, model: str) -> Iterator[Served]:
    """``agentroute serve`` in front of a server."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agentroute.toml"
        profile = 'format = 1\nname = "own"\n[engine]\nname = "vllm"\n'
        (path.parent / "own.toml").write_text(profile)
        pool = f'[[deployments]]\nname = "here"\nprofile = "own.toml"\nbase_url = "{url}"\nserved_model = "{model}"\n'
        path.write_text(pool)
        command = [sys.executable, "-m", "agentroute.cli", "serve", "--config", str(path), "--port", "0"]
        with (
            open(path.parent / "log", "w+") as log,  # noqa: PTH123
            subprocess.Popen(command, stderr=log) as process,
        ):
            try:
                while (found := re.search(r"serving on (\S+)/v1", (path.parent / "log").read_text())) is None:
                    time.sleep(0.1)
                yield found[1], process.pid
            finally:
                process.terminate()


@contextmanager
def litellm(url: str, model: str) -> Iterator[Served]:
    """LiteLLM's proxy in front of a server."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        path = Path(folder) / "config.yaml"
        params = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}
        path.write_text(json.dumps({"model_list": [{"model_name": "auto", "litellm_params": params}]}))  # JSON is YAML
        program = Path(sys.executable).with_name("litellm")
        command = [str(program), "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
        environment = {
            **os.environ,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # on loopback, and keys would cost it time
        }
        with _started(command, f"http://127.0.0.1:{port}", "/health/liveliness", environment) as at:
            yield at


@contextmanager
def router(program: Path | str, *options: str, url: str) -> Iterator[Served]:
    """A router in front of a server."""
    port = free_port()
    place = ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    command = [str(program), *options, "--worker-urls", url, *place, *metrics]
    with _started(command, f"http://127.0.0.1:{port}", "/readiness", os.environ) as at:
        yield at


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _started(command: Sequence[str], url: str, ready: str, environment: Mapping[str, str]) -> Iterator[Served]:
    """A server, once it says at ``ready`` that it is."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            until = time.monotonic() + 180.0
            while not _ready(url + ready):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    raise SystemExit(f"{command[0]} did not start:\n{log.read()[-2_000:]}")
                time.sleep(0.5)
            yield url, process.pid
        finally:
            process.terminate()


def cpu_s(pid: int | None) -> float:
    """The CPU time that a process has taken, to 10 ms; NaN where the system does not tell."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.nan
    return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


def _ready(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def post(model: str, streaming: bool) -> bytes:
    """One request as bytes."""
    body = b'{"model":"%b","messages":[{"role":"user","content":"Say hello"}],"max_tokens":64,"stream":%b}'
    body %= (model.encode(), b"true" if streaming else b"false")
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    return head % len(body) + body


def whole(model: str) -> Once:
    """Seconds until the whole answer, and 1."""
    asked = post(model, False)

    async def once(into: asyncio.StreamReader, out: asyncio.StreamWriter) -> tuple[float, int]:
        began = time.perf_counter()
        out.write(asked)
        head = await into.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        found = _LENGTH.search(head)
        assert found is not None
        await into.readexactly(int(found[1]))
        return time.perf_counter() - began, 1

    return once


def stream(model: str) -> Once:
    """Seconds until the first content, and pieces of content."""
    asked = post(model, True)

    async def once(into: asyncio.StreamReader, out: asyncio.StreamWriter) -> tuple[float, int]:
        began, first, pieces, tail = time.perf_counter(), 0.0, 0, b""
        out.write(asked)
        while not tail.endswith(b"0\r\n\r\n"):
            data = await into.read(65_536)
            assert data
            found = data.count(b'"content":" hello"')
            if found and not pieces:
                first = time.perf_counter() - began
            pieces += found
            tail = (tail + data)[-8:]
        return first, pieces

    return once


async def rate(
    url: str, once: Once, count: int, at_once: int, *, over_s: float = 0.0
) -> tuple[float, list[float], int]:
    """Wall seconds, the times told, and what was counted, of ``count`` requests over kept connections.

    ``over_s``: the workers begin one after the other, over so many seconds.
    """
    host, port = url.removeprefix("http://").split(":")
    times: list[float] = []
    counted, left = 0, count

    async def work(after_s: float) -> None:
        nonlocal counted, left
        await asyncio.sleep(after_s)
        into, out = await asyncio.open_connection(host, int(port))
        while left > 0:
            left -= 1
            took, more = await once(into, out)
            times.append(took)
            counted += more
        out.close()

    start = time.perf_counter()
    await asyncio.gather(*(work(over_s * worker / at_once) for worker in range(at_once)))
    return time.perf_counter() - start, times, counted


async def requests(ways: Ways) -> None:
    """Requests per second and latency at 1 and at 64 at once, the answers in one piece; the best of three turns.

    The CPU time of a request is that of all turns: it hangs less on what else the machine does.
    """
    for at_once, count in ((1, 300), (64, 1_500)):
        turns: dict[str, list[tuple[float, list[float], int]]] = {name: [] for name in ways}
        cpu: dict[str, float] = {}
        for _ in range(4):
            for name, (url, model, pid) in ways.items():
                asked = count // 5 if name in SLOW else count
                before_s = cpu_s(pid)
                turns[name].append(await rate(url, whole(model), asked, at_once))
                cpu[name] = cpu.get(name, 0.0) + (cpu_s(pid) - before_s) / asked / 4
        best = {}
        for name, (_, *of) in turns.items():
            wall, times, counted = min(of, key=lambda turn: turn[0])
            best[name] = counted / wall, *(float(np.percentile(times, q)) * 1_000.0 for q in (50, 99))
        raw, raw50, _ = best.pop("direct")
        ours, ours50, _ = best["gateway"]
        for name, (per_s, p50, p99) in best.items():
            added = p50 - raw50
            ours_added_x = round((ours50 - raw50) / added, 3) if added > 0 else None
            line(
                f"{name}_whole", count, at_once=at_once, requests_per_s=round(per_s), p50_ms=round(p50, 2),
                p99_ms=round(p99, 2), added_p50_ms=round(added, 2), direct_per_s=round(raw),
                cpu_ms=round(cpu[name] * 1e3, 3), ours_requests_x=round(ours / per_s, 3), ours_added_x=ours_added_x,
                ours_cpu_x=round(cpu["gateway"] / cpu[name], 2), floor_us=floor_us(),
            )  # fmt: skip


async def paced(ways: Ways, kind: str, streams: int, over_s: float) -> None:
    """64 at once of streams of pieces 20 ms apart: what is added to TTFT, and pieces per second against bare sockets';
    the best of three turns. ``over_s``: the first ones begin over so many seconds."""
    turns: dict[str, list[tuple[float, list[float], int]]] = {name: [] for name in ways}
    for _ in range(4):
        for name, (url, model, _) in ways.items():
            turns[name].append(await rate(url, stream(model), streams, 64, over_s=over_s))
    seen = {}
    for name, (_, *of) in turns.items():
        times = [took for turn in of for took in turn[1]]
        fastest = max(pieces / wall for wall, _, pieces in of)
        seen[name] = fastest, *(float(np.percentile(times, q)) * 1_000.0 for q in (50, 99))
    raw, raw50, raw99 = seen.pop("direct")
    for name, (per_s, p50, p99) in seen.items():
        line(
            f"{name}_{kind}", streams, added_ttft_p50_ms=round(p50 - raw50, 2), added_ttft_p99_ms=round(p99 - raw99, 2),
            pieces_per_s=round(per_s), direct_per_s=round(raw), share=round(per_s / raw, 3), floor_us=floor_us(),
        )  # fmt: skip


@contextmanager
def ways(direct: str, model: str) -> Iterator[Ways]:
    """Where the same is asked: the server, the gateway before it, and the peers that are installed."""
    with ExitStack() as stack:
        found: Ways = {"direct": (direct, model, None)}
        url, pid = stack.enter_context(gateway(direct, model))
        found["gateway"] = url, "auto", pid
        if find_spec("litellm") and find_spec("fastapi"):
            url, pid = stack.enter_context(litellm(direct, model))
            found["litellm"] = url, "auto", pid
        else:
            print("litellm[proxy] is not installed: not measured", file=sys.stderr)
        for name, (program, *options) in ROUTERS.items():
            if (path := shutil.which(program, path=f"{SERVERS}{os.pathsep}{os.environ['PATH']}")) is None:
                print(
                    f"{program} is neither in .servers (make test-servers) nor on PATH: not measured", file=sys.stderr
                )
            else:
                url, pid = stack.enter_context(router(path, *options, url=direct))
                found[name] = url, model, pid
        yield found


def main() -> None:
    """All of it, or the parts that are named: whole, paced, paced_spread, paced_long."""
    wanted = set(sys.argv[1:]) or {"whole", "paced", "paced_spread", "paced_long"}
    with server() as direct:
        if "whole" in wanted:
            with ways(direct, "s64") as found:
                asyncio.run(requests(found))
        with ways(direct, "p50-20") as found:
            if "paced" in wanted:  # all at the same moment
                asyncio.run(paced(found, "paced", 64, 0.0))
            if "paced_spread" in wanted:  # as they come where nobody counts to three
                asyncio.run(paced(found, "paced_spread", 192, 1.0))
        if "paced_long" in wanted:  # of 250 pieces: what is lost at their beginning is a fifth of it
            with ways(direct, "p250-20") as found:
                quick = {name: way for name, way in found.items() if name not in SLOW}
                asyncio.run(paced(quick, "paced_long", 64, 0.0))


if __name__ == "__main__":
    main()
