"""What an adapter is: everything agentroute knows about one runtime's wire, and no I/O.

``discover`` and ``load`` are generators that yield requests and are sent the answers, so that one definition serves the
sync client, the async client and a test without a server.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from agentroute.errors import BackendError
from agentroute.profile import EngineName, KvPool
from agentroute.shape.model import Capability
from agentroute.shape.sharding import Sharding
from agentroute.wire import Answer, Completion, Event, Request

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

    def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], *, body: Mapping[str, Any], stream: bool
    ) -> Request:
        """The request for a chat. ``body`` holds the caller's own fields and passes through untouched."""
        ...

    def completion(self, answer: Answer) -> Completion:
        """A good answer to a chat that was not streamed; raises ``BackendError`` when it is not one."""
        ...

    def events(self, data: str) -> Sequence[Event]:
        """The events in one ``data:`` of a stream; raises ``BackendError`` for an error inside a 200."""
        ...

    def classify(self, answer: Answer) -> BackendError:
        """What an answer with an error status means."""
        ...

    def release_delay_s(self, *, streaming: bool) -> float:
        """How long the runtime keeps a request's KV after its client went away, in seconds."""
        ...
