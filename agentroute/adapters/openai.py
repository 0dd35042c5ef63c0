"""The shared wire: chat completions as OpenAI defined them and every runtime here speaks them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentroute.adapters.base import Conversation, Discovery, Load
from agentroute.adapters.failures import failure, looks_like_html, one_line, stream_failure
from agentroute.adapters.prometheus import METRICS, Metrics, load_of, refused
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
_ENGINES: dict[str, EngineName] = {
    "vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "tensorrt_llm": "trtllm", "nvidia": "dynamo",
}  # fmt: skip
"""Engines by what they call the owner of a model."""
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,60}")
_WINDOW_KEYS = ("max_model_len", "context_window", "context_length")


class OpenAIAdapter:
    """Any OpenAI-compatible server."""

    name = "openai"

    def discover(self) -> Conversation[Discovery]:
        """Ask for the list of models; the window when the list says it, the engine when its owner is one.

        Of an engine that is not known by its models, Text Generation Inference tells more in ``/info``, and Ollama its
        version in ``/api/version``.
        """
        models = listed_models((yield Request(MODELS)), self.classify)
        engine = engine_of(models)
        info: Mapping[str, Any] = {}
        version = None
        if engine == "other":
            info = optional((yield Request("/info")))
            version = term(info.get("version")) or term(optional((yield Request("/api/version"))).get("version"))
        return Discovery(
            models=names(models),
            engine=engine,
            wire=self.name,
            parents=parents(models),
            root=root_of(models),
            engine_version=version,
            max_model_len=window_of(models) or positive(info.get("max_total_tokens")),
            max_num_seqs=positive(info.get("max_concurrent_requests"), most=1_000_000),
            notes=("the KV pool is unknown: an OpenAI-compatible server does not say how many tokens it holds",),
        )

    def load(self) -> Conversation[Load]:
        """Ask ``/metrics``, which this wire does not know but most servers have, for what any of them calls it."""
        answer = yield Request(METRICS)
        if why := refused(answer):
            return Load(hidden=True, said=why)
        if answer.status != 200:
            raise self.classify(answer)
        return load_of(Metrics.of(answer))

    def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], *, body: Mapping[str, Any], stream: bool
    ) -> Request:
        """The request; raises ``UsageError`` when ``body`` holds a field that is not the caller's to set there."""
        for key in _OURS:
            if key in body:
                raise UsageError(f"body must not set {key!r}; it is given by the call itself")
        for key in ("n", "best_of"):
            if body.get(key) not in (None, 1):
                raise UsageError(
                    f"body must not ask for several answers ({key} = {shown(body[key])}); ask several times"
                )
        out: dict[str, Any] = {"model": model, "messages": list(messages), **body}
        if stream:
            options = body.get("stream_options") or {}
            if not isinstance(options, Mapping):
                raise UsageError(f"stream_options must be a mapping, got {type(options).__name__}")
            out |= {"stream": True, "stream_options": {**options, "include_usage": True}}
        return Request(CHAT, out)

    def completion(self, answer: Answer) -> Completion:
        """The first choice of a good answer; raises ``BackendError`` when it is not one."""
        raw = json_object(answer, self.classify)
        choice = first(raw.get("choices"))
        message = choice.get("message")
        if not isinstance(message, Mapping):
            raise BackendError(
                FailureKind.UNAVAILABLE, "answered JSON without a choice; is this a chat server?", status=answer.status
            )
        return Completion(
            text=text_of(message.get("content")),
            tool_calls=tuple(_tool_call(call) for call in mappings(message.get("tool_calls"))),
            reasoning=_reasoning(message),
            finish_reason=_word(choice.get("finish_reason")),
            usage=usage_of(raw.get("usage")) or Usage(),
            raw=raw,
        )

    def events(self, data: str) -> Sequence[Event]:
        """The events in one ``data:``; nothing for an empty delta, which a server sends before it has a token."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if (error := stream_failure(value)) is not None:
            raise error
        if not isinstance(value, Mapping):
            raise BackendError(FailureKind.INTERRUPTED, f"the stream holds something that is not JSON: {cut(data)}")
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
        if reason := _word(choice.get("finish_reason")):
            out.append(Finished(reason))
        if usage := usage_of(value.get("usage")):
            out.append(usage)
        return out

    def classify(self, answer: Answer) -> BackendError:
        """What an answer with an error status means."""
        return failure(answer)

    def release_delay_s(self, *, streaming: bool) -> float:
        """vLLM and Dynamo free a request's KV 0.1 to 0.2 s after its client went away, streaming or not (measured)."""
        return 0.2


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


def items(answer: Answer) -> list[Mapping[str, Any]]:
    """The JSON objects in the list of an answer that a server need not give; none for anything else."""
    if answer.status != 200:
        return []
    try:
        return list(mappings(json.loads(answer.body)))
    except (ValueError, RecursionError):
        return []


def listed_models(answer: Answer, classify: Callable[[Answer], BackendError]) -> list[Mapping[str, Any]]:
    """The entries of ``/v1/models`` that have an id."""
    value = json_object(answer, classify)
    if not isinstance(value.get("data"), list):
        raise BackendError(
            FailureKind.UNAVAILABLE, "answered JSON without a list of models; is this the server's base URL?"
        )
    return [model for model in mappings(value["data"]) if isinstance(model.get("id"), str) and model["id"]]


def names(models: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every name that the listed models go by: their ids, those of base models first, and llama.cpp's aliases."""
    adapters = parents(models)
    ids = sorted((str(model["id"]) for model in models), key=lambda name: name in adapters)
    aliases = (alias for model in models for alias in _texts(model.get("aliases")))
    return tuple(dict.fromkeys((*ids, *aliases)))


def parents(models: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The model that each LoRA adapter stands on: vLLM and SGLang list adapters beside it, with their ``parent``."""
    known = {str(model["id"]): model.get("parent") for model in models}
    return {name: parent for name, parent in known.items() if isinstance(parent, str) and parent in known}


def root_of(models: Sequence[Mapping[str, Any]]) -> str | None:
    """What the first base model was loaded from, where that is not its name."""
    adapters = parents(models)
    base: Mapping[str, Any] = next((model for model in models if model["id"] not in adapters), {})
    root = _word(base.get("root"))
    return None if root == base.get("id") else root


def engine_of(models: Sequence[Mapping[str, Any]]) -> EngineName:
    """The engine that says it owns the first model."""
    return _ENGINES.get(str(first(models).get("owned_by", "")).lower(), "other")


def window_of(models: Sequence[Mapping[str, Any]]) -> int | None:
    """The window of the first model that tells one, under any of the names that servers give it."""
    for model in models:
        meta = model.get("meta")  # llama.cpp: the window of one slot
        said = [*(model.get(key) for key in _WINDOW_KEYS), meta.get("n_ctx") if isinstance(meta, Mapping) else None]
        if (window := next((tokens for value in said if (tokens := positive(value)) is not None), None)) is not None:
            return window
    return None


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


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: Any) -> Iterable[str]:
    return [item for item in value if isinstance(item, str) and item] if isinstance(value, list) else []


def _reasoning(message: Mapping[str, Any]) -> str:
    return text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))


def _function(call: Mapping[str, Any]) -> tuple[str | None, str]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return _word(function.get("name")), arguments or ""


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    name, arguments = _function(call)
    return ToolCall(_word(call.get("id")), name or "", arguments)


def _tool_call_delta(call: Mapping[str, Any], position: int) -> ToolCallDelta:
    name, arguments = _function(call)
    index = count(call.get("index"))
    return ToolCallDelta(position if index is None else index, _word(call.get("id")), name, arguments)
