"""An engine that dies under fifty streams, some of them half told, and a llama.cpp server that answers instead."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Semaphore

import httpx
from fleets import assert_nothing_is_held
from heavy import EXACT, vllm
from large import until
from servers import deployment, router

from agentroute import BackendError, Client, FailureKind, Reply, Task, TextDelta, Timeout, Watcher
from agentroute.demo.embedded import EmbeddedServer
from agentroute.pulse import GONE

AT_ONCE, ANSWERED = 50, 4
"""Streams, and how many of them are being answered when the engine dies; it has slots for twice as many."""
TASK = Task(context_tokens=100, max_output_tokens=8)
LONG = Task(context_tokens=20, max_output_tokens=120)
WAITS = Timeout(read_s=240.0, queue_s=240.0, total_s=240.0)
"""The other server answers fifty prompts, four at a time, on two cores: two minutes beside other work."""
TRIES = 5


@dataclass(frozen=True)
class Got:
    """What one caller got in the end, and what it had heard by then."""

    reply: Reply
    heard: str
    failures: tuple[FailureKind, ...]


def test_those_whose_engine_died_are_answered_by_the_next_candidate() -> None:
    """On the CPU a seed and a prompt that is read in pieces end vLLM 0.32.0: its generator takes no offset."""
    with (
        vllm("--enforce-eager", "--max-num-batched-tokens", "64", "--max-num-seqs", "8") as dying,
        EmbeddedServer(ctx=8192, slots=4) as other,
    ):
        both = router(
            # A known KV pool comes before an unknown one.
            deployment(dying, name="dying", adapter="vllm", served_model="tiny", pool_tokens=100_000),
            deployment(other.url, name="other"),
        )
        watcher = Watcher(both)
        watcher.look()
        assert both.doctor() == []
        answering = Semaphore(0)

        def got(i: int) -> Got:
            """Ask until there is an answer, as an agent would; the first ones are short and ask for long answers."""
            failures: list[FailureKind] = []
            is_first = i < ANSWERED
            times, task, body = (1, LONG, EXACT) if is_first else (20, TASK, {"seed": i, "temperature": 0.9})
            messages = [{"role": "user", "content": f"{i} " + "fox " * times}]
            for _ in range(TRIES):
                heard = ""
                try:
                    with client.stream(messages, task=task, body=body) as events:
                        for event in events:
                            if isinstance(event, TextDelta):
                                if is_first and not heard and not failures:
                                    answering.release()
                                heard += event.text
                except BackendError as error:
                    failures.append(error.kind)
                else:
                    assert events.reply is not None
                    return Got(events.reply, heard, tuple(failures))
            raise AssertionError(f"asked often enough: {failures}")

        began = time.monotonic()
        with Client(both, timeout=WAITS) as client, ThreadPoolExecutor(AT_ONCE) as threads:
            calls = [threads.submit(got, i) for i in range(ANSWERED)]
            for _ in range(ANSWERED):
                assert answering.acquire(timeout=60.0)
            calls += [threads.submit(got, i) for i in range(ANSWERED, AT_ONCE)]
            all_of_them = [call.result() for call in calls]
            took_s = time.monotonic() - began
            assert not [pool for pool in client._inner._means.pools._all if pool.used]
        until(lambda: not answers(dying), most_s=60.0)
        assert took_s < WAITS.total_s  # by which even the last of them had its answer
        for one in all_of_them:
            assert one.reply.text == one.heard  # nothing twice, nothing of an attempt that failed
        assert {kind for one in all_of_them for kind in one.failures} <= {
            FailureKind.ENGINE_DEAD, FailureKind.INTERRUPTED, FailureKind.UNAVAILABLE,
        }  # fmt: skip
        # Another server does not tell on what was half told: its caller hears of the failure.
        assert any(one.failures for one in all_of_them[:ANSWERED])
        assert "other" in {one.reply.decision.deployment for one in all_of_them}
        assert_nothing_is_held(both)
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
