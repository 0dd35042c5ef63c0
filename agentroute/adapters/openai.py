"""The shared wire: chat completions as OpenAI defined them and every runtime here speaks them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from agentroute.adapters.base import Conversation, Discovery, Endpoint, Load, Served
from agentroute.adapters.dialect import PLAIN, Dialect
from agentroute.adapters.failures import failure, looks_like_html, one_line, stream_failure
from agentroute.errors import BackendError, FailureKind, UsageError, shown
from agentroute.profile import EngineName
from agentroute.wire import (
    Answer,
    Completion,
    Event,
    Finished,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"

_OURS = ("model", "messages", "stream")
_ANYWHERE = Served()
_ENGINES: dict[str, EngineName] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,60}")
_WINDOW_KEYS = ("max_model_len", "context_window", "context_length")


class OpenAIAdapter:
    """Any OpenAI-compatible server."""

    name = "openai"
    dialect: Dialect = PLAIN
    """How what it is asked differs from the shared wire."""

    def discover(self) -> Conversation[Discovery]:
        """Ask for the list of models; the window when the list says it, the engine when its owner is one."""
        answer = yield Request(MODELS)
        models = listed_models(answer, self.classify)
        head = first(models)
        meta = head.get("meta")  # llama.cpp: the window of one slot
        said = [*(head.get(key) for key in _WINDOW_KEYS), meta.get("n_ctx") if isinstance(meta, Mapping) else None]
        window = next((tokens for value in said if (tokens := positive(value)) is not None), None)
        engine = _ENGINES.get(str(head.get("owned_by", "")).lower(), "other")
        return Discovery(
            models=tuple(str(model["id"]) for model in models),
            engine=engine,
            max_model_len=window,
            notes=("the KV pool is unknown: an OpenAI-compatible server does not say how many tokens it holds",),
        )

    def load(self) -> Conversation[Load]:
        """Nothing: this wire has no words for it, so nothing is asked."""
        yield from ()
        return Load()

    def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], *, body: Mapping[str, Any], stream: bool
    ) -> Request:
        """The request; raises ``UsageError`` when ``body`` holds a field that is not the caller's to set there."""
        for key in _OURS:
            if key in body:
                raise UsageError(f"body must not set {key!r}; it is given by the call itself")
        return self.request(CHATS, model, {"messages": list(messages), **body}, stream=stream)

    def request(
        self,
        endpoint: Endpoint,
        model: str,
        payload: Mapping[str, Any],
        *,
        stream: bool,
        served: Served = _ANYWHERE,
        urgency: int | None = None,
    ) -> Request:
        """The request for any endpoint; see ``Adapter.request``."""
        if stream and endpoint.events is None:
            raise UsageError(f"{endpoint.path} does not stream")
        for key in ("model", "stream"):
            if key in payload:
                raise UsageError(f"body must not set {key!r}; it is given by the call itself")
        for key in ("n", "best_of"):
            if payload.get(key) not in (None, 1):
                raise UsageError(
                    f"body must not ask for several answers ({key} = {shown(payload[key])}); ask several times"
                )
        out = {"model": model, **self.dialect.put(endpoint, payload, served)}
        if urgency is not None:
            out |= self.priority(urgency, served, payload)
        options = out.pop("stream_options", None) or {}  # servers refuse them where nothing is streamed
        if not isinstance(options, Mapping):
            raise UsageError(f"stream_options must be a mapping, got {type(options).__name__}")
        if stream:
            out["stream"] = True
            if options := {**options, "include_usage": True} if endpoint.asks_usage else options:
                out["stream_options"] = options
        return Request(endpoint.path, out)

    def priority(self, urgency: int, served: Served, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields that tell how urgent a request is: none, where a server is not known to have such."""
        return {}

    def precheck(self, prompt_tokens: int, max_tokens: int | None, served: Served) -> BackendError | None:
        """Why a request must not be sent there; see ``Adapter.precheck``."""
        return self.dialect.refusal(prompt_tokens, max_tokens, served)

    def completion(self, answer: Answer, endpoint: Endpoint | None = None) -> Completion:
        """The first choice of a good answer; raises ``BackendError`` when it is not one."""
        endpoint = endpoint or CHATS
        raw = json_object(answer, self.classify)
        read = endpoint.completion(raw)
        if read is None:
            what = "a choice; is this a chat server?" if endpoint is CHATS else f"an answer to {endpoint.path}"
            raise BackendError(FailureKind.UNAVAILABLE, f"answered JSON without {what}", status=answer.status)
        return read

    def events(self, data: str, endpoint: Endpoint | None = None, event: str = "") -> Sequence[Event]:
        """The events in one ``data:``; nothing for an empty delta, which a server sends before it has a token."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if (error := stream_failure(value, event)) is not None:
            raise error
        if not isinstance(value, Mapping):
            raise BackendError(FailureKind.INTERRUPTED, f"the stream holds something that is not JSON: {cut(data)}")
        read = (endpoint or CHATS).events
        return read(value) if read is not None else ()

    def usage(self, endpoint: Endpoint, raw: Mapping[str, Any]) -> Usage | None:
        """The tokens in an answer's JSON; ``None`` where it does not say."""
        return endpoint.usage(raw)

    def classify(self, answer: Answer, now: datetime | None = None) -> BackendError:
        """What an answer with an error status means; ``now`` is what a date in its headers counts from."""
        return failure(answer, now)

    def release_delay_s(self, *, streaming: bool) -> float:
        """vLLM and Dynamo free a request's KV 0.1 to 0.2 s after its client went away, streaming or not (measured)."""
        return 0.2


def _chat(raw: Mapping[str, Any]) -> Completion | None:
    choice = first(raw.get("choices"))
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return None
    return Completion(
        text=text_of(message.get("content")),
        tool_calls=tuple(_tool_call(call) for call in mappings(message.get("tool_calls"))),
        reasoning=_reasoning(message),
        finish_reason=finish_of(choice),
        usage=usage_in(raw) or Usage(),
        raw=raw,
    )


def _chat_events(value: Mapping[str, Any]) -> Sequence[Event]:
    out: list[Event] = []
    choice = first(value.get("choices"))
    delta = choice.get("delta")
    if isinstance(delta, Mapping):
        if reasoning := _reasoning(delta):
            out.append(ReasoningDelta(reasoning))
        if text := text_of(delta.get("content")):
            out.append(TextDelta(text))
        for position, call in enumerate(mappings(delta.get("tool_calls"))):
            out.append(_tool_call_delta(call, position))
    if reason := finish_of(choice):
        out.append(Finished(reason))
    if usage := usage_in(value):
        out.append(usage)
    return out


def usage_in(raw: Mapping[str, Any]) -> Usage | None:
    """The token counts of an answer, or of the piece of a stream that holds them."""
    return usage_of(raw.get("usage"))


CHATS = Endpoint(
    name="chat",
    path=CHAT,
    prompt="messages",
    limits=("max_completion_tokens", "max_tokens", "n_predict"),
    completion=_chat,
    events=_chat_events,
    usage=usage_in,
    asks_usage=True,
)
"""The endpoint for chats."""


def finish_of(choice: Mapping[str, Any]) -> str | None:
    """Why a choice ended; raises ``BackendError`` (interrupted) when the server gave it up.

    SGLang ends a request that was aborted without a reason of its own with ``abort`` and no error (0.5.23,
    ``serving_chat.py``), vLLM has ``abort`` and ``error`` (0.32, ``v1/engine``).
    """
    reason = word(choice.get("finish_reason"))
    if reason in _GIVEN_UP:
        raise BackendError(FailureKind.INTERRUPTED, f"the server gave the answer up: finish_reason is {reason!r}")
    return reason


_GIVEN_UP = ("abort", "error", "cancelled")


def json_object(answer: Answer, classify: Callable[[Answer], BackendError]) -> Mapping[str, Any]:
    """The JSON object in a good answer; raises ``BackendError`` for any other answer."""
    if answer.status != 200:
        raise classify(answer)
    text = answer.body.decode("utf-8", errors="replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        what = "HTML" if looks_like_html(text) else "something else" if text.strip() else "nothing"
        raise BackendError(
            FailureKind.UNAVAILABLE, f"answered {what}, not JSON; is this the server's base URL?", status=answer.status
        ) from None
    if (error := stream_failure(value)) is not None:
        raise error
    if not isinstance(value, Mapping):
        raise BackendError(
            FailureKind.UNAVAILABLE, f"answered JSON that is not an object: {cut(text)}", status=answer.status
        )
    return value


def optional(answer: Answer) -> Mapping[str, Any]:
    """The JSON object in an answer that a server need not give; an empty one for an error, HTML or another shape."""
    if answer.status != 200:
        return {}
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return within(value)


def within(value: Any, *keys: str) -> Mapping[str, Any]:
    """The JSON object that stands under these keys, one in the other; an empty one in place of anything else."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def listed_models(answer: Answer, classify: Callable[[Answer], BackendError]) -> list[Mapping[str, Any]]:
    """The entries of ``/v1/models`` that have an id."""
    value = json_object(answer, classify)
    if not isinstance(value.get("data"), list):
        raise BackendError(
            FailureKind.UNAVAILABLE, "answered JSON without a list of models; is this the server's base URL?"
        )
    return [model for model in mappings(value["data"]) if isinstance(model.get("id"), str) and model["id"]]


def usage_of(value: Any) -> Usage | None:
    """Token counts, or ``None`` when there are none; a count that is not one is unknown."""
    if not isinstance(value, Mapping):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Usage(count(value.get("prompt_tokens")), count(value.get("completion_tokens")), count(cached))


def text_of(content: Any) -> str:
    """The text of a message's content: a string, ``null``, or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in mappings(content) if isinstance(part.get("text"), str))


def count(value: Any) -> int | None:
    """A whole number from 0 on, else ``None``."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def positive(value: Any, most: int = 1_000_000_000) -> int | None:
    """A whole number from 1 to ``most``, else ``None``: a server's nonsense is unknown, not believed."""
    number = count(value)
    return number if number and number <= most else None


def term(value: Any) -> str | None:
    """A version or a data type: one short word of letters, digits and ``. _ + -``, else ``None``."""
    return value if isinstance(value, str) and _TERM.fullmatch(value) else None


def mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    """The mappings in a list; nothing when it is not a list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def first(value: Any) -> Mapping[str, Any]:
    """The first mapping of a list, or an empty one."""
    return next(iter(mappings(value)), {})


def cut(text: str) -> str:
    """The start of a text, for a message."""
    return repr(one_line(text[:80]))


def word(value: Any) -> str | None:
    """A string that is not empty, else ``None``."""
    return value if isinstance(value, str) and value else None


def _reasoning(message: Mapping[str, Any]) -> str:
    return text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))


def _function(call: Mapping[str, Any]) -> tuple[str | None, str]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return word(function.get("name")), arguments or ""


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    name, arguments = _function(call)
    return ToolCall(word(call.get("id")), name or "", arguments)


def _tool_call_delta(call: Mapping[str, Any], position: int) -> ToolCallDelta:
    name, arguments = _function(call)
    index = count(call.get("index"))
    return ToolCallDelta(position if index is None else index, word(call.get("id")), name, arguments)
