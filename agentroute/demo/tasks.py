"""The three tasks of the demo, as an agent would have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentroute.task import Slo, Task

DOCUMENT = """\
The harbour at Ostvik has two basins. The outer basin is deep and open to the west; large ships wait there for
the tide. The inner basin lies behind a lock and holds the fishing boats, the pilot's launch and, since the
spring of 1987, a small ferry that crosses to the islands four times a day. For most of its history the town
had no bridge over the lock, and whoever lived on the north side walked around the head of the inner basin, a
way of some twenty minutes.

In the winter of 1994 the town council asked three engineers for a bridge. The first proposed a lifting bridge
of steel, painted green, with a house for a keeper. The second proposed a swing bridge that a single person
could open by hand. The third wrote that no bridge was needed: the lock gates were wide enough to carry a
footpath, if a railing was added and the gates were kept shut for ten minutes of every half hour. The council
liked the price of the third proposal and the look of the first, and for two years decided nothing.

The matter was settled by the ferry. In October 1996 a storm broke the landing on the north side, and for five
weeks every passenger had to be carried through the lock. The ferry's master kept a log of it. On an ordinary
day the gates opened thirty-one times, and on the day before the autumn market fifty-eight times; each opening
took six minutes. A footpath on the gates would have been shut for most of the day, just when people wanted
it. The log was read aloud in the council, and the swing bridge was ordered the same evening.

The bridge was opened in May 1998. It is forty-two metres long, turns on a ring of rollers that came from a
railway turntable, and can still be opened by one person, though since 2009 a motor does the work. A count in
its first summer found nine hundred crossings a day, more than the town has households. The keeper's house,
which had been drawn only for the lifting bridge, was built all the same, because the council had promised it
to the pilot's widow. She sold coffee from its window until 2015, and her daughter sells it there now.
"""

QUESTIONS = (
    "Name a fruit that is yellow.",
    "What is two plus three?",
    "Name the capital of France.",
    "What colour is the sky on a clear day?",
    "Name an animal that can fly.",
    "What do bees make?",
    "Name a month with thirty days.",
    "What is frozen water called?",
)

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Demand:
    """A task in words: its conversations (siblings when there are several) and what it asks of the router."""

    title: str
    conversations: tuple[tuple[Message, ...], ...]
    task: Task


def demands() -> tuple[Demand, ...]:
    """A document to summarise, a fan-out of eight short questions, and one interactive question."""
    document = (_user(f"Summarise this in one sentence.\n\n{DOCUMENT}"),)
    questions = tuple((_user(question),) for question in QUESTIONS)
    interactive = (_user("Say hello and tell me what you can do."),)
    longest = max(questions, key=lambda question: len(question[0]["content"]))
    sibling = Task.from_messages(longest, max_output_tokens=32, concurrency=len(questions), group="questions")
    return (
        Demand("a document to summarise", (document,), Task.from_messages(document, max_output_tokens=32)),
        Demand("a fan-out of eight short questions", questions, sibling),
        Demand(
            "one interactive question",
            (interactive,),
            Task.from_messages(interactive, max_output_tokens=32, ttft_ms=Slo(2_000, hard=False)),
        ),
    )


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
