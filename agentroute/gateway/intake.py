"""Reading a request's body: so many bytes at most, and in so many seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from agentroute.answers import ErrorAnswer, refusal
from agentroute.errors import RefusedError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_S = 60.0
"""A body must be whole after so many seconds: a caller that trickles it would hold a connection for ever. Assumed."""

_JSON = (b"application/json", b"")


async def body_of(scope: Scope, receive: Receive, most: int, *, within_s: float = BODY_S) -> bytes:
    """The whole body of a request, of at most ``most`` bytes.

    Raises ``RefusedError`` (413, 408, 415), or ``ConnectionAbortedError`` where the caller goes away. What says its
    length is refused before any of it is read; what does not, as soon as it is longer. What says that it is no JSON is
    refused, too: a browser sends a text, or a form, for any page to any address, and asks first about JSON alone.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > most):
            raise RefusedError(too_large(most))
        if name == b"content-type" and value.partition(b";")[0].strip().lower() not in _JSON:
            raise RefusedError(
                refusal(
                    415, "the body must be JSON, sent as content-type: application/json", code="unsupported_media_type"
                )
            )
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise RefusedError(refusal(415, "the body must not be compressed", code="unsupported_media_type"))
    try:
        async with asyncio.timeout(within_s):
            return await _read(receive, most)
    except TimeoutError:
        raise RefusedError(refusal(408, f"the body did not come within {within_s:g} s", code="body_timeout")) from None


async def _read(receive: Receive, most: int) -> bytes:
    message = await receive()
    first: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body"):
        if len(first) > most:
            raise RefusedError(too_large(most))
        return first
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError("the caller went away")
        body += message.get("body", b"")
        if len(body) > most:
            raise RefusedError(too_large(most))
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()


def too_large(most: int) -> ErrorAnswer:
    """The answer to a body of more than ``most`` bytes."""
    return refusal(413, f"the body is larger than the {most:,} bytes that are taken", code="body_too_large")
