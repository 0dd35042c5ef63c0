"""What the caller gives: refused in one sentence, or sent with what is held for it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from servers import HELLO, TOOLS, deployment, free_tokens, router

from agentroute.client import Client
from agentroute.demo.embedded import EmbeddedServer
from agentroute.errand import prepare
from agentroute.errors import UsageError
from agentroute.task import Task
from agentroute.tokens import estimate

pytestmark = pytest.mark.usefixtures("no_proxy")


@pytest.mark.parametrize("body", [{"n": 2}, {"best_of": 3}])
def test_several_answers_in_one_call_are_refused(body: dict[str, Any]) -> None:
    with Client(router(deployment("http://127.0.0.1:9"))) as client, pytest.raises(UsageError, match="ask several"):
        client.chat(HELLO, body=body)


@pytest.mark.parametrize("name", ["task", "session"])
def test_what_is_no_task_or_session_is_refused_before_a_server_is_asked(name: str) -> None:
    words = rf"{name} must be a {name.title()} or None, got \{{'a': 1\}}"
    with Client(router(deployment("http://127.0.0.1:9"))) as client, pytest.raises(UsageError, match=words):
        client.chat(HELLO, **{name: {"a": 1}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("messages", "body", "words"),
    [
        ("hi", None, "messages must be a list of mappings, got str"),
        ({"role": "user"}, None, "messages must be a list of mappings, got dict"),
        (["hi"], None, "every message must be a mapping"),
        (HELLO, [1], "body must be a mapping"),
        (HELLO, {"model": "x"}, "must not set 'model'"),
        (HELLO, {"temperature": float("nan")}, "must be JSON"),
        (HELLO, {"logit_bias": b"x"}, "must be JSON"),
        ([{"role": "user", "content": "\ud800"}], None, "must be JSON"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_nothing_stays_held(messages: Any, body: Any, words: str) -> None:
    routed = router(deployment("http://127.0.0.1:9", pool_tokens=2048))
    with Client(routed) as client:
        with pytest.raises(UsageError, match=words):
            client.chat(messages, body=body)
        with pytest.raises(UsageError, match=words), client.stream(messages, body=body):
            pass
    assert free_tokens(routed) == 2048


@pytest.mark.parametrize(
    ("task_limit", "body", "held", "sent"),
    [
        (None, {}, None, {}),
        (50, {}, 50, {"max_tokens": 50}),
        (None, {"max_tokens": 70}, 70, {"max_tokens": 70}),
        (None, {"max_completion_tokens": 70}, 70, {"max_completion_tokens": 70}),
        (50, {"max_tokens": 70}, 70, {"max_tokens": 70}),
        (50, {"max_tokens": 30}, 50, {"max_tokens": 30}),
        (50, {"max_tokens": None}, 50, {"max_tokens": 50}),
        (50, {"n_predict": 80}, 80, {"n_predict": 80}),
    ],
)
def test_the_output_that_is_asked_for_is_the_output_that_is_held(
    task_limit: int | None, body: dict[str, Any], held: int | None, sent: dict[str, Any]
) -> None:
    before = dict(body)
    task, fields = prepare(HELLO, Task(context_tokens=10, max_output_tokens=task_limit), body)
    assert task.max_output_tokens == held
    assert fields == sent
    assert body == before


def test_a_task_is_made_from_messages_and_tools() -> None:
    task, _ = prepare(HELLO, None, {"max_tokens": 7, "tools": TOOLS})
    assert task.max_output_tokens == 7
    assert task.needs == {"tools"}
    assert task.context_tokens > prepare(HELLO, None, None)[0].context_tokens


@pytest.mark.parametrize("limit", ["many", -1, 0, 1.5, True, 10**40])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(UsageError, match="a whole number of tokens, at least 1"):
        prepare(HELLO, None, {"max_tokens": limit})


def prompt_tokens(server: EmbeddedServer, messages: list[dict[str, str]]) -> int:
    """What a chat's usage would say, without the model reading the prompt: that takes seconds."""
    root = server.url.removesuffix("/v1")
    prompt = httpx.post(f"{root}/apply-template", json={"messages": messages}, timeout=60).json()["prompt"]
    body = {"content": prompt, "add_special": True, "parse_special": True}
    return len(httpx.post(f"{root}/tokenize", json=body, timeout=60).json()["tokens"])


@pytest.mark.parametrize(
    "text",
    [
        "hi",
        "31415926535897932384626433832795" * 8,
        "aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0IHRleHQ=" * 6,
        "\u1019\u1004\u103a\u1039\u1002\u101c\u102c\u1015\u102b " * 12,
        "\U0001f600\U0001f680\U0001f9ea" * 10,
        "{}[]()<>!@#$%^&*~`|\\;:" * 8,
        "f47ac10b-58cc-4372-a567-0e02b2c3d479 " * 6,
        "The council liked the price of the third proposal and the look of the first. " * 4,
    ],
    ids=["a word", "digits", "base64", "Burmese", "emoji", "signs", "ids", "prose"],
)
def test_a_real_tokenizer_stays_below_the_upper_bound(llama_one: EmbeddedServer, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    counted = prompt_tokens(llama_one, messages)
    assert counted <= estimate(messages).upper
    if len(text) < 10:
        with Client(router(deployment(llama_one.url))) as client:
            assert client.chat(messages, body={"max_tokens": 1}).usage.prompt_tokens == counted
