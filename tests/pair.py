"""One or two scripted servers that a short chat is sent to."""

from __future__ import annotations

from faults import FaultServer
from fleets import profile

from agentroute.fleet import Deployment, Fleet
from agentroute.router import Router
from agentroute.task import Task

TASK = Task(context_tokens=20, max_output_tokens=20)
HI = [{"role": "user", "content": "hi there"}]
BUSY = b'{"error":{"message":"busy"}}'


def one(server: FaultServer) -> Router:
    return Router(Fleet([Deployment("one", profile(kv_blocks=1_000), urls=(server.url,), served_model="m")]))


def two(first: FaultServer, second: FaultServer) -> Router:
    """The first is asked first: its KV pool is known."""
    return Router(
        Fleet([
            Deployment("one", profile(kv_blocks=1_000), urls=(first.url,), served_model="m"),
            Deployment("two", profile(), urls=(second.url,), served_model="m"),
        ])
    )  # fmt: skip
