"""What of a conversation becomes text in the prompt, and what of it is counted by the piece."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import agentroute.tokens.marks as marks

_TEXT = frozenset({"text", "input_text", "output_text"})
_IMAGES = frozenset({"image", "image_url", "input_image"})
_AUDIO = frozenset({"audio", "audio_url", "input_audio"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages and tools as text, and how many there are of what no text tells the size of."""

    text: str
    tools: str
    messages: int
    tool_calls: int
    images: int
    audio: int

    @property
    def assumed(self) -> int:
        """Tokens of the images and of the audio: assumed, for nothing in a message says their size."""
        return self.images * marks.IMAGE + self.audio * marks.AUDIO

    @property
    def assumed_at_most(self) -> int:
        """The same, at most."""
        return self.images * marks.IMAGE_AT_MOST + self.audio * marks.AUDIO_AT_MOST


def prompt_of(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> Prompt:
    """The text of ``messages`` and ``tools``: everything but roles, which belong to a message's marks."""
    texts: list[str] = []
    images = audio = calls = 0
    for message in messages:
        for key, value in message.items():
            if key == "content":
                if isinstance(value, str):
                    texts.append(value)
                    continue
                for part in value if isinstance(value, list | tuple) else (value,):
                    kind = _kind(part)
                    if kind in _IMAGES:
                        images += 1
                    elif kind in _AUDIO:
                        audio += 1
                    elif kind in _TEXT and isinstance(part.get("text"), str):
                        texts.append(part["text"])
                    else:
                        texts.append(_bare(part))
            elif key != "role":
                calls += len(value) if key == "tool_calls" and isinstance(value, list | tuple) else 0
                texts.append(_bare({key: value}))
    schemas = json.dumps(list(tools), ensure_ascii=False, default=str) if tools else ""
    return Prompt("\n".join(texts), schemas, len(messages), calls, images, audio)


def _kind(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, (dict, Mapping)) else None
    return kind if isinstance(kind, str) else None


def _bare(value: Any) -> str:
    """A value much as JSON, but strings as they are: arguments are JSON in a string, and templates write them bare."""
    if isinstance(value, str):
        return value
    out: list[str] = []
    _write(value, out)
    return "".join(out)


def _write(value: Any, out: list[str]) -> None:
    # What JSON is made of comes first: whether something is a Mapping takes longer to tell than all the rest.
    if isinstance(value, str):
        out.append(value)
    elif value is None or isinstance(value, bool):
        out.append(str(value).lower())
    elif isinstance(value, int | float):
        out.append(str(value))
    elif isinstance(value, list | tuple):
        out.append("[")
        for inner in value:
            _write(inner, out)
            out.append(", ")
        out.append("]")
    elif isinstance(value, (dict, Mapping)):
        out.append("{")
        for key, inner in value.items():
            if isinstance(inner, str):
                out.append(f'"{key}": "{inner}", ')
            else:
                out.append(f'"{key}": ')
                _write(inner, out)
                out.append(", ")
        out.append("}")
    else:
        out.append(str(value))
