"""Reading a ``config.json``: every key that is read is remembered, so that what was not understood can be named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from agentroute.errors import UsageError, shown
from agentroute.origin import Frozen
from agentroute.shape.hf_keys import judged

MAX_LAYERS = 10_000
"""More layers than any model has: what a ``config.json`` may ask for at most."""

F = TypeVar("F", bound=Frozen)


def changed(part: F, update: Mapping[str, Any]) -> F:
    """A part of a shape with some of its values changed, and checked again."""
    return type(part).model_validate({**part.model_dump(), **update})


class Config:
    """The part of a ``config.json`` that describes the language model, with its family's defaults.

    ``name`` is for messages, ``harmless`` are the keys of its family that change nothing. A key that is missing, or is
    not what it must be, is a ``UsageError`` that names it.
    """

    def __init__(
        self, name: str, data: Mapping[str, Any], defaults: Mapping[str, Any], harmless: Iterable[str] = ()
    ) -> None:
        self.name = name
        self._said = {key: value for key, value in data.items() if value is not None}
        self._data = {**defaults, **self._said}
        self._read: set[str] = {*harmless}
        self.layers = 0

    def error(self, message: str) -> UsageError:
        """What is wrong, as an error that names the model."""
        return UsageError(f"the config of {self.name!r} {message}")

    def get(self, key: str) -> Any:
        """A key's value, or ``None``."""
        self._read.add(key)
        return self._data.get(key)

    def ignore(self, *keys: str) -> None:
        """Keys that are understood, and change nothing here."""
        self._read.update(keys)

    def number(self, *keys: str) -> int | None:
        """The whole number, 0 or more, under whichever of ``keys`` is there; ``None`` without one.

        Several keys are names of one thing: when two of them are there, they must say the same.
        """
        found: tuple[str, int] | None = None
        for key in keys:
            value = self.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self.error(f"has {key} = {shown(value)}; it must be a whole number, 0 or more")
            if found and value != found[1]:
                raise self.error(f"has {found[0]} = {shown(found[1])} and {key} = {shown(value)}; they must be equal")
            found = found or (key, value)
        return found[1] if found else None

    def positive(self, *keys: str) -> int | None:
        """As ``number``, but above 0 when it is there."""
        value = self.number(*keys)
        if value == 0:
            key = next(key for key in keys if self.get(key) is not None)
            raise self.error(f"has {key} = 0; it must be above 0")
        return value

    def need(self, *keys: str) -> int:
        """As ``positive``, but one of ``keys`` must be there."""
        value = self.positive(*keys)
        if value is None:
            raise self.error(f"does not say {' or '.join(keys)}; its shape is unknown without it")
        return value

    def multiple(self, what: str, divisor: str) -> None:
        """Refuse the config unless the number under ``what`` is a multiple of that under ``divisor``."""
        if self.need(what) % self.need(divisor):
            raise self.error(
                f"has {what} = {shown(self.need(what))} and {divisor} = {shown(self.need(divisor))}; the first must be "
                "a multiple of the second"
            )

    def flag(self, key: str, default: bool = False) -> bool:
        """A yes or no."""
        value = self.get(key)
        if not isinstance(value, bool | None):
            raise self.error(f"has {key} = {shown(value)}; it must be true or false")
        return default if value is None else value

    def listed(self, key: str) -> list[Any] | None:
        """A list with one entry for each layer; ``None`` without one."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) != self.layers:
            raise self.error(f"has {key} = {shown(value)}; it must list all {self.layers} layers")
        return list(value)

    def kinds(self, key: str, known: Mapping[str, str]) -> list[str] | None:
        """A list with the kind of each layer, translated by ``known``; a kind that is not known is an error."""
        value = self.listed(key)
        strange = sorted({str(kind) for kind in value or () if not isinstance(kind, str) or kind not in known})
        if strange:
            raise self.error(f"has {key} with {', '.join(map(shown, strange))}; understood: {', '.join(known)}")
        return None if value is None else [known[kind] for kind in value]

    def count_layers(self, default: int | None = None) -> None:
        """Set ``layers`` from the config, or from ``default``."""
        self.layers = self.positive("num_hidden_layers") or default or self.need("num_hidden_layers")
        if self.layers > MAX_LAYERS:
            raise self.error(f"has num_hidden_layers = {shown(self.layers)}; at most {MAX_LAYERS} are understood")

    def unread(self) -> tuple[list[str], list[str]]:
        """What says something and was not read: by its name about the shape, and other keys that are not known."""
        left = {key: value for key, value in self._said.items() if value and key not in self._read}
        shapes = sorted(f"{_name(key)} = {shown(value)}" for key, value in left.items() if judged(key) == "shapes")
        return shapes, sorted(_name(key) for key in left if judged(key) == "strange")


def unlisted(data: Mapping[str, Any]) -> list[str]:
    """The keys that say something and are not known to be harmless."""
    return sorted(_name(key) for key, value in data.items() if value and judged(key) != "harmless")


def _name(key: object) -> str:
    return key if isinstance(key, str) and key.isidentifier() and len(key) <= 60 else shown(key)


def some(names: list[str], most: int = 20) -> str:
    """The first of many names, for a sentence."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
