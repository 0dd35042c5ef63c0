"""The events of a stream, of completions and responses: the same as a chat's, with its waits, lessons and failures."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import faults
import pytest
from faults import FaultServer
from pair import HI, TASK, one
from servers import Behaviour, Server, answers, deployment, free_tokens, router, silent_after, streams

from agentroute.client import AsyncClient, Client, Reply, Retry, Session, Timeout
from agentroute.demo.embedded import EmbeddedServer
from agentroute.ended import Ended
from agentroute.errors import BackendError, FailureKind, UnknownNameError, UsageError
from agentroute.payload import EndpointName
from agentroute.wire import Event, Finished, ReasoningDelta, Restarted, TextDelta, ToolCallDelta, Usage


@dataclass(frozen=True)
class Wire:
    """How an endpoint is asked, and how a server would stream an answer of it."""

    endpoint: EndpointName
    prompt: str
    limit: str
    first: tuple[str, ...]
    """What comes before any content."""
    end: tuple[str, ...]
    """What ends an answer that was cut by its limit, with its usage: 7 tokens, of which 4 were cached, and 9."""
    failed: str
    """The engine has died."""

    def text(self, piece: str) -> str:
        if self.endpoint == "completions":
            return json.dumps({"choices": [{"index": 0, "text": piece, "finish_reason": None}]})
        return json.dumps({"type": "response.output_text.delta", "output_index": 0, "delta": piece})

    def texts(self, *pieces: str) -> tuple[str, ...]:
        return (*self.first, *map(self.text, pieces))

    def body(self, limit: int = 9) -> dict[str, Any]:
        return {self.prompt: "Once upon a time", self.limit: limit, "temperature": 0}


DEAD = "EngineCore encountered an issue. See stack trace for the root cause."
COMPLETIONS = Wire(
    "completions",
    "prompt",
    "max_tokens",
    first=(),
    end=(
        json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}),
        json.dumps(
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 7,
                    "completion_tokens": 9,
                    "prompt_tokens_details": {"cached_tokens": 4},
                },
            }
        ),
        "[DONE]",
    ),
    failed=json.dumps({"error": {"message": DEAD, "type": "InternalServerError", "code": 500}}),
)
RESPONSES = Wire(
    "responses",
    "input",
    "max_output_tokens",
    first=(
        json.dumps({"type": "response.created", "response": {"status": "in_progress", "output": []}}),
        json.dumps({"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}}),
    ),
    end=(
        json.dumps({"type": "response.output_text.done", "output_index": 0, "text": "all of it once more"}),
        json.dumps(
            {
                "type": "response.incomplete",
                "response": {
                    "status": "incomplete",
                    "incomplete_details": {"reason": "max_output_tokens"},
                    "output": [],
                    "usage": {"input_tokens": 7, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 4}},
                },
            }
        ),
    ),
    failed=json.dumps(
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "server_error", "message": DEAD}},
        }
    ),
)
WIRES = [COMPLETIONS, RESPONSES]
every_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.endpoint)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
ONCE = Retry(attempts=1)


def taken(client: Client, wire: Wire, *, limit: int = 9) -> tuple[list[Event], Reply]:
    """All events of a stream, and its reply."""
    with client.stream_call(wire.endpoint, wire.body(limit)) as events:
        assert events.reply is None
        seen = list(events)
        assert list(events) == []
    assert events.reply is not None
    return seen, events.reply


async def ataken(client: AsyncClient, wire: Wire, *, limit: int = 9) -> tuple[list[Event], Reply]:
    async with client.stream_call(wire.endpoint, wire.body(limit)) as events:
        assert events.reply is None
        seen = [event async for event in events]
    assert events.reply is not None
    return seen, events.reply


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


# --- a real server


@every_wire
def test_a_real_server_s_answer_comes_in_pieces_and_is_the_one_that_comes_whole(
    llama_one: EmbeddedServer, wire: Wire
) -> None:
    with Client(router(deployment(llama_one.url, pool_tokens=2048))) as client:
        whole = client.call(wire.endpoint, wire.body())
        events, reply = taken(client, wire)
        assert free_tokens(client.router) == 2048
    assert len(events) > 5, "several pieces, a reason to stop, and usage"
    assert text_of(events) == reply.text == whole.text != ""
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (whole.usage.prompt_tokens, 9)
    # llama.cpp calls a response complete that its limit has cut.
    ends = "length" if wire is COMPLETIONS else "stop"
    assert reply.finish_reason == whole.finish_reason == ends
    assert [event for event in events if not isinstance(event, TextDelta)] == [Finished(ends), reply.usage]
    assert reply.seen.ttft_s is not None
    assert 0 < reply.seen.ttft_s < reply.seen.e2e_s
    assert reply.raw == {}


@every_wire
def test_the_async_twin_gives_the_same_events(llama_one: EmbeddedServer, wire: Wire) -> None:
    routed = router(deployment(llama_one.url))

    async def ask() -> tuple[list[Event], Reply]:
        async with AsyncClient(routed) as client:
            return await ataken(client, wire)

    events, reply = asyncio.run(ask())
    assert reply.text
    assert [text_of(events), events[-1]] == [reply.text, reply.usage]
    assert reply.usage.completion_tokens == 9


def test_a_real_server_calls_tools_in_pieces(llama_tools: EmbeddedServer) -> None:
    city = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris"]}}, "required": ["city"]}
    begun = {  # so that this small model calls one
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "<tool_call>\n", "annotations": []}],
    }
    body = {
        "input": [
            {"role": "user", "content": "Weather in Paris?"},
            begun,
        ],
        "tools": [{"type": "function", "name": "get_weather", "description": "Get weather", "parameters": city}],
        "tool_choice": "required",
        "max_output_tokens": 60,
        "temperature": 0,
    }
    with Client(router(deployment(llama_tools.url))) as client:
        whole = client.call("responses", body)
        with client.stream_call("responses", body) as events:
            pieces = [event for event in events if isinstance(event, ToolCallDelta)]
    reply = events.reply
    assert reply is not None
    assert len(pieces) > len(reply.tool_calls) > 1, "it calls the tool again and again"
    assert json.loads(reply.tool_calls[0].arguments) == {"city": "Paris"}
    told = [(call.name, call.arguments) for call in whole.tool_calls]
    assert [(call.name, call.arguments) for call in reply.tool_calls] == told
    assert ["".join(piece.arguments for piece in pieces if piece.index == i) for i in range(len(told))] == [
        arguments for _, arguments in told
    ]
    assert reply.finish_reason == "tool_calls"
    assert reply.seen.ttft_s is not None


@every_wire
def test_a_prompt_that_is_too_long_is_an_overflow(llama_split: EmbeddedServer, wire: Wire) -> None:
    long = {**wire.body(), wire.prompt: "word " * 600}
    with (
        Client(router(deployment(llama_split.url))) as client,
        pytest.raises(BackendError) as caught,
        client.stream_call(wire.endpoint, long),
    ):
        pass
    assert (caught.value.kind, caught.value.status) == (FailureKind.CONTEXT_OVERFLOW, 400)


def test_the_steps_of_a_session_may_be_streamed_responses(llama_one: EmbeddedServer) -> None:
    session = Session("run")
    said: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": "Say hi"}]
    with Client(router(deployment(llama_one.url))) as client:
        for _ in range(2):
            body = {"input": said, "max_output_tokens": 4}
            with client.stream_call("responses", body, session=session) as events:
                list(events)
            assert events.reply is not None
            content = [{"type": "output_text", "text": events.reply.text}]
            said.append({"type": "message", "role": "assistant", "status": "completed", "content": content})
            said.append({"type": "message", "role": "user", "content": "Again"})
    task = events.decision.task
    assert (session.steps, task.step, task.context_source) == (2, 2, "usage")


# --- what comes, and what is learnt of it


@every_wire
def test_pieces_the_reason_to_stop_and_usage_come_as_events(wire: Wire) -> None:
    with Server(streams([*wire.texts("Onc", "e"), *wire.end])) as server:
        with Client(router(deployment(server.url, adapter="vllm"))) as client:
            events, reply = taken(client, wire)
        (asked,) = server.asked
    assert events == [TextDelta("Onc"), TextDelta("e"), Finished("length"), Usage(7, 9, 4)]
    assert (reply.text, reply.finish_reason, reply.usage) == ("Once", "length", Usage(7, 9, 4))
    sent = json.loads(asked.body)
    assert (asked.target, sent["stream"]) == (f"/v1/{wire.endpoint}", True)
    assert (sent.get("stream_options") == {"include_usage": True}) == (wire is COMPLETIONS)


def test_thoughts_and_tool_calls_of_a_response_come_as_those_of_a_chat() -> None:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather", "arguments": ""}
    end = {"status": "completed", "output": [item], "usage": {"input_tokens": 3, "output_tokens": 4}}
    script: list[dict[str, Any]] = [
        {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "hm"},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "so"},
        {"type": "response.output_item.added", "output_index": 2, "item": item},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"city":'},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '"Paris"}'},
        {"type": "response.completed", "response": end},
    ]
    with Server(streams([*map(json.dumps, script)])) as server, Client(router(deployment(server.url))) as client:
        events, reply = taken(client, RESPONSES)
    assert events == [
        ReasoningDelta("hm"),
        TextDelta("so"),
        ToolCallDelta(2, "call_1", "get_weather"),
        ToolCallDelta(2, arguments='{"city":'),
        ToolCallDelta(2, arguments='"Paris"}'),
        Finished("tool_calls"),
        Usage(3, 4),
    ]
    assert (reply.reasoning, reply.text) == ("hm", "so")
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("call_1", "get_weather", '{"city":"Paris"}')
    ]


@pytest.mark.parametrize("pieces", [(), ("On", "ce")], ids=["nothing before it", "pieces before it"])
def test_the_end_of_a_response_holds_what_did_not_come_in_pieces(pieces: tuple[str, ...]) -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "[1]"}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    message = {"type": "message", "content": [{"type": "output_text", "text": "Once"}]}
    output, usage = [thought, message, call], {"input_tokens": 3, "output_tokens": 4}
    end = {"type": "response.completed", "response": {"status": "completed", "output": output, "usage": usage}}
    with (
        Server(streams([*(RESPONSES.texts(*pieces) if pieces else ()), json.dumps(end)])) as server,
        Client(router(deployment(server.url))) as client,
    ):
        events, reply = taken(client, RESPONSES)
    assert text_of(events) == reply.text == "Once"
    assert [event for event in events if not isinstance(event, TextDelta)] == [
        ReasoningDelta("hm"),
        ToolCallDelta(0, "call_1", "f", "[1]"),
        Finished("tool_calls"),
        Usage(3, 4),
    ]
    assert reply.reasoning == "hm"
    assert [(one.id, one.name, one.arguments) for one in reply.tool_calls] == [("call_1", "f", "[1]")]
    assert reply.usage == Usage(3, 4)
    assert reply.seen.ttft_s is not None


NUMBERS: dict[str, tuple[list[int], list[int]]] = {
    "told": ([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2]),
    "interleaved": ([0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 2]),
    "not told": ([0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 2, 2]),
    "told late": ([0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2]),
}
"""The numbers of the two pieces of three calls (its name, its arguments), as they came and as they are handed out."""


@pytest.mark.parametrize("how", NUMBERS)
@pytest.mark.parametrize("ids_change", [False, True])
def test_each_tool_call_has_a_number_of_its_own_even_where_the_server_gives_it_none(how: str, ids_change: bool) -> None:
    came, told = NUMBERS[how]
    begun: set[int] = set()
    script: list[dict[str, Any]] = []
    for number, call in zip(came, told, strict=True):
        new_id = f"call_{call}" if call not in begun else "made up" if ids_change else None
        function = {"arguments": f"[{call}]"} if call in begun else {"name": f"f{call}", "arguments": ""}
        script.append({"choices": [{"delta": {"tool_calls": [{"index": number, "id": new_id, "function": function}]}}]})
        begun.add(call)
    script.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    with (
        Server(streams([*map(json.dumps, script)])) as server,
        Client(router(deployment(server.url))) as client,
        client.stream([{"role": "user", "content": "x"}]) as events,
    ):
        pieces = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [piece.index for piece in pieces] == told
    assert events.reply is not None
    calls = [(call.id, call.name, call.arguments) for call in events.reply.tool_calls]
    assert calls == [(f"call_{i}", f"f{i}", f"[{i}]") for i in range(3)]


@every_wire
def test_ttft_tpot_and_tokens_are_learnt_from_it(wire: Wire) -> None:
    ended: list[Ended] = []
    with (
        Server(streams([*wire.texts("Onc", "e"), *wire.end])) as server,
        Client(router(deployment(server.url)), observers=[ended.append]) as client,
    ):
        _, reply = taken(client, wire)
    (one,) = ended
    assert (one.endpoint, one.streaming, one.result) == (wire.endpoint, True, "ok")
    outcome, seen = one.outcome, reply.seen
    assert seen.ttft_s is not None
    assert outcome.ttft_ms == seen.ttft_s * 1_000
    assert outcome.tpot_ms == pytest.approx((seen.e2e_s - seen.ttft_s) * 1_000 / 8)
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (7, 9, 4)


@every_wire
def test_a_stream_that_says_why_it_stopped_is_whole_whatever_comes_then(wire: Wire) -> None:
    for more in ((), ("[DONE]",), ("[DONE]", "[DONE]")):
        ends = [part for part in wire.end if part != "[DONE]"]
        script = streams([*wire.texts("Once"), *ends, *more])
        with Server(script) as server, Client(router(deployment(server.url))) as client:
            _, reply = taken(client, wire)
        assert (reply.text, reply.usage) == ("Once", Usage(7, 9, 4))


# --- what goes wrong


BROKEN: dict[str, tuple[tuple[str, ...], bool, FailureKind]] = {
    "cut": ((), False, FailureKind.INTERRUPTED),
    "ends too soon": ((), True, FailureKind.INTERRUPTED),
    "half an event": (('{"choices":[{"te',), True, FailureKind.INTERRUPTED),
    "too many": (
        ('{"error": {"message": "The engine is currently busy", "code": 503}}',),
        True,
        FailureKind.OVERLOADED,
    ),
    "engine death": (("failed",), True, FailureKind.ENGINE_DEAD),
}
"""What comes after the first pieces, whether the connection ends well, and what that is."""


@every_wire
@pytest.mark.parametrize("how", BROKEN)
def test_what_breaks_after_content_is_raised_behind_what_came(wire: Wire, how: str) -> None:
    script, whole, kind = BROKEN[how]
    script = tuple(wire.failed if part == "failed" else part for part in script)
    with Server(streams([*wire.texts("Onc", "e"), *script], whole=whole)) as server, Server(answers("{}")) as other:
        routed = router(deployment(server.url, name="a", pool_tokens=2048), deployment(other.url, name="b"))

        def fail(client: Client, seen: list[Event]) -> None:
            with client.stream_call(wire.endpoint, wire.body()) as events:
                seen.extend(events)

        async def afail(seen: list[Event]) -> None:
            async with AsyncClient(routed) as client, client.stream_call(wire.endpoint, wire.body()) as events:
                async for event in events:
                    seen.append(event)

        sync: list[Event] = []
        with Client(routed) as client, pytest.raises(BackendError) as caught:
            fail(client, sync)
        twin: list[Event] = []
        routed = router(deployment(server.url, name="a", pool_tokens=2048), deployment(other.url, name="b"))
        with pytest.raises(BackendError) as caught_too:
            asyncio.run(afail(twin))
        assert not other.asked, "who has content already is not given another answer unasked"
    assert sync == twin == [TextDelta("Onc"), TextDelta("e")]
    for error in (caught.value, caught_too.value):
        assert (error.kind, error.text, error.deployment) == (kind, "Once", "a")
        assert [attempt.deployment for attempt in error.attempts] == ["a"]


@every_wire
@pytest.mark.parametrize("pieces", [(), ("Onc", "e")], ids=["before content", "after it"])
def test_a_server_that_falls_silent_is_waited_for_as_long_as_is_said(wire: Wire, pieces: tuple[str, ...]) -> None:
    said = HEAD + b"".join(f"data: {data}\n\n".encode() for data in wire.texts(*pieces))
    with Server(silent_after(said)) as server:
        by, waits = router(deployment(server.url)), Timeout(read_s=0.3)
        with Client(by, timeout=waits, retry=ONCE) as client, pytest.raises(BackendError) as caught:
            taken(client, wire)
    assert (caught.value.kind, caught.value.text) == (FailureKind.TIMEOUT, "".join(pieces))
    assert re.search(r"(was silent for|gave no first piece of the answer within) 0\.3 s", caught.value.detail)


CHAT = json.dumps({"choices": [{"index": 0, "delta": {"content": "Twi"}, "finish_reason": "stop"}]})
BEFORE: dict[str, Callable[[Wire], Behaviour]] = {
    "nothing": lambda wire: streams(wire.first),
    "[DONE] alone": lambda wire: streams(["[DONE]"]),
    "nothing but an end": lambda wire: streams([*wire.first, "[DONE]"]),
    "a chat": lambda wire: streams([CHAT, "[DONE]"]),
    "another endpoint's": lambda wire: streams(
        [*(other := RESPONSES if wire is COMPLETIONS else COMPLETIONS).texts("Twi"), *other.end, "[DONE]"]
    ),
    "engine death": lambda wire: streams([*wire.first, wire.failed]),
    "502": lambda wire: answers("<html>", status=502, content_type="text/html"),
    "200 with an error": lambda wire: answers('{"error": {"message": "overloaded", "code": 503}}'),
}


@every_wire
@pytest.mark.parametrize("how", BEFORE)
def test_what_fails_before_content_goes_to_the_next_candidate(wire: Wire, how: str) -> None:
    with Server(BEFORE[how](wire)) as first, Server(streams([*wire.texts("Onc", "e"), *wire.end])) as second:
        routed = router(deployment(first.url, name="a", pool_tokens=2048), deployment(second.url, name="b"))
        with Client(routed) as client:
            events, reply = taken(client, wire)
    assert (text_of(events), reply.text, reply.decision.deployment) == ("Once", "Once", "b")
    assert (len(first.asked), len(second.asked)) == (1, 1)


@every_wire
def test_it_begins_anew_elsewhere_where_the_caller_allows_that(wire: Wire) -> None:
    whole = streams([*wire.texts("Onc", "e"), *wire.end])
    with Server(streams([*wire.texts("Twi")], whole=False)) as first, Server(whole) as second:
        routed = router(deployment(first.url, name="a", pool_tokens=2048), deployment(second.url, name="b"))
        with Client(routed) as client, client.stream_call(wire.endpoint, wire.body(), resume="restart") as events:
            seen = list(events)
    assert seen == [TextDelta("Twi"), Restarted(), TextDelta("Onc"), TextDelta("e"), Finished("length"), Usage(7, 9, 4)]
    assert events.reply is not None
    assert (events.reply.text, events.decision.deployment) == ("Once", "b")


# --- what the caller gives


@pytest.mark.parametrize(
    ("endpoint", "body", "said"),
    [
        ("embeddings", {"input": "x"}, "/v1/embeddings does not stream"),
        ("completions", {"prompt": ["a", "b"]}, "several prompts"),
        ("responses", {"input": "a", "stream": True}, "must not set 'stream'"),
        ("responses", {"input": "a", "background": True}, "in the background"),
        ("completions", 7, "body must be a mapping of request fields, got int"),
    ],
)
def test_what_is_no_request_for_a_stream_is_said_before_a_server_is_asked(endpoint: Any, body: Any, said: str) -> None:
    with Server(answers("{}")) as server, Client(router(deployment(server.url))) as client:
        with pytest.raises(UsageError, match=said), client.stream_call(endpoint, body):
            pass
        assert not server.asked


def test_an_endpoint_and_a_way_to_resume_are_told_by_name() -> None:
    with Client(router(deployment("http://127.0.0.1:9"))) as client:
        wrong: Any = "completion"
        with pytest.raises(UnknownNameError, match="did you mean 'completions'"), client.stream_call(wrong, {}):
            pass
        resume: Any = "again"
        asked = client.stream_call("completions", {"prompt": "x"}, resume=resume)
        with pytest.raises(UsageError, match="resume must be None or 'restart', got 'again'"), asked:
            pass


def test_a_chat_may_be_asked_for_by_its_name_too() -> None:
    chat = '{"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}'
    with (
        Server(streams([chat, "[DONE]"])) as server,
        Client(router(deployment(server.url))) as client,
        client.stream_call("chat", {"messages": [{"role": "user", "content": "x"}]}) as events,
    ):
        assert list(events) == [TextDelta("hi"), Finished("stop")]


def test_leaving_the_block_ends_the_request() -> None:
    said = HEAD + b"".join(f"data: {data}\n\n".encode() for data in COMPLETIONS.texts("Onc", "e"))
    with Server(silent_after(said)) as server, Client(router(deployment(server.url))) as client:
        with client.stream_call("completions", COMPLETIONS.body()) as events:
            assert next(events) == TextDelta("Onc")
        with pytest.raises(UsageError, match="the stream is closed"):
            next(events)
    assert events.reply is None


@pytest.mark.parametrize(
    ("pieces", "text"), [(("\\ud83d", "\\ude00 yes"), "😀 yes"), (("no \\ud83d", ""), "no \ufffd")]
)
def test_a_character_that_came_in_two_halves_is_one_and_half_of_one_is_none(
    first: FaultServer, pieces: tuple[str, str], text: str
) -> None:
    """Half a character could be neither printed nor sent with the next prompt."""

    async def halves(asked: faults.Question, out: faults.Connection) -> None:
        if len(asked.body["messages"]) > 1:
            return await faults.good(asked, out)
        said = b"".join(faults.event(f'{{"choices":[{{"delta":{{"content":"{piece}"}}}}]}}') for piece in pieces)
        out.write(faults.HEAD + said + faults.delta("", "stop") + faults.event("[DONE]") + faults.END)

    first.fault = halves
    with Client(one(first)) as client:
        with client.stream(HI, task=TASK) as events:
            list(events)
        assert events.reply is not None and events.reply.text == text
        assert client.chat([*HI, {"role": "assistant", "content": events.reply.text}, *HI]).text == "hi there"
