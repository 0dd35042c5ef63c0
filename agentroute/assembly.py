"""The pieces of a stream, put together. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from agentroute.wire import (
    Completion,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)


@dataclass(slots=True)
class Assembly:
    """Puts the pieces of a stream together."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, list[ToolCallDelta]] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    _meant: dict[int, int] = field(default_factory=dict)
    """Which call the server means by a number, where that is not the number itself."""

    def take(self, events: Iterable[Event | Completion]) -> list[Event]:
        """Take in events of a server, and of a whole answer what had not come in pieces; all of that as events."""
        taken: list[Event] = []
        for event in events:
            new = self._missing(event) if isinstance(event, Completion) else (self._numbered(event),)
            for each in new:
                self._add(each)
            taken += new
        return taken

    @property
    def has_content(self) -> bool:
        """Whether any of the answer is there: text, reasoning or a tool call."""
        return bool(self.text or self.reasoning or self.calls)

    def _add(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                self.text.append(text)
            case ReasoningDelta(text):
                self.reasoning.append(text)
            case ToolCallDelta():
                self.calls.setdefault(event.index, []).append(event)
            case Finished(reason):
                self.finish_reason = reason
            case Usage():
                self.usage = event

    def _numbered(self, piece: Event) -> Event:
        """A piece of a tool call, with a number that no other call has: llama.cpp's responses name none, so that all
        would be 0, and what begins under a number and another id is another call.

        Only a piece with a name begins one: some servers make up a new id for each piece.
        """
        if type(piece) is not ToolCallDelta:
            return piece
        index = self._meant.get(piece.index, piece.index)
        begun = next((one.id for one in self.calls.get(index, ()) if one.id), None)
        if begun is not None and piece.name and piece.id and piece.id != begun:
            index = self._meant[piece.index] = max(self.calls) + 1
        return piece if index == piece.index else replace(piece, index=index)

    def _missing(self, whole: Completion) -> tuple[Event, ...]:
        """What of a whole answer did not come in pieces; nothing of a kind of which any did, but for arguments."""
        reasoning = (ReasoningDelta(whole.reasoning),) if whole.reasoning and not self.reasoning else ()
        text = (TextDelta(whole.text),) if whole.text and not self.text else ()
        return (*reasoning, *text, *self._missing_calls(whole.tool_calls))

    def _missing_calls(self, calls: Sequence[ToolCall]) -> Iterator[ToolCallDelta]:
        begun = sorted(self.calls)
        if not begun:
            for index, call in enumerate(calls):
                yield ToolCallDelta(index, call.id, call.name, call.arguments)
        elif len(begun) == len(calls):
            for index, call in zip(begun, calls, strict=True):
                if call.arguments and not any(piece.arguments for piece in self.calls[index]):
                    yield ToolCallDelta(index, arguments=call.arguments)

    def completion(self) -> Completion:
        """The whole answer."""
        return Completion(
            text="".join(self.text),
            tool_calls=tuple(_joined(self.calls[index]) for index in sorted(self.calls)),
            reasoning="".join(self.reasoning),
            finish_reason=self.finish_reason,
            usage=self.usage,
        )


def _joined(pieces: Sequence[ToolCallDelta]) -> ToolCall:
    return ToolCall(
        id=next((piece.id for piece in pieces if piece.id), None),
        name=next((piece.name for piece in pieces if piece.name), ""),
        arguments=paired("".join(piece.arguments for piece in pieces)),
    )


def paired(text: str) -> str:
    """``text`` with the halves of a character that came in two pieces put together.

    JSON may write a character beyond 16 bits as two halves (``\\ud83d\\ude00``), and a server may cut between them. A
    half that stays alone has no bytes: nobody could print the answer, or send it as part of the next prompt.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
