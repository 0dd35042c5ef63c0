"""What a request needs of whoever takes it, as its body shows. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentroute.shape.model import Capability


def needs_of(body: Mapping[str, Any]) -> frozenset[Capability]:
    """What a body needs of a deployment."""
    found: set[Capability] = set()
    if body.get("tools"):
        found.add("tools")
        if body.get("parallel_tool_calls") is True:
            found.add("parallel_tools")
    text = body.get("text")
    for format_ in (body.get("response_format"), text.get("format") if isinstance(text, Mapping) else None):
        if isinstance(format_, Mapping) and format_.get("type") == "json_schema":
            found.add("json_schema")
    if body.get("logprobs") or body.get("top_logprobs"):
        found.add("logprobs")
    messages = body.get("messages") or body.get("input")
    for message in messages if isinstance(messages, list | tuple) else ():
        content = message.get("content") if isinstance(message, (dict, Mapping)) else None
        for part in content if isinstance(content, list | tuple) else ():
            kind = part.get("type") if isinstance(part, (dict, Mapping)) else None
            if kind in ("image_url", "input_image", "image"):
                found.add("vision")
            elif kind in ("input_audio", "audio_url", "audio"):
                found.add("audio")
    return frozenset(found)
