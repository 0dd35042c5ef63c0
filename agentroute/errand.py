"""What one call is to bring: the task to find a place for, and the request for whichever server takes it. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentroute.adapters.base import Adapter, Served
from agentroute.call import Reply
from agentroute.counting import Counting
from agentroute.errors import UsageError, shown
from agentroute.session import Session
from agentroute.task import MAX_TOKENS, Priority, Task
from agentroute.tokens import estimate
from agentroute.transport import encode
from agentroute.wire import Request

_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
_URGENCY: dict[Priority, int | None] = {"interactive": 1, "agent": None, "batch": -1}

Messages = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Errand:
    """A call's task, messages and fields, checked; and its bytes, made once for each wire and model name."""

    task: Task
    messages: Messages
    fields: Mapping[str, Any]
    streaming: bool
    session: Session | None = None
    retried: int = 0
    """How often the caller has sent it before."""
    resume: Literal["restart"] | None = None
    original: bytes | None = None
    """The body as it came in, sent on untouched where nothing in it need change."""
    parsed: Mapping[str, Any] | None = None
    """... and what it says."""
    priority: Priority | None = None
    """Who waits for it, where the task does not say."""
    _made: dict[tuple[str, str, Served], tuple[Request, bytes]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        messages: Messages,
        task: Task | None,
        body: Mapping[str, Any] | None,
        *,
        streaming: bool,
        counting: Counting | None = None,
        session: Session | None = None,
        retried: int = 0,
        resume: Literal["restart"] | None = None,
    ) -> Errand:
        """Check what the caller gave; raises ``UsageError``."""
        if not isinstance(retried, int) or isinstance(retried, bool) or retried < 0:
            raise UsageError(f"retried must be a whole number, 0 or more, got {shown(retried)}")
        if resume not in (None, "restart"):
            raise UsageError(f"resume must be None or 'restart', got {shown(resume)}")
        task, fields = prepare(messages, task, body, counting=counting, session=session)
        return cls(task, messages, fields, streaming, session, retried, resume)

    @classmethod
    def forwarded(
        cls,
        body: bytes,
        task: Task | None,
        *,
        counting: Counting | None = None,
        session: Session | None = None,
        retried: int = 0,
    ) -> Errand:
        """A chat request as it came in from somebody's client; raises ``UsageError`` where it is none."""
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            raise UsageError("the body is not JSON") from None
        if not isinstance(parsed, dict):
            raise UsageError(f"the body must be a JSON object, got {shown(parsed)}")
        fields = {key: value for key, value in parsed.items() if key not in ("model", "messages", "stream")}
        errand = cls.of(
            parsed.get("messages", ()),
            task,
            fields,
            streaming=parsed.get("stream") is True,
            counting=counting,
            session=session,
            retried=retried,
        )
        errand.original, errand.parsed = bytes(body), parsed
        return errand

    def request(self, adapter: Adapter, model: str, served: Served) -> tuple[Request, bytes]:
        """The request for a server, and its bytes. Raises ``BackendError`` where it must not be sent there."""
        key = adapter.name, model, served
        if key not in self._made:
            task = self.task
            if refused := adapter.precheck(task.context_tokens, task.max_output_tokens, served):
                raise refused
            request = adapter.chat(
                model,
                self.messages,
                body=self.fields,
                stream=self.streaming,
                served=served,
                urgency=_URGENCY[task.priority or self.priority or "agent"],
            )
            same = self.original is not None and request.body == self.parsed
            content = self.original if same and self.original is not None else encode(request.body or {})
            self._made[key] = request, content
        return self._made[key]

    @property
    def tools(self) -> Sequence[Any]:
        """The tools among the fields."""
        return _tools(self.fields)

    def answered(self, reply: Reply, counting: Counting) -> None:
        """Learn from the reply's usage."""
        counting.seen(reply.decision.deployment, self.messages, self.tools, reply.usage.prompt_tokens)
        if self.session is not None:
            self.session.answered(self.messages, self.tools, reply)


def prepare(
    messages: Messages,
    task: Task | None,
    body: Mapping[str, Any] | None,
    *,
    counting: Counting | None = None,
    session: Session | None = None,
) -> tuple[Task, dict[str, Any]]:
    """The task to acquire for, and the body to send: what is sent as the most output is what is held.

    Without a task, one is made from the messages: its tokens are those of the session's step before and what is new,
    else counted by the fingerprint of the fleet's model. The caller's mappings are left as they are.
    Raises ``UsageError`` for messages or a body that are no such thing.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise UsageError(f"messages must be a list of mappings, got {type(messages).__name__}")
    for message in messages:
        if not isinstance(message, Mapping):
            raise UsageError(f"every message must be a mapping with a role and content, got {message!r:.80}")
    if body is not None and not isinstance(body, Mapping):
        raise UsageError(f"body must be a mapping of request fields, got {type(body).__name__}")
    out = dict(body or {})
    asked = [out[key] for key in _LIMITS if out.get(key) is not None]
    for n in asked:
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_TOKENS:
            raise UsageError(f"a limit on the answer must be a whole number of tokens, at least 1, got {shown(n)}")
    limit = max(asked, default=None)
    if task is None:
        task = _counted(messages, limit, _tools(out), counting, session)
    elif limit is not None and (task.max_output_tokens is None or limit > task.max_output_tokens):
        task = replace(task, max_output_tokens=limit)
    if session is not None:
        task = session.step(task)
    if not asked and task.max_output_tokens is not None:
        out["max_tokens"] = task.max_output_tokens
    return task, out


def _counted(
    messages: Messages, limit: int | None, tools: Sequence[Any], counting: Counting | None, session: Session | None
) -> Task:
    if counting is None:
        return Task.from_messages(messages, max_output_tokens=limit, tools=tools)
    count = estimate(
        messages,
        tools,
        fingerprint=counting.fingerprint(session.deployment if session else None),
        previous=session.previous if session else None,
    )
    return Task(
        context_tokens=count.upper,
        expected_context_tokens=count.value,
        context_source=count.source,
        max_output_tokens=limit,
        needs=frozenset({"tools"}) if tools else frozenset(),
    )


def _tools(fields: Mapping[str, Any]) -> Sequence[Any]:
    tools = fields.get("tools")
    return tools if isinstance(tools, list | tuple) else ()
