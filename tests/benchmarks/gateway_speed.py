"""What the gateway adds, on a loopback server: one JSON line each. Run by ``make bench-gateway``.

The client is bare sockets; gateway (``agentroute serve``) and server are processes of their own. What is told is
direct, through the gateway, and the difference. On a machine with two cores the three share them.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from client_speed import floor_us, server
from timing import line

Once = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[tuple[float, int]]]
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


@contextmanager
def gateway(url: str, model: str) -> Iterator[str]:
    """``agentroute serve`` in front of a server: its URL."""
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
                yield found[1]
            finally:
                process.terminate()


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


async def rate(url: str, once: Once, count: int, at_once: int) -> tuple[float, list[float], int]:
    """Wall seconds, the times told, and what was counted, of ``count`` requests over kept connections."""
    host, port = url.removeprefix("http://").split(":")
    times: list[float] = []
    counted, left = 0, count

    async def work() -> None:
        nonlocal counted, left
        into, out = await asyncio.open_connection(host, int(port))
        while left > 0:
            left -= 1
            took, more = await once(into, out)
            times.append(took)
            counted += more
        out.close()

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return time.perf_counter() - start, times, counted


async def requests(direct: str, through: str) -> None:
    """Requests per second and latency at 1 and at 64 at once, the answers in one piece; the best of three turns."""
    for at_once, count in ((1, 300), (64, 1_500)):
        best = {}
        for name, url, model in (("direct", direct, "s64"), ("gateway", through, "auto")):
            turns = [await rate(url, whole(model), count, at_once) for _ in range(4)][1:]
            wall, times, _ = min(turns, key=lambda turn: turn[0])
            best[name] = count / wall, *(float(np.percentile(times, q)) * 1_000.0 for q in (50, 99))
        (raw, raw50, _), (per_s, p50, p99) = best["direct"], best["gateway"]
        line(
            "gateway_whole", count, at_once=at_once, requests_per_s=round(per_s), p50_ms=round(p50, 2),
            p99_ms=round(p99, 2), added_p50_ms=round(p50 - raw50, 2), direct_per_s=round(raw), floor_us=floor_us(),
        )  # fmt: skip


async def paced(direct: str, through: str) -> None:
    """64 streams of 50 pieces 20 ms apart: what is added to TTFT, and pieces per second against bare sockets'."""
    seen = {}
    for name, url, model in (("direct", direct, "p50-20"), ("gateway", through, "auto")):
        turns = [await rate(url, stream(model), 64, 64) for _ in range(4)][1:]
        times = [took for turn in turns for took in turn[1]]
        fastest = max(pieces / wall for wall, _, pieces in turns)
        seen[name] = fastest, *(float(np.percentile(times, q)) * 1_000.0 for q in (50, 99))
    (raw, raw50, raw99), (ours, p50, p99) = seen["direct"], seen["gateway"]
    line(
        "gateway_paced", 64, added_ttft_p50_ms=round(p50 - raw50, 2), added_ttft_p99_ms=round(p99 - raw99, 2),
        pieces_per_s=round(ours), direct_per_s=round(raw), share=round(ours / raw, 3),
    )  # fmt: skip


def main() -> None:
    """All of it."""
    with server() as direct:
        with gateway(direct, "s64") as through:
            asyncio.run(requests(direct, through))
        with gateway(direct, "p50-20") as through:
            asyncio.run(paced(direct, through))


if __name__ == "__main__":
    main()
