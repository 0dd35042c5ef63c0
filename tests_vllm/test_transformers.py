"""``transformers serve``, which a single request that does not fit ends for good."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from heavy import model, transformers_serve, words
from large import until
from servers import deployment, router

from agentroute import BackendError, Client, NoFeasibleDeployment, PoolFull, Task, Watcher
from agentroute.adapters import adapter
from agentroute.errors import AgentrouteError
from agentroute.probe import probe, probe_load, probe_wire

WIRE = adapter("transformers")
TASK = Task(context_tokens=60, max_output_tokens=10)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with transformers_serve() as running:
        yield running


def client(url: str, pool_tokens: int | None = None) -> Client:
    name = str(model("llama"))
    return Client(router(deployment(url, adapter="transformers", served_model=name, pool_tokens=pool_tokens)))


def test_it_is_known_by_its_answers_and_tells_that_it_lives(url: str) -> None:
    assert probe_wire(url) == "transformers"
    found = probe(url, WIRE)
    assert (found.engine, found.max_model_len, found.kv_pool) == ("transformers", None, None)
    load = probe_load(url, WIRE)
    assert (load.alive, load.running) == (True, None)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_chat_is_answered_and_counted(url: str, streaming: bool) -> None:
    with client(url) as one:
        if streaming:
            with one.stream(words(times=10), task=TASK) as events:
                list(events)
            reply = events.reply
        else:
            reply = one.chat(words(times=10), task=TASK)
    assert reply is not None
    assert reply.usage.completion_tokens is not None and 1 <= reply.usage.completion_tokens <= 10


def test_what_it_would_ignore_in_silence_is_not_sent(url: str) -> None:
    with client(url) as one, pytest.raises(AgentrouteError, match="response_format"):
        one.chat(words(times=5), task=TASK, body={"response_format": {"type": "json_object"}})


def test_what_would_end_its_worker_is_not_sent_and_what_does_is_noticed(url: str) -> None:
    large = Task(context_tokens=900, max_output_tokens=5_000)
    with client(url, pool_tokens=64 * 16) as one:
        with pytest.raises(NoFeasibleDeployment):
            one.chat(words(times=250), task=large)
        assert one.chat(words(times=5), task=TASK).usage.prompt_tokens  # it still answers
    name = str(model("llama"))
    body = {"model": name, "messages": words(times=600), "max_tokens": 5}
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60.0).status_code == 503
    by = router(deployment(url, adapter="transformers", served_model=name))
    watcher = Watcher(by)

    def dead() -> bool:
        watcher.look()
        return [finding.kind for finding in by.doctor()] == ["engine_dead"]

    until(dead, most_s=60.0)
    with pytest.raises(PoolFull):
        by.acquire(TASK)
    with client(url) as one, pytest.raises(BackendError):
        one.chat(words(times=5), task=TASK)
