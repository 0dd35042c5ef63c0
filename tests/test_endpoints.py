"""Completions, responses and embeddings through the clients: the same way as chats, to a real server and to others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from servers import Server, answers, deployment, free_tokens, router, says, streams

from agentroute.adapters.endpoints import CHATS, COMPLETIONS, EMBEDDINGS, RESPONSES
from agentroute.client import AsyncClient, Client, Reply, Retry
from agentroute.decision import Decision
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.errors import BackendError, FailureKind, UnknownNameError, UsageError
from agentroute.lacks import BELIEVED_S, Lacks
from agentroute.payload import MOST_COUNTED, count
from agentroute.router import Router
from agentroute.session import Session
from agentroute.task import PRIORITIES, Slo, Task
from agentroute.tokens import estimate, of_text

TALE = {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}
HI = {"input": "Say hi", "max_output_tokens": 5, "temperature": 0}
CALLS = [("completions", TALE), ("responses", HI)]
EMBEDDED = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}],
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}
NO_EMBEDDINGS = answers('{"error": {"code": 501, "message": "This server does not support embeddings."}}', status=501)


def sent(body: Mapping[str, Any], **more: Any) -> bytes:
    return json.dumps({"model": MODEL_ALIAS, **body, **more}).encode()


# --- a real server


@pytest.mark.parametrize(("endpoint", "body"), CALLS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_real_server_answers_any_call_that_it_has(
    llama_one: EmbeddedServer, endpoint: Any, body: dict[str, Any], stream: bool
) -> None:
    routed = router(deployment(llama_one.url, pool_tokens=2048))
    with Client(routed) as client, client.forward(sent(body, stream=stream), endpoint=endpoint) as answer:
        raw = b"".join(answer)
        reply = answer.reply
    assert reply is not None
    assert reply.text
    assert reply.usage.completion_tokens == 5
    assert reply.usage.prompt_tokens is not None
    assert reply.decision.task.context_tokens >= reply.usage.prompt_tokens
    assert reply.decision.task.max_output_tokens == 5
    assert (b"data: " in raw) == stream
    assert (reply.seen.ttft_s is not None) == stream
    if not stream:
        assert reply.raw == json.loads(raw)
    assert free_tokens(routed) == 2048


@pytest.mark.parametrize(("endpoint", "body"), CALLS)
def test_a_call_brings_the_same_answer_as_its_stream(
    llama_one: EmbeddedServer, endpoint: Any, body: dict[str, Any]
) -> None:
    with Client(router(deployment(llama_one.url))) as client:
        whole = client.call(endpoint, body)
        with client.forward(sent(body, stream=True), endpoint=endpoint) as answer:
            for _ in answer:
                pass
    streamed = answer.reply
    assert streamed is not None
    assert (whole.text, whole.usage.completion_tokens) == (streamed.text, 5)
    assert whole.usage.prompt_tokens == streamed.usage.prompt_tokens


def test_a_real_server_without_embeddings_is_asked_once_and_then_left_alone(llama_one: EmbeddedServer) -> None:
    async def ask(routed: Router) -> list[Decision]:
        async with AsyncClient(routed) as client:
            replies = [await client.call("embeddings", {"input": "x"}) for _ in range(2)]
            replies.append(await client.chat([{"role": "user", "content": "hi"}], body={"max_tokens": 1}))
        return [reply.decision for reply in replies]

    with Server(answers(json.dumps(EMBEDDED))) as other:
        first, second, chat = asyncio.run(
            ask(router(deployment(llama_one.url, name="a"), deployment(other.url, name="b")))
        )
    assert [each.deployment for each in (first, second, chat)] == ["b", "b", "a"]
    assert (first.task.deny, second.task.deny, chat.task.deny) == ({"a"}, {"a"}, set())


def test_a_real_server_embeds_texts_and_token_ids(llama_embeddings: EmbeddedServer) -> None:
    routed = router(deployment(llama_embeddings.url, pool_tokens=512))
    with Client(routed) as client:
        texts = client.call("embeddings", {"input": ["a cat", "a cat", "the price of copper"]})
        with client.forward(sent({"input": [[1, 2, 3]]}), endpoint="embeddings") as answer:
            raw = b"".join(answer)
    one, same, other = (each["embedding"] for each in texts.raw["data"])
    assert one == pytest.approx(same, abs=1e-3)
    assert one != pytest.approx(other, abs=1e-3)
    assert (texts.text, texts.finish_reason, texts.usage.completion_tokens) == ("", None, None)
    assert texts.usage.prompt_tokens is not None
    assert texts.decision.task.context_tokens * 3 >= texts.usage.prompt_tokens
    assert answer.reply is not None
    assert (answer.reply.raw, answer.reply.usage.prompt_tokens) == (json.loads(raw), 3)
    assert free_tokens(routed) == 512


def test_an_input_that_is_too_long_to_embed_is_told_as_such(llama_embeddings: EmbeddedServer) -> None:
    routed = router(deployment(llama_embeddings.url))
    with Client(routed) as client, pytest.raises(BackendError) as caught:
        client.call("embeddings", {"input": "w " * 600})
    assert (caught.value.kind, len(caught.value.attempts)) == (FailureKind.CONTEXT_OVERFLOW, 1)


def test_a_server_that_is_all_there_is_is_asked_again(llama_one: EmbeddedServer) -> None:
    with Client(router(deployment(llama_one.url))) as client:
        for _ in range(2):
            with pytest.raises(BackendError, match="does not support embeddings") as caught:
                client.call("embeddings", {"input": "x"})
            assert caught.value.kind is FailureKind.NOT_FOUND
            assert caught.value.status == 501


def test_the_steps_of_a_session_may_be_responses(llama_one: EmbeddedServer) -> None:
    session = Session("run")
    said: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": "Say hi"}]
    with Client(router(deployment(llama_one.url))) as client:
        first = client.call("responses", {"input": said, "max_output_tokens": 4}, session=session)
        said += first.raw["output"]
        said.append({"type": "message", "role": "user", "content": "Again"})
        second = client.call("responses", {"input": said, "max_output_tokens": 4}, session=session)
    assert (first.decision.task.step, second.decision.task.step) == (1, 2)
    assert second.decision.task.context_source == "usage"
    assert first.usage.prompt_tokens is not None
    assert second.usage.prompt_tokens is not None
    expected = second.decision.task.expected_context_tokens
    assert expected is not None
    assert abs(expected - second.usage.prompt_tokens) <= 8


def test_a_completion_leaves_no_conversation_behind(llama_one: EmbeddedServer) -> None:
    session = Session("run")
    with Client(router(deployment(llama_one.url))) as client:
        client.call("completions", TALE, session=session)
        assert (session.steps, session.previous) == (1, None)
        client.chat([{"role": "user", "content": "hi"}], body={"max_tokens": 1}, session=session)
    assert session.previous is not None


# --- what is planned for, and sent


def asked(server: Server) -> list[tuple[str, Any]]:
    return [(each.target, json.loads(each.body)) for each in server.asked]


def test_embeddings_are_planned_by_the_longest_input_and_no_answer() -> None:
    body = sent({"input": ["one", "a text of some more words " * 20], "encoding_format": "float"})
    with Server(answers(json.dumps(EMBEDDED))) as server:
        there = deployment(server.url, adapter="vllm", pool_tokens=2048)
        with Client(router(there)) as client, client.forward(body, endpoint="embeddings") as answer:
            assert json.loads(b"".join(answer)) == EMBEDDED
        assert (server.asked[0].target, server.asked[0].body) == ("/v1/embeddings", body)
    reply = answer.reply
    assert reply is not None
    assert (reply.raw["data"], reply.usage.prompt_tokens) == (EMBEDDED["data"], 4)
    task = reply.decision.task
    assert 100 < task.context_tokens < 400
    assert task.max_output_tokens == 1


def test_of_very_many_inputs_the_longest_ones_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Any] = []

    def noted(one: Any, *more: Any) -> Any:
        counted.append(one)
        return of_text(one, *more)

    monkeypatch.setattr("agentroute.payload.of_text", noted)
    long = "word " * 300
    assert count(EMBEDDINGS, ["a"] * 5_000 + [long] + ["b"] * 5_000, {}) == of_text(long)
    assert long in counted
    assert len(counted) <= MOST_COUNTED + 1  # and the empty text, which stands for none


def test_the_limit_of_a_task_is_written_in_the_endpoint_s_own_field() -> None:
    completion = {"choices": [{"text": "x", "finish_reason": "stop"}]}
    response = {"status": "completed", "output": []}
    task = Task(context_tokens=10, max_output_tokens=7)
    for endpoint, prompt, answer, field in (
        ("completions", "prompt", completion, {"max_tokens": 7}),
        ("responses", "input", response, {"max_output_tokens": 7}),
        ("embeddings", "input", EMBEDDED, {}),
    ):
        with Server(answers(json.dumps(answer))) as server, Client(router(deployment(server.url))) as client:
            reply = client.call(endpoint, {prompt: "x"}, task=task)  # type: ignore[arg-type]
            assert asked(server) == [(f"/v1/{endpoint}", {"model": MODEL_ALIAS, prompt: "x", **field})]
            assert reply.decision.task.max_output_tokens == (7 if field else 1)


@pytest.mark.parametrize(("first", "sent"), [(None, [None, None, None]), ("lower", [-1, 0, 1]), ("higher", [1, 0, -1])])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_who_is_urgent_is_told_to_a_server_that_goes_by_it(endpoint: Any, first: Any, sent: list[int | None]) -> None:
    answer = '{"choices": [{"text": "x", "message": {"content": "x"}, "finish_reason": "stop"}]}'
    prompt = {"messages": [{"role": "user", "content": "x"}]} if endpoint == "chat" else {"prompt": "x"}
    with Server(answers(answer)) as server:
        there = deployment(server.url, adapter="sglang", pool_tokens=2048)
        assert there.profile.limits is not None
        limits = there.profile.limits.model_copy(update={"priority": first})
        there = replace(there, profile=there.profile.model_copy(update={"limits": limits}))
        with Client(router(there)) as client:
            for priority in PRIORITIES:
                client.call(endpoint, prompt, task=Task(context_tokens=9, priority=priority))
    assert [body.get("priority") for _, body in asked(server)] == sent


def test_embeddings_are_no_step_of_a_session_but_keep_its_deadline() -> None:
    session = Session("run", deadline_s=Slo(30, hard=False))
    with Server(answers(json.dumps(EMBEDDED))) as server, Client(router(deployment(server.url))) as client:
        reply = client.call("embeddings", {"input": "x"}, session=session)
    task = reply.decision.task
    assert (session.steps, task.session_id, task.step) == (0, None, None)
    assert isinstance(task.deadline_s, Slo)
    assert 0 < task.deadline_s.value <= 30


@pytest.mark.parametrize(
    ("endpoint", "prompt", "tokens"),
    [
        (COMPLETIONS, [1, 2, 3, 4], 4),
        (COMPLETIONS, [[1, 2, 3]], 3),
        (EMBEDDINGS, [[1, 2, 3], [4, 5]], 3),
    ],
)
def test_token_ids_count_as_many_as_they_are(endpoint: Any, prompt: Sequence[Any], tokens: int) -> None:
    found = count(endpoint, prompt, {})
    assert (found.value, found.upper, found.source) == (tokens, tokens, "tokenizer")


def test_a_text_counts_without_a_template_and_a_response_like_the_chat_it_becomes() -> None:
    text = "A text of some words, which no template is put around. " * 10
    chat = [{"role": "user", "content": text}]
    assert count(COMPLETIONS, text, {}).value < estimate(chat).value
    assert count(COMPLETIONS, [text], {}) == count(COMPLETIONS, text, {}) == count(EMBEDDINGS, [text, "a"], {})
    assert count(RESPONSES, text, {}) == count(RESPONSES, chat, {}) == count(CHATS, chat, {}) == estimate(chat)
    told = [{"role": "system", "content": "Be brief."}, *chat]
    assert count(RESPONSES, text, {"instructions": "Be brief."}) == estimate(told)
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    assert count(RESPONSES, text, {"tools": tools}) == estimate(chat, tools)


@pytest.mark.parametrize(
    ("endpoint", "body", "said"),
    [
        ("completions", {"prompt": ["a", "b"]}, "several prompts"),
        ("completions", {"prompt": 7}, "prompt must be a text, token ids or a list of such, got int"),
        ("completions", {"prompt": ["a"], "n": 2}, "several answers"),
        ("completions", {"prompt": [None]}, "prompt must be a text, token ids or a list of such, got None in it"),
        ("completions", {"prompt": "a", "max_tokens": 0}, "a limit on the answer"),
        ("completions", {"prompt": "a", "model": "m"}, "must not set 'model'"),
        ("responses", {"input": 7}, "input must be a list of mappings, got int"),
        ("responses", {"input": ["a"]}, "every item of input must be a mapping"),
        ("responses", {"input": "a", "background": True}, "in the background"),
        ("responses", {"input": "a", "stream": True}, "must not set 'stream'"),
        ("embeddings", {"input": [["a"]]}, "input must be a text, token ids or a list of such"),
        ("embeddings", 7, "body must be a mapping of request fields, got int"),
    ],
)
def test_what_is_no_request_is_said_in_one_sentence(endpoint: Any, body: Any, said: str) -> None:
    with Server(answers("{}")) as server, Client(router(deployment(server.url))) as client:
        with pytest.raises(UsageError, match=said) as caught:
            client.call(endpoint, body)
        assert "\n" not in str(caught.value)
        assert not server.asked


def test_embeddings_do_not_stream_and_there_are_four_endpoints() -> None:
    with Client(router(deployment("http://127.0.0.1:9"))) as client:
        with (
            pytest.raises(UsageError, match="/v1/embeddings does not stream"),
            client.forward(b'{"input": "x", "stream": true}', endpoint="embeddings"),
        ):
            pass
        with pytest.raises(UnknownNameError, match="did you mean 'embeddings'"):
            client.call("embedding", {"input": "x"})  # type: ignore[arg-type]


# --- what goes wrong


def whole(endpoint: str) -> str:
    said = {
        "completions": {"choices": [{"text": "good", "finish_reason": "stop"}]},
        "responses": {
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "good"}]}],
        },
    }
    return json.dumps(said[endpoint])


@pytest.mark.parametrize(("endpoint", "body"), CALLS)
@pytest.mark.parametrize(
    "bad",
    [
        says(b""),
        answers("<html>", status=502, content_type="text/html"),
        answers('{"error": {"message": "overloaded", "code": 503}}', status=503),
        answers('{"error": {"message": "overloaded", "code": 503}}'),
        answers('{"choices": [{"message": {"content": "of another endpoint"}}]}'),
    ],
)
def test_a_failure_goes_to_the_next_candidate(endpoint: Any, body: dict[str, Any], bad: Any) -> None:
    with Server(bad) as first, Server(answers(whole(endpoint))) as second:
        routed = router(deployment(first.url, name="a"), deployment(second.url, name="b"))
        with Client(routed) as client:
            reply = client.call(endpoint, body)
    assert (reply.text, reply.decision.deployment) == ("good", "b")
    assert (len(first.asked), len(second.asked)) == (1, 1)


TEXT = '{"choices": [{"text": "Onc"}]}'
DELTA = '{"type": "response.output_text.delta", "delta": "Onc"}'
DIED = '{"error": {"message": "EngineCore encountered an issue", "code": 500}}'
FAILED = (
    '{"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "x"}}}'
)


@pytest.mark.parametrize(
    ("endpoint", "body", "events", "kind"),
    [
        ("completions", TALE, [TEXT, DIED], FailureKind.ENGINE_DEAD),
        ("completions", TALE, [TEXT], FailureKind.INTERRUPTED),
        ("responses", HI, [DELTA, FAILED], FailureKind.UNAVAILABLE),
        ("responses", HI, [DELTA], FailureKind.INTERRUPTED),
    ],
)
def test_a_stream_that_breaks_is_told_with_what_came(
    endpoint: Any, body: dict[str, Any], events: list[str], kind: FailureKind
) -> None:
    with Server(streams(events)) as server:
        routed = router(deployment(server.url, pool_tokens=2048))
        with (
            Client(routed, retry=Retry(attempts=1)) as client,
            client.forward(sent(body, stream=True), endpoint=endpoint) as answer,
            pytest.raises(BackendError) as caught,
        ):
            for _ in answer:
                pass
    assert (caught.value.kind, caught.value.text) == (kind, "Onc")
    assert answer.reply is None


def test_an_error_before_the_first_content_of_a_stream_goes_to_the_next_candidate() -> None:
    created = '{"type": "response.created", "response": {"status": "in_progress"}}'
    response = {"status": "completed", "output": [], "usage": {"input_tokens": 3}}
    done = json.dumps({"type": "response.completed", "response": response})
    with Server(streams([created, FAILED])) as first, Server(streams([created, DELTA, done])) as second:
        routed = router(deployment(first.url, name="a"), deployment(second.url, name="b"))
        with Client(routed) as client, client.forward(sent(HI, stream=True), endpoint="responses") as answer:
            raw = b"".join(answer)
    reply = answer.reply
    assert reply is not None
    assert (reply.text, reply.finish_reason, reply.usage.prompt_tokens) == ("Onc", "stop", 3)
    assert (reply.decision.deployment, b"response.failed" in raw) == ("b", False)


# --- who lacks what


@pytest.mark.parametrize("runtime", ["trtllm", "transformers"])
def test_a_runtime_that_has_no_embeddings_is_not_asked(runtime: str) -> None:
    with Server(answers(json.dumps(EMBEDDED))) as without, Server(answers(json.dumps(EMBEDDED))) as other:
        there = deployment(without.url, name="a", adapter=runtime)
        with Client(router(there, deployment(other.url, name="b"))) as client:
            assert client.call("embeddings", {"input": "x"}).decision.deployment == "b"
        with Client(router(there)) as client, pytest.raises(BackendError, match="has no /v1/embeddings") as caught:
            client.call("embeddings", {"input": "x"})
        assert caught.value.kind is FailureKind.NOT_FOUND
        assert not without.asked


@pytest.mark.parametrize(
    ("status", "detail", "lacks"),
    [
        (404, "Not Found", True),
        (404, "File Not Found", True),
        (404, "404 page not found", True),
        (404, "the body is empty", True),
        (404, "The model `x` does not exist.", False),
        (404, "Response with id 'resp_1' not found.", False),
        (405, "Method Not Allowed", True),
        (501, "This server does not support embeddings. Start it with `--embeddings`", True),
        (400, "The model does not support Embeddings API", True),
        (400, "This model does not appear to be an embedding model by default.", True),
        (400, "bad", False),
        (500, "Not Found", False),
        (None, "not sent: no", False),
    ],
)
def test_a_route_that_is_not_there_is_told_from_a_model_that_is_not(
    status: int | None, detail: str, lacks: bool
) -> None:
    now = 0.0
    known = Lacks(router(deployment("http://x", name="a"), deployment("http://y", name="b")), lambda: now)
    known.failed(EMBEDDINGS, "a", BackendError(FailureKind.NOT_FOUND, detail, status=status))
    assert known.of(EMBEDDINGS) == ({"a"} if lacks else set())
    assert not known.of(RESPONSES)
    known.failed(CHATS, "b", BackendError(FailureKind.NOT_FOUND, detail, status=status))
    assert not known.of(CHATS)
    now = BELIEVED_S
    assert not known.of(EMBEDDINGS)


def test_a_model_that_only_generates_sends_embeddings_elsewhere() -> None:
    refusal = {"object": "error", "message": "The model does not support Embeddings API", "type": "BadRequestError"}
    with Server(answers(json.dumps(refusal), status=400)) as first, Server(answers(json.dumps(EMBEDDED))) as second:
        routed = router(deployment(first.url, name="a", adapter="vllm"), deployment(second.url, name="b"))
        with Client(routed) as client:
            replies: list[Reply] = [client.call("embeddings", {"input": "x"}) for _ in range(2)]
    assert [reply.decision.deployment for reply in replies] == ["b", "b"]
    assert (len(first.asked), len(second.asked)) == (1, 2)
