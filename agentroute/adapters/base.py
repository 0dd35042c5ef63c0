"""What an adapter is: everything agentroute knows about one runtime's wire, and no I/O.

``discover`` and ``load`` are generators that yield requests and are sent the answers, so that one definition serves the
sync client, the async client and a test without a server.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from agentroute.errors import BackendError
from agentroute.profile import EngineName, KvPool, PriorityOrder, Profile
from agentroute.shape.model import Capability
from agentroute.shape.sharding import Sharding
from agentroute.wire import Answer, Completion, Event, Request, Usage

R = TypeVar("R")
Conversation = Generator[Request, Answer, R]
"""Requests out, answers in, a result at the end."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a running server says of itself. ``None`` is what it does not say."""

    models: tuple[str, ...]
    """The names by which it can be asked for, aliases and LoRA adapters among them; the first is a base model's."""
    engine: EngineName
    """What computes; ``other`` where it is not said, as behind a router."""
    wire: str = ""
    """The adapter that asked."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """The model that a LoRA adapter stands on, by the adapter's name."""
    root: str | None = None
    """What the first model was loaded from: a hub id or a path."""
    engine_version: str | None = None
    max_model_len: int | None = None
    """The window of one request, in tokens."""
    max_num_seqs: int | None = None
    """Slots; with data-parallel engines, of one."""
    max_num_batched_tokens: int | None = None
    """Tokens that one scheduler step takes."""
    kv_pool: KvPool | None = None
    """One KV memory: with data-parallel engines, of one."""
    sharding: Sharding | None = None
    """The split, when the server states all of it."""
    engines: int | None = None
    """Data-parallel engines, or workers, behind this address, each with a KV memory of its own."""
    prefix_caching: bool | None = None
    """Whether it keeps the KV of prompts for others that begin alike."""
    priority: PriorityOrder | None = None
    """Which values of ``priority`` it serves first; ``None``: it schedules otherwise, or does not say."""
    weights: str | None = None
    """The data type or quantisation of the weights, in the engine's own word."""
    kv: str | None = None
    """The data type of the KV cache, in the engine's own word."""
    device: str | None = None
    """The accelerator, as its driver calls it (``NVIDIA H200``)."""
    capabilities: Mapping[Capability, bool] = field(default_factory=dict)
    pool_notes: tuple[str, ...] = ()
    """What a reader of the KV pool must know."""
    notes: tuple[str, ...] = ()
    """What a person should be told, such as why the KV pool is unknown."""


@dataclass(frozen=True, slots=True)
class Total:
    """What a server has added up since it started; what was added between two readings has a mean."""

    sum: float
    count: float

    def mean(self) -> float | None:
        """The mean of all; ``None`` of none."""
        return self.sum / self.count if self.count > 0 else None

    def since(self, before: Total) -> Total:
        """What was added after ``before``."""
        return Total(self.sum - before.sum, self.count - before.count)


@dataclass(frozen=True, slots=True)
class Load:
    """What a running server is doing now. ``None`` is what it does not say, never zero."""

    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None
    """Share of the KV pool in use, 0 to 1."""
    alive: bool | None = None
    """Whether it can serve, by its own word: false for an engine that died while its HTTP front still answers."""
    said: str = ""
    """Its words where it is not alive, or why it does not show what it is doing."""
    hidden: bool = False
    """Whether it would tell what it is doing, but not to us, or not as it was started; ``said`` is why."""
    process: str | None = None
    """What tells the process that answered from any other."""
    counted: float | None = None
    """The sum of its counters, which only ever grows in one process."""
    steps: float | None = None
    """The sum of those that grow with every step of the engine."""
    ttft_s: Total | None = None
    """Time to the first token, in seconds, of all requests since it started."""
    isl: Total | None = None
    """Prompt tokens of all requests since it started."""
    osl: Total | None = None
    """Answer tokens of all requests since it started."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One kind of call on the OpenAI wire, and how its answers are read; ``endpoints.ENDPOINTS`` has them all."""

    name: Literal["chat", "completions", "responses", "embeddings"]
    path: str
    prompt: str
    """The field that holds the prompt: ``messages``, ``prompt`` or ``input``."""
    limits: tuple[str, ...]
    """The fields that limit the answer, in tokens; of several the first holds."""
    completion: Callable[[Mapping[str, Any]], Completion | None]
    """The answer in the JSON of a call that was not streamed; ``None`` when it is no answer to such a call."""
    events: Callable[[Mapping[str, Any]], Sequence[Event | Completion]] | None
    """The events in one JSON value of a stream, before them the whole answer where it holds that; ``None`` where
    nothing is streamed."""
    usage: Callable[[Mapping[str, Any]], Usage | None]
    """The tokens in the JSON of an answer, or of the piece of a stream that holds them; ``None`` when it holds none."""
    asks_usage: bool = False
    """Whether a stream holds them only where ``stream_options`` asks for it."""


@dataclass(frozen=True, slots=True)
class Served:
    """What is known of the place that a request goes to; ``None`` is what nobody knows."""

    window: int | None = None
    """Tokens that prompt and answer of one request may have together."""
    pool_tokens: int | None = None
    """Tokens that requests can have of one KV memory."""
    priority: PriorityOrder | None = None
    """Which values of ``priority`` it serves first; ``None``: it is not known to schedule by priority at all."""

    @classmethod
    def of(cls, profile: Profile) -> Served:
        """What a profile says of it."""
        limits, pool = profile.limits, profile.pool
        if limits is None:
            return cls()
        return cls(limits.max_model_len, pool.tokens if pool is not None else None, limits.priority)


class Adapter(Protocol):
    """One runtime's wire."""

    name: str
    """The name in a configuration file."""

    def discover(self) -> Conversation[Discovery]:
        """Ask a server what it is; raises ``BackendError`` when it does not answer as this runtime does."""
        ...

    def load(self) -> Conversation[Load]:
        """Ask a server what it is doing."""
        ...

    def has(self, endpoint: Endpoint) -> bool:
        """Whether servers of this runtime may have the endpoint; each may lack it all the same."""
        ...

    def chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        body: Mapping[str, Any],
        stream: bool,
        served: Served = ...,
        urgency: int | None = None,
    ) -> Request:
        """The request for a chat; ``body`` holds the caller's own fields. See ``request``."""
        ...

    def request(
        self,
        endpoint: Endpoint,
        model: str,
        payload: Mapping[str, Any],
        *,
        stream: bool,
        served: Served = ...,
        urgency: int | None = None,
    ) -> Request:
        """The request for any endpoint: ``payload`` with the prompt in it, put into this runtime's words.

        ``urgency`` is 0 for what is as urgent as most, more for what is more so, less for what can wait. Raises
        ``UsageError`` for a field that is not the caller's to set, and ``BackendError`` (not_found: another server may)
        for one that this runtime refuses or drops silently.
        """
        ...

    def precheck(self, prompt_tokens: int, max_tokens: int | None, served: Served) -> BackendError | None:
        """Why a request must not be sent there (context_overflow), where the runtime would handle it badly.

        ``prompt_tokens`` is an upper bound, ``max_tokens`` the limit on the answer, if there is one.
        """
        ...

    def completion(self, answer: Answer, endpoint: Endpoint | None = None) -> Completion:
        """A good answer that was not streamed (``None``: to a chat); raises ``BackendError`` when it is not one."""
        ...

    def events(self, data: str, endpoint: Endpoint | None = None, event: str = "") -> Sequence[Event | Completion]:
        """The events in one ``data:`` of a stream (``None``: of a chat), which came under the name ``event``.

        Where it holds the whole answer once more, that comes first: ``Assembly.take`` makes events of what is new.
        Raises ``BackendError`` for an error inside a 200.
        """
        ...

    def usage(self, endpoint: Endpoint, raw: Mapping[str, Any]) -> Usage | None:
        """The tokens in an answer's JSON, as the server counted them; ``None`` where it does not say."""
        ...

    def classify(self, answer: Answer, now: datetime | None = None) -> BackendError:
        """What an answer with an error status means; ``now`` is what a date in its headers counts from."""
        ...

    def release_delay_s(self, *, streaming: bool) -> float:
        """How long the runtime keeps a request's KV after its client went away, in seconds."""
        ...
