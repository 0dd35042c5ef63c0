"""A configuration that changes again and again under a gateway with live streams."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path

import httpx
import numpy as np
from fleets import assert_nothing_is_held, written
from gateways import HELLO, Served
from servers import Asked, Server, answers

from agentroute.errors import ConfigError
from agentroute.reload import Reloading

PROFILE = """\
format = 1
name = "{name}"
engine = {{ name = "vllm" }}
[limits]
kv_pool = {{ tokens = 4000000, block_tokens = 16 }}
provenance = {{ origin = "reported", source = "a test" }}
"""
STREAMS, RELOADS = 64, 1_000


class Paced:
    """A server whose streams count until they are told to end, every ``step_s``."""

    def __init__(self, step_s: float) -> None:
        self.stop, self._step_s = threading.Event(), step_s

    def __call__(self, connection: socket.socket, asked: Asked) -> None:
        if asked.method == "GET":
            answers(json.dumps({"object": "list", "data": [{"id": "m"}]}))(connection, asked)
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        last = json.loads(asked.body).get("max_tokens", 0)
        i = 0
        while i < last and not self.stop.is_set():
            connection.sendall(event(str(i)))
            self.stop.wait(self._step_s)
            i += 1
        connection.sendall(event(f"end {i}", "stop") + b"data: [DONE]\n\n")


def event(text: str, reason: str | None = None) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def text(port: int, *names: str, routes: str = "") -> str:
    return routes + "".join(
        f'[[deployments]]\nname = "{name}"\nprofile = "{name}.toml"\nbase_url = "http://127.0.0.1:{port}/{name}"\n'
        for name in names
    )


def test_a_thousand_reloads_under_64_streams_drop_none(tmp_path: Path) -> None:
    for name in "abc":
        written(tmp_path, PROFILE.format(name=name), f"{name}.toml")
    paced = Paced(step_s=0.4)
    with Server(paced) as upstream:
        files = (
            text(upstream.port, "a", "b"),
            text(upstream.port, "b", "a", routes='[routes.default]\nobjective = "latency"\n'),
            text(upstream.port, "c", "a", "b"),
            text(upstream.port, "a", routes='[routes.default]\nfallbacks = ["spare"]\n[routes.spare]\n'),
            "[[deployments",
        )
        live = Reloading(written(tmp_path, files[0], "agentroute.toml"), on_change=lambda new: gateway.changed(new))
        with Served(router=live.router) as served:
            gateway = served.gateway
            long, short = asyncio.run(streams_while_it_changes(served.port, live, files, paced))
        assert long == STREAMS // 2
        assert short >= STREAMS // 2
        assert live.reloads == RELOADS * 4 // 5
    assert_nothing_is_held(live.router)
    ledger = live.router._situation.ledger
    assert (ledger.total, ledger.overruns, live.router.queued) == (0, 0, 0)
    assert not np.any(ledger.in_flight)
    assert not np.any(ledger.resident)
    assert {record["outcome"] for record in gateway.records.last(gateway.keys.caller([]), most=200)} == {"ok"}


async def streams_while_it_changes(port: int, live: Reloading, files: tuple[str, ...], paced: Paced) -> tuple[int, int]:
    """Half of the streams last from before the first change to after the last, the others follow each other; how many
    there were of each. Every one must come to its end, without a gap."""
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False, limits=httpx.Limits(max_connections=None)
    ) as client:
        begun = [0]

        async def stream(length: int) -> None:
            body = HELLO | {"stream": True, "max_tokens": length}
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                assert answer.status_code == 200
                lines: list[str] = []
                async for line in answer.aiter_lines():
                    if line:
                        begun[0] += not lines
                        lines.append(line)
            assert lines[-1] == "data: [DONE]"
            said = [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in lines[:-1]]
            assert said == [*map(str, range(len(said) - 1)), f"end {len(said) - 1}"]

        async def one_after_another() -> int:
            count = 0
            while not paced.stop.is_set():
                await stream(3)
                count += 1
            return count

        long = [asyncio.create_task(stream(100_000)) for _ in range(STREAMS // 2)]
        short = [asyncio.create_task(one_after_another()) for _ in range(STREAMS // 2)]
        while begun[0] < STREAMS:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(change, live, files)
        paced.stop.set()
        await asyncio.gather(*long)
        return len(long), sum(await asyncio.gather(*short))


def change(live: Reloading, files: tuple[str, ...]) -> None:
    for i in range(RELOADS):
        live.path.write_text(files[i % len(files)])
        try:
            live.reload()
        except ConfigError:
            assert i % len(files) == len(files) - 1
