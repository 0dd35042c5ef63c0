"""schemathesis against a gateway that is served for real."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from gateways import Served
from servers import Asked, Server, answers, deployment, streams

ANSWER = json.dumps(
    {
        "object": "response",
        "status": "completed",
        "choices": [
            {"index": 0, "text": "Hi", "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        ],
        "data": [{"index": 0, "object": "embedding", "embedding": [0.5]}],
        "output": [],
        "usage": {"prompt_tokens": 3, "input_tokens": 3},
    }
)
"""What answers any of the endpoints."""
STREAM = (
    json.dumps({"choices": [{"index": 0, "text": "Hi", "delta": {"content": "Hi"}, "finish_reason": "stop"}]}),
    json.dumps({"type": "response.completed", "response": json.loads(ANSWER)}),
    "[DONE]",
)
"""What streams to any of them."""
CONFIG = Path(__file__).parent / "gateway" / "schemathesis.toml"


def answering(connection: socket.socket, asked: Asked) -> None:
    """Answers in one piece or streams, as it is asked to."""
    streaming = asked.method == "POST" and json.loads(asked.body).get("stream") is True
    (streams(STREAM) if streaming else answers(ANSWER))(connection, asked)


def held_against_its_document(folder: Path, *options: str, timeout: float) -> str:
    """What schemathesis says of a gateway with keys, before a server that answers anything."""
    with Server(answering) as upstream:
        here = deployment(upstream.url, adapter="vllm")
        with Served(here, keys={"a": {"admin": True}}) as served:
            command = [
                sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
                "--config-file", str(CONFIG), "run", f"http://127.0.0.1:{served.port}/openapi.json",
                "--header", "Authorization: Bearer sk-a", "--no-color", *options,
            ]  # fmt: skip
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
            asked = len(upstream.asked)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert asked > 20  # much of it was taken, and sent on
    return done.stdout
