"""What calling costs, on a loopback server in a process of its own: one JSON line each. Run by ``make bench-client``.

The openai SDK and LiteLLM's Router are measured beside it where they are installed; so is the aiohttp transport.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from timing import line

from agentroute.client import AsyncClient, Client, Retry
from agentroute.fleet import Deployment, Fleet
from agentroute.origin import Provenance
from agentroute.patience import Timeout
from agentroute.pools import Wire
from agentroute.profile import Engine, KvPool, Limits, Profile
from agentroute.router import Router
from agentroute.task import Task

MESSAGES = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Say hello " * 8}]
TASK = Task(context_tokens=64, max_output_tokens=64)
PIECES, AT_ONCE, TURNS = 64, 64, 2
FAST = find_spec("aiohttp") is not None
WIRES: tuple[Wire, ...] = ("httpx", "aiohttp") if FAST else ("httpx",)


@contextmanager
def server() -> Iterator[str]:
    """The loopback server's URL."""
    path = Path(__file__).with_name("loopback.py")
    with subprocess.Popen([sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


def router(url: str, model: str) -> Router:
    """One deployment with a large pool."""
    pool = KvPool(tokens=16_000_000, block_tokens=16)
    limits = Limits(kv_pool=pool, provenance=Provenance(origin="assumed", source="this benchmark"))
    profile = Profile(format=1, name="loopback", engine=Engine(name="vllm"), limits=limits)
    return Router(Fleet([Deployment("here", profile, urls=(url,), served_model=model)]))


def floor_us() -> float:
    """What this machine, at this moment, makes of forty small numpy operations: 21.6 when it is quiet."""
    a, b, taken = np.arange(17.0), np.ones(17), []
    for _ in range(400):
        start = time.thread_time_ns()
        for _ in range(40):
            np.add(a, b)
        taken.append(time.thread_time_ns() - start)
    return round(sorted(taken)[20] / 1_000, 1)


Once = Callable[[], Awaitable[int]]
"""One request; how many pieces came."""


async def rate(once: Once, count: int, at_once: int) -> tuple[float, float, int]:
    """Seconds of wall and of CPU for ``count`` requests, so many at once, and the pieces that came."""
    left, pieces = iter(range(count)), 0

    async def work() -> None:
        nonlocal pieces
        for _ in left:
            came = await once()
            pieces += came

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return time.perf_counter() - wall, time.process_time() - cpu, pieces


def streaming(client: AsyncClient) -> Once:
    async def once() -> int:
        count = 0
        async with client.stream(MESSAGES, task=TASK) as events:
            async for _ in events:
                count += 1
        return count

    return once


def whole(client: AsyncClient) -> Once:
    async def once() -> int:
        await client.chat(MESSAGES, task=TASK)
        return 1

    return once


async def added(url: str, wire: Wire) -> None:
    """CPU of ``chat`` less that of the same request through its transport alone, taken in turns: through a client of
    httpx on that transport (``transport``), and through the transport itself with a ready request (``bare``)."""
    body = {"model": f"s{PIECES}", "messages": MESSAGES, "max_tokens": TASK.max_output_tokens}
    ready = httpx.Request("POST", url + "/v1/chat/completions", json=body, extensions={"timeout": {"connect": 5.0}})
    async with AsyncClient(router(url, f"s{PIECES}"), transport=wire) as client:
        pool = client._means.pools.take(url)
        way = pool._way
        assert isinstance(way, httpx.AsyncBaseTransport), "a proxy in the environment, or a name in the address"
        alone = httpx.AsyncClient(transport=way)
        ours, through_client, bare = [], [], []
        for _ in range(600):
            start = time.thread_time_ns()
            await client.chat(MESSAGES, task=TASK)
            between = time.thread_time_ns()
            await alone.post(url + "/v1/chat/completions", json=body)
            then = time.thread_time_ns()
            answer = await way.handle_async_request(ready)
            assert isinstance(answer.stream, httpx.AsyncByteStream)
            async for _ in answer.stream:
                pass
            await answer.aclose()
            bare.append(time.thread_time_ns() - then)
            through_client.append(then - between)
            ours.append(between - start)
        client._means.pools.give(pool)
    with_, without, least = sorted(ours[100:]), sorted(through_client[100:]), sorted(bare[100:])
    line(
        f"chat_added_{wire}", len(with_), chat_p5_us=round(with_[25] / 1_000),
        transport_p5_us=round(without[25] / 1_000), added_p5_us=round((with_[25] - without[25]) / 1_000),
        added_p50_us=round((with_[250] - without[250]) / 1_000), bare_p5_us=round(least[25] / 1_000),
        over_bare_p5_us=round((with_[25] - least[25]) / 1_000), floor_us=floor_us(),
    )  # fmt: skip


async def against_peers(url: str) -> None:
    """Streams and whole answers, 64 at once; the best of two turns, in which everybody has one."""
    ways: dict[str, tuple[Once, Once]] = {}
    closing: list[Callable[[], Awaitable[Any]]] = []
    for wire in WIRES:
        patient = Timeout(connect_s=60.0)  # as its peers are, on a machine that others use
        client = AsyncClient(router(url, f"s{PIECES}"), transport=wire, timeout=patient)
        closing.append(client.aclose)
        ways[f"agentroute_{wire}"] = streaming(client), whole(client)
    if find_spec("openai"):
        ways["openai"], close = _openai(url)
        closing.append(close)
    else:
        print("openai is not installed: not measured", file=sys.stderr)
    if find_spec("litellm"):
        ways["litellm"] = _litellm(url)
    else:
        print("litellm is not installed: not measured", file=sys.stderr)
    best: dict[str, list[float]] = {name: [0.0, 0.0] for name in ways}
    for turn in range(TURNS + 1):
        for name, (stream, chat) in ways.items():
            count = 64 if name in ("openai", "litellm") else 256
            wall, _, pieces = await rate(stream, count, AT_ONCE)
            chat_wall, _, _ = await rate(chat, count, AT_ONCE)
            if turn:
                best[name][0] = max(best[name][0], pieces / wall)
                best[name][1] = max(best[name][1], count / chat_wall)
    ours = best["agentroute_aiohttp" if FAST else "agentroute_httpx"]
    for name, (chunks, requests) in best.items():
        line(
            f"at_64_{name}", AT_ONCE, chunks_per_s=round(chunks), requests_per_s=round(requests),
            ours_streaming_x=round(ours[0] / chunks, 1), ours_whole_x=round(ours[1] / requests, 1),
        )  # fmt: skip
    for close in closing:
        await close()


def _openai(url: str) -> tuple[tuple[Once, Once], Callable[[], Awaitable[Any]]]:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)

    async def stream() -> int:
        count = 0
        options = {"include_usage": True}
        async for _ in await client.chat.completions.create(
            model=f"s{PIECES}", messages=MESSAGES, max_tokens=64, stream=True, stream_options=options
        ):
            count += 1
        return count

    async def chat() -> int:
        await client.chat.completions.create(model=f"s{PIECES}", messages=MESSAGES, max_tokens=64)
        return 1

    return (stream, chat), client.close


def _litellm(url: str) -> tuple[Once, Once]:
    warnings.simplefilter("ignore")
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network
    from litellm import Router as LiteLLM

    params = {"model": f"openai/s{PIECES}", "api_base": url + "/v1", "api_key": "none"}
    routed = LiteLLM(model_list=[{"model_name": "m", "litellm_params": params}], num_retries=0)

    async def stream() -> int:
        count = 0
        options = {"include_usage": True}
        async for _ in await routed.acompletion(
            model="m", messages=MESSAGES, max_tokens=64, stream=True, stream_options=options
        ):
            count += 1
        return count

    async def chat() -> int:
        await routed.acompletion(model="m", messages=MESSAGES, max_tokens=64)
        return 1

    return stream, chat


async def by_concurrency(url: str, wire: Wire) -> None:
    """CPU per request at 1 and at 256 at once, in turns; the least of each."""
    least = {1: float("inf"), 256: float("inf")}
    patient = Timeout(connect_s=60.0)  # as in ``against_peers``
    async with AsyncClient(router(url, f"s{PIECES}"), transport=wire, timeout=patient) as client:
        for turn in range(5):
            for at_once in least:
                count = 200 if at_once == 1 else 1_024
                _, cpu, _ = await rate(whole(client), count, at_once)
                if turn:
                    least[at_once] = min(least[at_once], cpu / count)
    line(
        f"cpu_per_request_{wire}", 256, at_1_us=round(least[1] * 1e6), at_256_us=round(least[256] * 1e6),
        ratio=round(least[256] / least[1], 2),
    )  # fmt: skip


async def paced(url: str, wire: Wire) -> None:
    """64 streams at once of pieces 20 ms apart: pieces per second against those of bare sockets. Of 50 pieces, and of
    250, which lose the same at their beginning."""
    await _paced(url, wire, 50)
    await _paced(url, wire, 250)


async def _paced(url: str, wire: Wire, length: int) -> None:
    """The best of three turns."""
    best = {"raw": 0.0, "ours": 0.0}
    host, port = url.removeprefix("http://").split(":")
    body = b'{"model":"p%d-20","stream":true}' % length
    asked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def raw() -> int:
        into, out = await asyncio.open_connection(host, int(port))
        out.write(asked)
        pieces, tail = 0, b""
        while not tail.endswith(b"0\r\n\r\n"):
            data = await into.read(65_536)
            pieces += data.count(b'"content":" hello"')
            tail = (tail + data)[-8:]
        out.close()
        return pieces

    async with AsyncClient(router(url, f"p{length}-20"), transport=wire) as client:
        for _ in range(3):
            wall, _, pieces = await rate(raw, 64, 64)
            best["raw"] = max(best["raw"], pieces / wall)
            wall, _, pieces = await rate(streaming(client), 64, 64)
            best["ours"] = max(best["ours"], (pieces - 2 * 64) / wall)  # the reason to stop and the usage
    line(
        f"paced_{wire}", 64, pieces=length, raw_per_s=round(best["raw"]), ours_per_s=round(best["ours"]),
        share=round(best["ours"] / best["raw"], 3),
    )  # fmt: skip


async def many(url: str, wire: Wire, count: int = 10_000) -> None:
    """10,000 streams, 256 at once: memory after each quarter, warnings, and the connections that are left."""
    async with AsyncClient(router(url, "s8"), transport=wire, retry=Retry(hedge=False)) as client:
        stream, kept, rss = streaming(client), [], []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await rate(stream, count // 10, 256)
            for _ in range(4):
                await rate(stream, count // 4, 256)
                gc.collect()
                kept.append(len(gc.get_objects()))
                rss.append(round(_rss_mib()))
        busy = sum(pool.used for free in client._means.pools._free.values() for pool in free)
        held = client.router._situation.ledger.total
    await asyncio.sleep(0.1)
    async with httpx.AsyncClient() as other:
        left = int((await other.get(url)).text) - 1
    line(
        f"streams_{wire}", count, objects_after_quarters=kept, rss_mib=rss, warnings=len(caught), lent_connections=busy,
        open_connections=left, held=held,
    )  # fmt: skip


def _rss_mib() -> float:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def blocking(url: str) -> None:
    """CPU of the sync client's ``chat``, its thread's included."""
    taken = []
    with Client(router(url, f"s{PIECES}")) as client:
        for _ in range(400):
            start = resource.getrusage(resource.RUSAGE_SELF)
            client.chat(MESSAGES, task=TASK)
            end = resource.getrusage(resource.RUSAGE_SELF)
            taken.append(end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime)
    line("sync_chat", 400, mean_us=round(sum(taken[50:]) / len(taken[50:]) * 1e6))


def main() -> None:
    """All of it, or the parts that are named."""
    wanted = set(sys.argv[1:])
    if not FAST:
        print("the extra 'fast' is not installed: the aiohttp transport is not measured", file=sys.stderr)
    with server() as url:
        for wire in WIRES:
            for part in (added, by_concurrency, paced, many):
                if not wanted or part.__name__ in wanted:
                    asyncio.run(part(url, wire))
        if not wanted or "peers" in wanted:
            asyncio.run(against_peers(url))
        if not wanted or "sync" in wanted:
            blocking(url)


if __name__ == "__main__":
    main()
