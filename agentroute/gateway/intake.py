"""Reading a request's body: so many bytes at most, and in so many seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from agentroute.answers import ErrorAnswer, refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_S = 60.0
"""A body must be whole after so many seconds: a caller that trickles it would hold a connection for ever. Assumed."""


class Gone(Exception):  # noqa: N818 - nobody's error
    """The caller went away."""


class Refused(Exception):  # noqa: N818 - an answer, told by raising
    """A request is answered with an error, without asking any server."""

    def __init__(self, answer: ErrorAnswer) -> None:
        self.answer = answer
        super().__init__(answer.status)


async def body_of(scope: Scope, receive: Receive, most: int, *, within_s: float = BODY_S) -> bytes:
    """The whole body of a request, of at most ``most`` bytes; raises ``Refused`` (413, 408) or ``Gone``.

    What says its length is refused before any of it is read; what does not, as soon as it is longer.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > most):
            raise Refused(too_large(most))
    try:
        async with asyncio.timeout(within_s):
            return await _read(receive, most)
    except TimeoutError:
        raise Refused(refusal(408, f"the body did not come within {within_s:g} s", code="body_timeout")) from None


async def _read(receive: Receive, most: int) -> bytes:
    message = await receive()
    first: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body"):
        if len(first) > most:
            raise Refused(too_large(most))
        return first
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
        if len(body) > most:
            raise Refused(too_large(most))
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()


def too_large(most: int) -> ErrorAnswer:
    """The answer to a body of more than ``most`` bytes."""
    return refusal(413, f"the body is larger than the {most:,} bytes that are taken", code="body_too_large")
