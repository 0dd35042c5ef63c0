"""What one call is to bring: the task to find a place for, and the request for whichever server takes it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentroute.adapters.base import Adapter, Endpoint, Served
from agentroute.adapters.endpoints import CHATS, RESPONSES
from agentroute.call import Reply
from agentroute.counting import Counting
from agentroute.errors import UsageError, shown
from agentroute.payload import count, limit_field, limit_of, messages_of, read_body, renamed, tools_of
from agentroute.session import Session
from agentroute.task import Priority, Task
from agentroute.tokens import GENERIC
from agentroute.transport import encode
from agentroute.wire import Request

_URGENCY: dict[Priority, int] = {"interactive": 1, "agent": 0, "batch": -1}


@dataclass(slots=True)
class Errand:
    """A call's task, prompt and fields, checked; and its bytes, made once for each wire and model name."""

    task: Task
    prompt: Any
    """The messages of a chat, the text of a completion, the input of a response or of embeddings."""
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
    endpoint: Endpoint = CHATS
    _made: dict[tuple[str, str, Served], tuple[Request, bytes]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        prompt: Any,
        task: Task | None,
        body: Mapping[str, Any] | None,
        *,
        streaming: bool,
        endpoint: Endpoint = CHATS,
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
        if streaming and endpoint.events is None:
            raise UsageError(f"{endpoint.path} does not stream")
        task, fields = prepare(prompt, task, body, endpoint=endpoint, counting=counting, session=session)
        return cls(task, prompt, fields, streaming, session, retried, resume, endpoint=endpoint)

    @classmethod
    def whole(
        cls,
        endpoint: Endpoint,
        body: Mapping[str, Any],
        task: Task | None,
        *,
        streaming: bool = False,
        counting: Counting | None = None,
        session: Session | None = None,
        retried: int = 0,
        resume: Literal["restart"] | None = None,
    ) -> Errand:
        """A request for any endpoint, its prompt in the body; raises ``UsageError``."""
        if not isinstance(body, Mapping):
            raise UsageError(f"body must be a mapping of request fields, got {type(body).__name__}")
        return cls.of(
            body.get(endpoint.prompt, () if endpoint is CHATS else None),
            task,
            {key: value for key, value in body.items() if key != endpoint.prompt},
            streaming=streaming,
            endpoint=endpoint,
            counting=counting,
            session=session,
            retried=retried,
            resume=resume,
        )

    @classmethod
    def forwarded(
        cls,
        body: bytes,
        task: Task | None,
        *,
        parsed: Mapping[str, Any] | None = None,
        endpoint: Endpoint = CHATS,
        counting: Counting | None = None,
        session: Session | None = None,
        retried: int = 0,
    ) -> Errand:
        """A request as it came in from somebody's client; raises ``UsageError`` where it is none.

        ``parsed``: what the body says, where somebody has read it already.
        """
        if parsed is None:
            parsed = read_body(body)
        errand = cls.whole(
            endpoint,
            {key: value for key, value in parsed.items() if key not in ("model", "stream")},
            task,
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
        if (made := self._made.get(key)) is None:
            task = self.task
            if refused := adapter.precheck(task.context_tokens, task.max_output_tokens, served):
                raise refused
            request = self._request(adapter, model, served)
            made = self._made[key] = request, self._content(request.body or {})
        return made

    def _content(self, body: Mapping[str, Any]) -> bytes:
        """The bytes of a body: those that came in where it says the same, or only calls the model otherwise."""
        original, parsed = self.original, self.parsed
        if original is None or parsed is None:
            return encode(body)
        if body == parsed:
            return original
        was, model = parsed.get("model"), body.get("model")
        alike = isinstance(was, str) and isinstance(model, str) and {**body, "model": was} == parsed
        named = renamed(original, str(was), str(model)) if alike else None
        return encode(body) if named is None else named

    def _request(self, adapter: Adapter, model: str, served: Served) -> Request:
        urgency = _URGENCY[self.task.priority or self.priority or "agent"]
        if self.endpoint is CHATS:
            return adapter.chat(
                model, self.prompt, body=self.fields, stream=self.streaming, served=served, urgency=urgency
            )
        payload = {**({} if self.prompt is None else {self.endpoint.prompt: self.prompt}), **self.fields}
        return adapter.request(self.endpoint, model, payload, stream=self.streaming, served=served, urgency=urgency)

    @property
    def asks_usage_itself(self) -> bool:
        """Whether a stream holds token counts that its caller did not ask for."""
        options = self.fields.get("stream_options")
        asked = isinstance(options, Mapping) and options.get("include_usage") is True
        return self.streaming and self.endpoint.asks_usage and not asked

    def answered(self, reply: Reply, counting: Counting) -> None:
        """Learn from the reply's usage."""
        chat, tools = self.endpoint is CHATS, tools_of(self.fields)
        messages = self.prompt if chat else messages_of(self.endpoint, self.prompt, self.fields)
        if chat:  # what becomes of other prompts may differ: there may be no template around them
            counting.seen(reply.decision.deployment, messages, tools, reply.usage.prompt_tokens)
        if self.session is not None and self.endpoint.limits:
            self.session.answered(messages, tools, reply)


def prepare(
    prompt: Any,
    task: Task | None,
    body: Mapping[str, Any] | None,
    *,
    endpoint: Endpoint = CHATS,
    counting: Counting | None = None,
    session: Session | None = None,
) -> tuple[Task, dict[str, Any]]:
    """The task to acquire for, and the body to send: what is sent as the most output is what is held.

    Without a task, one is made from the prompt: its tokens are those of the session's step before and what is new,
    else counted by the fingerprint of the fleet's model. Embeddings are no step of a conversation, and have no answer:
    one token is planned for. The caller's mappings are left as they are.
    Raises ``UsageError`` for what is no task, session, prompt or body.
    """
    for name, given, kind in (("task", task, Task), ("session", session, Session)):
        if given is not None and not isinstance(given, kind):
            raise UsageError(f"{name} must be a {kind.__name__} or None, got {shown(given)}")
    if task is not None:
        messages_of(endpoint, prompt, {})
    if body is not None and not isinstance(body, Mapping):
        raise UsageError(f"body must be a mapping of request fields, got {type(body).__name__}")
    out = dict(body or {})
    if endpoint is RESPONSES and out.get("background"):
        raise UsageError("body must not ask for an answer in the background; nobody would fetch it")
    limit, field_ = limit_of(endpoint, out), limit_field(endpoint)
    if task is None:
        task = _counted(endpoint, prompt, out, limit, counting, session)
    elif limit is not None and (task.max_output_tokens is None or limit > task.max_output_tokens):
        task = replace(task, max_output_tokens=limit)
    if session is not None:
        task = session.step(task)
    if field_ is None:
        return _without_an_answer(task), out
    if limit is None and task.max_output_tokens is not None:
        out[field_] = task.max_output_tokens
    return task, out


def _without_an_answer(task: Task) -> Task:
    return replace(
        task,
        max_output_tokens=1,
        expected_output_tokens=None,
        session_id=None,
        parent_session_id=None,
        step=None,
    )


def _counted(
    endpoint: Endpoint,
    prompt: Any,
    fields: Mapping[str, Any],
    limit: int | None,
    counting: Counting | None,
    session: Session | None,
) -> Task:
    fingerprint = GENERIC if counting is None else counting.fingerprint(session.deployment if session else None)
    found = count(endpoint, prompt, fields, fingerprint=fingerprint, previous=session.previous if session else None)
    return Task(
        context_tokens=found.upper,
        expected_context_tokens=found.value,
        context_source=found.source,
        max_output_tokens=limit,
        needs=frozenset({"tools"}) if tools_of(fields) else frozenset(),
    )
