"""The shared wire: chat completions as OpenAI defined them and every runtime here speaks them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from agentroute.adapters.base import Conversation, Discovery, Endpoint, Load, Served
from agentroute.adapters.chats import CHATS, usual_text
from agentroute.adapters.dialect import PLAIN, Dialect
from agentroute.adapters.failures import failure, looks_like_html, one_line, stream_failure
from agentroute.adapters.prometheus import METRICS, Metrics, load_of, refused
from agentroute.adapters.reading import first, mappings, positive, term, within, word
from agentroute.errors import BackendError, FailureKind, UsageError, shown
from agentroute.profile import EngineName
from agentroute.wire import Answer, Completion, Event, Request, TextDelta, Usage

MODELS = "/v1/models"

_OURS = ("model", "messages", "stream")
_ANYWHERE = Served()
_ENGINES: dict[str, EngineName] = {
    "vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "tensorrt_llm": "trtllm", "nvidia": "dynamo",
}  # fmt: skip
"""Engines by what they call the owner of a model."""
_WINDOW_KEYS = ("max_model_len", "context_window", "context_length")


_DECODER = json.JSONDecoder()
"""``json.loads`` without its search for white space, which takes a third of the time of a short text."""


class OpenAIAdapter:
    """Any OpenAI-compatible server."""

    name = "openai"
    dialect: Dialect = PLAIN
    """How what it is asked differs from the shared wire."""

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

    def has(self, endpoint: Endpoint) -> bool:
        """Whether servers of this runtime may have the endpoint."""
        return endpoint.name not in self.dialect.lacks

    def chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        body: Mapping[str, Any],
        stream: bool,
        served: Served = _ANYWHERE,
        urgency: int | None = None,
    ) -> Request:
        """The request; raises ``UsageError`` when ``body`` holds a field that is not the caller's to set there."""
        for key in _OURS:
            if key in body:
                raise UsageError(f"body must not set {key!r}; it is given by the call itself")
        payload = {"messages": list(messages), **body}
        return self.request(CHATS, model, payload, stream=stream, served=served, urgency=urgency)

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
        out = {"model": model, **self.dialect.put(endpoint, payload, served, stream=stream)}
        if urgency is not None and payload.get("priority") is None:  # else the caller has said it himself
            out |= self.priority(urgency, served, payload)
        options = out.pop("stream_options", None) or {}  # servers refuse them where nothing is streamed
        if not isinstance(options, (dict, Mapping)):
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

    def events(self, data: str, endpoint: Endpoint | None = None, event: str = "") -> Sequence[Event | Completion]:
        """The events in one ``data:``; nothing for an empty delta, which a server sends before it has a token."""
        try:
            value, end = _DECODER.raw_decode(data) if data.startswith("{") else (None, -1)
            if end != len(data):
                value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if (text := usual_text(value)) is not None and endpoint is None and not event:
            return (TextDelta(text),) if text else ()
        if (error := stream_failure(value, event)) is not None:
            raise error
        if not isinstance(value, (dict, Mapping)):
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
    if not isinstance(value, (dict, Mapping)):
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
    root = word(base.get("root"))
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


def cut(text: str) -> str:
    """The start of a text, for a message."""
    return repr(one_line(text[:80]))


def _texts(value: Any) -> Iterable[str]:
    return [item for item in value if isinstance(item, str) and item] if isinstance(value, list) else []
