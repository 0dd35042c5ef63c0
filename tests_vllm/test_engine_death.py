"""An engine that dies of its requests while others wait, and a llama.cpp server that can answer instead."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
from heavy import vllm
from large import until
from servers import deployment, router

from agentroute import BackendError, Client, FailureKind, Reply, Task, Watcher
from agentroute.demo.embedded import EmbeddedServer
from agentroute.pulse import GONE

AT_ONCE = 12
TASK = Task(context_tokens=900, max_output_tokens=20)


def test_those_whose_engine_died_are_answered_by_the_next_candidate() -> None:
    """On the CPU a seed and a prompt that is read in pieces end vLLM 0.32.0: its generator takes no offset."""
    with (
        vllm("--enforce-eager", "--max-num-batched-tokens", "1024") as dying,
        EmbeddedServer(ctx=8192, slots=4) as other,
    ):
        both = router(
            deployment(dying, name="dying", adapter="vllm", served_model="tiny"),
            deployment(other.url, name="other"),
        )
        watcher = Watcher(both)
        watcher.look()
        assert both.doctor() == []
        failures: list[FailureKind] = []

        def answered(i: int) -> Reply:
            """Ask until there is an answer, as an agent would."""
            messages = [{"role": "user", "content": f"{i} " + "fox " * 250}]
            for _ in range(AT_ONCE):
                try:
                    with client.stream(messages, task=TASK, body={"seed": i, "temperature": 0.9}) as events:
                        list(events)
                except BackendError as error:
                    failures.append(error.kind)
                else:
                    assert events.reply is not None
                    return events.reply
            raise AssertionError("asked often enough")

        with Client(both) as client, ThreadPoolExecutor(AT_ONCE) as threads:
            replies = list(threads.map(answered, range(AT_ONCE)))
        until(lambda: not answers(dying), most_s=60.0)
        assert set(failures) <= {FailureKind.ENGINE_DEAD, FailureKind.INTERRUPTED, FailureKind.UNAVAILABLE}
        assert "other" in {reply.decision.deployment for reply in replies}
        for _ in range(GONE):
            watcher.look()
        assert [vital.trouble for vital in watcher.vitals.values()] == ["unreachable", None]
        assert both.acquire(TASK).decision.deployment == "other"


def answers(url: str) -> bool:
    """Whether anybody still listens there."""
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False
