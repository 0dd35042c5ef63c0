"""One call, from its lease to its reply: everything that the sync and the async client share. No I/O."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from agentroute.adapters import adapter
from agentroute.adapters.alike import Alike
from agentroute.adapters.base import Endpoint
from agentroute.adapters.endpoints import CHATS
from agentroute.adapters.failures import one_line
from agentroute.assembly import Assembly, paired
from agentroute.errors import BackendError, FailureKind, UsageError
from agentroute.outcome import Outcome
from agentroute.sse import EventDecoder, Named
from agentroute.transport import MAX_ANSWER_BYTES, Target
from agentroute.wire import Answer, Completion, Event, TextDelta, ToolCall, Usage

if TYPE_CHECKING:
    from agentroute.decision import Decision
    from agentroute.lease import Lease

_STILL_RUNNING = (FailureKind.INTERRUPTED, FailureKind.TIMEOUT, FailureKind.DEADLINE)
"""After these, the server may not know yet that nobody listens."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured, in seconds from the moment the request was sent."""

    ttft_s: float | None
    """Until the first content: text, reasoning or a tool call; ``None`` when the call did not stream."""
    e2e_s: float
    """Until the whole answer was there."""
    waited_s: float = 0.0
    """Before that: how long the request waited for room in the KV pool. A prediction includes such a wait."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer, who gave it and why, and how long it took."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    reasoning: str
    finish_reason: str | None
    """``stop``, ``length``, ``tool_calls``, or the server's own word."""
    usage: Usage
    decision: Decision
    """Why this deployment was chosen."""
    raw: Mapping[str, Any]
    """The server's JSON, untouched; empty for a stream."""
    seen: Seen


class Call:
    """One request on its way: its lease, its server, its answer so far.

    Raises ``UsageError`` when the deployment cannot be called: no URL, an unknown adapter, no key.
    """

    def __init__(self, lease: Lease, *, streaming: bool, waited_s: float, endpoint: Endpoint = CHATS) -> None:
        self.lease, self.streaming = lease, streaming
        self.waited_s = waited_s
        """Seconds before it was sent."""
        self.endpoint = endpoint
        self._wire = None if endpoint is CHATS else endpoint  # of a chat most pieces are read by a short cut
        self.decision, self.deployment = lease.decision, lease.deployment
        if (url := lease.url) is None:
            raise UsageError(f"deployment {self.deployment.name!r} has no URL; it can be decided on, not called")
        self.adapter = _adapter(self.deployment.adapter)
        self.target = Target.of(url, self.deployment.api_key_env)
        self.ready: deque[Event] = deque()
        """Events that were received but not yet handed out."""
        self.reply: Reply | None = None
        self.began = False
        """Whether content came."""
        self._error: BackendError | None = None
        self._assembly = Assembly()
        self._decoder = EventDecoder()
        self._alike = Alike()
        self._first = ""
        """What the stream began with."""
        self._bytes = 0
        self._sent_at: float | None = None
        self._ttft_s: float | None = None
        self._over = False
        self._failure: Outcome | None = None
        self._answered: Outcome | None = None
        self.closed = False
        """Whether its lease was settled."""

    def sent(self) -> None:
        """The request leaves now."""
        self._sent_at = time.perf_counter()

    def answered(self, answer: Answer) -> Reply:
        """The reply in a whole answer; raises ``BackendError`` when it is an error."""
        if answer.status != 200:
            raise self.adapter.classify(answer)
        return self._finish(self.adapter.completion(answer, self._wire))

    def not_a_stream(self, answer: Answer) -> BackendError:
        """The error in an answer that should have been a stream of events and is not."""
        if answer.status != 200:
            return self.adapter.classify(answer)
        try:
            self.adapter.completion(answer, self._wire)
        except BackendError as error:
            return error
        return BackendError(FailureKind.UNAVAILABLE, "answered in one piece though a stream was asked for", status=200)

    def feed(self, chunk: bytes | None) -> bool:
        """Take in bytes of the stream, ``None``: it has ended; whether there was an event in them.

        An error in it waits behind the events before it.
        """
        try:
            return self._feed(chunk)
        except BackendError as error:
            self._error = error
            return True

    def check(self) -> None:
        """Raise the error in the stream, or ``UsageError`` once its block has been left."""
        if self._error is not None:
            raise self._error
        if self.closed:
            raise UsageError("the stream is closed; take its events inside the `with` block")

    @property
    def is_ended(self) -> bool:
        """Whether the model has said why it stopped: only usage may be missing then."""
        return self._assembly.finish_reason is not None

    def broke(self, error: BackendError) -> None:
        """The way broke, or the server fell silent. Raises ``error`` unless the answer was whole by then."""
        if not self.is_ended or error.kind not in _STILL_RUNNING:
            raise error
        self._finish_stream()

    def located(self, error: BackendError) -> BackendError:
        """The error that it ended with, with the deployment, the URL, and the text that had arrived.

        To be raised from the cause of ``error`` and not from itself: its words may hold the key.
        """
        self._over = error.kind not in _STILL_RUNNING
        self._failure = Outcome(failure=error.kind, retry_after_s=error.retry_after_s)
        return BackendError(
            error.kind,
            self.target.hide(error.detail),
            deployment=self.deployment.name,
            url=self.target.shown,
            status=error.status,
            retry_after_s=error.retry_after_s,
            text=paired("".join(self._assembly.text)),
        )

    @property
    def took_s(self) -> float:
        """Seconds since it was sent; 0 before."""
        return 0.0 if self._sent_at is None else time.perf_counter() - self._sent_at

    @property
    def outcome(self) -> Outcome:
        """What was seen of it so far."""
        if self.reply is None:
            return self._failure or Outcome()
        if self._answered is None:
            self._answered = _outcome(self.reply)
        return self._answered

    @property
    def result(self) -> str:
        """``ok``, the kind of the failure, or ``cancelled``: nobody waited for the end."""
        if self.reply is not None:
            return "ok"
        failure = None if self._failure is None else self._failure.failure
        return "cancelled" if failure is None else failure.value

    def settle(self) -> None:
        """Let go of the lease: at once when the server is done or was never asked, else after the runtime's delay."""
        if self.closed:
            return
        self.closed = True
        cut_short = self._sent_at is not None and not self._over
        after_s = self.adapter.release_delay_s(streaming=self.streaming) if cut_short else 0.0
        if self._failure is not None:
            self.lease.settle(self._failure, after_s=after_s)
        elif self.reply is not None:
            self.lease.settle(self.outcome)
        else:
            self.lease.release(after_s)

    def _feed(self, chunk: bytes | None) -> bool:
        if self.reply is not None:
            return False
        if chunk is not None:
            self._bytes += len(chunk)
            if self._bytes > MAX_ANSWER_BYTES:
                raise BackendError(FailureKind.INTERRUPTED, f"the stream passed {MAX_ANSWER_BYTES >> 20} MiB")
            if self.began and self._wire is None and self._take_alike(chunk):
                return True
        found = self._decoder.flush() if chunk is None else self._decoder.feed(chunk)
        pieces, ready = self._assembly.text, self.ready
        for data in found:
            if len(data) < 16 and data.strip() == "[DONE]":
                if not self.began and self._assembly.finish_reason is None:
                    raise self._held_no_answer()
                self._finish_stream()
                return True
            text = self._alike.text(data) if self.began and self._wire is None and type(data) is str else None
            if text is None:
                self._take(data)
            elif text:
                pieces.append(text)
                ready.append(TextDelta(text))
        if chunk is None:
            if self._assembly.finish_reason is None:
                raise BackendError(FailureKind.INTERRUPTED, "the stream ended before the answer did")
            self._finish_stream()
        return bool(found)

    def _take_alike(self, chunk: bytes) -> bool:
        """Take in a chunk that is one event like those before it but for its text; whether it is."""
        text = self._alike.text_in(chunk)
        if text is None or not self._decoder.may_be_one(chunk):
            return False
        if text:
            self._assembly.text.append(text)
            self.ready.append(TextDelta(text))
        return True

    def _take(self, data: str) -> None:
        """Take in the events of one ``data:``, and what one of text alone looks like."""
        self._first = self._first or data[:_SHOWN]
        events = self.adapter.events(data, self._wire, data.event if isinstance(data, Named) else "")
        self.ready += self._assembly.take(events)
        if not self.began and self._assembly.has_content:
            self.began = True
            self._ttft_s = self.took_s
            self.lease.first_token()
        if type(data) is str and len(events) == 1 and isinstance(only := events[0], TextDelta):
            self._alike.learn(data, only.text)

    def _held_no_answer(self) -> BackendError:
        """The error of a stream that says it is done, and has said nothing of an answer to this endpoint."""
        came = f"; it began with {one_line(self._first)!r}" if self._first else ", and held nothing else"
        said = f"the stream ended with [DONE] before any content or reason to stop{came}"
        return BackendError(FailureKind.UNAVAILABLE, said, status=200)

    def _finish_stream(self) -> None:
        self._finish(self._assembly.completion())
        self.lease.settle(self.outcome)

    def _finish(self, answer: Completion) -> Reply:
        self._over = True
        self.reply = Reply(
            text=paired(answer.text),
            tool_calls=answer.tool_calls,
            reasoning=paired(answer.reasoning),
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            decision=self.decision,
            raw=answer.raw,
            seen=Seen(self._ttft_s, self.took_s, self.waited_s),
        )
        return self.reply


def _outcome(reply: Reply) -> Outcome:
    """What the router learns from; a token's time only where enough of them came."""
    seen, usage = reply.seen, reply.usage
    ttft_ms = None if seen.ttft_s is None else seen.ttft_s * 1_000.0
    tpot_ms, count = None, usage.completion_tokens
    if ttft_ms is not None and count is not None and count >= _ENOUGH:
        tpot_ms = (seen.e2e_s * 1_000.0 - ttft_ms) / (count - 1)
    return Outcome(
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        e2e_ms=seen.e2e_s * 1_000.0,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=count,
        cached_tokens=usage.cached_tokens,
    )


_adapter = cache(adapter)
"""They hold nothing, so one of each will do."""
_SHOWN = 80
"""Characters of a stream's first event that an error shows."""
_ENOUGH = 8
"""Output tokens from which on their mean time says something; assumed."""
